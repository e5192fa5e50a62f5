"""Which transformers `gatebench.hf` works with."""

from __future__ import annotations

from importlib import metadata

from gatebench.errors import UserError

OLDEST, TOO_NEW = (5, 24), (6,)
SUPPORTED = "transformers >= 5.24, < 6"


class WrongTransformers(UserError, ImportError):
    """transformers is missing, or of a version that `gatebench.hf` does not work with."""


def check_transformers() -> None:
    """Raise WrongTransformers, in one line with both versions, unless the installed transformers is supported."""
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        raise WrongTransformers(
            f"gatebench.hf: transformers is not installed; needed: {SUPPORTED} (pip install 'gatebench[hf]')"
        ) from None
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not OLDEST <= release < TOO_NEW:
        raise WrongTransformers(
            f"gatebench.hf: transformers {version} is installed; needed: {SUPPORTED} (pip install 'gatebench[hf]')"
        )
