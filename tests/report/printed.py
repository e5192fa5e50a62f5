"""What a terminal shows of a document, as text."""

from __future__ import annotations

import io

from rich.console import Console

from gatebench.report.tables.document import Document


def in_terminal(document: Document, width: int = 120) -> str:
    """The lines as they stand in a terminal of ``width`` columns, without colours."""
    output = io.StringIO()
    Console(width=width, file=output, color_system=None).print(document.to_rich())
    return output.getvalue()
