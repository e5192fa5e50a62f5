"""The sink-lab recipe, end to end through the one training path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatebench.data.backcopy import BigramBackcopy
from gatebench.errors import UserError
from gatebench.evaluation.evaluate import evaluate
from gatebench.recipes import make_run
from gatebench.report.read import results
from gatebench.training import run as run_module
from gatebench.training.run import metric_names, prepare, run
from tests.training.tiny_run import assert_same_result

SHORT = (
    *("train.steps=6", "train.batch_size=4", "train.precision=fp32", "train.accelerator=cpu", "optim.warmup_steps=2"),
    *("train.checkpoint_every=2", "train.log_every=1", "eval.tokens_per_domain=1024", "eval.probe_tokens=1024"),
)


def train(out: Path, *overrides: str, variant: str = "g1_headwise", seed: int = 0) -> dict[str, Any]:
    return run(make_run("sink_lab", variant, seed, [*SHORT, *overrides]), evaluate, out=out, threads=1)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sink_lab") / "run"
    train(out)
    return out


def test_its_summary_adds_what_a_known_process_allows(short_run: Path) -> None:
    summary = json.loads((short_run / "summary.json").read_text(encoding="utf-8"))
    names = {*("avg_ppl", "first_token_share", "m_act", "gate_mean", "probe_tokens", "nll/bigram_backcopy")}
    names |= {*("entropy_floor", "excess_loss", "excess_loss_copy", "excess_loss_other", "copy_accuracy")}
    config, source, _ = prepare(make_run("sink_lab", "g1_headwise"))
    assert isinstance(source, BigramBackcopy)
    assert names <= set(metric_names(source)) <= summary.keys()
    assert summary["corpus"] == "bigram_backcopy" and summary["vocab_size"] == config.model.vocab_size == 68
    assert summary["corpus_fingerprint"] == config.corpus_fingerprint == source.fingerprint
    assert summary["entropy_floor"] == source.entropy_floor(config.data.seq_len, bos=True).overall
    assert 0 < summary["excess_loss_other"] < summary["excess_loss"] < summary["excess_loss_copy"]
    measured = summary["nll/bigram_backcopy"] - summary["entropy_floor"]
    assert summary["excess_loss"] == pytest.approx(measured, abs=0.1)  # 1,024 tokens
    details = json.loads((short_run / "eval.json").read_text(encoding="utf-8"))
    assert details["copy_targets"] + details["other_targets"] == 1024


def test_the_report_reads_it(short_run: Path) -> None:
    frame = results.load(short_run)
    assert frame.loc[0, "corpus"] == "bigram_backcopy"
    assert frame["excess_loss"].dtype == frame["copy_accuracy"].dtype == "float64"
    assert results.domains(frame) == ["bigram_backcopy"]


def test_variants_of_one_seed_see_the_same_tokens_and_seeds_do_not(tmp_path: Path, short_run: Path) -> None:
    ours = json.loads((short_run / "summary.json").read_text(encoding="utf-8"))["data_hash"]
    assert train(tmp_path / "baseline", variant="baseline")["data_hash"] == ours
    assert train(tmp_path / "seed1", seed=1)["data_hash"] != ours


def test_a_run_that_was_stopped_goes_on_to_the_same_result(
    tmp_path: Path, short_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    original = run_module.LanguageModel.training_step

    def stop_at_step_5(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 4:
            raise Stopped
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(run_module.LanguageModel, "training_step", stop_at_step_5)
        with pytest.raises(Stopped):
            train(tmp_path / "run")
    train(tmp_path / "run")
    assert_same_result(tmp_path / "run", short_run)


def test_a_vocabulary_of_another_size_is_refused_in_one_line() -> None:
    with pytest.raises(UserError) as error:
        prepare(make_run("sink_lab", "baseline", 0, ["data.synthetic.n_triggers=4"]))
    assert str(error.value) == (
        "model.vocab_size=68: corpus 'bigram_backcopy' has 69; legal: --set model.vocab_size=69"
    )


def test_an_unlimited_context_can_be_evaluated(tmp_path: Path) -> None:
    """No held-out document is too short: a sequence has no end."""
    summary = train(tmp_path / "run", "eval.seq_len=512", "train.steps=3")
    assert summary["eval_seq_len"] == 512
    assert summary["entropy_floor"] < 2.39848  # the costly first token weighs less
