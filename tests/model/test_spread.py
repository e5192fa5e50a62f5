"""The spread has every word of a gate and of a design, in few variants."""

from __future__ import annotations

from dataclasses import fields

from gatebench import variants
from gatebench.design import Design
from gatebench.gatespec import ACTIVATIONS, GRANULARITIES, HEAD_SOURCES, MODES, POSITIONS, TOKEN_SOURCES, TRANSFORMS
from gatebench.model.kernels import KERNELS
from tests.model.shapes import EVERY_VARIANT
from tests.model.spread import SPREAD, traits

TRAITS = {trait for name in SPREAD for trait in traits(name)}


def test_a_spread_has_all_that_the_registry_has() -> None:
    assert {trait for name in EVERY_VARIANT for trait in traits(name)} == TRAITS
    assert len(SPREAD) < 36


def test_it_has_every_word_of_a_gate() -> None:
    words = {field: {value for name, value in TRAITS if name == field} for field, _ in TRAITS}
    assert words["position"] == set(POSITIONS)
    assert words["granularity"] == set(GRANULARITIES)
    assert words["mode"] == set(MODES)
    assert words["activation"] == {*ACTIVATIONS, *TRANSFORMS}
    assert words["source"] == {*TOKEN_SOURCES, *HEAD_SOURCES, "constant", "self"}
    for switch in ("shared", "detached", "floor", "temperature", "first", "rank", "bias"):
        assert words[switch] == {True, False}, switch
    assert words["gates"] == {"two at one site", "at several sites", "beside a design"}


def test_it_has_every_change_of_a_design_and_of_a_ratio() -> None:
    assert {f.name for f in fields(Design)} - {name for name, _ in TRAITS} == set()
    assert {value for name, value in TRAITS if name == "kernel"} | {"softmax"} == set(KERNELS)
    assert {value for name, value in TRAITS if name == "ratio"} == {
        key for variant in variants.registry().values() for key in variant.ratios
    }
