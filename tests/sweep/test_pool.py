"""Runs side by side: slots, what is skipped, what a failure says, and what Ctrl-C leaves."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from gatebench.sweep.job import Job
from gatebench.sweep.pool import Pool, Slots, local_slots, run_all
from gatebench.sweep.status_table import StatusTable
from tests.training.tiny_run import pid_alive, tiny_config

STUB = """
import json, os, pathlib, sys, time
out, what = pathlib.Path(sys.argv[1]), sys.argv[2]
(out / "pid").write_text(str(os.getpid()))
(out / "environment").write_text(json.dumps(dict(os.environ)))
if what == "fail":
    sys.exit("gatebench: model.head_dim=7: must be even")
row = {"step": 4, "tokens": 64, "loss": 2.5, "tokens_per_s": 100.0}
(out / "metrics.jsonl").write_text(json.dumps(row) + chr(10))
if what == "wait":
    time.sleep(60)
status = "diverged" if what == "diverge" else "done"
(out / "summary.json").write_text(json.dumps({"status": status}))
"""

MakeJob = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    """job(what, seed): a job whose program is a stub that ends as `what` says."""
    kinds: dict[Path, str] = {}

    def command(self: Job, threads: int) -> list[str]:
        return [sys.executable, "-S", "-c", STUB, str(self.directory), kinds[self.directory]]

    def make(what: str, seed: int = 0) -> Job:
        made = Job(tiny_config(tiny_recipe, seed=seed), tmp_path / f"{what}-s{seed}")
        kinds[made.directory] = what
        return made

    monkeypatch.setattr(Job, "command", command)
    return make


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=200, force_terminal=False), text


def started_alone(job: Job) -> bool:
    return (job.directory / "pid").is_file()


def test_a_job_is_the_command_that_trains_what_its_directory_says(tmp_path: Path, tiny_recipe: str) -> None:
    job = Job(tiny_config(tiny_recipe, variant="g1_headwise", seed=3), tmp_path / "run")
    expected = ["-m", "gatebench", "train", "--resume", str(tmp_path / "run"), "--threads", "2"]
    assert job.command(2) == [sys.executable, *expected]


@pytest.mark.parametrize(
    ("cores", "jobs", "gpus", "devices", "limit", "slots"),
    [
        (2, 4, 0, 1, None, Slots(2, 1)),
        (2, 1, 0, 1, None, Slots(1, 2)),
        (8, 2, 0, 1, None, Slots(2, 4)),
        (8, 4, 0, 1, 1, Slots(1, 8)),
        (3, 4, 0, 1, 2, Slots(2, 1)),
        (16, 6, 4, 1, None, Slots(4, 4, ((0,), (1,), (2,), (3,)))),
        (16, 2, 4, 1, None, Slots(2, 8, ((0,), (1,)))),
        (16, 6, 4, 1, 1, Slots(1, 16, ((0,),))),
        (2, 6, 4, 1, None, Slots(4, 1, ((0,), (1,), (2,), (3,)))),
        (16, 6, 4, 2, None, Slots(2, 8, ((0, 1), (2, 3)))),
        (1, 1, 0, 1, 8, Slots(1, 1)),
    ],
)
def test_slots_divide_the_cores_and_take_a_gpu_each(
    monkeypatch: pytest.MonkeyPatch, cores: int, jobs: int, gpus: int, devices: int, limit: int | None, slots: Slots
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert local_slots(jobs, n_gpus=gpus, devices=devices, max_parallel=limit) == slots


def test_done_runs_are_skipped_and_the_rest_is_done(job: MakeJob) -> None:
    jobs = [job("done", seed) for seed in range(3)]
    jobs[1].directory.mkdir()
    (jobs[1].directory / "summary.json").write_text('{"status": "done"}', encoding="utf-8")
    output, text = console()
    assert run_all(jobs, Slots(2, 1), output) == []
    assert [started_alone(job) for job in jobs] == [True, False, True]
    assert all(job.done for job in jobs)
    assert "baseline seed 0: done" in text.getvalue() and "baseline seed 1" not in text.getvalue()


def test_a_failure_is_reported_with_the_last_line_of_its_log_and_stops_no_other(job: MakeJob) -> None:
    jobs = [job("fail"), job("done", 1)]
    output, text = console()
    failed = run_all(jobs, Slots(1, 1), output)
    assert failed == [jobs[0]] and jobs[0].exit_code == 1 and jobs[1].done
    assert "baseline seed 0: failed (exit 1): gatebench: model.head_dim=7: must be even" in text.getvalue()
    assert "baseline seed 1: done" in text.getvalue()


def test_a_diverged_run_is_a_result(job: MakeJob) -> None:
    output, text = console()
    assert run_all([job("diverge")], Slots(1, 1), output) == []
    assert "baseline seed 0: diverged" in text.getvalue()


def test_threads_and_gpus_reach_the_run(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    jobs = [job("done", seed) for seed in range(3)]
    run_all(jobs, Slots(2, 3, ((0,), (1,))), console()[0])
    seen = [json.loads((job.directory / "environment").read_text(encoding="utf-8")) for job in jobs]
    assert [environment["OMP_NUM_THREADS"] for environment in seen] == ["3"] * 3
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in seen[:2]] == ["4", "6"]
    assert seen[2]["CUDA_VISIBLE_DEVICES"] in ("4", "6")  # whichever came free


def test_no_more_than_the_slots_run_at_once(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    running = [0]
    original = Pool.start

    def counted(self: Pool, job: Job) -> None:
        running.append(sum(j.process is not None and j.process.poll() is None for j in jobs) + 1)
        original(self, job)

    monkeypatch.setattr(Pool, "start", counted)
    jobs = [job("done", seed) for seed in range(4)]
    run_all(jobs, Slots(2, 1), console()[0])
    assert max(running) <= 2


@pytest.mark.usefixtures("sigint_as_at_a_terminal")
@pytest.mark.parametrize(("number", "ends_as"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_stops_the_runs_that_are_going(
    job: MakeJob, number: signal.Signals, ends_as: type[BaseException]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    jobs = [job("wait", seed) for seed in range(3)]

    def press() -> None:
        deadline = time.monotonic() + 30
        while (
            not (jobs[0].directory / "metrics.jsonl").is_file() or not (jobs[1].directory / "metrics.jsonl").is_file()
        ):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(ends_as):
        run_all(jobs, Slots(2, 1), console()[0])
    assert signal.getsignal(signal.SIGTERM) is before
    pids = [int((job.directory / "pid").read_text(encoding="utf-8")) for job in jobs[:2]]
    assert not any(pid_alive(pid) for pid in pids)
    assert not started_alone(jobs[2]) and not any(job.done for job in jobs)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's")
def test_a_run_ends_with_its_launcher_even_after_kill_9(tmp_path: Path) -> None:
    run = (
        "import sys, time\nfrom gatebench.training.attempt import die_with_launcher\ndie_with_launcher()\n"
        "open(sys.argv[1], 'w').write('going')\ntime.sleep(60)"
    )
    launcher = (
        "import os, subprocess, sys, time\nfrom gatebench.training.attempt import LAUNCHER\n"
        f"child = subprocess.Popen([sys.executable, '-c', {run!r}, sys.argv[1]], "
        "env={**os.environ, LAUNCHER: str(os.getpid())})\nprint(child.pid, flush=True)\ntime.sleep(60)"
    )
    mark = tmp_path / "mark"
    with subprocess.Popen([sys.executable, "-c", launcher, str(mark)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        deadline = time.monotonic() + 30
        while not mark.is_file() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert pid_alive(child)
        process.kill()
    while pid_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not pid_alive(child)


def test_progress_reads_only_complete_rows(tmp_path: Path, tiny_recipe: str) -> None:
    job = Job(tiny_config(tiny_recipe), tmp_path)
    assert job.last_row() is None and job.last_message() == "no message"
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste', encoding="utf-8")
    assert job.last_row() == {"step": 2}
    (tmp_path / "metrics.jsonl").write_text('{"ste', encoding="utf-8")
    assert job.last_row() is None


def test_a_terminal_sees_a_table_of_runs(job: MakeJob) -> None:
    jobs = [job("done", 0), job("fail", 1)]
    text = io.StringIO()
    run_all(jobs, Slots(1, 1), Console(file=text, width=160, force_terminal=True))
    output = Console(file=io.StringIO(), width=160)
    output.print(StatusTable(jobs, output).table())
    table = output.file.getvalue()  # type: ignore[attr-defined]
    assert "1 of 2 runs done, 1 failed, 0 s" in table and "failed (exit 1)" in table
    assert "4/20" in table and "2.500" in table


def test_brackets_in_a_message_are_no_markup(job: MakeJob) -> None:
    failed = job("fail")
    failed.state = "failed"
    failed.directory.mkdir()
    for message in ("RuntimeError: [enforce fail at x.cpp:1] none", "OSError: no space in [/scratch/x]"):
        (failed.directory / "log.txt").write_text(message + "\n", encoding="utf-8")
        text = io.StringIO()
        output = Console(file=text, width=200)
        output.print(StatusTable([failed], output).table())
        assert message in text.getvalue()


CHILD_THAT_STAYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
open(sys.argv[1] + "/pid", "w").write(str(__import__("os").getpid()))
time.sleep(60)
"""
POOL = """
import sys
from pathlib import Path
from types import SimpleNamespace
from gatebench.sweep.pool import Pool, Slots
import time
folder = Path(sys.argv[1])
command = [sys.executable, "-c", sys.argv[2], str(folder)]
job = SimpleNamespace(directory=folder, starts=0, command=lambda threads: command)
job.files = SimpleNamespace(log=folder / "log.txt")
with Pool(Slots(1, 1)) as pool:
    pool.start(job)
    time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("sigint_as_at_a_terminal")
def test_a_second_signal_does_not_wait_for_a_run_that_stays(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", POOL, str(tmp_path), CHILD_THAT_STAYS]) as launcher:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.05)
        child = int((tmp_path / "pid").read_text())
        launcher.send_signal(number)
        time.sleep(1.0)
        assert pid_alive(child) and launcher.poll() is None  # it has a minute to save itself
        launcher.send_signal(number)
        assert launcher.wait(timeout=20) != 0
    assert not pid_alive(child)
