"""What one uninterrupted run leaves behind."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatebench.data.tokens import Corpus
from gatebench.evaluation.evaluate import evaluate
from gatebench.recipes import make_run, run_from_yaml
from gatebench.training import run as run_module
from gatebench.training.run import metric_names, run
from tests.training.tiny_run import COMPARED, RunTiny, reproducible_rows, rows_of, tiny_config

SUMMARY_KEYS = {
    *("schema", "run", "variant", "recipe", "seed", "data_seed", "overrides", "fingerprint", "status", "diverged_step"),
    *("param_match", "n_params", "n_params_baseline", "n_params_added", "flops_per_token", "corpus"),
    *("corpus_fingerprint", "vocab_size", "seq_len", "bos", "precision", "compiled", "device", "threads", "n_devices"),
    *("machine", "steps", "tokens", "data_hash", "curve_hash", "final_train_loss", "avg_ppl", "avg_bpb", "micro_ppl"),
    *("eval_seq_len", "first_token_share", "first_token_share_excl", "first_token_floor", "first_token_floor_excl"),
    *("first_token_excess", "m_act", "gate_mean", "gate_closed", "gate_open", "gate_abs_logit", "probe_tokens"),
    *("tokens_per_s", "train_wall_s", "started", "finished", "git_commit", "git_dirty", "torch_version"),
    "gatebench_version",
}
"""docs/results.md, schema 1, without the columns by domain."""


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_directory_holds_what_results_md_lists_and_no_more(reference: Path) -> None:
    names = {path.name for path in reference.iterdir()} - {".lock"}
    files = {"config.yaml", "environment.json", "metrics.jsonl", "eval.json", "probes.json", "probes.npz"}
    assert names == files | {"summary.json", "log.txt", "checkpoints", "SHA256SUMS"}
    checkpoints = {path.name for path in (reference / "checkpoints").iterdir()}
    assert checkpoints == {"model.safetensors", "model.safetensors.sha256"}


def test_metrics_has_one_row_a_step_with_these_columns(reference: Path) -> None:
    rows = rows_of(reference)
    assert [row["step"] for row in rows] == list(range(1, 21))
    for row in rows:
        assert list(row) == ["step", "tokens", "loss", "grad_norm", "lr", "tokens_per_s", "batch"]
        assert row["tokens"] == row["step"] * 4 * 32
        assert row["grad_norm"] > 0 and row["tokens_per_s"] > 0
    assert rows[0]["loss"] == pytest.approx(math.log(512), abs=0.05)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5


def test_metrics_has_the_learning_rate_of_each_step(reference: Path) -> None:
    lr = [row["lr"] for row in rows_of(reference)]
    assert lr[:5] == pytest.approx([2e-3, 4e-3, 6e-3, 8e-3, 1e-2])
    assert lr[5] == pytest.approx(1e-2)
    assert lr[-1] == pytest.approx(1e-3)


def test_the_summary_has_every_field_of_schema_1(reference: Path, tiny_corpus: Path) -> None:
    summary = load(reference / "summary.json")
    domains = Corpus.open(tiny_corpus).domains
    by_domain = {f"{kind}/{domain}" for kind in ("ppl", "bpb", "nll", "eval_tokens") for domain in domains}
    assert summary["schema"] == 1
    assert SUMMARY_KEYS | by_domain <= summary.keys()
    assert summary["status"] == "done" and summary["diverged_step"] is None
    assert summary["steps"] == 20 and summary["tokens"] == 20 * 4 * 32
    # Headwise G1: one column of d_model a query head and layer.
    assert summary["n_params_added"] == 2 * 32 * 4 == summary["n_params"] - summary["n_params_baseline"]


def test_hashes_of_the_summary_are_over_the_rows(reference: Path) -> None:
    summary, rows = load(reference / "summary.json"), rows_of(reference)
    batches = "".join(row["batch"] for row in rows)
    assert summary["data_hash"] == hashlib.sha256(batches.encode()).hexdigest()[:16]
    losses = b"".join(struct.pack("<d", row["loss"]) for row in rows)
    assert summary["curve_hash"] == hashlib.sha256(losses).hexdigest()[:16]
    assert summary["final_train_loss"] == rows[-1]["loss"]  # the last 5 % of 20 steps


def test_the_config_reads_back_and_names_its_corpus(reference: Path, tiny_corpus: Path, tiny_recipe: str) -> None:
    config = run_from_yaml((reference / "config.yaml").read_text(encoding="utf-8"), "config.yaml")
    assert config.corpus_fingerprint == Corpus.open(tiny_corpus).fingerprint
    asked = make_run(tiny_recipe, "g1_headwise", 0)
    assert config == asked.model_copy(update={"corpus_fingerprint": config.corpus_fingerprint})


def test_the_environment_is_recorded(reference: Path) -> None:
    (attempt,) = load(reference / "environment.json")["attempts"]
    versions = {"python", "torch", "lightning", "numpy", "tokenizers", "gatebench_version"}
    places = {"platform", "cpu", "cores", "machine", "device", "n_devices", "threads", "precision", "compiled"}
    assert attempt.keys() == versions | places | {"started", "command", "git_commit", "git_dirty"}
    assert (attempt["device"], attempt["threads"], attempt["precision"]) == ("cpu", 1, "fp32")
    assert attempt["compiled"] is False


def test_scores_and_probes_carry_their_meaning(reference: Path, tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    for name in ("eval.json", "probes.json"):
        content = load(reference / name)
        assert content["corpus"] == "tiny" and content["corpus_fingerprint"] == corpus.fingerprint
        assert (content["seq_len"], content["bos"], content["dtype"]) == (32, True, "float32")
    domains = load(reference / "eval.json")["domains"]
    assert tuple(domains) == corpus.domains
    for facts in domains.values():
        assert facts["ppl"] == pytest.approx(math.exp(facts["nll_sum"] / facts["tokens"]))
        assert facts["tokens"] >= 256


def test_probe_arrays_have_a_row_a_layer(reference: Path) -> None:
    with np.load(reference / "probes.npz") as arrays:
        shapes = {name: arrays[name].shape for name in arrays.files}
    gates = {f"gate_g1_{name}": (2,) for name in ("mean", "closed", "open", "abs_logit")}
    shares = {"first_token_share": (2, 4), "first_token_share_excl": (2, 4), "max_activation": (2,)}
    listed = gates | shares | {"gate_g1_hist": (2, 50), "gate_g1_edges": (51,)}
    assert listed.items() <= shapes.items()


def test_a_done_run_is_not_touched_again(tmp_path: Path, run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_tiny(tmp_path / "run", "train.steps=6")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    monkeypatch.setattr(run_module, "_fit", lambda *args: pytest.fail("trained again"))
    assert run_tiny(tmp_path / "run", "train.steps=6") == first
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_same_run_twice_gives_the_same_bits(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    run_tiny(tmp_path / "run")
    assert reproducible_rows(tmp_path / "run") == reproducible_rows(reference)


def test_two_variants_at_one_seed_read_the_same_batches(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    baseline = run_tiny(tmp_path / "baseline", variant="baseline")
    gated = load(reference / "summary.json")
    assert [row["batch"] for row in rows_of(tmp_path / "baseline")] == [row["batch"] for row in rows_of(reference)]
    assert baseline["data_hash"] == gated["data_hash"]
    assert baseline["curve_hash"] != gated["curve_hash"]


def test_another_seed_reads_another_order_and_a_data_seed_keeps_it(tmp_path: Path, run_tiny: RunTiny) -> None:
    short = ("train.steps=6", "eval.tokens_per_domain=64", "eval.probe_tokens=64")
    seeds = [run_tiny(tmp_path / f"s{seed}", *short, seed=seed)["data_hash"] for seed in (0, 1)]
    assert seeds[0] != seeds[1]
    pinned = [run_tiny(tmp_path / f"p{seed}", *short, "data.seed=0", seed=seed) for seed in (0, 1)]
    assert pinned[0]["data_hash"] == pinned[1]["data_hash"] == seeds[0]
    assert pinned[0]["curve_hash"] != pinned[1]["curve_hash"]


def test_micro_batches_change_neither_data_nor_losses(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    run_tiny(tmp_path / "micro", "train.micro_batch_size=1")
    one_by_one, at_once = rows_of(tmp_path / "micro"), rows_of(reference)
    assert [row["batch"] for row in one_by_one] == [row["batch"] for row in at_once]
    for column in ("loss", "grad_norm"):
        ours, theirs = ([row[column] for row in rows] for rows in (one_by_one, at_once))
        assert ours == pytest.approx(theirs, rel=2e-5, abs=1e-5), column


def test_how_often_metrics_are_read_changes_no_row(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    run_tiny(tmp_path / "run", "train.log_every=1", "train.checkpoint_every=7")
    assert reproducible_rows(tmp_path / "run") == reproducible_rows(reference)


def test_compared_columns_are_all_but_the_speed(reference: Path) -> None:
    assert set(rows_of(reference)[0]) - set(COMPARED) == {"tokens_per_s"}


@pytest.mark.parametrize("log_every", [1, 10, 50])
def test_a_run_whose_loss_is_not_finite_has_diverged(
    tmp_path: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch, log_every: int
) -> None:
    """Step 8 poisons a weight, so that the loss of step 9 is NaN: rows end there however seldom they are read."""
    original = run_module.LanguageModel.configure_gradient_clipping

    def poison(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self.trainer.global_step == 7:
            self.model.blocks[0].ffn.up_proj.weight.data.fill_(float("nan"))

    monkeypatch.setattr(run_module.LanguageModel, "configure_gradient_clipping", poison)
    config = tiny_config(tiny_recipe, f"train.log_every={log_every}")
    summary = run(config, evaluate, out=tmp_path / "run")
    assert (summary["status"], summary["diverged_step"]) == ("diverged", 9)
    assert summary["steps"] == 9 and summary["final_train_loss"] is None
    assert {summary[name] for name in metric_names(run_module.prepare(config)[1])} == {None}
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert rows[-1]["loss"] is None and all(row["loss"] is not None for row in rows[:-1])
    assert run(config, evaluate, out=tmp_path / "run") == summary  # a result, not a failure: it stays


@pytest.mark.parametrize("value", [float("nan"), 1e10])
def test_a_run_that_breaks_at_its_last_step_has_diverged(
    tmp_path: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """No later training loss shows it, but no perplexity can be computed."""
    original = run_module.LanguageModel.configure_gradient_clipping

    def poison(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self.trainer.global_step == 5:
            self.model.embed.weight.data.mul_(value)
            self.model.norm.weight.data.mul_(value)

    monkeypatch.setattr(run_module.LanguageModel, "configure_gradient_clipping", poison)
    summary = run(tiny_config(tiny_recipe, "train.steps=6"), evaluate, out=tmp_path / "run")
    assert (summary["status"], summary["diverged_step"]) == ("diverged", 6)
    assert summary["avg_ppl"] is None and summary["ppl/english"] is None
    json.dumps(summary, allow_nan=False)
