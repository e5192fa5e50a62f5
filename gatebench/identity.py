"""What makes two runs one run: the fingerprint of a configuration, and where two differ. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel

RESULT_NEUTRAL = (
    *("description", "overrides", "init.path"),
    *("train.loggers", "train.log_every", "train.watch_every", "train.recompute"),
    *("train.checkpoint_every", "train.snapshot_every"),
)
"""Keys that cannot change a result: runs that differ only here are one run.

`overrides` is a record of the command line; what it set counts under its own key.
"""

BEFORE: dict[str, Any] = {
    "data.synthetic": None,
    "data.retrieval": None,
    "model.moe": None,
    "model.context_length": None,
    "model.rope_scaling": None,
    "init": None,
}
"""Every key that is younger than the first recorded runs -> what held before it existed.

A fingerprint leaves out a value that is what it was before its key existed, so that a new key renames no run: whoever
adds one to `config.py` adds it here.
"""

_NOT_IN_NAMES = ("init.weights_sha256",)
"""The name of the run that another begins with says all that decides its weights; their hash is not known before."""


def fingerprint(config: BaseModel) -> str:
    """Return eight hex digits over everything in `config` that can change the result."""
    content = {
        key: value
        for key, value in _flat(config.model_dump(mode="json")).items()
        if key not in (*RESULT_NEUTRAL, *_NOT_IN_NAMES) and not (key in BEFORE and value == BEFORE[key])
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def differences(ours: BaseModel, theirs: BaseModel) -> list[str]:
    """Return `key: theirs -> ours` for every key that can change the result and in which two configurations differ."""
    new, old = (_flat(config.model_dump(mode="json")) for config in (ours, theirs))
    keys = [key for key in new | old if key not in RESULT_NEUTRAL]
    return [f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys if new.get(key) != old.get(key)]


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested sections as one dict by `section.key`."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
