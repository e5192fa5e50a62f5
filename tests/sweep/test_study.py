"""Studies: what a file may say, which runs it means, and what of them is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatebench import variants
from gatebench.errors import UserError
from gatebench.paths import project_root
from gatebench.recipes import parse_yaml
from gatebench.report.analysis.paper_tables import check_available
from gatebench.sweep.plan import cost, plan, train_seconds
from gatebench.sweep.study import Study, load_study, study_names

SINK_ROWS = [
    "baseline",
    "g1_elementwise",
    "g1_headwise",
    "g1_elementwise_shared",
    "g2_elementwise",
    "g1_elementwise_input_independent",
    "g1_elementwise_ns_sigmoid",
]


def write(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(folder: Path, text: str) -> str:
    """The one line with which a study is refused, on reading or on making its runs."""
    with pytest.raises(UserError) as error:
        load_study(write(folder, text)).runs()
    message = str(error.value)
    assert "\n" not in message and message.startswith("study '")
    return message


# --- the studies that are shipped


@pytest.mark.parametrize("name", study_names())
def test_every_shipped_study_is_short_says_what_it_asks_and_dry_runs(name: str) -> None:
    study = load_study(name)
    lines = (project_root() / "ablations" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 30 and len(study.description) > 20
    check_available(study.tables)
    names = study.variant_names()
    runs = study.runs()
    assert len(runs) == len(names) * len(study.seeds) * len(study.combinations())
    assert len({run.fingerprint for run in runs}) == len(runs)
    for planned in plan(study):
        assert cost(planned).n_params > 0


def test_the_sink_study_runs_table_4_and_three_more_on_three_seeds() -> None:
    study = load_study("sinks")
    assert study.variant_names() == [*SINK_ROWS, "g2_headwise", "g5_elementwise", "g1_rmsnorm"]
    assert {v.name for v in variants.select("table:4")} == set(SINK_ROWS)
    assert (study.recipe, study.seeds, study.tables, study.name) == ("sink_lab", [0, 1, 2], [4], "sinks")


# --- what a study means


def test_runs_come_seed_by_seed_with_the_baseline_first() -> None:
    study = Study(recipe="quick", variants=["g1_headwise", "g2_headwise"], seeds=[3, 1])
    assert [(run.seed, run.variant) for run in study.runs()] == [
        *((3, "baseline"), (3, "g1_headwise"), (3, "g2_headwise")),
        *((1, "baseline"), (1, "g1_headwise"), (1, "g2_headwise")),
    ]


def test_variants_may_be_names_globs_tables_and_groups_and_count_once(tmp_path: Path) -> None:
    text = "recipe: quick\nbaseline: g1_headwise\n"
    text += "variants: [g1_input_independent, 'table:4', g1_headwise+g2_headwise, 'g3_headwise*', 'group:sharing']\n"
    names = load_study(write(tmp_path, text)).variant_names()
    assert names[:3] == ["g1_headwise", "g1_elementwise_input_independent", "baseline"]
    assert len(names) == len(set(names))
    assert set(SINK_ROWS) <= set(names)
    assert {"g1_headwise+g2_headwise", "g3_headwise_silu", "g2_elementwise_shared"} <= set(names)


def test_a_number_of_seeds_counts_from_zero(tmp_path: Path) -> None:
    text = "recipe: quick\nvariants: [g1_headwise]\n"
    assert load_study(write(tmp_path, text)).seeds == [0, 1, 2]
    assert load_study(write(tmp_path, text + "seeds: 2\n")).seeds == [0, 1]
    assert load_study(write(tmp_path, text + "seeds: [5, 2]\n")).seeds == [5, 2]


def test_a_grid_is_every_combination_on_top_of_the_fixed_settings(tmp_path: Path) -> None:
    text = """
recipe: quick
variants: [g1_headwise]
overrides:
  set: [train.steps=100]
  grid:
    optim.lr: [1e-3, 3e-3]
    optim.grad_clip: [null, 1]
seeds: 1
"""
    study = load_study(write(tmp_path, text))
    labels = [combination.label for combination in study.combinations()]
    assert labels == [
        "optim.lr=0.001 optim.grad_clip=null",
        "optim.lr=0.001 optim.grad_clip=1",
        "optim.lr=0.003 optim.grad_clip=null",
        "optim.lr=0.003 optim.grad_clip=1",
    ]
    assert study.combinations()[1].settings.words == ("train.steps=100", "optim.lr=0.001", "optim.grad_clip=1")
    runs = study.runs()
    assert [(r.variant, r.optim.lr, r.optim.grad_clip) for r in runs[::2]] == [
        *(("baseline", 0.001, None), ("baseline", 0.001, 1.0), ("baseline", 0.003, None), ("baseline", 0.003, 1.0)),
    ]
    assert {run.train.steps for run in runs} == {100}


def test_named_settings_are_combinations_of_their_own(tmp_path: Path) -> None:
    text = """
