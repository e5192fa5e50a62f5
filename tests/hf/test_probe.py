"""`gatebench probe` of checkpoints: what it reads, that its figures are those of the run, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gatebench.hf
from gatebench.data.tokens import Corpus
from gatebench.evaluation.probes import checkpoint_probes
from gatebench.evaluation.probes.checkpoint_probes import text_windows
from gatebench.evaluation.probes.probe import probe as probe_model
from gatebench.hf.tokenizer import corpus_tokenizer
from tests.cli.commands import Command
from tests.hf.models import wrapped
from tests.training.tiny_run import RunTiny, reference, run_tiny, tiny_corpus, tiny_recipe

__all__ = ["reference", "run_tiny", "tiny_corpus", "tiny_recipe"]

probe = Command("probe")
EVERYTHING = ("--tokens", 10**6, "--seq-len", 96, "--no-figures")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, run_tiny: RunTiny) -> dict[str, Path]:
    """Trained runs and, in another layout each, their exports."""
    root = tmp_path_factory.mktemp("checkpoints")
    found = {}
    for variant in ("baseline", "g1_headwise"):
        run_tiny(root / f"run_{variant}", variant=variant)
        gatebench.hf.export(*gatebench.hf.from_run(root / f"run_{variant}"), root / variant)
        found |= {f"run_{variant}": root / f"run_{variant}", variant: root / variant}
    return found


def test_windows_begin_with_bos_and_are_disjoint_parts_of_a_document(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    tokenizer = corpus_tokenizer(corpus, bos=True, length=32)
    texts = ["The president of the union has made a report. " * 5, "x"]
    ids = tokenizer(texts[0], add_special_tokens=False).input_ids
    n = len(ids) // 8
    assert n >= 4
    windows = text_windows({"english": texts}, tokenizer, 8, 10**6, "it")
    assert windows.shape == (n, 8) and (windows[:, 0] == 0).all()
    assert sorted(windows[:, 1:].tolist()) == sorted(ids[8 * i : 8 * i + 7] for i in range(n))
    assert text_windows({"english": texts}, tokenizer, 8, 24, "it").tolist() == windows[:3].tolist()
    without = text_windows({"a": texts}, corpus_tokenizer(corpus, bos=False, length=32), 8, 10**6, "it")
    assert sorted(without.tolist()) == sorted(ids[8 * i : 8 * i + 8] for i in range((len(ids) - 1) // 8))


@pytest.mark.slow
def test_an_exported_run_has_the_probes_of_the_run(
    exported: dict[str, Path], tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_probes, "CORPUS", str(tiny_corpus))
    run = probe.json(exported["run_g1_headwise"], *EVERYTHING)["runs"][0]
    found = probe.json(exported["g1_headwise"], *EVERYTHING, "--out", tmp_path)["runs"][0]
    assert found["context"] == run["context"] and found["variant"] == "g1_headwise" and found["seed"] is None
    assert found["probes"]["probe_tokens"] == run["probes"]["probe_tokens"] > 1000
    for key in ("first_token_share", "sink_rate", "m_act", "sdpa_abs_after", "gate_mean", "gate_closed"):
        assert found["probes"][key] == pytest.approx(run["probes"][key], rel=1e-5, abs=1e-7), key


def test_a_text_is_read_and_everything_is_written(exported: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The president of the union has made a report. " * 40, encoding="utf-8")
    words = ("--text", text, "--seq-len", 16, "--attention-map", 1, "--map-length", 12)
    result = probe(exported["baseline"], exported["g1_headwise"], *words, "--out", tmp_path / "out", "--no-figures")
    assert result.exit_code == 0, result.output
    assert "share / floor" in result.stdout and str(exported["baseline"])[:20] in result.stdout
    for variant in ("baseline", "g1_headwise"):
        folder = tmp_path / "out" / variant / "probe"
        facts = json.loads((folder / "probes.json").read_text(encoding="utf-8"))
        assert (facts["variant"], facts["corpus"], facts["seq_len"]) == (variant, "text.txt", 16)
        assert np.load(folder / "attention_maps.npz")["maps"].shape == (1, 4, 12, 12)
    model, tokenizer = gatebench.hf.load(exported["baseline"])
    assert tokenizer is not None
    windows = text_windows({"it": [text.read_text(encoding="utf-8")]}, tokenizer, 16, 10**6, "it")
    expected = probe_model(model.transformer, windows, batch_size=8, device=torch.device("cpu")).summary()
    found = json.loads((tmp_path / "out" / "baseline" / "probe" / "probes.json").read_text(encoding="utf-8"))
    assert found["first_token_share"] == pytest.approx(expected["first_token_share"], rel=1e-5)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"destinations.md", "baseline", "g1_headwise"}
    facts_line = (tmp_path / "out" / "destinations.md").read_text(encoding="utf-8").splitlines()[2]
    assert facts_line.startswith("Corpus text.txt; BOS; context 16;") and facts_line.endswith(" tokens probed.")


def test_refusals(exported: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("short", encoding="utf-8")
    gatebench.hf.export(wrapped("baseline"), None, tmp_path / "mute")
    checkpoint, run = exported["baseline"], exported["run_baseline"]
    cases = {
        (checkpoint, run): f"{checkpoint}: a checkpoint beside run directories; legal: the ones or the others",
        (checkpoint, "--intervene", "all"): f"{checkpoint}: --intervene and --every-checkpoint go with run directories",
        (checkpoint, "--text", text): "--seq-len 32: 'short.txt' has no document of so many tokens; legal: a smaller",
        (checkpoint, "--text", tmp_path / "no"): f"--text {tmp_path / 'no'}: cannot be read",
        (run, "--text", text): f"--text {text}: goes with checkpoints; legal: a run reads the held-out documents",
        (tmp_path / "mute",): f"{tmp_path / 'mute'}: has no tokenizer",
        ("owner/name",): "owner/name: no such directory, and the hub does not have it or cannot be reached",
        ("owner/name/folder",): "owner/name/folder: no such directory, and the hub does not have it or cannot be",
        ("tests/hf/nothing",): "tests/hf/nothing: no such directory; legal: a run directory",
        (tmp_path / "nothing",): f"{tmp_path / 'nothing'}: no such directory; legal: a run directory",
    }
    for words, message in cases.items():
        refused = probe.refusal(*words, "--out", tmp_path / "out")
        assert refused.startswith(message) and "\n" not in refused
    assert not (tmp_path / "out").exists()
