"""Running a program that a model wrote, so that it can do no harm: no change to a file, no network, no process.

A program of a benchmark only computes. So each one runs in a process of its own that may do little else:

- **seccomp** (Linux on x86-64 and aarch64; any user, root too; in containers). The kernel allows the process about
  60 system calls: memory, time, reading files. It cannot open a file to write, create, delete, rename or change one,
  open a socket, start a process or a thread, or send a signal. This is a security boundary; ctypes does not pass it.
- **audit hook** (elsewhere). Python itself refuses the same actions. It stops accidents, not an attack: it is no
  security boundary.
- **limits**: processor time and wall clock, address space (not enforced by macOS), open files.
- The program gets no environment variables, no stdin, an empty working directory, the standard library alone, and its
  output goes nowhere. It is killed at the end, and where its parent dies.

What it may do is read: whatever the user may read. It has no way to send what it read anywhere but into `why`.
A program that sets out to cheat can also forge its own verdict; that costs nothing but the score.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gatebench.evaluation.sandbox_child import REPORT_BYTES, SECCOMP

CHILD = Path(__file__).with_name("sandbox_child.py")
MAX_REASON = 300


@dataclass(frozen=True)
class Outcome:
    """Whether the program ran to its end, and in one line why not ("passed" where it did)."""

    passed: bool
    why: str


def run(code: str, *, timeout_s: float = 10, memory_mb: int = 1024) -> Outcome:
    """Run `code` as `__main__` in the sandbox, for at most `timeout_s` seconds and `memory_mb` MiB of address space.

    It passes where it reaches its end: an exception, `sys.exit`, a signal or the time limit are failures.
    """
    return _run(code, timeout_s, memory_mb)[1]


def protections() -> str:
    """Return in one line what confines programs on this machine, found out by running one."""
    layer, _ = _run("", 10, 1024)
    if layer == SECCOMP:
        return "seccomp: programs can read files and compute, nothing else"
    return "audit hook: stops accidents, no security boundary (seccomp needs Linux on x86-64 or aarch64)"


def _run(code: str, timeout_s: float, memory_mb: int) -> tuple[str, Outcome]:
    """Return the layer that held and the outcome."""
    arguments = (str(int(timeout_s) + 1), str(memory_mb * 2**20))
    with tempfile.TemporaryDirectory(prefix="gatebench-") as directory, tempfile.TemporaryFile() as report:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", str(CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env={"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
            start_new_session=True,
        )
        timed_out = False
        try:
            process.communicate(code.encode("utf-8", "replace"), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        report.seek(0)
        layer, _, verdict = report.read(REPORT_BYTES).decode("utf-8", "replace").partition("\n")
    if timed_out or process.returncode == -signal.SIGXCPU:
        return layer, Outcome(False, f"not done after {timeout_s:g} s")
    if not verdict:
        return layer, Outcome(False, f"ended early with exit status {process.returncode}")
    return layer, Outcome(verdict == "passed", " ".join(verdict.split())[:MAX_REASON])
