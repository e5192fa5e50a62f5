"""`gatebench data`: build a corpus, look at one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.output import stderr_console, stdout_console, terminal_table
from gatebench.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatebench.data.tokens import Corpus

app = typer.Typer(help="Build a corpus, and look at one.", no_args_is_help=True)

_SAMPLE_CHARACTERS = 240
_RECORD_OPTIONS = (
    *("name", "format", "text_field", "domain_field", "domain", "tokenizer"),
    *("near_duplicates", "heldout_overlap"),
)
_HUB_OPTIONS = ("hub_config", "hub_split", "max_docs", "max_bytes")


@app.command()
def build(
    context: typer.Context,
    preset: Annotated[str | None, typer.Option(help="A built-in corpus: six_domains, six_domains_full.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The preset with more sources and no caps.")] = False,
    from_: Annotated[
        list[Path] | None, typer.Option("--from", help="A file or folder to read instead; may be repeated.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of a corpus built from --from or --hub.")] = None,
    format: Annotated[str, typer.Option(help="auto, jsonl, parquet or text.")] = "auto",
    text_field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    domain_field: Annotated[str | None, typer.Option(help="Field or column that names the domain.")] = None,
    domain: Annotated[str | None, typer.Option(help="The domain of all documents.", show_default="text")] = None,
    hub: Annotated[str | None, typer.Option(help="A hub data set to stream (extra `hub`).")] = None,
    hub_config: Annotated[str | None, typer.Option(help="Configuration of the hub data set.")] = None,
    hub_split: Annotated[str, typer.Option(help="Split of the hub data set.")] = "train",
    max_docs: Annotated[int | None, typer.Option(min=1, help="Records to read from the hub at most.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Bytes of text to read from the hub at most.")] = None,
    vocab_size: Annotated[int, typer.Option(help="Size of the BPE vocabulary to train.")] = 4096,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json to use instead of training one.")] = None,
    near_duplicates: Annotated[
        str,
        typer.Option(help="Drop a document with this share of its 13-grams in earlier ones, or keep."),
    ] = "0.5",
    heldout_overlap: Annotated[
        str, typer.Option(help="Drop a training document with more than this share in held-out text, or keep.")
    ] = "0.03",
    out: Annotated[Path | None, typer.Option(help="Directory to build into.", show_default="below the cache")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build although the corpus is up to date.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON alone.")] = False,
) -> None:
    """Build a corpus: fetch or read text, drop duplicates, hold out documents, train a tokenizer, write shards."""
    from gatebench.data.corpus import BuildOptions
    from gatebench.data.custom import HubPart, build_custom
    from gatebench.data.presets import build_preset
    from gatebench.data.text_files import RecordReader
    from gatebench.data.tokens import Corpus

    own_text = bool(from_) or hub is not None
    if own_text:
        _refuse(context, ("preset", "full"), "does not go with --from or --hub")
        if hub is None:
            _refuse(context, _HUB_OPTIONS, "needs --hub")
        if name is None:
            raise UserError("--name is missing: a corpus from --from or --hub needs one")
        if domain is not None and domain_field is not None:
            raise UserError(f"--domain {domain!r} and --domain-field {domain_field!r} exclude each other")
    else:
        _refuse(context, _RECORD_OPTIONS, "needs --from or --hub")
        _refuse(context, _HUB_OPTIONS, "needs --hub")

    with _Progress() as log:
        if own_text:
            assert name is not None
            part = None if hub is None else HubPart(hub, hub_config, hub_split, max_docs, max_bytes)
            path, built = build_custom(
                name,
                paths=from_ or (),
                hub=part,
                format=format,
                records=RecordReader(text_field, domain_field, domain or "text"),
                options=BuildOptions(
                    vocab_size=vocab_size,
                    tokenizer=tokenizer,
                    near_duplicate=_share("near-duplicates", near_duplicates),
                    overlap=_share("heldout-overlap", heldout_overlap),
                ),
                out=out,
                force=force,
                log=log,
            )
        else:
            chosen = preset or "six_domains"
            if full and not chosen.endswith("_full"):
                chosen += "_full"
            path, built = build_preset(chosen, out=out, vocab_size=vocab_size, force=force, log=log)

    corpus = Corpus.open(path)
    if as_json:
        typer.echo(json.dumps({"path": str(path), "built": built, **_summary(corpus)}, indent=1, ensure_ascii=False))
        return
    console = stdout_console()
    if built:
        console.print(_domain_table(corpus))
        seconds = corpus.manifest["seconds"]
        stages = ", ".join(f"{stage} {s:.1f} s" for stage, s in seconds.items())
        for line in _losses(corpus):
            console.print(line, markup=False, highlight=False)
        console.print(f"Built {corpus.name} in {sum(seconds.values()):.0f} s ({stages}).")
    else:
        console.print(f"{corpus.name} is up to date: nothing to do (--force builds it again).")
    console.print(str(path), soft_wrap=True, highlight=False)


@app.command()
def info(
    corpus: Annotated[str, typer.Argument(help="Name or directory of a built corpus.")] = "six_domains",
    samples: Annotated[int, typer.Option(min=0, help="Documents to show of each domain.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Show a corpus: domains, documents, tokens, sources with their licences, what is missing, samples."""
    from rich.text import Text

    from gatebench.config import SYNTHETIC_CORPORA
    from gatebench.data.tokens import Corpus

    if corpus in SYNTHETIC_CORPORA:
        raise UserError(
            f"corpus '{corpus}': is made as it is read, so there is nothing built to show; "
            "docs/sinks.md describes it, data.synthetic in a recipe sets it"
        )
    opened = Corpus.open(corpus)
    excerpts = {domain: _samples(opened, domain, samples) for domain in opened.domains}
    if as_json:
        facts = {"path": str(opened.path), **_summary(opened), "samples": excerpts}
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    console = stdout_console()
    console.print(_domain_table(opened))
    console.print(_source_table(opened))
    for line in _losses(opened):
        console.print(line, markup=False, highlight=False)
    console.print("By source with --json.\n")
    if opened.manifest["gaps"]:
        console.print("What it does not have", style="bold")
        for gap in opened.manifest["gaps"]:
            console.print(f"- {gap}", highlight=False)
        console.print()
    for domain, texts in excerpts.items():
        for text in texts:
            console.print(domain, style="bold")
            console.print(Text(text, style="dim"))
            console.print()
    console.print(f"{opened.path} (fingerprint {opened.fingerprint[:12]})", soft_wrap=True, highlight=False)


