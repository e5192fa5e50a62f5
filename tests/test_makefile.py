"""The Makefile, driven with a stand-in for Python that records what it is asked and installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {
    *("help", "setup", "data", "ablation", "sink-lab", "list", "show", "bench", "grid", "status", "tables", "claims"),
    *("test", "test-fast", "test-cluster", "lint", "types", "format", "clean", "clean-runs"),
}
VARIABLES = {
    *(
        "PYTHON",
        "VENV",
        "VARIANT",
        "RECIPE",
        "SEEDS",
        "STUDY",
        "STUDIES",
        "ON",
        "PARALLEL",
        "WORKERS",
        "CONFIRM",
        "ARGS",
    ),
}

# Each makes the file `made` where a value is read as part of a shell line, or as one of make.
HOSTILE = [
    "x'; touch made; echo '",
    'x"; touch made; echo "',
    "$(touch made)`touch made`",
    "x\ntouch made\n",
    "$(shell touch made)",
    "x; touch made & touch made | touch made > made",
]

# Answers as Python would, but `-m venv` copies this file and `-m pip` only says so in calls.log.
FAKE_PYTHON = f"""#!/bin/sh
case "$*" in
    --version) echo "Python ${{FAKE_VERSION:-3.11.9}}" ;;
    "-c "*"version_info < (3, 11)"*) [ "${{FAKE_VERSION:-3.11.9}}" != 3.10.2 ] ;;
    "-c "*cache_tag*) echo "cpython-311 ${{FAKE_VERSION:-3.11.9}} $PWD" ;;
    "-c "*_base_executable*) echo "$0" ;;
    "-c import venv, ensurepip") [ -z "${{FAKE_NO_VENV:-}}" ] ;;
    "-m venv --clear "*) echo venv >>calls.log; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    "-m pip install "*)
        echo pip >>calls.log
        case "${{FAKE_PIP:-}}" in
            fail) echo "ERROR: No matching distribution found for torch" >&2; exit 1 ;;
            kill) kill -KILL 0 ;;
        esac ;;
    "-m pytest "*) printf '%s\\0' python "$@" >>words.log ;;
    *) exec {sys.executable} "$@" ;;
