"""From run directories to committed files: tables, figures, report and claims, the same bytes every time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from gatebench.cli import app
from gatebench.errors import UserError
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results, study_runs
from gatebench.sweep.plan import PlannedRun
from gatebench.sweep.study import load_study
from tests.report.study_root import FLOOR, make_root, write_study_runs

pytestmark = pytest.mark.slow

STUDIES = {
    "sinks": """
description: Which gates remove the sink?
recipe: sink_lab
variants: [g1_elementwise, g1_headwise, g2_elementwise, g1_elementwise_shared, g1_elementwise_ns_sigmoid]
seeds: 3
tables: [1, 4]
""",
    "table2": """
description: Learning rates
recipe: sink_lab
variants: [g1_elementwise, sandwich_norm]
seeds: 2
overrides: {grid: {optim.lr: [1e-3, 3e-3]}}
tables: [2]
""",
    "waiting": "recipe: sink_lab\nvariants: [g1_headwise]\noverrides: {set: [train.steps=777]}\n",
}
SHIFT = {"g1_elementwise": -0.8, "g1_headwise": -0.7}
KEEPS_ITS_SINK = ("baseline", "g2_elementwise", "g1_elementwise_shared", "g1_elementwise_ns_sigmoid")


def avg_ppl(run: PlannedRun) -> float:
    seed, name = run.config.seed, run.config.variant
    noise = zlib.crc32(f"{name}/{seed}".encode()) % 100 / 100
    return 10 + 0.3 * seed + SHIFT.get(name, 0.0) + 0.02 * noise


def sink(run: PlannedRun) -> dict[str, Any]:
    excess = (6.0 if run.config.variant in KEEPS_ITS_SINK else 1.2) + 0.05 * run.config.seed
    return {"first_token_share": excess * FLOOR, "first_token_excess": excess}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        found = make_root(tmp_path_factory.mktemp("root"), patch, STUDIES)
        write_study_runs("sinks", avg_ppl, sink)
        write_study_runs("table2", avg_ppl, sink, probes="shares")
        run_tables()
        yield found


def run_tables(*args: str) -> str:
    done = CliRunner().invoke(app, ["tables", *args], catch_exceptions=False)
    assert done.exit_code == 0
    return str(done.stdout)


def written(root: Path) -> dict[str, bytes]:
    files = [path for path in (root / "results").rglob("*") if path.is_file()]
    below = {path.relative_to(root / "results").as_posix(): path for path in files}
    return {name: path.read_bytes() for name, path in below.items() if not name.startswith(("runs/", "paper/"))}


def test_every_study_with_results_has_tables_figures_and_a_report(root: Path) -> None:
    files = set(written(root))
    for suffix in ("md", "csv", "json", "tex", "html"):
        assert {f"sinks/tables/table{n}.{suffix}" for n in (1, 4)} | {f"table2/tables/table2.{suffix}"} <= files
    assert {"sinks/report.html", "table2/report.html", "claims.md", "claims.csv", "claims.json"} <= files
    for suffix in ("png", "pdf", "svg"):
        figures = ("loss_curves", "figure1_losses", "figure1_positions", "first_token_share", "gate_g1_headwise")
        probed = ("sink_heads", "sdpa_output", "activations", "massive_activations")
        assert {f"sinks/figures/{name}.{suffix}" for name in (*figures, *probed)} <= files
    assert {"sinks/runs.csv", "sinks/curves.csv"} <= files and not any(name.startswith("waiting") for name in files)
    assert "table2/tables/settings.md" in files and "table2/tables/optim.lr=0.001/comparison.md" in files


def test_twice_and_in_a_bare_clone_no_byte_changes(root: Path) -> None:
    first = written(root)
    run_tables("sinks")
    assert written(root) == first
    (root / "results" / "runs").rename(root / "away")
    try:
        run_tables()
        assert written(root) == first
    finally:
        (root / "away").rename(root / "results" / "runs")


def test_a_compact_frame_holds_what_the_runs_hold(root: Path) -> None:
    runs = study_runs.collect(load_study("sinks"))
    committed = compact.read_runs(root / "results" / "sinks")
    assert committed is not None and len(committed) == runs.n_planned == 18
    ours = runs.frame.sort_values("run", ignore_index=True)
    theirs = committed.sort_values("run", ignore_index=True)
    for name in results.COLUMNS:
        assert ours[name].dtype == theirs[name].dtype, name
    assert ours["variant"].tolist() == theirs["variant"].tolist()
    np.testing.assert_allclose(ours["avg_ppl"], theirs["avg_ppl"], rtol=1e-9)
    assert str(root) not in (root / "results" / "sinks" / "runs.csv").read_text()


def test_a_committed_run_is_used_until_the_run_is_here(root: Path) -> None:
    out = root / "results" / "sinks"
    kept = {path: path.read_bytes() for path in (out / "runs.csv", out / "curves.csv")}
    frame = pd.read_csv(out / "runs.csv", dtype=str, keep_default_na=False)
    gone = frame["run"].iloc[0]
    frame["avg_ppl"] = "77.5"
    frame.to_csv(out / "runs.csv", index=False)
    shutil.move(root / "results" / "runs" / gone, root / "aside")
    try:
        found = study_runs.collect(load_study("sinks")).frame.set_index("run")
        assert found.loc[gone, "avg_ppl"] == 77.5 and found.loc[gone, "run_dir"] == ""
        assert (found.drop(index=gone)["avg_ppl"] < 20).all()
        other = pd.read_csv(out / "runs.csv", dtype=str, keep_default_na=False)
        other.loc[other["run"] == gone, "run"] = "sink_lab/another-recipe-s0-00000000"
        other.to_csv(out / "runs.csv", index=False)
        assert len(study_runs.collect(load_study("sinks")).frame) == 17  # of another configuration: not this study's
    finally:
        shutil.move(root / "aside", root / "results" / "runs" / gone)
        for path, content in kept.items():
            path.write_bytes(content)


def test_curves_are_thinned_to_means_and_maxima(root: Path) -> None:
    curves = compact.read_curves(root / "results" / "sinks")
    run = curves["run"].iloc[0]
    whole = results.load_curves([root / "results" / "runs" / run])
    one = curves[curves["run"] == run]
    assert len(one) == 60 == len(whole)  # 60 steps in 200 bins: each its own
    np.testing.assert_allclose(one["loss"], whole["loss"], rtol=1e-4)
    long = pd.DataFrame({"run": "r", "step": range(1, 1001), "tokens": range(1000), "loss": 3.0, "grad_norm": 1.0})
    long.loc[500, "loss"] = 9.0
    thin = compact._thinned_run(long, 100)
    assert len(thin) == 100 and thin["step"].iloc[-1] == 1000
    assert thin["loss_max"].max() == 9.0 and thin["loss"].max() == pytest.approx(3.6)


def test_json_alone_on_standard_output(root: Path) -> None:
    kept = written(root)
    data = json.loads(run_tables("sinks", "--json", "--margin", "0.5"))
    (study,) = data["studies"]
    variants = {v["variant"]: v for v in study["settings"][0]["comparison"]["variants"]}
    assert variants["g1_elementwise"]["verdict"] == "better"
    assert variants["g2_elementwise"]["equivalence"]["p"] < 0.001
    assert {claim["claim"]: claim["verdict"] for claim in data["claims"]}["C8"] == "supported"
    for name, content in kept.items():
        (root / "results" / name).write_bytes(content)


def test_a_study_without_runs_is_one_line(root: Path) -> None:
    with pytest.raises(UserError, match="tables: waiting: no finished run; legal: a study that"):
        CliRunner().invoke(app, ["tables", "waiting"], catch_exceptions=False)


def test_claims_reads_what_tables_left(root: Path) -> None:
    done = CliRunner().invoke(app, ["claims", "--json"], catch_exceptions=False)
    found = {item["claim"]: item for item in json.loads(done.stdout)["claims"]}
    assert found["C8"]["verdict"] == "supported" and found["C1"]["verdict"] == "not tested"
    assert {e["file"] for e in found["C8"]["evidence"]} == {"results/sinks/runs.csv"}
    text = CliRunner().invoke(app, ["claims"], catch_exceptions=False).stdout
    assert "C16" in text and "supported" in text


# --- the page


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "table":
            self.tables.append(found.get("id") or "")
        self.links += [found[key] or "" for key in ("src", "href") if key in found]
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_begins_with_the_verdict(root: Path) -> None:
    text = (root / "results" / "sinks" / "report.html").read_text(encoding="utf-8")
    outline = _Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.tables[0] == "claims"
    assert [link for link in outline.links if not link.startswith(("data:image/png;base64,", "../runs/"))] == []
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings[0] == "Verdict" and {"Runs", "Configuration", "Environment", "Figures"} <= set(headings)
    assert "g1_elementwise is better than baseline" in text
    assert len(text) < 3 * 1024**2
    assert "optim.lr: 0.001 -&gt; 0.003" in (root / "results" / "table2" / "report.html").read_text(encoding="utf-8")


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVE = """
<script>
const rows = (id) => [...document.getElementById(id).tBodies[0].rows];
const head = (id, n) => document.getElementById(id).tHead.rows[0].cells[n].firstChild;
const shown = (id) => rows(id).filter((row) => !row.hidden);
const report = {};
head("runs", 5).click();
report.ascending = rows("runs").map((row) => Number(row.cells[5].textContent));
head("runs", 5).click();
report.descending = rows("runs").map((row) => Number(row.cells[5].textContent));
const input = document.querySelector('input[data-for="runs"]');
input.value = "HEADWISE done";
input.dispatchEvent(new Event("input"));
report.filtered = shown("runs").map((row) => row.cells[1].textContent);
report.count = document.querySelector('output[data-count="runs"]').textContent;
report.width = document.documentElement.scrollWidth;
report.window = window.innerWidth;
const found = document.createElement("pre");
found.id = "found";
found.textContent = JSON.stringify(report);
document.body.append(found);
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_a_browser_sorts_filters_and_shows_it_on_a_phone(root: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    page = tmp_path / "driven.html"
    text = (root / "results" / "sinks" / "report.html").read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"{DRIVE}</body>"), encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=500,900",
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, env=environment
    )
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)[1])  # type: ignore[index]
    assert len(found["ascending"]) == 18
    assert found["ascending"] == sorted(found["ascending"]) and found["descending"] == found["ascending"][::-1]
    assert found["filtered"] == ["g1_headwise"] * 3 and found["count"] == "3 rows"
    assert found["width"] <= found["window"]  # wide tables scroll inside themselves
    picture = tmp_path / "page.png"
    subprocess.run(
        [*command, f"--screenshot={picture}", page.as_uri()],
        capture_output=True,
        timeout=120,
        env=environment,
        check=True,
    )
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000