def _refuse(context: typer.Context, options: tuple[str, ...], why: str) -> None:
    """Refuse options that were given on the command line and would have no effect."""
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"--{option.replace('_', '-')} {context.params[option]} {why}")


def _share(option: str, value: str) -> float | None:
    """Return the share at which a rule drops a document; None for `keep`."""
    if value == "keep":
        return None
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UserError(f"--{option} {value}: legal: keep, or a share above 0, to 1")
    return share


class _Progress:
    """One live line on standard error, or plain lines where that is no terminal."""

    def __enter__(self) -> _Progress:

        self._console = stderr_console()
        self._status = self._console.status("building") if self._console.is_terminal else None
        if self._status:
            self._status.start()
        return self

    def __call__(self, line: str) -> None:
        if self._status:
            self._status.update(line)
        else:
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()


def _domain_table(corpus: Corpus) -> RenderableType:
    rows, total = [], [0, 0, 0, 0, 0]
    for domain in corpus.domains:
        train, heldout = (corpus.manifest["domains"][domain][split] for split in ("train", "heldout"))
        row = [train["documents"], train["bytes"], train["tokens"], heldout["documents"], heldout["tokens"]]
        total = [a + b for a, b in zip(total, row, strict=True)]
        rows.append((domain, *_cells(row)))
    vocabulary = corpus.manifest["tokenizer"]["vocab_size"]
    columns = ("domain", "docs", "MB", "tokens", "bytes/token", "held-out docs", "held-out tokens")
    title = f"{corpus.name}: domains (byte-level BPE of {vocabulary:,})"
    return terminal_table(columns, [*rows, ("all", *_cells(total))], title=title)


