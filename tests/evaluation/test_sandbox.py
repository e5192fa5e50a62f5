"""The sandbox: what a program may not do is not done, and it is over when it is over."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gatebench.evaluation import sandbox
from gatebench.evaluation.sandbox_child import AUDIT_HOOK, SECCOMP, filter_program

CHILD_FOLDER = Path(sandbox.__file__).parent
has_seccomp = pytest.mark.skipif(not sandbox.protections().startswith(SECCOMP), reason="no seccomp here")

REFUSED = "PermissionError: [Errno 1] Operation not permitted"


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


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not enforce a limit on memory")
def test_ten_gigabytes_are_refused() -> None:
    assert sandbox.run("x = bytearray(10 * 2**30)") == sandbox.Outcome(False, "MemoryError")
    assert sandbox.run("x = bytearray(2**29)", memory_mb=1024).passed
    assert sandbox.run("x = bytearray(2**29)", memory_mb=256) == sandbox.Outcome(False, "MemoryError")


@has_seccomp
@pytest.mark.parametrize(
    "code",
    [
        "while True: os.fork()",
        "subprocess.Popen(['sleep', '60'])",
        "os.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 9)",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    ],
)
def test_no_process_is_started_or_touched(code: str) -> None:
    assert sandbox.run(f"import os, subprocess\n{code}").why.startswith(REFUSED)


@has_seccomp
def test_a_process_that_was_refused_is_not_there_afterwards(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    code = f"import os\nif os.fork() == 0:\n    while True: open({str(marker)!r}, 'a').write('x')"
    assert not sandbox.run(code).passed
    assert not sandbox.run(f"import os\nos.system('sh -c \"sleep 0.2; touch {marker}\" &')\nraise OSError").passed
    time.sleep(0.4)
    assert not marker.exists()


@has_seccomp
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
        "subprocess.run(['rm', '-f', victim])",
    ],
)
def test_no_file_is_changed(action: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    outcome = sandbox.run(f"import os, shutil, subprocess\nvictim = {str(victim)!r}\n{action}")
    assert outcome.why.startswith(REFUSED)
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert victim.read_text() == "mine"


@has_seccomp
def test_ctypes_does_not_pass_the_filter(tmp_path: Path) -> None:
    """The C library is called directly: -1 is its failure, and the file is still there."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = str(victim).encode()
    code = f"import ctypes\nassert ctypes.CDLL(None).unlink({path!r}) == -1\nassert ctypes.CDLL(None).fork() == -1"
    assert sandbox.run(code).passed
    assert victim.read_text() == "mine"


@has_seccomp
def test_nothing_arrives_at_a_listening_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        outcome = sandbox.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port})).send(b'hello')")
        with pytest.raises(TimeoutError):
            server.accept()
    assert outcome.why == REFUSED


@has_seccomp
def test_a_program_dies_with_the_process_that_runs_it() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from gatebench.evaluation import sandbox; sandbox.run('while True: pass', timeout_s=60)",
        ]
    )
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    wait_until(lambda: children.read_text() != "")
    child = Path("/proc") / children.read_text().strip()
    time.sleep(0.3)  # let it confine itself
    assert "sandbox_child" in (child / "cmdline").read_text()
    parent.kill()
    parent.wait()
    wait_until(lambda: not child.exists() or (child / "cmdline").read_text() == "")


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
    ("code", "passes"),
    [
        ("import random, json, decimal; open('/dev/null').read()", True),
        ("open('new', 'w')", False),
        ("import os; os.remove('old')", False),
        ("import os; os.fork()", False),
        ("import socket; socket.socket()", False),
        ("import subprocess; subprocess.run(['true'])", False),
        ("import ctypes; ctypes.CDLL(None)", False),
    ],
)
def test_the_audit_hook_refuses_the_same(code: str, passes: bool, tmp_path: Path) -> None:
    """The layer of systems without seccomp, installed here by hand."""
    (tmp_path / "old").touch()
    hooked = (
        f"import sys\nfrom sandbox_child import refuse, verdict\nsys.addaudithook(refuse)\nprint(verdict({code!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-c", hooked],
        cwd=tmp_path,
        env={"PYTHONPATH": str(CHILD_FOLDER)},
        capture_output=True,
        text=True,
    )
    expected = "passed" if passes else "PermissionError"
    assert done.stdout.startswith(expected), done
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_the_filter_fits_the_kernels_limit_and_ends_in_a_refusal() -> None:
    for column, architecture in enumerate((0xC000003E, 0xC00000B7)):
        program = list(filter_program(architecture, column))
        assert len(program) < 4096
        assert {len(instruction) for instruction in program} == {8}
        assert int.from_bytes(program[-1][4:], sys.byteorder) == 0x00050001


def test_protections_are_named_in_one_line() -> None:
    line = sandbox.protections()
    assert line.startswith((SECCOMP, AUDIT_HOOK))
    assert "\n" not in line
