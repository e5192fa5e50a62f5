"""Documents from a data set of the hub, streamed; needs the extra `hub`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gatebench.data.documents import Document, TextSource
from gatebench.data.text_files import document_of
from gatebench.errors import UserError


def hub_source(
    dataset: str,
    *,
    config: str | None = None,
    split: str = "train",
    text_field: str = "text",
    domain_field: str | None = None,
    domain: str = "text",
    max_docs: int | None = None,
    max_bytes: int | None = None,
) -> TextSource:
    """A data set's records as documents, until `max_docs` records or `max_bytes` of cleaned UTF-8 text.

    Raises:
        UserError: `datasets` is not installed, or while reading: no network, an unknown data set, a missing field.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"hub data set {dataset!r} needs the extra `hub`: pip install 'gatebench[hub]'") from error

    def read() -> Iterator[Document]:
        seen: Counter[str] = Counter()
        try:
            rows = datasets.load_dataset(dataset, config, split=split, streaming=True)
            for number, row in enumerate(rows):
                if max_docs is not None and number >= max_docs:
                    break
                where = f"hub data set {dataset!r} record {number}"
                yield document_of(row, where, seen, text_field=text_field, domain_field=domain_field, domain=domain)
        except UserError:
            raise
        except Exception as error:  # network, authentication, unknown names: the library has no common type for them
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"hub data set {dataset!r} (config {config}, split {split}) cannot be read: {reason}"
            ) from error

    facts: dict[str, object] = {
        "kind": "hub data set",
        "domain": domain if domain_field is None else f"by {domain_field}",
        "dataset": dataset,
        "config": config,
        "split": split,
        "licence": "see the data set's card",
    }
    return TextSource(f"hub: {dataset}", read, facts, cap_bytes=max_bytes)
