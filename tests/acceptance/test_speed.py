"""`gatebench speed`: contenders take turns, and the ratios are those of their medians."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from gatebench.cli import app
from gatebench.training.speed import Contender, take_turns


def bench(recipe: str, *words: str) -> dict[str, Any]:
    fixed = ("speed", "--recipe", recipe, "--threads", "1", "--no-compile", "--rounds", "2", "--steps", "3", "--json")
    result = CliRunner().invoke(app, [*fixed, *words])
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def test_it_times_variants_and_says_where(tiny_recipe: str) -> None:
    content = bench(tiny_recipe, "--no-qwen3", "--variant", "baseline", "--variant", "g1_elementwise")
    rows = content["results"]
    assert [row["contender"] for row in rows] == ["baseline, eager", "g1_elementwise, eager"]
    assert [row["steps"] for row in rows] == [6, 6]
    assert rows[0]["ratio"] == 1.0 and all(row["tokens_per_s"] > 0 for row in rows)
    assert rows[1]["ratio"] == pytest.approx(rows[1]["tokens_per_s"] / rows[0]["tokens_per_s"], abs=2e-3)
    assert (content["environment"]["threads"], content["environment"]["precision"]) == (1, "fp32")


def test_accumulated_micro_batches_are_one_step(tiny_recipe: str) -> None:
    content = bench(tiny_recipe, "--no-qwen3", "--variant", "baseline", "--set", "train.micro_batch_size=1")
    assert content["results"][0]["steps"] == 6


def test_a_plain_loop_around_qwen3_is_a_contender(tiny_recipe: str) -> None:
    rows = bench(tiny_recipe, "--variant", "baseline")["results"]
    assert [row["contender"] for row in rows] == ["baseline, eager", "transformers Qwen3, plain loop"]


def test_turns_alternate_and_the_speed_is_the_median() -> None:
    turns: list[str] = []

    def contender(name: str, seconds: list[float]) -> Contender:
        def steps(n: int) -> list[float]:
            turns.append(f"{name}{n}")
            return seconds[:n]

        return Contender(name, steps)

    pair = [contender("a", [1.0, 2.0, 9.0]), contender("b", [4.0, 4.0, 4.0])]
    take_turns(pair, rounds=2, steps=3)
    assert turns == ["a2", "b2", "a3", "b3", "a3", "b3"]  # two steps each to warm up
    assert [c.tokens_per_s(1000) for c in pair] == [500.0, 250.0]
