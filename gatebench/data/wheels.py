"""Fetching pinned wheels with the ordinary client, and checking what came."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gatebench.errors import UserError
from gatebench.paths import cache_dir


@dataclass(frozen=True)
class Wheel:
    """A wheel, pinned by name, version and sha256 (hex)."""

    package: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def wheels_dir() -> Path:
    """Where fetched wheels are kept."""
    return cache_dir() / "wheels"


def fetch_wheels(wheels: Sequence[Wheel], *, log: Callable[[str], None], at_once: int = 4) -> dict[Wheel, Path]:
    """The file of each wheel, fetched unless the cache has it.

    Raises:
        UserError: a wheel that cannot be fetched, or whose sha256 is another one.
    """
    wheels_dir().mkdir(parents=True, exist_ok=True)
    distinct = list(dict.fromkeys(wheels))
    missing = [w for w in distinct if cached_wheel(w) is None]
    if missing:
        log(f"fetching {len(missing)} of {len(distinct)} wheels: {', '.join(w.requirement for w in missing)}")
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(_fetch, missing))
    found = {wheel: cached_wheel(wheel) for wheel in distinct}
    return {wheel: path for wheel, path in found.items() if path is not None}


def cached_wheel(wheel: Wheel) -> Path | None:
    """The cached file with the pinned content, or None."""
    stem = wheel.package.replace("-", "_").lower()
    for path in sorted(wheels_dir().glob(f"*-{wheel.version}-*.whl")):
        if path.name.lower().startswith(f"{stem}-{wheel.version}-") and _sha256(path) == wheel.sha256:
            return path
    return None


def _fetch(wheel: Wheel) -> None:
    with tempfile.TemporaryDirectory(dir=wheels_dir(), prefix=".fetch-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
        command += ["--disable-pip-version-check", "--no-input", "--dest", folder, wheel.requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        files = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(files) != 1:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no wheel came"]
            reason = errors[-1].removeprefix("ERROR: ")
            raise UserError(f"cannot fetch {wheel.requirement}: {reason} (is the package index reachable?)")
        if (found := _sha256(files[0])) != wheel.sha256:
            raise UserError(f"{wheel.requirement} has sha256 {found}, not the pinned {wheel.sha256}: not used")
        os.replace(shutil.move(files[0], f"{folder}/checked"), wheels_dir() / files[0].name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
