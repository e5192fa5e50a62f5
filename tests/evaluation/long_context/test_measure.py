"""`measure` and `gatebench long` on the tiny run: what is stored, what is measured again, conditions, refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gatebench.config import RetrievalConfig, RopeScalingConfig
from gatebench.errors import UserError
from gatebench.evaluation.generation import completer
from gatebench.evaluation.long_context import run_long
from gatebench.evaluation.long_context.ruler_scores import RulerPrompts, tasks_that_fit
from gatebench.evaluation.long_context.run_long import Condition, Request, measure, stretched
from gatebench.evaluation.probes.interventions import parse
from gatebench.evaluation.probes.run_probes import open_run
from gatebench.files import read_object
from gatebench.report.read import long_results, results
from gatebench.training.run import Trained
from tests.cli.commands import Command

REQUEST = Request(
    lengths=("8x", "512"), tasks=("niah_single_1", "cwe"), samples=2, depths=2, tokens=2048, new_tokens=8, yarn=4
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, reference: Path) -> Path:
    path = tmp_path_factory.mktemp("long") / "tiny" / "run"
    shutil.copytree(reference, path)
    return path


@pytest.fixture(scope="module")
def trained(run_dir: Path) -> Trained:
    return open_run(run_dir)


@pytest.fixture(scope="module")
def found(trained: Trained) -> dict[str, dict[str, Any]]:
    return measure(trained, REQUEST)


def test_each_condition_has_a_file_with_every_length(run_dir: Path, found: dict[str, dict[str, Any]]) -> None:
    assert sorted(found) == ["plain", "yarn4"]
    for name, record in found.items():
        assert read_object(run_dir / "long" / f"{name}.json") == record
        assert list(record["lengths"]) == ["256", "512"]
        assert record["window"] == 32
    assert found["plain"]["rope_scaling"] is None
    assert found["yarn4"]["rope_scaling"]["factor"] == 4
    assert found["yarn4"]["rope_scaling"]["original_max_position_embeddings"] == 32


def test_what_is_in_a_length(found: dict[str, dict[str, Any]]) -> None:
    row = found["plain"]["lengths"]["256"]
    text = row["text"]
    assert text["windows"] == 8
    assert len(text["bins"]) == 16
    assert (text["tail"]["start"], text["tail"]["stop"]) == (192, 256)
    assert text["loss"] == pytest.approx(sum(part["nats"] for part in text["bins"]) / 16)
    assert text["probes"]["first_token_floor"] == pytest.approx(0.02392, abs=1e-5)  # H_256 / 256
    assert row["ruler"]["niah_single_1"]["n"] == 2
    assert [cell["depth"] for cell in row["depths"]["rows"]] == [0, 1]


def test_yarn_changes_what_is_measured_and_leaves_the_model_as_it_was(
    trained: Trained, found: dict[str, dict[str, Any]]
) -> None:
    assert found["plain"]["lengths"]["512"]["text"]["loss"] != found["yarn4"]["lengths"]["512"]["text"]["loss"]
    before = trained.model.rope.frequencies()
    with stretched(trained.model, RopeScalingConfig(factor=2, original_max_position_embeddings=32)):
        assert not torch.equal(trained.model.rope.frequencies(), before)
    assert torch.equal(trained.model.rope.frequencies(), before)


def test_nothing_is_measured_twice(
    trained: Trained, found: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(run_long, "probe", never)
    monkeypatch.setattr(run_long, "answered", never)
    assert measure(trained, REQUEST) == found
    fewer = Request(**{**vars(REQUEST), "tasks": (), "depths": 0, "lengths": ("512",)})
    assert measure(trained, fewer) == found  # what is not asked for stays
    for change in ({"seed": 1}, {"tokens": 4096}, {"samples": 3}):
        with pytest.raises(AssertionError, match="measured again"):
            measure(trained, Request(**{**vars(REQUEST), **change}))


def test_an_intervention_is_a_condition_of_its_own(trained: Trained) -> None:
    blocked = Request(
        lengths=("512",), tasks=("niah_single_1",), samples=2, depths=0, tokens=2048, new_tokens=8,
        interventions=(parse("block-first"), parse("mean-gate")),
    )  # fmt: skip
    rows = measure(trained, blocked)
    assert sorted(rows) == ["plain", "plain+block-first", "plain+mean-gate"]
    share = rows["plain+block-first"]["lengths"]["512"]["text"]["probes"]["first_token_share"]
    assert share == pytest.approx(1 / 512)  # the first query's own


def test_names_of_conditions() -> None:
    assert Condition().name == "plain"
    yarn = RopeScalingConfig(factor=1.5, original_max_position_embeddings=32)
    assert Condition(yarn, parse("zero-first-value:layers=1+2")).name == "yarn1.5+zero-first-value_layers=1+2"


def test_without_a_cache_answers_are_the_same(trained: Trained) -> None:
    prompts = RulerPrompts(trained.corpus, True, 1, 0, None)  # type: ignore[arg-type]
    ids = [[0, 5, 6, 7], [0, 9, 8, 11]]
    answers = [
        completer(trained.model, prompts.decode, device=CPU, stop=(prompts.corpus.eos_id,), cached=cached)(ids, 6)
        for cached in (True, False)
    ]
    assert answers[0] == answers[1]


def test_tasks_that_do_not_fit_the_shortest_length_are_left_out(trained: Trained) -> None:
    prompts = RulerPrompts(trained.corpus, True, 1, 0, 4)  # type: ignore[arg-type]
    fit, left_out = tasks_that_fit(prompts, ["niah_single_1", "cwe"], 180)
    assert fit == ["niah_single_1"]
    assert "does not fit length 180" in left_out["cwe"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"lengths": ("8",)}, "--lengths 8: legal: 16 tokens or more"), ({"lengths": ("x",)}, "--lengths x: legal")],
)
def test_lengths_that_are_none(trained: Trained, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        measure(trained, Request(**{**vars(REQUEST), **changes}))


def test_results_are_columns_of_the_run(run_dir: Path, found: dict[str, dict[str, Any]]) -> None:
    row = found["plain"]["lengths"]["256"]
    frame = results.load(run_dir)
    assert frame["long_loss/8x"][0] == row["text"]["tail"]["nats"]
    assert frame["long_share_yarn/16x"].dtype == "float64"
    names = long_results.columns(run_dir)
    assert names["ruler/256"] == names["ruler/8x"]
    assert "ruler_yarn/512" in names and "long_excess_yarn/16x" in names
    assert str(names["long_asked"]).startswith("2048 tokens; 2 samples seed 42 wording gatebench: ")


def test_the_command_prints_conditions(run_dir: Path) -> None:
    words = ("--lengths", "128", "--tasks", "none", "--depths", "0", "--tokens", "256", "--samples", "1")
    content = Command("long").json(run_dir, *words)
    assert content["conditions"][0]["lengths"]["128"]["ruler"] == {}
    assert "trained at 32 tokens" in Command("long")(run_dir, *words).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "long: nothing to measure; legal: run directories, or --study STUDY"),
        (("somewhere", "--study", "table5"), "--study table5: not with run directories (somewhere)"),
        (("somewhere", "--yarn", "0.5"), "--yarn 0.5: legal: 1 or more"),
        (("somewhere", "--tasks", "qa_1"), "--tasks qa_1: needs a file of questions"),
        (("somewhere", "--tasks", "niah"), "RULER task 'niah' is unknown"),
        (("somewhere", "--seeds", "1"), "--seeds and --set: go with --study alone"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str) -> None:
    assert Command("long").refusal(*words).startswith(said)


def test_numbers_with_fewer_digits_get_shorter_answers(trained: Trained) -> None:
    """A digit that stands anywhere in a long answer would be right; the run's own number of digits is the default."""
    small: dict[str, Any] = {
        "lengths": ("256",),
        "tasks": ("niah_single_1",),
        "samples": 2,
        "depths": 0,
        "tokens": 2048,
    }
    two = measure(trained, Request(**small, digits=2))["plain"]["lengths"]["256"]["ruler"]["niah_single_1"]
    assert two["asked"]["digits"] == 2
    assert two["new_tokens"] == max(len(trained.corpus.tokenizer().encode(f" {n}{n}").ids) for n in range(10))
    taught = trained.config.data.model_copy(update={"retrieval": RetrievalConfig(digits=2)})
    pupil = replace(trained, config=trained.config.model_copy(update={"data": taught}))
    assert measure(pupil, Request(**small))["plain"]["lengths"]["256"]["ruler"]["niah_single_1"] == two
    seven = measure(trained, Request(**small))["plain"]["lengths"]["256"]["ruler"]["niah_single_1"]
    assert "digits" not in seven["asked"] and seven["new_tokens"] == 32
