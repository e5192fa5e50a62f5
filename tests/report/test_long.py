"""What `gatebench long` leaves, as columns, tables, lines and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.analysis import paper_tables as tables
from gatebench.report.figures import long_figures
from gatebench.report.read import long_results, results
from gatebench.report.tables.long_table import decline_table, documents, lines, metric_table
from tests.report.synthetic_runs import summary

SHARES = {"baseline": 0.50, "g1_headwise": 0.05, "g1_elementwise": 0.10, "softmax1": 0.02, "sink_logits": 0.03}


def record(factor: float | None, length: int, score: float, tasks: tuple[str, ...] = ("vt",)) -> dict[str, Any]:
    """A file of one condition and length, at a window of 256 tokens."""
    asked = {"samples": 5, "seed": 42, "wording": "gatebench", "tokens": 4096}
    part = {"start": 0, "stop": length, "nats": 3.0, "low": None, "high": None}
    probes = {"first_token_share": 0.2, "first_token_excess": 8.0, "sink_rate": 0.1, "gate_mean": None, "m_act": 50.0}
    row = {
        "text": {"asked": asked, "tail": part, "bins": [part] * 16, "probes": probes},
        "ruler": {task: {"asked": asked, "score": score + 10 * i} for i, task in enumerate(tasks)},
        "depths": {"rows": [{"depth": 0.0, "score": score}, {"depth": 1.0, "score": 100.0}]},
    }
    scaling = None if factor is None else {"factor": factor}
    return {"window": 256, "rope_scaling": scaling, "intervention": None, "lengths": {str(length): row}}


def write(folder: Path, **records: dict[str, Any]) -> Path:
    (folder / "long").mkdir(parents=True)
    for name, content in records.items():
        (folder / "long" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_columns_say_metric_condition_and_length(tmp_path: Path) -> None:
    found = long_results.columns(write(tmp_path, plain=record(None, 256, 80.0), yarn4=record(4, 1024, 60.0)))
    assert found["ruler/1x"] == found["ruler/256"] == 80.0
    assert found["ruler_yarn/4x"] == found["ruler_yarn/1k"] == 60.0
    assert found["long_share/1x"] == 0.2 and found["long_loss_yarn/4x"] == 3.0
    assert found["long_gate/1x"] is None
    assert long_results.multiples(found, "ruler") == [1.0, 4.0]
    assert long_results.conditions(found) == ["", "_yarn"]


def test_of_two_factors_the_larger_counts_and_means_are_over_common_tasks(tmp_path: Path) -> None:
    plain, small, large = record(None, 256, 80.0, ("vt", "cwe")), record(2, 256, 50.0), record(4, 256, 40.0)
    found = long_results.columns(write(tmp_path, plain=plain, yarn2=small, yarn4=large))
    assert found["ruler_yarn/1x"] == 40.0
    assert found["ruler/1x"] == 80.0  # cwe is not in the others
    assert found["long_asked"] == "4096 tokens; 5 samples seed 42 wording gatebench: vt"


def test_how_it_was_asked_stands_below_the_table(tmp_path: Path) -> None:
    short = record(None, 256, 80.0)
    short["lengths"]["256"]["ruler"]["vt"]["asked"] = {**short["lengths"]["256"]["text"]["asked"], "digits": 2}
    how = long_results.columns(write(tmp_path, plain=short))["long_asked"]
    document = metric_table("mine", runs().assign(long_asked=how), "ruler", ["baseline"], {}, "baseline")
    assert document.to_dict()["legend"].endswith("5 samples seed 42 wording gatebench numbers of 2 digits: vt.")


def test_every_way_in_which_tasks_were_asked_is_said(tmp_path: Path) -> None:
    mixed = record(None, 256, 80.0, ("vt", "niah_single_1"))
    needle = mixed["lengths"]["256"]["ruler"]["niah_single_1"]
    needle["asked"] = {**needle["asked"], "samples": 9, "digits": 2}
    assert long_results.columns(write(tmp_path, plain=mixed))["long_asked"] == (
        "4096 tokens; 9 samples seed 42 wording gatebench numbers of 2 digits: niah_single_1; "
        "5 samples seed 42 wording gatebench: vt"
    )


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (write(tmp_path, plain=record(None, 256, 1.0)) / "long" / "plain.json").write_text("{}")
    with pytest.raises(UserError, match=r"plain\.json: no result of `gatebench long`"):
        long_results.columns(tmp_path)


def runs() -> pd.DataFrame:
    """Five variants, three seeds: RULER loses 40 points times the share, the loss gains 2 nats times it."""
    rows = []
    for name, share in SHARES.items():
        for seed in range(3):
            own = share + 0.001 * seed
            rows.append(
                summary(name, seed, 100.0)
                | {"long_share/1x": own, "ruler/1x": 80.0 + seed, "ruler_yarn/1x": 79.0 + seed}
                | {"ruler/1k": 80.0 + seed, "ruler_yarn/1k": 79.0 + seed}
                | {"ruler_yarn/4x": 80.0 + seed - 40 * own, "long_loss/1x": 3.0, "long_loss/4x": 3.0 + 2 * own}
            )
    return results.as_frame(rows).assign(setting="")


def test_brackets_hold_the_change_from_the_runs_as_they_were_trained() -> None:
    (table,) = metric_table("mine", runs(), "ruler", ["baseline"], {}, "baseline").tables
    assert [column.title for column in table.columns] == ["variant", "condition", "1x", "4x"]
    trained, stretched = ([cell.text for cell in row] for row in table.rows)
    assert trained[:2] == ["baseline", "as trained"] and trained[3] == "-"
    assert stretched[:2] == ["baseline", "YaRN"]
    assert stretched[2] == "80.00 ± 2.48 (-1.00)"  # t(2) sd / sqrt(3)
    assert stretched[3].startswith("60.96 ± ") and "(" not in stretched[3]


def test_lines_are_the_slopes_that_went_in() -> None:
    found = {line.outcome: line for line in lines(runs())}
    assert list(found) == ["RULER points lost, 4x YaRN against 1x", "loss gained, nats, 4x as trained against 1x"]
    points, nats = found.values()
    assert points.slope == pytest.approx(4.0) and points.between == pytest.approx(4.0)
    assert nats.slope == pytest.approx(0.2)
    assert (points.n_runs, points.n_variants, points.r_squared) == (15, 5, pytest.approx(1.0))


def legend_of_decline(frame: pd.DataFrame) -> str:
    document = decline_table("mine", frame, "baseline")
    assert document is not None
    return str(document.to_dict()["legend"])


def test_a_decline_is_read_as_an_association_at_most() -> None:
    legend = legend_of_decline(runs())
    assert "variants with more sink decline more" in legend and "shows no cause" in legend
    assert "No run has a sink" not in legend
    small = legend_of_decline(runs().assign(**{"long_excess/1x": 1.75}))
    assert "(the largest share is 1.75 times its floor, below 2)" in small
    few = runs()
    assert decline_table("mine", few[few["variant"].isin(["baseline", "g1_headwise", "softmax1"])], "baseline") is None
    flat = runs().assign(**{"ruler_yarn/4x": [60.0, 61.0, 59.0] * 5, "long_loss/4x": [3.1, 3.0, 2.9] * 5})
    assert "no association is resolved over 5 variants" in legend_of_decline(flat)


def test_table_5_has_our_lengths_beside_the_papers() -> None:
    made = tables.make(5, runs(), "baseline", ["g1_elementwise"])
    assert [column.key for column in made.columns][:3] == ["ruler/1k", "ruler/4k", "ruler/8k"]
    ours = [row.ours["ruler/1k"].mean for row in made.rows if row.ours["ruler/1k"].n]
    assert sorted(ours) == [80.0, 80.0, 81.0, 81.0]


def test_a_map_is_the_mean_over_runs() -> None:
    found, lengths, depths = long_figures.depth_map([record(None, 256, 20.0), record(None, 256, 40.0)])
    assert found.tolist() == [[30.0], [100.0]]
    assert (lengths, depths) == ([256], [0.0, 1.0])
    partly = record(None, 256, 20.0)
    partly["lengths"]["512"] = {**partly["lengths"]["256"], "depths": {}}
    assert long_figures.depth_map([partly])[1] == [256], "lengths without a map are left out"
    assert long_figures.depth_map([partly, record(None, 512, 20.0)])[1] == [], "no length in common"


def test_everything_is_written(tmp_path: Path) -> None:
    frame = runs().assign(run_dir="")
    here = write(tmp_path / "run", plain=record(None, 256, 80.0), yarn4=record(4, 256, 60.0))
    frame.loc[0, "run_dir"] = str(here)
    assert documents("mine", frame[["variant", "seed"]], list(SHARES), {}, "baseline") == []
    made = documents("mine", frame, list(SHARES), {}, "baseline")
    files = [path for table in made for path in table.write(tmp_path / "tables")]
    files += long_figures.write(frame, list(SHARES), {}, "baseline", tmp_path / "figures")
    assert [table.name for table in made] == ["long_ruler", "long_loss", "long_share", "long_decline"]
    names = {path.name for path in files}
    assert {"long_ruler.md", "long_lengths.svg", "long_positions.png", "long_depths.pdf"} <= names
    assert all(path.stat().st_size for path in files)