esac
"""


class Checkout:
    """A copy of what `make setup` reads, in a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, path / name)
        self.python = path / "fake-python"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def make(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        # `make test` hands its own flags and variables down; these tests want none of them.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        for name in VARIABLES:
            inherited.pop(name, None)
        return subprocess.run(
            ["make", *([] if "PYTHON" in env else [f"PYTHON={self.python}"]), *words],
            cwd=self.path,
            env={**inherited, **env},
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """Return what was asked of Python since the last time: `venv`, `pip`."""
        log = self.path / "calls.log"
        calls = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return calls

    def words(self) -> list[str]:
        """Return the words that the commands of the environment were called with since the last time, names first."""
        log = self.path / "words.log"
        words = log.read_text().split("\0")[:-1] if log.exists() else []
        log.unlink(missing_ok=True)
        return words

    @property
    def stamp(self) -> Path:
        return self.path / ".venv" / ".setup-stamp"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    (tmp_path / "checkout").mkdir()
    return Checkout(tmp_path / "checkout")


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    """A checkout that has been set up, with commands that record how they are called."""
    assert checkout.make("setup").returncode == 0
    assert checkout.calls() == ["venv", "pip"]
    for name in ("gatebench", "ruff", "mypy"):
        command = checkout.path / ".venv" / "bin" / name
        command.write_text(
            f'#!/bin/sh\necho {name} "$@"\nprintf "%s\\0" {name} "$@" >>words.log\nexit "${{FAKE_EXIT:-0}}"\n'
        )
        command.chmod(0o755)
    return checkout


def test_help_is_the_default_and_lists_every_target(checkout: Checkout) -> None:
    done = checkout.make()
    assert done.returncode == 0
    assert {line.split()[0] for line in done.stdout.splitlines()} == TARGETS
    assert done.stdout == checkout.make("help").stdout
    assert not checkout.stamp.parent.exists()


def test_every_target_is_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony
    assert set(phony.group(1).split()) == TARGETS


def test_setup_runs_once(ready: Checkout) -> None:
    again = ready.make("setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert ready.calls() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_setup_installs_again_when_an_input_changes(ready: Checkout, name: str) -> None:
    with (ready.path / name).open("a") as file:
        file.write("# changed\n")
    assert ready.make("setup").returncode == 0
    assert ready.calls() == ["pip"]
    ready.make("setup")
    assert ready.calls() == []


def test_setup_ignores_a_touch(ready: Checkout) -> None:
    os.utime(ready.path / "pyproject.toml", (2**31, 2**31))
    ready.make("setup")
    assert ready.calls() == []


def test_setup_starts_over_with_another_python(ready: Checkout) -> None:
    ready.make("setup", FAKE_VERSION="3.12.1")
    assert ready.calls() == ["venv", "pip"]


def test_setup_starts_over_in_another_folder(ready: Checkout, tmp_path: Path) -> None:
    """The scripts of an environment hold its path, so a copied checkout needs a new one."""
    shutil.copytree(ready.path, tmp_path / "copy")
    copy = Checkout(tmp_path / "copy")
    assert copy.make("setup").returncode == 0
    assert copy.calls() == ["venv", "pip"]


def test_setup_starts_over_when_the_environment_is_broken(ready: Checkout) -> None:
    (ready.path / ".venv" / "bin" / "python").unlink()
    assert ready.make("setup").returncode == 0
    assert ready.calls() == ["venv", "pip"]


@pytest.mark.parametrize("how", ["fail", "kill"])
def test_interrupted_setup_does_not_count(checkout: Checkout, how: str) -> None:
    done = checkout.make("setup", FAKE_PIP=how)
    assert done.returncode != 0
    assert checkout.calls() == ["venv", "pip"]
    assert not checkout.stamp.exists()
    if how == "fail":
        assert (
            "make setup: pip failed, all of its output is in .venv/setup.log: "
            "ERROR: No matching distribution found for torch\n"
        ) in done.stderr
    assert checkout.make("setup").returncode == 0
    assert checkout.calls() == ["venv", "pip"]
    assert checkout.stamp.exists()


@pytest.mark.parametrize("how", ["fail", "kill"])
def test_interrupted_update_does_not_count(ready: Checkout, how: str) -> None:
    (ready.path / "constraints.txt").write_text("torch==2.13.0\n")
    assert ready.make("setup", FAKE_PIP=how).returncode != 0
    assert ready.calls() == ["pip"]
    assert not ready.stamp.exists()
    assert ready.make("setup").returncode == 0
    assert ready.calls() == ["venv", "pip"]


def test_python_too_old(checkout: Checkout) -> None:
    done = checkout.make("setup", FAKE_VERSION="3.10.2")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        f"make setup: {checkout.python} is Python 3.10.2: gatebench needs Python 3.11 or newer, "
        "name one with PYTHON=/path/to/python3"
    )
    assert checkout.calls() == []


def test_python_missing(checkout: Checkout) -> None:
    done = checkout.make("setup", "PYTHON=no-such-python")
    assert done.returncode == 2
    assert done.stderr.startswith("make setup: no 'no-such-python' found: install Python 3.11 or newer")


def test_venv_missing(checkout: Checkout) -> None:
    done = checkout.make("setup", FAKE_NO_VENV="1")
    assert done.returncode == 2
    assert "has no venv or ensurepip: on Debian or Ubuntu, apt-get install python3-venv\n" in done.stderr
    assert checkout.calls() == []


@pytest.mark.parametrize("target", ["ablation", "show"])
def test_variant_missing(checkout: Checkout, target: str) -> None:
    done = checkout.make(target)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"VARIANT is missing: try `make {target} VARIANT=g1_headwise`" in done.stderr
    assert checkout.calls() == []


def test_ablation_passes_what_was_given(ready: Checkout) -> None:
    done = ready.make("ablation", "VARIANT=g1_headwise")
    assert (done.returncode, done.stdout) == (0, "gatebench ablation --variant g1_headwise\n")
    done = ready.make(
        "ablation", "VARIANT=g1_headwise+g2_headwise", "RECIPE=sink_lab", "SEEDS=3", "ARGS=--set optim.lr=3e-3 --json"
    )
    assert done.stdout == (
        "gatebench ablation --variant g1_headwise+g2_headwise --recipe sink_lab --seeds 3 --set optim.lr=3e-3 --json\n"
    )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["data"], "gatebench data build --preset six_domains"),
        (["list", "ARGS=--table 1"], "gatebench list --table 1"),
        (["show", "VARIANT=g1_headwise"], "gatebench show g1_headwise"),
        (["bench"], "gatebench speed"),
        (["sink-lab"], "gatebench sweep sinks"),
        (["sink-lab", "SEEDS=1", "ARGS=--json"], "gatebench sweep sinks --seeds 1 --json"),
        (["types"], "mypy"),
    ],
)
def test_commands(ready: Checkout, words: list[str], command: str) -> None:
    done = ready.make(*words)
    assert (done.returncode, done.stdout) == (0, command + "\n")


def test_args_are_split_as_a_shell_splits_them(ready: Checkout) -> None:
    ready.make("list", r"""ARGS=--a 'b  c' "d 'e'" f\ g --h="i j" '' """)
    assert ready.words() == ["gatebench", "list", "--a", "b  c", "d 'e'", "f g", "--h=i j", ""]


def test_nothing_else_in_args_means_anything(ready: Checkout) -> None:
    for name in ("a.txt", "b.txt"):
        (ready.path / name).touch()
    ready.make("list", "ARGS=*.txt ~ $HOME $(HOME) ; # > a.txt")
    assert ready.words() == ["gatebench", "list", "*.txt", "~", "$HOME", "$(HOME)", ";", "#", ">", "a.txt"]


def test_studies_are_words_and_no_patterns(ready: Checkout) -> None:
    ready.make("tables", "STUDIES=table1 *  'sinks'", "ARGS=--json")
    assert ready.words() == ["gatebench", "tables", "table1", "*", "'sinks'", "--json"]


