"""Bad input, as a user types it: one line that names the key and the value, exit 2, nothing written."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gatebench.cli import main
from gatebench.evaluation.evaluate import evaluate
from gatebench.recipes import make_run
from gatebench.training.hardware import machine_memory
from gatebench.training.run import prepare, run, run_directory

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


UNREADABLE = {
    "not UTF-8": b"description: \xff\xfe\n",
    "a date that is none": b"description: 2026-99-99\n",
    "a number without digits": b"description: 0x_\n",
    "a word for a number": b"description: !!int abc\n",
    "a word for a truth value": b"description: !!bool abc\n",
    "a word for a time": b"description: !!timestamp abc\n",
    "an object": b"description: !!python/object/apply:os.getcwd []\n",
    "6,000 digits": b"description: " + b"1" * 6000 + b"\n",
    "6,000 hexadecimal digits": b"description: 0x" + b"f" * 6000 + b"\n",
    "3,000 brackets": b"description: " + b"[" * 3000 + b"\n",
    "a NUL": b"description: \x00\n",
    "a list": b"- description\n",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize(
    "words",
    ["train --variant baseline --recipe {}", "plan {}", "sweep {}", "sweep lr_sensitivity --on slurm --profile {}"],
    ids=["recipe", "study", "swept", "profile"],
)
def test_a_file_of_yaml_that_cannot_be_read_is_one_line(
    refuse: Refuse, tmp_path: Path, words: str, content: bytes
) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    assert "mine.yaml" in refuse(*words.format(tmp_path / "mine.yaml").split())


@pytest.mark.parametrize("words", ["train --variant baseline --recipe {}", "plan {}"])
def test_a_file_that_may_not_be_read_is_one_line(
    refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Permissions do not bind root, so that the refusal is the file system's in name alone."""
    mine, read = tmp_path / "mine.yaml", Path.read_bytes
    mine.write_text("description: x\n", encoding="utf-8")

    def denied(path: Path) -> bytes:
        if path == mine:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert "mine.yaml: cannot be read (Permission denied)" in refuse(*words.format(mine).split())


def test_a_manifest_that_may_not_be_read_is_one_line(
    refuse: Refuse, tmp_path: Path, tiny_recipe: str, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, read = tiny_corpus / "manifest.json", Path.read_bytes

    def denied(path: Path) -> bytes:
        if path == manifest:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    line = refuse("train", "--recipe", tiny_recipe, "--variant", "baseline")
    assert "manifest.json: cannot be read (Permission denied)" in line


@pytest.mark.parametrize("seeds", ["99999999999", "0", "[9223372036854775808]", "[1e30]", "[-1]", "[1, 1]"])
def test_seeds_of_a_study_are_refused_by_name(refuse: Refuse, tmp_path: Path, tiny_recipe: str, seeds: str) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(f"recipe: {tiny_recipe}\nvariants: [g1_headwise]\nseeds: {seeds}\n", encoding="utf-8")
    line = refuse("plan", str(study))
    assert "mine.yaml" in line and "seeds" in line


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**30])
def test_a_seed_is_below_63_bits(refuse: Refuse, tiny_recipe: str, seed: int) -> None:
    words = ("train", "--recipe", tiny_recipe, "--variant", "baseline")
    line = refuse(*words, "--seed", str(seed))
    assert "seed" in line and str(seed) in line
    line = refuse(*words, "--set", f"data.seed={seed}")
    assert f"data.seed={seed}" in line


@pytest.mark.parametrize("key", ["d_model", "ffn_dim", "n_layers", "vocab_size"])
def test_a_model_that_the_machine_cannot_hold_is_refused_at_once(refuse: Refuse, tiny_recipe: str, key: str) -> None:
    words = ("train", "--recipe", tiny_recipe, "--variant", "g1_headwise", "--set", f"model.{key}=99999999999999")
    started = time.monotonic()
    line = refuse(*words)
    assert time.monotonic() - started < 5
    there = f"this machine has {machine_memory():,}"
    assert f"model.{key}=99999999999999" in line and "bytes; " in line and there in line and "legal:" in line


def test_an_absurd_number_of_heads_is_refused_at_once(refuse: Refuse, tiny_recipe: str) -> None:
    """9.2e18 is no multiple of 2, and nobody waits for all its divisors."""
    words = ("train", "--recipe", tiny_recipe, "--variant", "baseline", "--set", f"model.n_heads={2**63 - 1}")
    assert "is not a multiple of model.n_kv_heads=2; legal n_kv_heads: 1, 7, 49" in refuse(*words)


def test_a_plan_is_made_for_other_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_recipe: str) -> None:
    study = tmp_path / "mine.yaml"
    content = {"recipe": tiny_recipe, "variants": ["g1_headwise"], "seeds": 1}
    study.write_text(
        yaml.safe_dump(content | {"overrides": {"set": {"model.d_model": 99999999999998}}}), encoding="utf-8"
    )
    monkeypatch.setattr(sys, "argv", ["gatebench", "plan", str(study)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.fixture
def finished(refuse: Refuse, tmp_path: Path, tiny_recipe: str) -> dict[str, Path]:
    """A finished study of the baseline and one variant, in the folder of runs: its runs, by variant."""
    study = tmp_path / "mine.yaml"
    study.write_text(f"recipe: {tiny_recipe}\nvariants: [g1_headwise]\nseeds: [0]\n", encoding="utf-8")
    runs = {}
    for variant in ("baseline", "g1_headwise"):
        config = prepare(make_run(tiny_recipe, variant, 0))[0]
        run(config, evaluate, threads=1)
        runs[variant] = run_directory(config).path
    return runs


@pytest.mark.parametrize("damage", [emptied, flipped])
@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "environment.json"])
def test_train_refuses_a_damaged_result(
    refuse: Refuse, finished: dict[str, Path], tiny_recipe: str, name: str, damage: Callable[[Path], None]
) -> None:
    path = finished["g1_headwise"] / name
    damage(path)
    words = ("train", "--recipe", tiny_recipe, "--variant", "g1_headwise")
    assert str(path) in refuse(*words)


@pytest.mark.parametrize("damage", [emptied, flipped])
def test_status_refuses_a_summary_that_cannot_be_read(
    refuse: Refuse, finished: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = finished["g1_headwise"] / "summary.json"
    damage(path)
    assert str(path) in refuse("status", str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("damage", [emptied, flipped])
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl"])
def test_tables_refuses_what_it_cannot_read(
    finished: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    damage: Callable[[Path], None],
) -> None:
    path = finished["g1_headwise"] / name
    damage(path)
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path / "root"))
    monkeypatch.setattr(sys, "argv", ["gatebench", "tables", str(tmp_path / "mine.yaml")])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    assert ended.value.code == 2 and output.out == ""
    assert str(path) in output.err.splitlines()[-1] and "Traceback" not in output.err
