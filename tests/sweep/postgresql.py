"""A PostgreSQL of this machine's own packages, for the time of a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def running() -> Iterator[str]:
    """Start a server and yield its URL; skip the test, saying why, where there is none to start."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [
        Path(path).parent for path in (shutil.which("initdb"),) if path
    ]
    if not found:
        pytest.skip("no PostgreSQL server here (package postgresql)")
    as_user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="gatebench-postgresql-"))
    if os.getuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def server(name: str, *words: str) -> None:
        command = [*as_user, str(found[-1] / name), "-D", str(folder / "data"), *words]
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stdout

    server("initdb", "-A", "trust", "-U", "postgres", "--no-sync")
    options = f"-k {folder} -p {port} -c listen_addresses=127.0.0.1 -c fsync=off"
    server("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        server("pg_ctl", "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder)