recipe: quick
variants: [g1_headwise]
overrides:
  set: [train.steps=100]
  settings:
    as_it_is: []
    wide.v2: [model.d_model=96, optim.lr=1e-3]
seeds: 1
"""
    study = load_study(write(tmp_path, text))
    assert study.combinations() == [
        ({"train.steps": 100}, "as_it_is"),
        ({"train.steps": 100, "model.d_model": 96, "optim.lr": 1e-3}, "wide.v2"),
    ]
    assert [(run.variant, run.model.d_model, run.optim.lr) for run in study.runs()] == [
        *(("baseline", 128, 6e-3), ("g1_headwise", 128, 6e-3), ("baseline", 96, 1e-3), ("g1_headwise", 96, 1e-3)),
    ]
    changed = study.changed(settings=["optim.lr=2e-3"])
    assert changed.combinations()[1].label == "wide.v2 optim.lr=2e-3"
    assert {run.optim.lr for run in changed.runs()} == {0.002}
    assert changed.fixed == ({"train.steps": 100, "optim.lr": 2e-3}, "optim.lr=2e-3")


def test_settings_are_values_by_key_too(tmp_path: Path) -> None:
    text = "recipe: quick\nvariants: [g1_headwise]\noverrides:\n  set: {data.mixture: {english: 2, code: 1}}\n"
    study = load_study(write(tmp_path, text + "  settings: {hot: {optim.lr: 1e-2}, cool: [optim.lr=1e-3]}\n"))
    mixture = {"data.mixture": {"english": 2, "code": 1}}
    assert study.combinations() == [
        ({**mixture, "optim.lr": 0.01}, "hot"),
        ({**mixture, "optim.lr": 0.001}, "cool"),
    ]
    assert study.runs()[0].overrides == ['data.mixture={"english": 2, "code": 1}', "optim.lr=0.01"]


def test_every_named_setting_meets_every_cell_of_the_grid(tmp_path: Path) -> None:
    text = "recipe: quick\nvariants: [g1_headwise]\noverrides:\n  settings: {a: [], b: [data.bos=false]}\n"
    study = load_study(write(tmp_path, text + "  grid: {data.seq_len: [64, 128]}\n"))
    assert [combination.label for combination in study.combinations()] == [
        *("a data.seq_len=64", "a data.seq_len=128", "b data.seq_len=64", "b data.seq_len=128"),
    ]
    assert study.combinations()[2].settings.words == ("data.bos=false", "data.seq_len=64")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optim.lr", 1e-5),
        ("train.compile", "off"),
        ("data.corpus", "true"),
        ("data.corpus", "a: b"),
        ("data.bos", False),
        ("train.loggers", ["csv"]),
        ("data.mixture", {"code": 0.5, "law": 0.5}),
    ],
)
def test_grid_values_reach_the_recipe_unchanged(key: str, value: object) -> None:
    study = Study.model_validate(
        {"recipe": "quick", "variants": ["g1_headwise"], "overrides": {"grid": {key: [value]}}}
    )
    (setting,) = study.combinations()[0].settings.words
    assert parse_yaml(setting.partition("=")[2], key) == value


def test_changes_of_the_command_line_apply_last_and_leave_the_study_alone(tmp_path: Path) -> None:
    text = "recipe: quick\nvariants: [g1_headwise]\noverrides: {set: [optim.lr=1e-3]}\n"
    study = load_study(write(tmp_path, text))
    changed = study.changed(n_seeds=1, settings=["optim.lr=2e-3"])
    assert changed.name == "mine" and changed.seeds == [0] and {run.optim.lr for run in changed.runs()} == {0.002}
    assert changed.combinations()[0] == ({"optim.lr": 2e-3}, "optim.lr=2e-3 seeds=1")  # a key has one value, the last
    assert study.seeds == [0, 1, 2] and {run.optim.lr for run in study.runs()} == {0.001}


@pytest.mark.parametrize(("n_seeds", "label"), [(None, ""), (3, ""), (1, "seeds=1"), (5, "seeds=5")])
def test_other_seeds_than_the_studys_are_part_of_the_label(n_seeds: int | None, label: str) -> None:
    changed = load_study("table4").changed(n_seeds=n_seeds)
    assert changed.combinations() == [({}, label)] and changed.seeds == list(range(n_seeds or 3))
    assert changed.as_declared == (not label)


def test_runs_equal_those_that_train_makes_one_by_one() -> None:
    from gatebench.recipes import make_run

    study = Study.model_validate(
        {"recipe": "quick", "variants": ["g1_headwise"], "overrides": {"set": ["optim.lr=1e-3"]}, "seeds": 2}
    )
    assert study.runs()[3] == make_run("quick", "g1_headwise", 1, ["optim.lr=1e-3"])


# --- what is refused


def test_a_study_of_dots_alone_names_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no folder"):
        load_study(write(tmp_path, "recipe: quick\nvariants: [g1_headwise]\n", name=".."))
    assert load_study(write(tmp_path, "recipe: quick\nvariants: [g1_headwise]\n", name="mine.v2")).name == "mine.v2"


SETTINGS = "recipe: quick\nvariants: [g1_headwise]\noverrides:\n  settings: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("variants: [g1_headwise]", ("recipe",)),
        ("recipe: quick", ("variants",)),
        ("recipe: quick\nvariants: []", ("variants=[]", "at least 1")),
        ("recipe: quick\nvariants: [g1_headwise]\nseed: 3", ("key 'seed' is unknown", "did you mean seeds")),
        ("recipe: quick\nvariants: [g1_headwise]\nname: x", ("key 'name' is unknown",)),
        ("recipe: quick\nvariants: [g1_headwize]", ("g1_headwize", "g1_headwise")),
        ("recipe: quick\nvariants: ['g9_*']", ("g9_*", "matches no registered variant")),
        ("recipe: quick\nvariants: ['table:7']", ("table '7'", "1, 2, 3, 4, 5, 6")),
        ("recipe: quack\nvariants: [g1_headwise]", ("recipe 'quack'", "quick")),
        ("recipe: quick\nvariants: [g1_headwise]\nbaseline: basline", ("basline", "baseline")),
        ("recipe: quick\nvariants: [g1_headwise]\nseeds: 0", ("seeds=0", "1 or more, 10,000 at most")),
        ("recipe: quick\nvariants: [g1_headwise]\nseeds: [0, -1]", ("seeds=-1", "0 or more")),
        ("recipe: quick\nvariants: [g1_headwise]\nseeds: [1, 1]", ("seeds=1", "twice")),
        ("recipe: quick\nvariants: [g1_headwise]\nseeds: true", ("seeds=true",)),
        ("recipe: quick\nvariants: [g1_headwise]\nseeds: many", ("seeds='many'",)),
        ("recipe: quick\nvariants: [g1_headwise]\ntables: [8]", ("tables=8", "1, 2, 3, 4, 5, 6, 7")),
        ("recipe: quick\nvariants: [g1_headwise]\noverrides: {sett: []}", ("overrides.sett", "did you mean set")),
        ("recipe: quick\nvariants: [g1_headwise]\noverrides: {set: [optim.lr]}", ("'optim.lr'", "key=value")),
        ("recipe: quick\nvariants: [g1_headwise]\noverrides: {grid: {optim.lr: 1}}", ("grid", "list")),
        ("recipe: quick\nvariants: [g1_headwise]\noverrides: {grid: {optim.lr: []}}", ("'optim.lr' has no values",)),
        ("recipe: quick\nvariants: [g1_headwise]\noverrides: {grid: {optim.lr: [1, 1]}}", ("optim.lr=1", "twice")),
        ("recipe: quick\nvariants: [g1_headwise]\noverrides: {grid: {optim.lrr: [1]}}", ("lrr", "did you mean lr?")),
        ("recipe: quick\nvariants: [g1_headwise]\noverrides: {grid: {optim.lr: [-1]}}", ("optim.lr", "greater than 0")),
        (SETTINGS + "{a b: []}", ("overrides.settings: 'a b' is no name", "letters, digits")),
        (SETTINGS + "{../a: []}", ("'../a' is no name",)),
        (SETTINGS + "{a: [optim.lr]}", ("'a' holds 'optim.lr'", "section.key=value")),
        (SETTINGS + "{a: [], b: []}", ("'a' and 'b' are the same", "each bundle once")),
        (SETTINGS + "{a: [data.bos=false, optim.lr=1], b: [optim.lr=1, data.bos=false]}", ("'a' and 'b'",)),
        (SETTINGS + "{a: optim.lr=1}", ("settings.a", "list")),
        (SETTINGS + "[optim.lr=1]", ("settings", "dict")),
        (SETTINGS + "{a: [optim.lrr=1]}", ("lrr", "did you mean lr?")),
        ("- quick", ("must be a mapping of description, recipe",)),
    ],
)
def test_a_wrong_study_is_refused_in_one_line(tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    message = refusal(tmp_path, text)
    for part in said:
        assert part in message


def test_an_unknown_study_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"study .sinkz.: not found; did you mean sinks\?"):
        load_study("sinkz")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    with pytest.raises(UserError, match="study 'sinks': not found; there are none in"):
        load_study("sinks")


def test_a_line_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml line 3"):
        load_study(write(tmp_path, "recipe: quick\nvariants: [g1_headwise\n"))


# --- the plan


def test_the_plan_reads_what_is_done_from_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path))
    study = Study(recipe="sink_lab", variants=["g1_headwise"], seeds=[0, 1])
    before = plan(study)
    assert [run.status for run in before] == ["missing"] * 4
    assert not list(tmp_path.iterdir())
    directories = [run.directory for run in before]
    assert all(directory is not None for directory in directories)
    for directory, status in zip(directories[:2], ("done", "diverged"), strict=True):
        assert directory is not None
        directory.mkdir(parents=True)
        (directory / "summary.json").write_text(json.dumps({"status": status, "train_wall_s": 40.0}), encoding="utf-8")
    assert directories[2] is not None
    directories[2].mkdir(parents=True)
    (directories[2] / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    after = plan(study)
    assert [run.status for run in after] == ["done", "diverged", "begun", "missing"]
    assert [run.finished for run in after] == [True, True, False, False]
    assert train_seconds(after) == [40.0, 40.0]


def test_a_corpus_that_is_not_built_leaves_every_run_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEBENCH_CACHE", str(tmp_path))
    runs = plan(Study(recipe="quick", variants=["g1_headwise"], seeds=[0]))
    assert [(run.status, run.directory) for run in runs] == [("missing", None)] * 2


def test_costs_are_those_of_the_accounting() -> None:
    study = Study.model_validate(
        {"recipe": "sink_lab", "variants": ["g1_headwise"], "seeds": 1, "overrides": {"set": ["train.steps=1000"]}}
    )
    baseline, gated = plan(study)
    data, train = baseline.config.data, baseline.config.train
    assert baseline.tokens == gated.tokens == 1000 * train.batch_size * data.seq_len
    model = baseline.config.model
    added = model.n_layers * model.d_model * model.n_heads
    assert cost(gated).n_params - cost(baseline).n_params == added
    assert cost(gated).flops - cost(baseline).flops == 6 * added * gated.tokens


def test_a_summary_that_cannot_be_read_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path))
    study = Study(recipe="sink_lab", variants=["g1_headwise"], seeds=[0])
    directory = plan(study)[0].directory
    assert directory is not None
    directory.mkdir(parents=True)
    (directory / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"summary\.json: not JSON .*; restore it, or delete it and run again"):
        plan(study)


# --- what the recipe cannot have, and other recipes


def test_a_pattern_skips_what_the_recipe_cannot_have_and_says_why(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, "recipe: quick\nvariants: ['table:1']\n"))
    assert "experts_plus4" not in study.variant_names() and len(study.variant_names()) == 14
    assert study.skipped() == {
        "experts_plus4": "variant 'experts_plus4': model.moe is null; legal: a recipe with experts"
    }
    assert {run.variant for run in study.runs()} == set(study.variant_names())


def test_a_variant_that_is_named_is_refused_and_not_skipped(tmp_path: Path) -> None:
    assert "model.moe is null" in refusal(tmp_path, "recipe: quick\nvariants: ['table:1', experts_plus4]\n")


def test_a_variant_that_one_setting_cannot_have_is_skipped_under_all(tmp_path: Path) -> None:
    text = "recipe: quick\nvariants: ['table:1']\noverrides: {grid: {model.n_heads: [4, 5], model.n_kv_heads: [1]}}\n"
    study = load_study(write(tmp_path, text))
    assert "q_heads_x1p5" in study.skipped()
    assert len(study.runs()) == len(study.variant_names()) * 2 * 3


def test_another_recipe_is_part_of_the_label_and_changes_what_is_skipped() -> None:
    study = load_study("table1")
    other = study.changed(recipe="moe_tiny", settings=["train.steps=60"], n_seeds=1)
    assert other.skipped() == {} and "experts_plus4" in other.variant_names()
    assert other.combinations()[0] == ({"train.steps": 60}, "recipe=moe_tiny train.steps=60 seeds=1")
    assert {(run.recipe, run.train.steps) for run in other.runs()} == {("moe_tiny", 60)}
    assert (study.recipe, study.combinations()[0].label) == ("quick", "")
    assert study.changed(recipe="quick").combinations()[0].label == ""


def test_the_factorial_is_all_its_cells_and_the_grid_all_of_the_registry() -> None:
    assert len(load_study("factorial").variant_names()) == 1 + 68
    grid = load_study("full_grid")
    assert {*grid.variant_names(), *grid.skipped()} == set(variants.registry())


def test_the_scaled_table_2_has_settings_named_after_the_papers_rows() -> None:
    from gatebench.paper import paper_rows

    rows = {f"{r.printed['layers']}l-{r.printed['tokens']}-{r.printed['max_lr']}".lower() for r in paper_rows(2)}
    assert {c.label for c in load_study("table2").combinations()} == rows
    own_size = [c.label for name in ("table2_28l", "table2_48l") for c in load_study(name).combinations()]
    assert set(own_size) == rows
