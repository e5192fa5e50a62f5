"""`gatebench plan` and `gatebench sweep`, as a user calls them; runs are stood in for by directories from numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gatebench import paths
from gatebench.report.figures import save
from gatebench.report.folders import folder_name
from gatebench.sweep import pool
from gatebench.sweep.job import Job
from tests.cli.commands import Call
from tests.report.synthetic_runs import diverged, summary, uniform_floor, write_run

STUDY = """
description: What a test asks
recipe: sink_lab
variants: [g1_headwise]
seeds: 2
tables: [4]
"""


class Trainer:
    """Stands in for `pool.run_all`: writes a finished run for each job that has none."""

    def __init__(self) -> None:
        self.started: list[Job] = []
        self.fails: dict[str, int] = {}
        self.diverges: set[str] = set()

    def __call__(self, jobs: Sequence[Job], *_: object) -> list[Job]:
        for job in jobs:
            if job.done:
                continue
            self.started.append(job)
            if job.name in self.fails:
                job.exit_code = self.fails[job.name]
                (job.directory / "log.txt").write_text("no space left\n", encoding="utf-8")
                continue
            self._write(job)
        return [job for job in jobs if not job.done]

    def _write(self, job: Job) -> None:
        variant, seed = job.config.variant, job.config.seed
        share = (0.05 if variant == "g1_headwise" else 0.15) + 0.01 * seed
        changes: dict[str, Any] = {
            "run": job.directory.name,
            "recipe": job.config.recipe,
            "overrides": job.config.overrides,
            "corpus": "bigram_backcopy",
            "vocab_size": 68,
            "first_token_share": share,
            "first_token_excess": share / uniform_floor(),
            "final_train_loss": 2.4,
            "excess_loss": 0.002 + 0.001 * seed,
            "excess_loss_copy": 0.001,
            "excess_loss_other": 0.002,
            "copy_accuracy": 0.99,
            "entropy_floor": 2.398,
        }
        row = summary(variant, seed, 11.0 + seed, **changes)
        if job.name in self.diverges:
            row = diverged(variant, seed, 7) | {key: changes[key] for key in ("run", "recipe", "overrides", "corpus")}
        written = write_run(job.directory.parent / "written", row, 20, probes="shares")
        for file in written.iterdir():
            file.rename(job.directory / file.name)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    made = Trainer()
    monkeypatch.setattr(pool, "run_all", made)
    return made


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with the recipes, the study `mine` and the paper's tables."""
    (tmp_path / "experiments").symlink_to(paths.project_root() / "experiments")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "paper").symlink_to(paths.project_root() / "results" / "paper")
    (tmp_path / "ablations").mkdir()
    (tmp_path / "ablations" / "mine.yaml").write_text(STUDY, encoding="utf-8")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "results" / "runs"))
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


ALL_FORMATS = dict(save.METADATA)


