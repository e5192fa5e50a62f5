"""The registry of metrics: what is derived from it is what files, tables and documentation hold."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gatebench import metrics
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = sorted((ROOT / "results").glob("*/runs.csv"))

PROBED = (
    *("first_token_share", "first_token_share_excl", "first_token_floor", "first_token_floor_excl"),
    *("first_token_excess", "sink_rate", "m_act", "gate_mean", "gate_closed", "gate_open", "gate_abs_logit"),
    *("probe_tokens", "residual_sinks", "residual_sink_share", "residual_kurtosis", "norm_weight_min"),
)


def test_an_evaluation_fills_these_fields() -> None:
    by_domain = [f"{name}/{domain}" for domain in ("code", "law") for name in ("ppl", "bpb", "nll", "eval_tokens")]
    text = ["avg_ppl", "avg_bpb", "micro_ppl", "eval_seq_len", *PROBED, *by_domain]
    synthetic = ["entropy_floor", "excess_loss", "excess_loss_copy", "excess_loss_other", "copy_accuracy"]
    keys = metrics.evaluation_keys(("code", "law"), synthetic=False)
    assert sorted(keys) == sorted(text) and keys[:6] == text[:6]
    assert metrics.evaluation_keys(("code", "law"), synthetic=True) == [*keys, *synthetic]


def test_a_key_has_one_entry_and_refers_to_others_that_are_there() -> None:
    keys = [metric.key for metric in metrics.METRICS]
    assert len(keys) == len(set(keys))
    for metric in metrics.METRICS:
        assert {key for key in (metric.floor, metric.under) if key} <= set(keys)
        assert metric.heading or not (metric.overview or metric.long or metric.family), metric.key
        assert metric.meaning and "|" not in metric.meaning, metric.key


def test_a_domain_has_a_title_and_an_unknown_column_has_none() -> None:
    english = metrics.get("ppl/english")
    assert (english.key, english.title, english.family) == ("ppl/english", "PPL english", "domain")
    assert metrics.get("long_share").words == "first-token share" and metrics.get("ruler").words == "RULER"
    for column in ("nothing", "m_act/english"):
        assert metrics.known(column) is None
        with pytest.raises(KeyError):
            metrics.get(column)


@pytest.mark.parametrize("kind", get_args(metrics.Kind))
def test_every_kind_is_written_and_nan_is_a_dash(kind: str) -> None:
    assert any(letter.isalnum() for letter in metrics.number(0.25, kind))
    assert metrics.number(float("nan"), kind) == "-"


def test_numbers_are_written_by_their_kind() -> None:
    written = {"avg_ppl": "151.80", "first_token_share": "0.0133", "sink_rate": "25.0 %", "m_act": "26.5"}
    written |= {"gate_mean": "0.300", "tokens": "4.92 M", "tokens_per_s": "10,800"}
    values = (151.8, 0.01331, 0.25, 26.5, 0.3, 4_915_200, 10_800)
    assert {key: metrics.get(key).text(value) for key, value in zip(written, values, strict=True)} == written
    assert metrics.get("gate_mean").text(None) == "-"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_a_committed_frame_reads_and_writes_as_before(path: Path, tmp_path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith(",".join(results.COLUMNS) + ",")
    frame = compact.read_runs(path.parent)
    assert frame is not None
    compact.write(frame, tmp_path)
    assert (tmp_path / "runs.csv").read_bytes() == path.read_bytes()


def test_the_documentation_lists_every_field() -> None:
    """`python -c "from gatebench import metrics; print(metrics.summary_table())"` gives what belongs there."""
    assert metrics.summary_table() in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_probe_that_the_documentation_adds_is_there_to_the_line() -> None:
    block = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8").split("```diff\n")[1].split("```")[0]
    path, n_files = ROOT, 0
    for line in block.splitlines():
        if line.startswith("+++ "):
            path, n_files = ROOT / line[4:], n_files + 1
        else:
            assert f"{line[1:]}\n" in path.read_text(encoding="utf-8"), line
    assert n_files == 3
