"""The imports of a run without what nobody here uses: four seconds of a CPU before the first step, not six."""

from __future__ import annotations

import sys

UNUSED = ("transformers", "scipy", "matplotlib")
"""What torchmetrics, which Lightning imports, loads where it is installed: for scores of text and sound, and plots."""


def import_torchmetrics() -> None:
    """Import torchmetrics as where `UNUSED` are not installed; does nothing once it is imported."""
    if "torchmetrics" in sys.modules:
        return
    from lightning_utilities.core import imports

    met, available = imports.RequirementCache.__bool__, imports.package_available

    def is_met(requirement: imports.RequirementCache) -> bool:
        return not (requirement.requirement or "").startswith(UNUSED) and met(requirement)

    imports.RequirementCache.__bool__ = is_met  # type: ignore[assignment, method-assign]
    imports.package_available = lambda name: name not in UNUSED and available(name)  # type: ignore[assignment]
    try:
        import torchmetrics  # noqa: F401
    finally:
        imports.RequirementCache.__bool__, imports.package_available = met, available  # type: ignore[method-assign]