@pytest.fixture(autouse=True)
def png_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure is one file: in three forms, figures take nine tenths of the time here."""
    monkeypatch.setattr(save, "METADATA", {"png": ALL_FORMATS["png"]})


@pytest.fixture
def every_form(png_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "METADATA", ALL_FORMATS)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.usefixtures("every_form")
def test_sweep_trains_prints_table_4_and_writes_it(root: Path, call: Call, trainer: Trainer) -> None:
    status, out, err = call("sweep", "mine")
    assert status == 0, err
    assert [job.name for job in trainer.started] == [
        *("baseline seed 0", "g1_headwise seed 0", "baseline seed 1", "g1_headwise seed 1"),
    ]
    assert "4 runs, 0 done" in err
    assert "Table 4. Sparsity and attention sinks, beside the paper's" in out
    assert "0.155 ± 0.064" in out and "0.467" in out
    written = contents(root / "results" / "mine")
    forms = {f"tables/{stem}.{suffix}" for stem in ("table4", "comparison") for suffix in ("md", "csv", "json")}
    assert forms | {"runs.csv", "report.html"} <= set(written)
    assert {f"figures/loss_curves.{suffix}" for suffix in ("png", "pdf", "svg")} <= set(written)
    for name in written:
        assert str(root / "results" / "mine" / name) in err


@pytest.mark.slow
@pytest.mark.usefixtures("every_form")
def test_what_is_done_is_never_trained_again_and_gives_the_same_bytes(root: Path, call: Call, trainer: Trainer) -> None:
    first = call("sweep", "mine")
    before = contents(root / "results")
    trainer.started.clear()
    second = call("sweep", "mine")
    assert trainer.started == [] and "runs," not in second[2]
    assert second[:2] == first[:2]
    assert contents(root / "results") == before


def test_more_seeds_train_only_what_is_missing(call: Call, trainer: Trainer) -> None:
    call("sweep", "mine", "--seeds", "1")
    status, _, err = call("sweep", "mine")
    assert status == 0 and "4 runs, 2 done" in err
    assert [job.config.seed for job in trainer.started] == [0, 0, 1, 1]


def test_json_is_alone_on_standard_output(call: Call, trainer: Trainer) -> None:
    status, out, _ = call("sweep", "mine", "--json")
    data = json.loads(out)
    assert status == 0 and data["study"] == "mine"
    (combination,) = data["combinations"]
    (table,) = combination["tables"]
    ours = {row["variant"]: row["ours"]["first_token_share"]["mean"] for row in table["rows"]}
    assert table["table"] == 4 and ours["baseline"] == pytest.approx(0.155)
    assert {name for name, mean in ours.items() if mean is not None} == {"baseline", "g1_headwise"}
    assert "g1_elementwise" in ours  # a row of the paper's without a run of ours
    assert combination["comparison"]["variants"][0]["variant"] == "g1_headwise"


def test_settings_of_the_command_line_write_beside_the_study_and_not_over_it(
    root: Path, call: Call, trainer: Trainer
) -> None:
    call("sweep", "mine")
    before = contents(root / "results" / "mine")
    status, out, _ = call("sweep", "mine", "--set", "train.steps=500")
    assert status == 0 and "recipe sink_lab with train.steps=500" in out
    after = contents(root / "results" / "mine")
    assert {name: after[name] for name in before} == before
    assert "tables/train.steps=500/table4.md" in after and "figures/train.steps=500/loss_curves.png" in after
    assert trainer.started[-1].config.overrides == ["train.steps=500"]
    assert trainer.started[-1].name == "g1_headwise seed 1 train.steps=500"
    rows = after["tables/train.steps=500/table4.md"].decode().splitlines()
    (baseline,) = (line for line in rows if line.startswith("| Baseline"))
    assert "0.1550" in baseline.replace("0.155 ", "0.1550 ") and "0.467" in baseline  # ours beside the paper's


def test_a_grid_shares_one_pool_and_has_a_table_a_combination(root: Path, call: Call, trainer: Trainer) -> None:
    grid = STUDY + "overrides: {grid: {data.seq_len: [64, 128]}}\n"
    (root / "ablations" / "grid.yaml").write_text(grid, encoding="utf-8")
    status, out, err = call("sweep", "grid", "--seeds", "1")
    assert status == 0, err
    assert "4 runs, 0 done" in err and out.count("Table 4.") == 2
    assert [job.config.overrides for job in trainer.started] == [
        *(["data.seq_len=64"], ["data.seq_len=64"], ["data.seq_len=128"], ["data.seq_len=128"]),
    ]
    folders = sorted(path.name for path in (root / "results" / "grid" / "tables").iterdir() if path.is_dir())
    assert folders == ["data.seq_len=128+seeds=1", "data.seq_len=64+seeds=1", "seeds=1"]  # the last: across both


@pytest.mark.slow
@pytest.mark.usefixtures("every_form")
def test_settings_have_one_table_and_one_figure_over_all(root: Path, call: Call, trainer: Trainer) -> None:
    text = STUDY.replace("tables: [4]\n", "") + "overrides: {settings: {recipe: [], short: [train.steps=500]}}\n"
    (root / "ablations" / "drivers.yaml").write_text(text, encoding="utf-8")
    status, out, err = call("sweep", "drivers")
    assert status == 0, err
    assert [job.name for job in trainer.started][:4] == [
        *("baseline seed 0 recipe", "g1_headwise seed 0 recipe", "baseline seed 0 short", "g1_headwise seed 0 short"),
    ]
    assert out.count("drivers: the first-token share under each setting") == 1
    written = contents(root / "results" / "drivers")
    forms = {f"tables/settings.{suffix}" for suffix in ("md", "csv", "json")}
    forms |= {f"figures/settings.{suffix}" for suffix in ("png", "pdf", "svg")}
    assert {*forms, "tables/recipe/comparison.md", "tables/short/comparison.md"} <= set(written)
    assert str(root / "results" / "drivers" / "figures" / "settings.png") in err
    markdown = written["tables/settings.md"].decode()
    assert "- recipe sink_lab\n" in markdown and "- short: `train.steps=500`" in markdown
    trainer.started.clear()
    assert call("sweep", "drivers", "--seeds", "1", "--set", "optim.lr=1e-3")[0] == 0
    after = contents(root / "results" / "drivers")
    assert {name: after[name] for name in written} == written
    markdown = after["tables/optim.lr=1e-3+seeds=1/settings.md"].decode()
    assert "- recipe sink_lab with optim.lr=1e-3\n" in markdown and "- short: `train.steps=500`" in markdown
    data = json.loads(call("sweep", "drivers", "--json")[1])["settings"]
    assert [(row["setting"], row["variant"]) for row in data["rows"]] == [
        (setting, variant) for setting in ("recipe", "short") for variant in ("baseline", "g1_headwise")
    ]
    assert data["rows"][0]["first_token_share"]["by_seed"] == {"0": 0.15, "1": 0.16}


def test_a_study_without_tables_prints_the_comparison(root: Path, call: Call, trainer: Trainer) -> None:
    (root / "ablations" / "plain.yaml").write_text(STUDY.replace("tables: [4]\n", ""), encoding="utf-8")
    status, out, _ = call("sweep", "plain")
    assert status == 0 and "SDPA Headwise G1 (g1_headwise) against Baseline" in out and "Excess loss (nats)" in out


def test_a_study_of_the_baseline_alone_has_its_table(root: Path, call: Call, trainer: Trainer) -> None:
    (root / "ablations" / "alone.yaml").write_text(STUDY.replace("g1_headwise", "baseline"), encoding="utf-8")
    status, out, err = call("sweep", "alone")
    assert status == 0, err
    assert "Table 4." in out and not (root / "results" / "alone" / "tables" / "comparison.md").exists()


def test_a_diverged_run_is_a_result(call: Call, trainer: Trainer) -> None:
    trainer.diverges.add("g1_headwise seed 1")
    status, out, _ = call("sweep", "mine")
    assert status == 0 and "! g1_headwise diverged at step 7 (seed 1)" in out
    trainer.started.clear()
    assert call("sweep", "mine")[0] == 0 and trainer.started == []


@pytest.mark.parametrize(("exit_code", "status"), [(2, 2), (1, 1), (-9, 1)])
def test_a_failure_is_named_and_what_succeeded_is_kept(
    root: Path, call: Call, trainer: Trainer, exit_code: int, status: int
) -> None:
    trainer.fails["g1_headwise seed 0"] = exit_code
    ended, out, err = call("sweep", "mine")
    assert (ended, out) == (status, "")
    assert "gatebench: g1_headwise seed 0 failed: no space left (" in err.splitlines()[-1]
    assert not (root / "results" / "mine").exists()
    trainer.fails.clear()
    trainer.started.clear()
    assert call("sweep", "mine")[0] == 0
    assert [job.name for job in trainer.started] == ["g1_headwise seed 0"]


@pytest.mark.parametrize("command", ["plan", "sweep"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["min"], "study 'min': not found; did you mean mine?"),
        (["mine", "--set", "optim.lrr=1"], "study 'mine': recipe 'sink_lab': key 'optim.lrr' is unknown"),
        (["mine", "--seeds", "0"], "--seeds"),
        ([], "STUDY"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    root: Path, call: Call, trainer: Trainer, command: str, words: list[str], said: str
) -> None:
    status, out, err = call(command, *words)
    assert (status, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
    assert sorted(path.name for path in (root / "results").iterdir()) == ["paper"] and trainer.started == []


def test_a_table_that_the_paper_lacks_is_refused_before_anything_is_trained(
    root: Path, call: Call, trainer: Trainer
) -> None:
    (root / "ablations" / "early.yaml").write_text(STUDY.replace("[4]", "[4, 8]"), encoding="utf-8")
    status, _, err = call("sweep", "early")
    assert status == 2 and "tables=8: not in the paper; legal: 1, 2, 3, 4, 5, 6, 7" in err and trainer.started == []


def test_what_the_recipe_cannot_have_is_left_out_and_said(root: Path, call: Call, trainer: Trainer) -> None:
    (root / "ablations" / "experts.yaml").write_text(
        STUDY.replace("[g1_headwise]", "[g1_headwise, 'experts*']"), encoding="utf-8"
    )
    status, _, err = call("sweep", "experts", "--seeds", "1")
    assert status == 0, err
    assert "left out: experts_plus4 (variant 'experts_plus4': model.moe is null; legal: a recipe with experts)" in err
    assert [job.config.variant for job in trainer.started] == ["baseline", "g1_headwise"]


def test_plan_counts_what_is_done_and_writes_nothing(root: Path, call: Call, trainer: Trainer) -> None:
    status, out, _ = call("plan", "mine")
    assert status == 0 and "What a test asks" in out and "4 runs: 4 missing." in out
    assert not (root / "results" / "runs").exists()
    call("sweep", "mine", "--seeds", "1")
    _, out, _ = call("plan", "mine")
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["g1_headwise"])
    assert "1 done, 1 missing" in line
    assert "4 runs: 2 done, 2 missing." in out and "Measured: 2 finished runs trained 455 s each" in out


def test_plan_as_json_lists_every_run(call: Call, trainer: Trainer) -> None:
    call("sweep", "mine", "--seeds", "1")
    data = json.loads(call("plan", "mine", "--json")[1])
    assert (data["study"], data["recipe"], data["baseline"], data["tables"]) == ("mine", "sink_lab", "baseline", [4])
    assert [(run["variant"], run["seed"], run["status"]) for run in data["runs"]] == [
        *(
            ("baseline", 0, "done"),
            ("g1_headwise", 0, "done"),
            ("baseline", 1, "missing"),
            ("g1_headwise", 1, "missing"),
        ),
    ]
    baseline, gated = data["runs"][:2]
    assert gated["n_params"] > baseline["n_params"] and gated["flops"] > baseline["flops"] > 6 * baseline["tokens"]


@pytest.mark.parametrize(
    ("label", "folder"),
    [
        ("", ""),
        ("optim.lr=0.003", "optim.lr=0.003"),
        ("optim.lr=0.003 train.steps=20", "optim.lr=0.003+train.steps=20"),
    ],
)
def test_a_folder_is_named_after_its_settings(label: str, folder: str) -> None:
    assert folder_name(label) == folder


def test_settings_that_no_folder_can_be_named_after_stay_apart() -> None:
    names = [folder_name(label) for label in ("data.corpus=/a/b", "data.corpus=_a/b", "x" * 150, "x" * 151, "..")]
    assert len(set(names)) == 5
    assert all(len(name) < 120 and "/" not in name and not name.startswith(".") for name in names)


@pytest.mark.slow
def test_a_study_is_trained_for_real(root: Path, call: Call) -> None:
    """Two runs of six steps, as subprocesses; the second time nothing is trained."""
    short = "train.steps=6, train.batch_size=4, optim.warmup_steps=2, train.checkpoint_every=3, train.accelerator=cpu"
    short += ", train.precision=fp32, train.compile=off, eval.tokens_per_domain=1024, eval.probe_tokens=1024"
    text = STUDY.replace("seeds: 2", "seeds: 1") + f"overrides: {{set: [{short}]}}\n"
    (root / "ablations" / "real.yaml").write_text(text, encoding="utf-8")
    status, out, err = call("sweep", "real")
    assert status == 0, err
    assert "g1_headwise seed 0: done" in err and "24 steps" not in out and "in 6 steps" in out
    runs = contents(root / "results" / "runs")
    assert sum(name.endswith("summary.json") for name in runs) == 2
    status, again, err = call("sweep", "real")
    assert (status, again) == (0, out) and "runs," not in err
    assert contents(root / "results" / "runs") == runs
