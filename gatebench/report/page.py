"""``results/<study>/report.html``: one self-contained page, verdict first, that needs no network and no server."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from PIL import Image

from gatebench import metrics
from gatebench.errors import UserError
from gatebench.files import write_atomic
from gatebench.identity import differences
from gatebench.recipes import make_run, to_yaml
from gatebench.report.analysis.claims import ClaimResult
from gatebench.report.analysis.comparison import MetricRow
from gatebench.report.analysis.flags import flag_text, run_flags
from gatebench.report.study_report import SettingReport, StudyReport
from gatebench.report.tables import claims_table
from gatebench.report.tables.blocks import Cell, Table, table
from gatebench.report.tables.comparison_sentences import sentences
from gatebench.report.tables.comparison_table import verdict_cell
from gatebench.report.text import header_lines, number, p_value
from gatebench.sweep.study import Study

TEMPLATE = "page.html.j2"
MAX_INLINED = 1_400_000
"""Bytes of figures inside the page; further ones are linked, so that the page stays small enough to commit."""
INLINED_COLORS = 64
"""Of a figure inside the page, which makes it a third of the file beside it."""
MAX_RUNS_SHOWN = 2_000

_FIRST = ("loss_curves", "figure1", "first_token_share", "factors", "settings")
_OF_A_RUN = ("avg_ppl", "final_train_loss", "first_token_excess", "m_act", "tokens", "tokens_per_s")
_ENVIRONMENT = (
    "recipe", "corpus", "vocab_size", "seq_len", "eval_seq_len", "bos", "param_match", "precision", "compiled",
    "device", "threads", "n_devices", "machine", "torch_version", "gatebench_version", "git_commit", "git_dirty",
)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A figure: inside the page as PNG, or a link to it where the page would grow too large."""

    title: str
    path: str
    data: str
    """Base64; empty for a link."""


def write(report: StudyReport, claims: Sequence[ClaimResult]) -> Path:
    """Write ``report.html`` of a study and return its path."""
    path = report.runs.folder / "report.html"
    write_atomic(path, render(report, claims))
    return path


def render(report: StudyReport, claims: Sequence[ClaimResult]) -> str:
    """Return the page. The same runs and figures give the same text."""
    runs, study = report.runs, report.runs.study
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    of_settings = [(_named(setting, table.heading), table) for setting in report.settings for table in setting.tables]
    others = [*report.tables_across, *(table for setting in report.settings for table in setting.long)]
    across = report.across_settings
    found = environment.get_template(TEMPLATE).render(
        study=study,
        n_runs=runs.frame["run"].nunique(),
        n_planned=runs.n_planned,
        header=_header(report),
        verdicts=list(_verdicts(report)),
        claims=_claims(claims),
        rule=claims_table.RULE,
        comparison=_comparisons(report),
        tables=[
            (title, Markup(table.to_html()))
            for title, table in [*of_settings, *((table.heading, table) for table in (*others, *report.over_rates))]
        ],
        settings=None if across is None else _table_of(across.frame),
        factors=[
            (_named(setting, "Factor analysis"), setting.factors) for setting in report.settings if setting.factors
        ],
        pictures=_pictures(runs.folder),
        runs=_runs(runs.frame),
        n_rows=len(runs.frame),
        config=to_yaml(_config(study, study.variant_names()[0], 0)),
        differences=list(_differences(study)),
        environment=_environment(runs.frame),
    )
    return found + "\n"


def _header(report: StudyReport) -> list[str]:
    tables = [setting.comparison for setting in report.settings if setting.comparison]
    return header_lines(tables[0].facts) if len(tables) == 1 else []


def _named(setting: SettingReport, title: str) -> str:
    return f"{title} ({setting.combination.label})" if setting.combination.label else title


def _verdicts(report: StudyReport) -> Iterator[tuple[str, str]]:
    """The first sentence on every variant, with its verdict as a style."""
    for setting in report.settings:
        if setting.comparison is None:
            continue
        for item in setting.comparison.variants:
            label = f"{setting.combination.label}: " if setting.combination.label else ""
            yield (item.primary.comparison.verdict or "none"), label + sentences(setting.comparison, item)[0]


def _claims(claims: Sequence[ClaimResult]) -> Table:
    rows = []
    for index, result in enumerate(claims):
        evidence = "; ".join(f"{e.outcome}: {e.test.text} ({e.study}: {e.text})" for e in result.evidence)
        rows.append(
            (
                Cell(result.claim.id, value=index),
                result.claim.text,
                Cell(result.verdict, style=result.verdict),
                evidence or "no run bears on it",
                ", ".join(result.claim.studies),
            )
        )
    return table(("", "claim", "verdict", "evidence", "studies that test it"), rows)


