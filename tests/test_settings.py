"""Settings are values by key, from what a user writes to a frame and back; words are how they are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatebench.errors import UserError
from gatebench.recipes import Settings, make_run, settings_of_text
from gatebench.report.analysis.lr_curves import with_rates
from gatebench.report.read import committed_frames, results
from gatebench.sweep.study import Study, load_study
from tests.report.synthetic_runs import summary, write_run

MIXTURE = {"english": 1.0, "code": 2.5, "the law": 0.5}


def test_words_are_read_once_and_printed_as_they_were_written() -> None:
    settings = Settings(["optim.lr=3e-3", "data.mixture={english: 1.0, code: 2}", "optim.lr = 1.2e-2"])
    assert dict(settings) == {"data.mixture": {"english": 1.0, "code": 2}, "optim.lr": 0.012}
    assert settings.words == ("data.mixture={english: 1.0, code: 2}", "optim.lr = 1.2e-2")
    assert settings.without("data.mixture") == {"optim.lr": 0.012}
    assert settings == Settings(["optim.lr=0.012", "data.mixture={code: 2.0, english: 1}"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["optim.lr=1.2e-2", "train.steps=500"],
        ['data.mixture={"english": 1.0, "code": 2.5, "the law": 0.5}', "optim.lr=3e-3"],
        ["train.loggers=[csv, tensorboard]", "description='of two words'", "param_match=ffn"],
        ['description="x=1 y=2"', "data.bos=false"],
        ["model.rope_scaling={factor: 4, original_max_position_embeddings: 256}", "data.corpus=/a folder/b"],
        ["data.synthetic={n_tokens: 8, seed: 3}", "data.synthetic.seed=4"],
    ],
)
def test_settings_come_back_from_the_one_string_of_a_frame(words: list[str]) -> None:
    settings = Settings(words)
    assert settings_of_text(str(settings)).words == tuple(words)
    assert settings_of_text(str(settings)) == settings


def test_applying_settings_leaves_them_as_they_are() -> None:
    settings = Settings(
        ["data.corpus=bigram_backcopy", "data.synthetic={n_tokens: 8, seed: 3}", "data.synthetic.seed=4"]
    )
    for _ in range(2):
        content: dict[str, Any] = {"data": {"synthetic": None}}
        settings.apply(content)
        assert content["data"]["synthetic"] == {"n_tokens": 8, "seed": 4}
    assert settings["data.synthetic"] == {"n_tokens": 8, "seed": 3}


@pytest.mark.parametrize("word", ["optim.lr", "=3", "optim..lr=3", "optim.lr=[1"])
def test_a_word_that_says_nothing_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="--set"):
        Settings([word])


def test_a_mixture_goes_from_a_study_to_a_frame_as_one_setting(tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    grid = json.dumps({"data.mixture": ["uniform", MIXTURE], "optim.lr": [1e-3, 3e-3]})
    path.write_text(
        f"recipe: quick\nvariants: [g1_headwise]\nseeds: 1\noverrides: {{grid: {grid}}}\n", encoding="utf-8"
    )
    study: Study = load_study(str(path))
    combination = study.combinations()[-1]
    assert combination.settings == {"data.mixture": MIXTURE, "optim.lr": 3e-3}
    config = study.runs()[-1]
    assert (config.data.mixture, config.optim.lr) == (MIXTURE, 3e-3)
    assert config.fingerprint == make_run("quick", "g1_headwise", 0, combination.settings).fingerprint

    for seed, overrides in enumerate((config.overrides, dict(combination.settings), str(combination.settings))):
        write_run(tmp_path / "runs", summary("g1_headwise", seed, 100.0, overrides=overrides))
    frame = results.load(tmp_path / "runs").assign(setting=combination.label)
    assert {settings_of_text(text) for text in frame["overrides"]} == {combination.settings}
    rated = with_rates(frame)
    assert set(rated["lr"]) == {3e-3}
    assert {settings_of_text(text)["data.mixture"] == MIXTURE for text in rated["group"]} == {True}

    committed_frames.write(frame, tmp_path / "kept")
    kept = (tmp_path / "kept" / "runs.csv").read_bytes()
    again = committed_frames.read_runs(tmp_path / "kept")
    assert again is not None and list(again["overrides"]) == list(frame["overrides"])
    committed_frames.write(again, tmp_path / "again")
    assert (tmp_path / "again" / "runs.csv").read_bytes() == kept
