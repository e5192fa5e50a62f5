"""Bad input, as a user types it: one line that names the key and the value, exit 2, nothing written."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gatebench.cli import main

Refuse = Callable[..., str]


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """refuse(*words): the line that `gatebench words` is refused with. Nothing may appear in the folders of runs."""
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("GATEBENCH_CACHE", str(tmp_path / "cache"))

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gatebench", *words])
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        assert ended.value.code == 2, output.err
        assert output.out == ""
        (line,) = output.err.splitlines()
        assert line.startswith("gatebench")
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return call


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--variant g1_headwize", ("g1_headwize", "g1_headwise")),
        ("--variant g6_headwise", ("g6_headwise",)),
        ("--variant baseline --seed -1", ("seed", "-1", "greater than or equal to 0")),
        ("--variant baseline --seed x", ("--seed", "integer")),
        ("--variant baseline --set optim.learning_rate=1", ("optim.learning_rate", "unknown")),
        ("--variant baseline --set optim.lrr=1", ("optim.lrr", "did you mean lr?")),
        ("--variant baseline --set optimizer.lr=1", ("optimizer", "did you mean optim?")),
        ("--variant baseline --set optim.lr", ("--set 'optim.lr'", "key=value")),
        ("--variant baseline --set optim.lr=high", ("optim.lr", "high")),
        ("--variant baseline --set optim.lr=-1", ("optim.lr", "-1", "greater than 0")),
        ("--variant baseline --set optim.lr=.nan", ("optim.lr", "finite")),
        ("--variant baseline --set model.head_dim=7", ("model.head_dim=7", "even")),
        ("--variant baseline --set model.n_kv_heads=3", ("n_heads=4", "n_kv_heads=3", "1, 2, 4")),
        (
            "--variant baseline --set train.batch_size=6 --set train.micro_batch_size=4",
            ("train.batch_size=6", "multiple"),
        ),
        ("--variant baseline --set train.precision=fp16", ("train.precision", "fp16", "bf16")),
        ("--variant baseline --set optim.warmup_steps=20", ("optim.warmup_steps=20", "below train.steps=20")),
        (
            "--variant baseline --set model.vocab_size=4096",
            ("model.vocab_size=4096", "has 512", "--set model.vocab_size=512"),
        ),
        ("--variant baseline --set data.corpus=no_such", ("no_such", "not found", "gatebench data build")),
        ("--variant baseline --set data.seq_len=10000000", ("seq_len 10000000", "no training window")),
        ("--variant baseline --set eval.seq_len=100000", ("eval.seq_len=100000", "longest held-out document")),
        ("--variant baseline --set data.mixture.poetry=1", ("mixture", "poetry", "english")),
        ("--variant baseline --set train.loggers=[pencil]", ("train.loggers", "pencil", "csv")),
        ("--variant baseline --threads 0", ("--threads", "greater than or equal to 1")),
        ("--variant baseline --colour red", ("--colour",)),
        ("--seed 0", ("--variant",)),
    ],
)
def test_train_refuses(refuse: Refuse, tiny_recipe: str, words: str, said: tuple[str, ...]) -> None:
    line = refuse("train", "--recipe", tiny_recipe, *words.split())
    for part in said:
        assert part in line


def test_an_unknown_recipe_is_refused_with_the_nearest(refuse: Refuse) -> None:
    line = refuse("train", "--recipe", "quik", "--variant", "baseline")
    assert "recipe 'quik': not found" in line and "quick" in line


def test_a_recipe_that_is_no_yaml_is_refused_with_its_line(refuse: Refuse, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("train: {steps: 5\noptim: [", encoding="utf-8")
    assert "mine.yaml line" in refuse("train", "--recipe", str(recipe), "--variant", "baseline")


def test_a_command_that_does_not_exist_is_refused_with_the_nearest(refuse: Refuse) -> None:
    assert "trian" in (line := refuse("trian")) and "train" in line.replace("trian", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--variant baseline", ("is the baseline",)),
        ("--variant g1_headwise --seeds 0", ("--seeds", "greater than or equal to 1")),
        ("--variant g1_headwise --baseline nothing", ("nothing",)),
        ("--variant g1_headwise --set model.head_dim=7", ("model.head_dim=7", "even")),
        ("--variant g1_headwise --set data.corpus=no_such", ("no_such", "not found")),
        ("--variant nope_*", ("nope_*",)),
    ],
)
def test_ablation_refuses(refuse: Refuse, tiny_recipe: str, words: str, said: tuple[str, ...]) -> None:
    line = refuse("ablation", "--recipe", tiny_recipe, *words.split())
    for part in said:
        assert part in line


def test_a_truncated_shard_is_refused(refuse: Refuse, tmp_path: Path, tiny_corpus: Path, tiny_recipe: str) -> None:
    copy = tmp_path / "truncated"
    shutil.copytree(tiny_corpus, copy)
    shard = copy / "train" / "code-00000.bin"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-10])
    line = refuse("train", "--recipe", tiny_recipe, "--variant", "baseline", "--set", f"data.corpus={copy}")
    assert f"code-00000.bin has {size - 10} bytes, {size} expected" in line and "truncated" in line


def test_a_run_directory_of_another_config_is_refused_and_kept(
    refuse: Refuse, tiny_recipe: str, reference: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    words = ("train", "--recipe", tiny_recipe, "--variant", "g1_headwise", "--out", str(reference))
    assert "holds another config, optim.lr: 0.01 -> 0.02" in refuse(*words, "--set", "optim.lr=2e-2")
    assert "holds another config, seed: 0 -> 1" in refuse(*words, "--seed", "1")
    line = refuse(*words, "--set", "optim.lr=2e-2", "--set", "optim.eps=1e-6")
    assert "(and 1 more); legal: the same config, or another --out" in line
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*")} == before


def test_a_folder_of_something_else_is_refused_and_kept(refuse: Refuse, tmp_path: Path, tiny_recipe: str) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("text", encoding="utf-8")
    line = refuse("train", "--recipe", tiny_recipe, "--variant", "baseline", "--out", str(tmp_path / "thesis"))
    assert "is not empty and holds no config.yaml; legal: a new folder for --out" in line


def test_an_out_that_is_a_file_is_refused(refuse: Refuse, tmp_path: Path, tiny_recipe: str) -> None:
    (tmp_path / "file").write_text("text", encoding="utf-8")
    line = refuse("train", "--recipe", tiny_recipe, "--variant", "baseline", "--out", str(tmp_path / "file"))
    assert "is a file" in line
