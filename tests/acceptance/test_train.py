"""`gatebench train` as a user calls it, inside this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatebench.cli import main
from gatebench.sweep import pool

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """call(*words): exit status, standard output and standard error of `gatebench words`."""
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gatebench", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capfd.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


def test_json_stands_alone_on_standard_output(call: Call, tmp_path: Path, tiny_recipe: str) -> None:
    words = ("train", "--recipe", tiny_recipe, "--variant", "g1_headwise", "--set", "train.steps=6", "--threads", "1")
    status, output, messages = call(*words, "--json")
    summary = json.loads(output)
    assert status == 0 and summary["status"] == "done" and summary["overrides"] == ["train.steps=6"]
    assert "step 6/6" in messages
    (directory,) = (tmp_path / "runs" / "tiny").iterdir()
    assert directory.name == f"g1_headwise-s0-{summary['fingerprint']}"
    assert json.loads((directory / "summary.json").read_text(encoding="utf-8")) == summary
    again = call(*words, "--json")  # done: the same JSON, and nothing trained
    assert again == (0, output, "")


def test_without_json_standard_output_is_empty_and_the_figures_are_messages(
    call: Call, tmp_path: Path, tiny_recipe: str
) -> None:
    out = tmp_path / "mine"
    words = ("train", "--recipe", tiny_recipe, "--variant", "baseline", "--set", "train.steps=6", "--out", str(out))
    status, output, messages = call(*words, "--threads", "1")
    assert (status, output) == (0, "")
    assert "Avg PPL" in messages and "first-token share" in messages and "floor 0.1268" in messages  # H_32 / 32
    assert messages.rstrip().endswith(str(out))
    assert not (tmp_path / "runs").exists()


def test_a_diverged_run_is_a_result_with_exit_0(call: Call, tmp_path: Path, tiny_recipe: str) -> None:
    """A learning rate of 1e38 overflows the weights within two steps."""
    words = ("train", "--recipe", tiny_recipe, "--variant", "baseline", "--set", "optim.lr=1e38", "--threads", "1")
    status, output, _ = call(*words, "--json")
    summary: dict[str, Any] = json.loads(output)
    assert status == 0 and summary["status"] == "diverged"
    assert summary["diverged_step"] == summary["steps"] <= 5
    assert summary["avg_ppl"] is None and summary["ppl/english"] is None and summary["gate_mean"] is None
    assert call(*words)[2].splitlines()[0].endswith(f"diverged at step {summary['diverged_step']}")


def test_ctrl_c_in_an_ablation_says_how_to_go_on(call: Call, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "run_all", pressed)
    status, output, messages = call("ablation", "--recipe", tiny_recipe, "--variant", "g1_headwise")
    assert (status, output) == (1, "")
    assert messages.splitlines()[-1] == "gatebench: stopped; run the same line again to go on where it stopped"
