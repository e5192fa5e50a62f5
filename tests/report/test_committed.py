"""Committed results are what cannot be made again, and what is read on the web."""

from __future__ import annotations

import subprocess

import pytest

from gatebench.paths import project_root


def listed(*options: str) -> list[str]:
    """The files below ``results/`` that ``git ls-files`` names with these options."""
    root = project_root()
    if not (root / ".git").exists():
        pytest.skip("not a git clone")
    done = subprocess.run(["git", "ls-files", *options, "--", "results"], cwd=root, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def test_what_tables_writes_anew_is_not_committed() -> None:
    assert listed("--cached", "--ignored", "--exclude-standard") == []


def test_results_stay_few() -> None:
    assert len(listed()) < 250


def test_the_pages_of_the_studies_that_the_readme_shows_are_committed() -> None:
    pages = [name for name in listed() if name.endswith(".html")]
    assert pages == ["results/sinks/report.html", "results/table1/report.html"]
    readme = (project_root() / "README.md").read_text(encoding="utf-8")
    assert all(page.rsplit("/", 1)[0] in readme for page in pages)
