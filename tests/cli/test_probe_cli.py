"""`gatebench probe` on real (tiny) runs: files, tables, JSON, figures, and every refusal in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gatebench.cli import app
from gatebench.errors import UserError
from gatebench.report import intervention_table, probe_figures, probe_files
from tests.training.tiny_run import RunTiny, reference, run_tiny, tiny_corpus, tiny_recipe

__all__ = ["reference", "run_tiny", "tiny_corpus", "tiny_recipe"]


def probe(*words: object) -> Result:
    return CliRunner().invoke(app, ["probe", *map(str, words)], env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, run_tiny: RunTiny) -> dict[str, Path]:
    """Baseline and g1_headwise, trained for 20 steps with snapshots at 5, 10 and 15."""
    root = tmp_path_factory.mktemp("probed") / "tiny"
    for variant in ("baseline", "g1_headwise"):
        run_tiny(root / variant, "train.snapshot_every=5", variant=variant)
    return {variant: root / variant for variant in ("baseline", "g1_headwise")}


def content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def refusal(*words: object) -> str:
    error = probe(*words).exception
    assert isinstance(error, UserError), error
    assert "\n" not in str(error)
    return str(error)


def test_the_probes_of_a_run_are_those_that_it_ended_with(runs: dict[str, Path]) -> None:
    run = runs["g1_headwise"]
    result = probe(run, "--no-figures")
    assert result.exit_code == 0, result.output
    again, then = content(run / "probe" / "probes.json"), content(run / "probes.json")
    assert {key: again[key] for key in then} == then
    with np.load(run / "probe" / "probes.npz") as ours, np.load(run / "probes.npz") as theirs:
        assert set(ours.files) == set(theirs.files)
        for name in ours.files:
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert "g1_headwise s0" in result.stdout and "share / floor" in result.stdout


def test_what_the_run_left_is_not_touched(runs: dict[str, Path]) -> None:
    run = runs["g1_headwise"]
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "probe/" not in str(path)}
    assert probe(run, "--intervene", "block-first", "--every-checkpoint", "--no-figures").exit_code == 0
    assert {path: path.read_bytes() for path in kept} == kept
    new = {path.name for path in run.iterdir()} - {path.relative_to(run).parts[0] for path in kept}
    assert new <= {"probe"}


def test_every_checkpoint_is_the_initial_state_each_snapshot_and_the_last(runs: dict[str, Path]) -> None:
    run = runs["baseline"]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "model.safetensors",
        *(f"weights_{step:07d}.safetensors" for step in (5, 10, 15)),
    ]
    result = probe(run, "--every-checkpoint", "--no-figures", "--json")
    rows = json.loads(result.stdout)["runs"][0]["checkpoints"]
    assert [row["step"] for row in rows] == [0, 5, 10, 15, 20]
    assert [row["tokens"] for row in rows] == [0, 640, 1280, 1920, 2560]
    assert rows[0]["train_loss"] is None and rows[1]["train_loss"] > rows[-1]["train_loss"]
    final = content(run / "probes.json")
    assert {key: rows[-1][key] for key in ("first_token_share", "m_act")} == {
        key: final[key] for key in ("first_token_share", "m_act")
    }
    assert len({row["m_act"] for row in rows}) == 5
    with np.load(run / "probe" / "checkpoints.npz") as arrays:
        assert arrays["step"].tolist() == [0, 5, 10, 15, 20]
        assert arrays["first_token_share"].shape == (5, 2, 4)
        assert arrays["activation_max"].shape == (5, 2, 4)


def test_snapshots_change_neither_the_run_nor_its_name(runs: dict[str, Path], reference: Path) -> None:
    """The reference run of the same seed kept none."""
    ours, theirs = content(runs["g1_headwise"] / "summary.json"), content(reference / "summary.json")
    for key in ("fingerprint", "curve_hash", "avg_ppl", "m_act"):
        assert ours[key] == theirs[key], key
    assert "kept no checkpoints" in refusal(reference, "--every-checkpoint", "--no-figures")


def test_interventions_are_one_table_over_variants(runs: dict[str, Path], tmp_path: Path) -> None:
    result = probe(*runs.values(), "--intervene", "all", "--no-figures", "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    names = ["none", "mean-gate", "block-first", "zero-first-value", "clip-activations"]
    assert [(row["variant"], row["intervention"]) for row in found["interventions"]] == [
        (variant, name) for variant in ("baseline", "g1_headwise") for name in names
    ]
    rows = {(row["variant"], row["intervention"]): row for row in found["interventions"]}
    assert rows["baseline", "mean-gate"]["effect"] == "no gate" and rows["baseline", "mean-gate"]["loss"] is None
    gated = rows["g1_headwise", "mean-gate"]
    assert gated["effect"] == "one seed" and gated["changes"]["all"]["low"] <= gated["changes"]["all"]["change"]
    assert set(gated["changes"]) == {"all", "english", "chinese", "code", "math", "law", "literature"}
    blocked = rows["baseline", "block-first"]
    assert blocked["first_token_share"] == pytest.approx(1 / 32, abs=1e-6)
    untouched = rows["baseline", "none"]
    assert blocked["loss"] == pytest.approx(untouched["loss"] + blocked["changes"]["all"]["change"])
    tokens = {domain: content(runs["baseline"] / "eval.json")["domains"][domain] for domain in ("english", "math")}
    effects = found["runs"][0]["interventions"][0]["losses"]
    for domain, facts in tokens.items():
        assert effects[domain]["tokens"] == facts["tokens"]
        assert effects[domain]["loss"] == pytest.approx(facts["nll_sum"] / facts["tokens"], rel=1e-6)
    assert (tmp_path / "out" / "interventions.md").read_text(encoding="utf-8").count("\n| ") == 11


def test_synthetic_data_splits_copies_from_the_rest(tmp_path: Path, run_synthetic: Path) -> None:
    result = probe(run_synthetic, "--intervene", "block-first", "--no-figures", "--json")
    assert result.exit_code == 0, result.output
    losses = json.loads(result.stdout)["runs"][0]["interventions"][0]["losses"]
    assert list(losses) == ["all", "copy", "other"]
    assert losses["copy"]["tokens"] + losses["other"]["tokens"] == losses["all"]["tokens"]
    assert 0.03 < losses["copy"]["tokens"] / losses["all"]["tokens"] < 0.2  # triggers come at a rate of 0.1
    assert "copies" in probe(run_synthetic, "--intervene", "block-first", "--no-figures").stdout


@pytest.fixture(scope="module")
def run_synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps of the sink lab."""
    from gatebench.evaluation.evaluate import evaluate
    from gatebench.recipes import make_run
    from gatebench.training.run import run

    out = tmp_path_factory.mktemp("sink_lab") / "run"
    settings = ("train.steps=4", "train.batch_size=4", "optim.warmup_steps=1", "data.seq_len=32", "train.compile=off",
                "eval.tokens_per_domain=2048", "eval.probe_tokens=1024", "train.accelerator=cpu",
                "train.precision=fp32")  # fmt: skip
    run(make_run("sink_lab", "baseline", 0, settings), evaluate, out=out, threads=1)
    return out


