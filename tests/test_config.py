"""Recipes and run configurations: strict in, exact out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatebench import variants
from gatebench.config import (
    DataConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    Recipe,
    RunConfig,
    TrainConfig,
    resolve,
)
from gatebench.errors import UserError
from gatebench.identity import differences
from gatebench.recipes import load_recipe, make_run, parse_yaml, recipe_names, recipe_path, run_from_yaml, to_yaml

EVERYTHING = [
    "description='all of it: éü中'",
    "model.gate_init_std=0",
    "model.qkv_bias=true",
    "model.rope_theta=1e6",
    "data.mixture={english: 0.75, code: 0.25}",
    "data.seed=7",
    "optim.lr=3e-3",
    "optim.eps=1e-15",
    "optim.grad_clip=null",
    "train.batch_size=32",
    "train.micro_batch_size=4",
    "train.loggers=[csv, tensorboard]",
    "eval.tokens_per_domain=null",
    "param_match=ffn",
]


def refusal(*overrides: str, recipe: str = "quick", variant: str = "baseline", seed: int = 0) -> str:
    """Return the one line with which a run is refused."""
    with pytest.raises(UserError) as error:
        make_run(recipe, variant, seed, overrides)
    message = str(error.value)
    assert "\n" not in message
    return message


# --- reading and writing


@pytest.mark.parametrize("overrides", [[], EVERYTHING], ids=["defaults", "everything"])
def test_a_run_round_trips_through_yaml(overrides: list[str]) -> None:
    config = make_run("quick", "g1_additive_silu", 3, overrides)
    again = run_from_yaml(to_yaml(config), "config.yaml")
    assert again == config
    assert again.fingerprint == config.fingerprint
    assert differences(again, config) == []


@given(st.floats(min_value=1e-30, max_value=1e30), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_every_float_round_trips_exactly(lr: float, beta1: float) -> None:
    config = make_run("quick", "baseline", 0, [f"optim.lr={lr!r}", f"optim.beta1={beta1!r}"])
    again = run_from_yaml(to_yaml(config), "config.yaml")
    assert (again.optim.lr, again.optim.beta1) == (config.optim.lr, config.optim.beta1) == (lr, beta1)


def test_a_run_resolves_names() -> None:
    config = make_run("quick", "g1_additive_silu", 3, ["optim.lr=3e-3"])
    assert (config.recipe, config.variant, config.seed) == ("quick", "g1_elementwise_additive_silu", 3)
    assert config.overrides == ["optim.lr=3e-3"]
    assert config.run_name == f"quick/g1_elementwise_additive_silu-s3-{config.fingerprint}"
    assert len(config.fingerprint) == 8


def test_a_recipe_can_be_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model: {n_layers: 2}\noptim: {lr: 1e-3}\n", encoding="utf-8")
    config = make_run(str(path), "baseline")
    assert (config.recipe, config.model.n_layers, config.optim.lr) == ("mine", 2, 0.001)
    assert recipe_path(str(path)) == path


def test_names_of_recipes_may_hold_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = recipe_path("quick").read_text(encoding="utf-8")
    for name, lr in (("quick.v1", "4e-3"), ("quick.v2", "5e-3")):
        path = tmp_path / "experiments" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("lr: 6e-3", f"lr: {lr}"), encoding="utf-8")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    first, second, by_path = (make_run(word, "baseline") for word in ("quick.v1", "quick.v2", str(path)))
    assert [config.recipe for config in (first, second, by_path)] == ["quick.v1", "quick.v2", "quick.v2"]
    assert [config.run_name.partition("/")[0] for config in (first, by_path)] == ["quick.v1", "quick.v2"]
    assert second.fingerprint == by_path.fingerprint != first.fingerprint


@pytest.mark.parametrize("name", ["...yaml", "..yaml"])
def test_a_recipe_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}\n", encoding="utf-8")
    assert "names no folder" in refusal(recipe=str(tmp_path / name))


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("", encoding="utf-8")
    assert load_recipe(str(path)) == Recipe()


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_parses_says_what_it_is_and_round_trips(name: str) -> None:
    config = make_run(name, "g1_headwise")
    assert len(config.description) > 20
    assert run_from_yaml(to_yaml(config), name) == config


def test_every_field_has_a_default_so_that_a_recipe_states_what_matters() -> None:
    assert Recipe().model == ModelConfig()
    for section in (ModelConfig, DataConfig, OptimConfig, TrainConfig, EvalConfig):
        section()


# --- overrides


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("optim.lr=3e-3", "optim", "lr", 0.003),
        ("optim.lr=3E-3", "optim", "lr", 0.003),
        ("optim.lr=1", "optim", "lr", 1.0),
        ("optim.lr=.5", "optim", "lr", 0.5),
        ("optim.lr= 2e-3 ", "optim", "lr", 0.002),
        ("optim.grad_clip=null", "optim", "grad_clip", None),
        ("train.steps=1e3", "train", "steps", 1000),
        ("train.steps=1_000", "train", "steps", 1000),
        ("data.bos=false", "data", "bos", False),
        ("data.corpus=my_corpus", "data", "corpus", "my_corpus"),
        ("data.corpus=/data/a=b", "data", "corpus", "/data/a=b"),
        ("data.mixture=uniform", "data", "mixture", "uniform"),
        ("data.mixture={english: 2, code: 1}", "data", "mixture", {"english": 2.0, "code": 1.0}),
        ("train.loggers=[csv, wandb]", "train", "loggers", ["csv", "wandb"]),
        ("train.compile=on", "train", "compile", "on"),
        ("train.compile=off", "train", "compile", "off"),
        ("model={n_layers: 2}", "model", "n_layers", 2),
    ],
)
def test_overrides_are_yaml_values(override: str, section: str, key: str, value: Any) -> None:
    found = getattr(getattr(load_recipe("quick", [override]), section), key)
    assert found == value
    assert type(found) is type(value)


def test_later_overrides_win_and_other_keys_stay() -> None:
    recipe = load_recipe("quick", ["optim.lr=1e-3", "optim.lr=2e-3"])
    assert recipe.optim.lr == 0.002
    assert recipe.optim.weight_decay == load_recipe("quick").optim.weight_decay


def test_yaml_floats_without_a_dot_are_numbers() -> None:
    assert parse_yaml("[3e-3, 1e6, -2E+2, 1.5, 7, 3e-3x, e3]", "test") == [0.003, 1e6, -200.0, 1.5, 7, "3e-3x", "e3"]


# --- refusals


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.head_dim=7", ["model.head_dim=7", "must be even"]),
        ("model.n_kv_heads=3", ["model.n_heads=", "is not a multiple of model.n_kv_heads=3", "legal n_kv_heads: 1, 2"]),
        ("model.nheads=3", ["key 'model.nheads' is unknown", "did you mean n_heads"]),
        ("opitm.lr=1", ["key 'opitm' is unknown", "did you mean optim"]),
        ("optim.learning_rate=1", ["key 'optim.learning_rate' is unknown", "legal: lr"]),
        ("seed=3", ["key 'seed' is unknown", "legal: description"]),
        ("variant=g1_headwise", ["key 'variant' is unknown"]),
        ("model.n_layers=0", ["model.n_layers=0", "greater than or equal to 1"]),
        ("model.d_model=abc", ["model.d_model='abc'", "valid integer"]),
        ("model.d_model=1.5", ["model.d_model=1.5", "valid integer"]),
        ("model=3", ["model=3", "valid dictionary"]),
        ("optim.lr=-1", ["optim.lr=-1", "greater than 0"]),
        ("optim.lr=.nan", ["optim.lr=nan", "finite"]),
        ("optim.schedule=cosin", ["optim.schedule='cosin'", "'cosine', 'linear' or 'constant'"]),
        ("optim.warmup_steps=100000", ["optim.warmup_steps=100000", "must be below train.steps="]),
        ("train.micro_batch_size=5", ["train.batch_size=", "must be a multiple of micro_batch_size x devices"]),
        ("train.devices=32", ["train.batch_size=", "multiple"]),
        ("train.loggers=[cvs]", ["train.loggers='cvs'", "'csv', 'tensorboard' or 'wandb'"]),
        ("train.precision=fp16", ["train.precision='fp16'", "'auto', 'fp32' or 'bf16'"]),
        ("data.mixture=equal", ["data.mixture='equal'", "'proportional' or 'uniform'"]),
        ("data.mixture={english: much}", ["data.mixture={'english': 'much'}"]),
        ("data.seq_len=4", ["data.seq_len=4", "greater than or equal to 8"]),
        ("param_match=attention", ["param_match='attention'", "'none', 'ffn' or 'flops'"]),
        ("optim.lr", ["--set 'optim.lr'", "must be key=value"]),
        ("=3", ["--set '=3'", "must be key=value"]),
        ("optim..lr=3", ["--set 'optim..lr=3'", "must be key=value"]),
        ("optim.lr.x=3", ["--set 'optim.lr.x=3'", "'lr' holds no further keys"]),
        ("optim.lr=[1", ["--set 'optim.lr=[1'"]),
    ],
)
def test_a_bad_override_is_refused_in_one_line(override: str, words: list[str]) -> None:
    message = refusal(override)
    assert [word for word in words if word not in message] == [], message


def test_an_unknown_recipe_names_the_nearest() -> None:
    assert "recipe 'quik': not found; did you mean quick?" in refusal(recipe="quik")
    assert "recipe 'no/such.yaml': not found" in refusal(recipe="no/such.yaml")


def test_an_unknown_variant_names_the_nearest() -> None:
    assert "did you mean g1_headwise" in refusal(variant="g1_hedwise")


def test_a_negative_seed_is_refused() -> None:
    assert "seed=-1" in refusal(seed=-1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("model: {n_layers: 2}\nmodel: {n_layers: 3}\n", ["line 2", "key 'model' stands twice"]),
        ("model: [1, 2\n", ["line 2"]),
        ("- 1\n", ["must be a mapping of description, model"]),
        ("model: {layers: 2}\n", ["key 'model.layers' is unknown", "n_layers"]),
    ],
)
def test_a_bad_recipe_file_is_refused_in_one_line(tmp_path: Path, content: str, words: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content, encoding="utf-8")
    message = refusal(recipe=str(path))
    assert [word for word in (*words, "bad.yaml") if word not in message] == [], message


# --- variants under a recipe


def test_overrides_of_a_variant_are_ratios_to_the_recipe() -> None:
    recipe = Recipe(model=ModelConfig(n_heads=8, n_kv_heads=2))
    assert resolve(recipe, variants.get("baseline")) == recipe.model.model_copy(update={"context_length": 256})
    assert resolve(recipe, variants.get("kv_heads_x2")).n_kv_heads == 4
    assert resolve(recipe, variants.get("q_heads_x1p5")).n_heads == 12


def test_a_run_is_resolved_when_it_is_made_and_its_copies_are() -> None:
    config = make_run("quick", "q_heads_x1p5", 0, ["data.seq_len=64"])
    assert config.spec is variants.get("q_heads_x1p5")
    assert (config.model.n_heads, config.shape.n_heads) == (4, 6)
    assert (config.model.context_length, config.shape.context_length) == (None, 64)
    assert config.model_copy(update={"variant": "baseline"}).shape.n_heads == 4
    with pytest.raises(UserError, match=r"model\.n_heads=4 is not a multiple of model\.n_kv_heads=8"):
        make_run("quick", "baseline", 0, ["model.n_kv_heads=4"]).model_copy(update={"variant": "kv_heads_x2"})


@pytest.mark.parametrize(
    ("variant", "model", "words"),
    [
        (
            "q_heads_x1p5",
            ModelConfig(n_heads=3, n_kv_heads=1),
            ["variant 'q_heads_x1p5'", "model.n_heads=3 x 1.5 is no whole number", "a multiple of 2"],
        ),
        (
            "kv_heads_x2",
            ModelConfig(n_heads=4, n_kv_heads=4),
            ["variant 'kv_heads_x2'", "model.n_heads=4 is not a multiple of model.n_kv_heads=8"],
        ),
    ],
)
def test_a_variant_that_the_recipe_cannot_hold_is_refused(variant: str, model: ModelConfig, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        resolve(Recipe(model=model), variants.get(variant))
    assert [word for word in words if word not in str(error.value)] == []


# --- identity of a run


BASE = make_run("quick", "g1_headwise", 0)


@pytest.mark.parametrize(
    "override",
    [
        "model.n_layers=3",
        "model.gate_init_std=0.0",
        "data.corpus=other",
        "data.bos=false",
        "data.seed=0",
        "data.mixture=uniform",
        "optim.lr=1e-4",
        "optim.grad_clip=null",
        "train.steps=401",
        "train.batch_size=32",
        "train.precision=fp32",
        "eval.tokens_per_domain=64",
        "param_match=ffn",
    ],
)
def test_the_fingerprint_changes_with_what_determines_the_result(override: str) -> None:
    changed = make_run("quick", "g1_headwise", 0, [override])
    assert changed.fingerprint != BASE.fingerprint
    assert [line.split(":")[0] for line in differences(changed, BASE)] == [override.split("=")[0]]


def test_the_fingerprint_changes_with_variant_seed_recipe_and_corpus(tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_text(recipe_path("quick").read_text(encoding="utf-8"), encoding="utf-8")
    others = [
        make_run("quick", "g1_elementwise", 0),
        make_run("quick", "g1_headwise", 1),
        make_run(str(copy), "g1_headwise", 0),
        BASE.model_copy(update={"corpus_fingerprint": "abc"}),
    ]
    assert len({config.fingerprint for config in (BASE, *others)}) == 5


@pytest.mark.parametrize("override", ["description=other words", "train.loggers=[csv, tensorboard]"])
def test_the_fingerprint_does_not_change_with_what_cannot_matter(override: str) -> None:
    changed = make_run("quick", "g1_headwise", 0, [override])
    assert changed.fingerprint == BASE.fingerprint
    assert differences(changed, BASE) == []


def test_the_fingerprint_is_of_values_not_of_their_spelling() -> None:
    lr = BASE.optim.lr
    same = make_run("quick", "g1_headwise", 0, [f"optim.lr={lr}", f"train.steps={BASE.train.steps}"])
    assert same.fingerprint == BASE.fingerprint
    one, other = (make_run("quick", "g1_headwise", 0, [f"optim.lr={text}"]) for text in ("2e-3", "0.002"))
    assert one.fingerprint == other.fingerprint


def test_differences_name_key_and_both_values() -> None:
    ours = make_run("quick", "g1_headwise", 0, ["optim.lr=1e-3", "model.n_layers=2"])
    theirs = make_run("quick", "baseline", 0, ["optim.lr=2e-3", "model.n_layers=3"])
    assert sorted(differences(ours, theirs)) == [
        "model.n_layers: 3 -> 2",
        "optim.lr: 0.002 -> 0.001",
        "variant: baseline -> g1_headwise",
    ]


# --- what follows from a configuration


@pytest.mark.parametrize(
    ("overrides", "micro", "accumulate"),
    [
        ([], 16, 1),
        (["train.micro_batch_size=4"], 4, 4),
        (["train.devices=2"], 8, 1),
        (["train.devices=2", "train.num_nodes=2", "train.micro_batch_size=2"], 2, 2),
    ],
)
def test_batches_split_over_devices_and_micro_batches(overrides: list[str], micro: int, accumulate: int) -> None:
    config = make_run("quick", "baseline", 0, ["train.batch_size=16", *overrides])
    assert (config.micro_batch_size, config.accumulate) == (micro, accumulate)
    assert micro * accumulate * config.train.devices * config.train.num_nodes == 16


def test_the_data_seed_is_the_runs_unless_said_otherwise() -> None:
    assert make_run("quick", "baseline", 5).data_seed == 5
    assert make_run("quick", "baseline", 5, ["data.seed=0"]).data_seed == 0


def test_both_arms_of_a_pair_read_the_same_data() -> None:
    ours, baseline = make_run("quick", "g1_headwise", 5), make_run("quick", "baseline", 5)
    assert ours.data == baseline.data
    assert ours.data_seed == baseline.data_seed
    assert isinstance(ours, RunConfig)