def test_args_that_cannot_be_split(ready: Checkout) -> None:
    done = ready.make("list", "ARGS=--table '1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "make: ARGS cannot be split into words: No closing quotation"
    assert ready.words() == []


@pytest.mark.parametrize(
    ("target", "before", "after"),
    [
        ("ablation", "gatebench ablation --variant {VARIANT} --recipe {RECIPE} --seeds {SEEDS}", ""),
        ("sink-lab", "gatebench sweep sinks --seeds {SEEDS}", ""),
        ("grid", "gatebench sweep {STUDY} --on {ON} --max-parallel {PARALLEL} --seeds {SEEDS}", ""),
        ("status", "gatebench status {STUDY} --seeds {SEEDS}", ""),
        ("show", "gatebench show {VARIANT}", ""),
        ("test-fast", "python -m pytest -n {WORKERS} --maxprocesses 8 --dist worksteal -m", "not slow and not cluster"),
    ],
)
@pytest.mark.parametrize("origin", ["command line", "environment"])
def test_a_value_arrives_as_it_was_given(ready: Checkout, target: str, before: str, after: str, origin: str) -> None:
    for value in HOSTILE:
        given = {name: f"{name} {value}" for name in VARIABLES - {"PYTHON", "VENV", "ARGS", "CONFIRM"}}
        if origin == "environment":
            done = ready.make(target, **given)
        else:
            done = ready.make(target, *(f"{name}={value}" for name, value in given.items()))
        assert done.returncode == 0, done.stderr
        words = [given.get(word.strip("{}"), word) for word in before.split()]
        assert ready.words() == words + ([after] if after else [])
        assert not (ready.path / "made").exists()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_target_runs_what_a_value_says(ready: Checkout, target: str) -> None:
    """All variables at once, on the command line and in the environment, but the two that must name what is there."""
    for value in HOSTILE:
        given = dict.fromkeys(VARIABLES - {"PYTHON", "VENV"}, value)
        ready.make(target, *(f"{name}={value}" for name, value in given.items()))
        assert not (ready.path / "made").exists(), value
        ready.make(target, **given)
        assert not (ready.path / "made").exists(), value


@pytest.mark.parametrize("name", ["PYTHON", "VENV"])
def test_setup_runs_nothing_that_a_path_says(checkout: Checkout, name: str) -> None:
    for value in HOSTILE:
        for target in ("setup", "list", "clean"):
            checkout.make(target, f"{name}={value}")
            assert not (checkout.path / "made").exists(), value
            checkout.make(target, **{name: value})
            assert not (checkout.path / "made").exists(), value


def test_environment_of_another_name(checkout: Checkout) -> None:
    done = checkout.make("setup", "VENV=my environment's")
    assert done.returncode == 0, done.stderr
    assert (checkout.path / "my environment's" / ".setup-stamp").exists()


@pytest.mark.parametrize("folder", [".", "", "results"])
def test_an_environment_never_replaces_another_folder(checkout: Checkout, folder: str) -> None:
    """A new environment clears its folder first."""
    (checkout.path / "results").mkdir()
    done = checkout.make("setup", f"VENV={folder}")
    assert done.returncode == 2
    assert done.stderr.startswith("make setup: VENV")
    assert checkout.calls() == []


def test_failure_of_a_command_is_a_failure_of_make(ready: Checkout) -> None:
    done = ready.make("ablation", "VARIANT=g9", FAKE_EXIT="2")
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("Error 2")


def test_parallel_make_sets_up_once(checkout: Checkout) -> None:
    checkout.make("-j4", "lint", "types", "list")
    assert checkout.calls() == ["venv", "pip"]


def test_clean_keeps_environment_and_results(ready: Checkout) -> None:
    keep = ("results/runs/r/config.yaml", "results/table.csv", ".venv/__pycache__/a.pyc")
    kept = [ready.path / name for name in keep]
    gone = [ready.path / name for name in ("gatebench/__pycache__/a.pyc", ".mypy_cache/a", ".pytest_cache/a")]
    for path in kept + gone:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert ready.make("clean").returncode == 0
    assert all(path.exists() for path in kept)
    assert not any(path.parent.exists() for path in gone)
    assert ready.stamp.exists()


def test_clean_runs_wants_a_yes(checkout: Checkout) -> None:
    run = checkout.path / "results" / "runs" / "baseline-s0"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 0\n")
    done = checkout.make("clean-runs")
    assert done.returncode == 2
    assert "results/runs holds 1 runs" in done.stderr
    assert "make clean-runs CONFIRM=yes deletes them" in done.stderr
    assert run.exists()
    assert checkout.make("clean-runs", "CONFIRM=yes").returncode == 0
    assert not run.exists()


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == 'exec make test PYTHON="$PYTHON"'


def test_constraints_fit_every_platform() -> None:
    """One exact release a line, no local version, no address, no package of one platform."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in lines
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)
    assert not [line for line in lines if line.startswith(("nvidia", "cuda", "triton"))]