@pytest.mark.slow
def test_every_figure_is_drawn_for_one_run_and_for_several(runs: dict[str, Path], tmp_path: Path) -> None:
    asked = ("--intervene", "all", "--every-checkpoint", "--attention-map", "1", "--attention-map", "2")
    assert probe(runs["g1_headwise"], *asked).exit_code == 0
    one = {path.name for path in (runs["g1_headwise"] / "probe" / "figures").iterdir()}
    names = ("sink_heads", "first_keys", "activations", "massive_activations", "sdpa_output", "value_norms",
             "gate_scores", "gate_histograms", "over_training", "interventions", "attention_maps")  # fmt: skip
    assert one == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf", "svg")}
    assert probe(*runs.values(), *asked, "--out", tmp_path).exit_code == 0
    several = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    maps = {"attention_maps_baseline_s0", "attention_maps_g1_headwise_s0"}
    assert several == {*names[:-1], *maps}


def test_what_was_measured_at_another_length_is_not_shown_beside_new_probes(runs: dict[str, Path]) -> None:
    run = runs["baseline"]
    assert probe(run, "--intervene", "block-first", "--every-checkpoint", "--no-figures").exit_code == 0
    assert probe_files.load(run).effects and probe_files.load(run).checkpoints
    assert probe(run, "--seq-len", "16", "--no-figures").exit_code == 0
    loaded = probe_files.load(run)
    assert loaded.summary["seq_len"] == 16 and not loaded.effects and not loaded.checkpoints


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--intervene", "block"], "did you mean block-first"),
        (["--intervene", "block-first:layers=7"], "no layer 7; legal: 1 to 2"),
        (["--attention-map", "3"], "layer 3: legal: 1 to 2"),
        (["--attention-map", "0"], "layers counted from 1"),
        (["--seq-len", "100000"], "no held-out document that long"),
    ],
)
def test_bad_options_are_refused_in_one_line_and_nothing_is_written(
    reference: Path, words: list[str], message: str
) -> None:
    assert message in refusal(reference, *words, "--no-figures")
    assert not (reference / "probe").exists()


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, runs: dict[str, Path]) -> None:
    assert "no such directory" in refusal(tmp_path / "nowhere")
    assert "holds no config.yaml" in refusal(tmp_path)
    assert "named twice" in refusal(runs["baseline"], runs["baseline"])
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_bytes((runs["baseline"] / "config.yaml").read_bytes())
    assert "not trained to its end" in refusal(unfinished)
    (unfinished / "summary.json").write_text('{"status": "diverged"}', encoding="utf-8")
    assert "the run diverged" in refusal(unfinished)