def _cells(row: list[int]) -> list[str]:
    documents, size, tokens, heldout_documents, heldout_tokens = row
    per_token = f"{size / (tokens - documents):.2f}" if tokens > documents else "-"  # EOS stands for no text
    return [
        f"{documents:,}",
        f"{size / 1e6:.2f}",
        f"{tokens:,}",
        per_token,
        f"{heldout_documents:,}",
        f"{heldout_tokens:,}",
    ]


def _source_table(corpus: Corpus) -> RenderableType:
    from gatebench.report.tables.blocks import Column

    rows = []
    for source in corpus.manifest["sources"]:
        size, documents = (sum(part[k] for part in source["kept"].values()) for k in ("bytes", "documents"))
        dropped = sum(part["documents"] for part in source["dropped"].values())
        numbers = (f"{size / 1e6:.2f}", f"{documents:,}", f"{dropped:,}")
        rows.append((source["name"], _origin(source), *numbers, source["licence"]))
    columns = ("source", "from", "kept MB", "docs", "dropped", Column("licence", words=True))
    return terminal_table(columns, rows, n_words=2, title="sources")


def _losses(corpus: Corpus) -> Iterator[str]:
    """What was held out, dropped and passed over, a line each, with the largest cause."""
    from gatebench.data.rules import counts, largest_cause

    heldout = [corpus.manifest["domains"][domain]["heldout"] for domain in corpus.domains]
    yield f"Held out: {sum(part['documents'] for part in heldout):,} documents, never trained on."
    sources = corpus.manifest["sources"]
    dropped = {s["name"]: {rule: [part["documents"]] for rule, part in s["dropped"].items()} for s in sources}
    seen, total = sum(source["seen"]["documents"] for source in sources), counts(dropped)
    rules = ", ".join(f"{n:,} {rule.replace('_', ' ')}" for rule, n in sorted(total.items()))
    yield f"Dropped: {total.total():,} of {seen:,} documents" + (f": {rules}." if rules else ".")
    if rules:
        yield f"The largest cause: {largest_cause(dropped)}."
    for source in sources:
        if source["cap_reached"]:
            yield f"Not read to its end: {source['name']} (its cap of {source['cap_bytes'] / 1e6:.0f} MB is reached)."
        for what, n in source.get("skipped", {}).items():
            yield f"Passed over: {n:,} {what} of {source['name']}."


def _origin(source: dict[str, Any]) -> str:
    if source["kind"] == "wheel":
        return f"{source['package']} {source['version']}"
    if source["kind"] == "standard library":
        return f"Python {source['python']}"
    return str(source.get("dataset", source["kind"]))


def _summary(corpus: Corpus) -> dict[str, Any]:
    kept = ("name", "domains", "tokenizer", "sources", "rules", "gaps", "seconds", "built_with")
    return {"fingerprint": corpus.fingerprint, **{key: corpus.manifest[key] for key in kept}}


def _samples(corpus: Corpus, domain: str, n: int) -> list[str]:
    """The beginnings of `n` training documents, always the same ones."""
    import numpy as np

    from gatebench.data.permutation import KeyedPermutation

    offsets = corpus.documents("train", domain)
    n_documents = len(offsets) - 1
    if n == 0 or n_documents == 0:
        return []
    tokenizer = corpus.tokenizer()
    chosen = KeyedPermutation(n_documents, "samples", domain)(np.arange(min(n, n_documents)))
    texts = []
    for document in chosen.tolist():
        start, stop = int(offsets[document]), int(offsets[document + 1]) - 1
        text = tokenizer.decode(corpus.tokens("train", domain, start, min(stop, start + _SAMPLE_CHARACTERS)).tolist())
        texts.append(text[:_SAMPLE_CHARACTERS].rstrip("\ufffd ") + (" ..." if len(text) > _SAMPLE_CHARACTERS else ""))
    return texts
