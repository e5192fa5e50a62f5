"""What `gatebench.evaluation.sandbox` starts inside bubblewrap: limits itself, then runs the program read from stdin.

    python -P -s -S -B sandbox_child.py CPU_SECONDS MEMORY_BYTES < program

The report goes to the file that was stdout: a line that says that the program is about to start, then "passed" or why
not. The program's own output goes nowhere.

This file imports nothing of gatebench, nor anything that is not in the standard library.
"""

from __future__ import annotations

import os
import resource
import sys

STARTED = "started"
REPORT_BYTES = 4096
NOBODY = 65534


def limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Limit CPU time, address space, files and processes (none but this one)."""
    if os.getuid() == 0:  # whose processes no limit counts
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, REPORT_BYTES),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 1),
    ):
        resource.setrlimit(kind, (value, value))


def verdict(program: bytes) -> str:
    """Run the program and return "passed", or the type and message of what it raised."""
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    return "passed"


def main() -> None:
    """Read the program, limit this process, hide the report and stderr from the program, run it and report."""
    program = sys.stdin.buffer.read()
    limit(int(sys.argv[1]), int(sys.argv[2]))
    report = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.argv = [""]
    os.write(report, f"{STARTED}\n".encode())
    os.write(report, verdict(program).encode(errors="replace")[: REPORT_BYTES // 2])
    os._exit(0)


if __name__ == "__main__":
    main()
