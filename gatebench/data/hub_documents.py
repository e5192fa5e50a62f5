"""Documents from a data set of the hub, streamed; needs the extra `hub`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gatebench.data.documents import Document, TextSource
from gatebench.data.text_files import RecordReader
from gatebench.errors import UserError


def hub_source(
    dataset: str,
    *,
    config: str | None = None,
    split: str = "train",
    records: RecordReader | None = None,
    max_docs: int | None = None,
    max_bytes: int | None = None,
) -> TextSource:
    """A data set's records as documents, until `max_docs` records or `max_bytes` of cleaned UTF-8 text.

    Raises:
        UserError: `datasets` is not installed, or while reading: no network, an unknown data set, a missing field.
    """
    records = records or RecordReader()
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"hub data set {dataset!r} needs the extra `hub`: pip install 'gatebench[hub]'") from error

    def read() -> Iterator[Document]:
        reader = replace(records)  # keys count anew each time
        try:
            rows = datasets.load_dataset(dataset, config, split=split, streaming=True)
            for number, row in enumerate(rows):
                if max_docs is not None and number >= max_docs:
                    break
                yield reader.document(row, f"hub data set {dataset!r} record {number}")
        except UserError:
            raise
        except Exception as error:  # network, authentication, unknown names: the library has no common type for them
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"hub data set {dataset!r} (config {config}, split {split}) cannot be read: {reason}"
            ) from error

    facts: dict[str, object] = {
        "kind": "hub data set",
        "domain": records.domain if records.domain_field is None else f"by {records.domain_field}",
        "dataset": dataset,
        "config": config,
        "split": split,
        "licence": "see the data set's card",
    }
    return TextSource(f"hub: {dataset}", read, facts, cap_bytes=max_bytes)
