"""`gatebench probe` on real (tiny) runs: files, tables, JSON, figures, and every refusal in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatebench.errors import UserError
from gatebench.evaluation.evaluate import evaluate
from gatebench.report.analysis import interventions
from gatebench.report.figures import probe_figures
from gatebench.report.read import probe_files
from gatebench.report.tables import intervention_table
from gatebench.sweep.plan import plan
from gatebench.sweep.study import load_study
from gatebench.training.run import run as train
from tests.cli.commands import Command
from tests.training.tiny_run import RunTiny, reference, run_tiny, tiny_corpus, tiny_recipe

__all__ = ["reference", "run_tiny", "tiny_corpus", "tiny_recipe"]


probe = Command("probe")


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
    message = probe.refusal(*words)
    assert "\n" not in message
    return message


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
    assert "residual sinks" in result.stdout and "kurtosis" in result.stdout


def test_what_the_run_left_is_not_touched(runs: dict[str, Path]) -> None:
    run = runs["g1_headwise"]
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "probe/" not in str(path)}
    assert probe(run, "--intervene", "block-first", "--every-checkpoint", "--no-figures").exit_code == 0
    assert {path: path.read_bytes() for path in kept} == kept
    new = {path.name for path in run.iterdir()} - {path.relative_to(run).parts[0] for path in kept}
    assert new <= {"probe"}


def test_every_checkpoint_is_the_initial_state_each_snapshot_and_the_last(runs: dict[str, Path]) -> None:
    run = runs["baseline"]
    kept = ["model.safetensors", *(f"weights_{step:07d}.safetensors" for step in (5, 10, 15))]
    files = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert files == sorted([*kept, *(f"{name}.sha256" for name in kept)])
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
    markdown = (tmp_path / "out" / "interventions.md").read_text(encoding="utf-8")
    assert markdown.count("\n| ") == 3 + 11
    assert "| variant | mean-gate | block-first | zero-first-value | clip-activations |" in markdown
    assert "| baseline | no gate | " in markdown and "context 32; 512 tokens probed; seeds 0." in markdown


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
    names = ("sink_heads", "first_keys", "destinations", "activations", "massive_activations", "sdpa_output",
             "value_norms", "gate_scores", "gate_histograms", "over_training", "interventions",
             "attention_maps")  # fmt: skip
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
    assert "legal: run directories, or --study STUDY" in refusal()
    assert "go with --study alone" in refusal(runs["baseline"], "--seeds", "2")
    assert "one or the other" in refusal(runs["baseline"], "--study", "sinks")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_bytes((runs["baseline"] / "config.yaml").read_bytes())
    assert "the run is not finished; legal: a finished run" in refusal(unfinished)
    (unfinished / "summary.json").write_text('{"status": "diverged"}', encoding="utf-8")
    assert "the run diverged" in refusal(unfinished)


# --- where attention goes


def test_destinations_are_a_table_by_layer_and_in_the_json(runs: dict[str, Path], tmp_path: Path) -> None:
    result = probe(*runs.values(), "--no-figures", "--json", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["destinations"]
    assert [(row["variant"], row["layer"], row["queries"]) for row in found] == [
        (variant, layer, "all") for variant in ("baseline", "g1_headwise") for layer in (None, 1, 2)
    ]
    assert found == content(tmp_path / "destinations.json")
    for row in found:
        assert list(row["shares"]) == ["first", "self", "previous", "rest"]
        assert sum(row["shares"].values()) == pytest.approx(1.0, abs=1e-5)
    own = content(runs["baseline"] / "probes.json")  # as the run itself left it
    assert found[0]["shares"]["first"] == pytest.approx(own["attention_idle_first"])
    assert found[0]["norms"]["sdpa"] == found[0]["norms"]["gated"] == pytest.approx(own["norm_sdpa_idle"])
    assert found[3]["norms"]["gated"] < found[3]["norms"]["sdpa"]
    markdown = (tmp_path / "destinations.md").read_text(encoding="utf-8")
    assert "## All layers" in markdown and "## Layer 2" in markdown and "trigger" not in markdown.split("\n## ")[1]


def test_synthetic_data_tells_idle_queries_from_triggers(run_synthetic: Path) -> None:
    result = probe(run_synthetic, "--no-figures", "--json")
    rows = json.loads(result.stdout)["destinations"]
    assert [row["queries"] for row in rows] == ["idle", "trigger"]
    assert list(rows[0]["shares"]) == ["first", "self", "previous", "trigger", "rest"]
    assert rows[0]["values"] == rows[1]["values"] and list(rows[0]["values"]) == ["first", "trigger", "ordinary"]
    printed = probe(run_synthetic, "--no-figures").stdout
    assert "Where attention goes" in printed and "after G5" in printed


# --- the runs of a study

STUDY = """
recipe: {recipe}
variants: [g1_headwise]
seeds: 2
overrides: {{settings: {{recipe: [], hot: [optim.lr=2e-2]}}}}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: str) -> Iterator[str]:
    """A study of two settings, its runs made as a sweep would make them, in a project folder of its own."""
    root = tmp_path_factory.mktemp("study")
    path = root / "mine.yaml"
    path.write_text(STUDY.format(recipe=tiny_recipe), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEBENCH_ROOT", str(root))
        patch.setenv("GATEBENCH_RUNS", str(root / "results" / "runs"))
        for run in plan(load_study(str(path))):
            assert run.directory is not None
            train(run.config, evaluate, out=run.directory, threads=1)
        yield str(path)


def test_a_study_has_a_table_and_figures_a_setting(study: str) -> None:
    result = probe("--study", study, "--intervene", "block-first", "--json", "--no-figures")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["study"] == study and [part["settings"] for part in found["combinations"]] == ["recipe", "hot"]
    for part in found["combinations"]:
        assert [(run["variant"], run["seed"]) for run in part["runs"]] == [
            *(("baseline", 0), ("g1_headwise", 0), ("baseline", 1), ("g1_headwise", 1)),
        ]
        assert [row["n_seeds"] for row in part["interventions"]] == [2] * 4
        assert {row["n_seeds"] for row in part["destinations"]} == {2}
    shares = [part["destinations"][0]["shares_by_seed"]["first"] for part in found["combinations"]]
    assert len({*shares[0], *shares[1]}) == 4
    folder = Path(study).parent / "results" / "mine" / "probe"
    names = ("destinations.md", "destinations.json", "interventions.md", "interventions_table.json")
    assert found["files"] == [str(folder / setting / name) for setting in ("recipe", "hot") for name in names]
    assert all(Path(name).is_file() for name in found["files"])


def test_fewer_seeds_and_settings_of_a_study(study: str) -> None:
    result = probe("--study", study, "--seeds", "1", "--no-figures")
    assert result.exit_code == 0, result.output
    assert "baseline s0" in result.stdout and "baseline s1" not in result.stdout


def test_a_study_that_is_not_trained_says_what_trains_it(study: str) -> None:
    message = refusal("--study", study, "--seeds", "3", "--no-figures")
    assert "study 'mine': 4 of 12 runs are missing or not finished, the first baseline seed 2 recipe" in message
    assert f"`gatebench sweep {study} --seeds 3` trains them" in message
    message = refusal("--study", study, "--set", "train.steps=30", "--no-figures")
    assert "8 of 8 runs" in message and "--set train.steps=30` trains them" in message
    assert "not found" in refusal("--study", "nothing")


# --- the table over seeds, from numbers


def seed_run(seed: int, change: float, variant: str = "baseline") -> probe_files.ProbedRun:
    def effect(name: str, loss: float, by: float) -> dict[str, Any]:
        losses = {"all": {"loss": loss, "change": by, "low": by - 1, "high": by + 1, "tokens": 10}}
        figures = {"first_token_share": 0.2, "first_token_excess": 2.0, "sink_rate": 0.5, "m_act": 9.0}
        return {"intervention": name, "applies": True, "losses": losses, "gate_mean": None, **figures}

    rows = [effect("none", 3.0, 0.0), effect("block-first", 3.0 + change, change)]
    summary = {"corpus": "made_up", "bos": True, "seq_len": 8, "probe_tokens": 64}
    return probe_files.ProbedRun(f"x/{seed}", variant, seed, summary, {}, effects=rows)


def blocked_row(*changes: float) -> interventions.Row:
    return interventions.rows([seed_run(seed, change) for seed, change in enumerate(changes)])[1]


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
    table = interventions.rows(runs)
    assert [(row.variant, row.n_seeds) for row in table] == [("baseline", 2)] * 2 + [("g1_headwise", 1)] * 2
    markdown = intervention_table.document(table, runs).to_markdown()
    assert "| variant | block-first |" in markdown and "| baseline | +0.1500 ± 0.6353 |" in markdown
    assert "| **baseline**, 2 seeds | none | 3.0000 |  | 0.2000 | 2.00 | 9.0 |  |" in markdown
    assert "|  | block-first | 3.1500 | +0.1500 ± 0.6353 | 0.2000 | 2.00 | 9.0 | not resolvable |" in markdown
    assert "Corpus made_up; BOS; context 8; 64 tokens probed; seeds 0, 1." in markdown


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