# --- the table over seeds, from numbers


def seed_run(seed: int, change: float, variant: str = "baseline") -> probe_files.ProbedRun:
    def effect(name: str, loss: float, by: float) -> dict[str, Any]:
        losses = {"all": {"loss": loss, "change": by, "low": by - 1, "high": by + 1, "tokens": 10}}
        figures = {"first_token_share": 0.2, "first_token_excess": 2.0, "sink_rate": 0.5, "m_act": 9.0}
        return {"intervention": name, "applies": True, "losses": losses, "gate_mean": None, **figures}

    rows = [effect("none", 3.0, 0.0), effect("block-first", 3.0 + change, change)]
    return probe_files.ProbedRun(f"x/{seed}", variant, seed, {}, {}, effects=rows)


def blocked_row(*changes: float) -> intervention_table.Row:
    return intervention_table.rows([seed_run(seed, change) for seed, change in enumerate(changes)])[1]


def test_one_seed_makes_no_claim_and_keeps_the_interval_over_windows() -> None:
    row = blocked_row(0.5)
    assert row.changes is not None
    assert (row.effect, row.changes["all"].low, row.changes["all"].high) == ("one seed", -0.5, 1.5)


def test_seeds_give_a_t_interval_and_a_word() -> None:
    """0.10, 0.11, 0.12: mean 0.11, sd 0.01, t(2) = 4.3027, half-width 0.02484."""
    row = blocked_row(0.10, 0.11, 0.12)
    assert row.changes is not None
    change = row.changes["all"]
    assert change.change == pytest.approx(0.11) and change.low == pytest.approx(0.11 - 0.02484, abs=1e-5)
    assert (row.effect, row.n_seeds) == ("costs", 3)
    assert blocked_row(-0.10, -0.11, -0.12).effect == "helps"
    assert blocked_row(0.1, -0.1, 0.05).effect == "not resolvable"


def test_the_baseline_comes_first_and_seeds_are_pooled() -> None:
    runs = [seed_run(0, 0.1, "g1_headwise"), seed_run(0, 0.1), seed_run(1, 0.2)]
    table = intervention_table.rows(runs)
    assert [(row.variant, row.n_seeds) for row in table] == [("baseline", 2)] * 2 + [("g1_headwise", 1)] * 2
    markdown = intervention_table.to_markdown(table)
    assert "| baseline | block-first | 2 | 3.1500 | +0.1500 ± 0.6353 |" in markdown


def test_a_folder_without_probes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no probes here"):
        probe_files.load(tmp_path)


def test_no_figure_is_drawn_of_what_was_not_measured(tmp_path: Path, runs: dict[str, Path]) -> None:
    """A baseline's probes alone: no gate, no checkpoint, no intervention, no map."""
    assert probe(runs["baseline"], "--seq-len", "16", "--no-figures").exit_code == 0
    drawn = probe_figures.write([probe_files.load(runs["baseline"])], {}, tmp_path)
    stems = {path.stem for path in drawn}
    assert {"gate_scores", "gate_histograms", "over_training", "interventions"}.isdisjoint(stems)
    assert {"sink_heads", "first_keys", "activations", "massive_activations", "sdpa_output"} <= stems