def _comparisons(report: StudyReport) -> Table:
    """Every metric of every variant under every setting."""
    columns = (
        *("setting", "variant", "metric", "baseline", "variant's", "difference", "95 % interval", "resolvable"),
        *("Holm p", "verdict"),
    )
    rows: list[tuple[str | Cell, ...]] = [
        (setting.combination.label, item.name, *_metric_cells(row))
        for setting in report.settings
        if setting.comparison
        for item in setting.comparison.variants
        for row in item.rows
    ]
    return table(columns, rows)


def _metric_cells(row: MetricRow) -> Iterator[Cell]:
    c, kind = row.comparison, row.metric.kind

    def value(x: float, *, signed: bool = False) -> Cell:
        return Cell(number(x, kind, signed=signed, like=row.variant_mean), value=x)

    yield Cell(row.metric.row_title.strip())
    yield value(row.baseline_mean)
    yield value(row.variant_mean)
    yield value(c.mean, signed=True)
    low, high = (number(x, kind, signed=True, like=row.variant_mean) for x in (c.low, c.high))
    yield Cell(f"{low} to {high}" if c.low == c.low else "-", value=c.low)
    yield value(c.resolvable)
    yield Cell(p_value(c.p_adjusted), value=c.p_adjusted)
    yield verdict_cell(row)


def _table_of(frame: pd.DataFrame) -> Table:
    return table(list(map(str, frame.columns)), [[_plain(value) for value in row] for row in frame.to_numpy(object)])


def _plain(value: Any) -> Cell:
    if isinstance(value, float):
        return Cell(f"{value:.4g}" if value == value else "-", value=value)
    return Cell(str(value), value=value if isinstance(value, int) else None)


def _runs(frame: pd.DataFrame) -> Table:
    shown = [metrics.get(key) for key in _OF_A_RUN]
    columns = ("run", "variant", "setting", "seed", "status", *(metric.heading for metric in shown), "flags")
    rows = []
    for _, run in frame.head(MAX_RUNS_SHOWN).iterrows():
        flags = "; ".join(flag_text(flag) for flag in run_flags(run))
        rows.append(
            (
                Cell(run["run"], link=f"../runs/{run['run']}/"),
                run["variant"],
                run["setting"],
                Cell(str(run["seed"]), value=run["seed"]),
                Cell(run["status"], style="worse" if run["status"] == "diverged" else ""),
                *(Cell(metric.text(run[metric.key]), value=run[metric.key]) for metric in shown),
                flags,
            )
        )
    return table(columns, rows)


def _pictures(folder: Path) -> list[Picture]:
    """PNGs below ``figures/``, the overall ones first, inlined while the page stays small."""

    def rank(path: Path) -> tuple[int, str]:
        first = next((i for i, word in enumerate(_FIRST) if path.stem.startswith(word)), len(_FIRST))
        return first, path.relative_to(folder).as_posix()

    found, room = [], MAX_INLINED
    for path in sorted((folder / "figures").rglob("*.png"), key=rank):
        below = path.relative_to(folder / "figures").with_suffix("").as_posix().replace("_", " ")
        content = base64.b64encode(_with_few_colors(path)).decode()
        room -= len(content)
        found.append(Picture(below, path.relative_to(folder).as_posix(), content if room >= 0 else ""))
    return found


def _with_few_colors(path: Path) -> bytes:
    found = io.BytesIO()
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(INLINED_COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(found, "PNG")
    return found.getvalue()


def _config(study: Study, variant: str, combination: int) -> Any:
    return make_run(study.recipe, variant, study.seeds[0], study.combinations()[combination].settings)


def _differences(study: Study) -> Iterator[tuple[str, list[str]]]:
    """What each setting and each variant changes of the first configuration, by its keys."""
    first = _config(study, study.variant_names()[0], 0)
    for index, combination in enumerate(study.combinations()):
        if index:
            try:
                yield combination.label, differences(_config(study, study.variant_names()[0], index), first)
            except UserError as error:
                yield combination.label, [str(error)]
    for name in study.variant_names()[1:]:
        try:
            yield name, differences(_config(study, name, 0), first)
        except UserError as error:
            yield name, [str(error)]


def _environment(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Every value of what the runs ran on, with the number of runs that had it where they differ."""
    once = frame.drop_duplicates("run")
    found = []
    for name in _ENVIRONMENT:
        counts = once[name].astype(str).value_counts().sort_index()
        words = [value or "unknown" for value in counts.index]
        text = words[0] if len(words) == 1 else ", ".join(f"{w} ({n} runs)" for w, n in zip(words, counts, strict=True))
        found.append((name, text))
    hours = float(once["train_wall_s"].sum()) / 3600
    found.append(("training time, summed", f"{hours:.2f} hours"))
    return found
