"""What a reader must know before believing a comparison: each flag is found from the summaries alone.

A *blocking* flag means that the comparison does not measure what it says, so that no verdict is given. The others
are printed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gatebench import variants
from gatebench.report.read.probe_files import ProbedRun
from gatebench.report.text import seed_text

UNTRAINED_SHARE = 0.9
"""A run is untrained when its final training loss is above this share of ln(vocabulary), a uniform guess's loss."""

SATURATED_LOGIT = 8.0
SATURATED_SHARE = 0.5
"""A head's sigmoid gate is saturated when its mean |pre-activation| is above the one and more than this share of its
scores is below 0.1 or above 0.9. At 8 the sigmoid's slope is 0.0003, a thousandth of what it is at 0, so that hardly a
gradient comes through and bf16, whose steps below 1 are 1/256, rounds an open score to 1: the head is a switch that
training no longer moves. The share sets a gate that rests at its ends apart from one with a few far outliers. The sink
lab's gates, which do learn to close, are at 5 to 7; one found at 16, 55 % of its scores below 0.1, has a mean score of
0.30 that looks like any other's."""


Run = pd.Series | Mapping[Hashable, Any]
"""A row of ``results.load``."""


@dataclass(frozen=True)
class Flag:
    """One finding about one variant of a comparison."""

    code: str
    """A stable short name, for scripts: untrained, diverged, dead_knob, ..."""
    blocking: bool
    text: str
    """One sentence without a full stop, naming the numbers."""
    variant: str
    seeds: tuple[int, ...] = ()


def run_flags(run: Run) -> list[Flag]:
    """Flags of one run by itself: diverged, untrained, code with uncommitted changes."""
    name, seed = str(run["variant"]), int(run["seed"])
    found = []
    if run["status"] == "diverged":
        step = run["diverged_step"]
        at = "" if _missing(step) else f" at step {int(step):,}"
        found.append(Flag("diverged", True, f"{name} diverged{at}", name, (seed,)))
    elif run["vocab_size"] > 1 and not _missing(run["final_train_loss"]):
        ceiling = math.log(run["vocab_size"])
        if run["final_train_loss"] > UNTRAINED_SHARE * ceiling:
            text = (
                f"{name} is untrained: final training loss {run['final_train_loss']:.3f} is above "
                f"{UNTRAINED_SHARE} ln({run['vocab_size']:,}) = {UNTRAINED_SHARE * ceiling:.3f}"
            )
            found.append(Flag("untrained", True, text, name, (seed,)))
    if run["git_dirty"]:
        found.append(Flag("dirty_tree", False, f"{name} ran from code with uncommitted changes", name, (seed,)))
    return found


def pair_flags(baseline: Run, variant: Run) -> list[Flag]:
    """Flags of a variant's run against the baseline's run at the same seed."""
    name, seeds = str(variant["variant"]), (int(variant["seed"]),)
    other = reference(str(baseline["variant"]))
    found: list[Flag] = []

    def differs(column: str) -> bool:
        ours, theirs = variant[column], baseline[column]
        return bool(ours != theirs) and not (_missing(ours) and _missing(theirs))

    def add(code: str, blocking: bool, text: str) -> None:
        found.append(Flag(code, blocking, text, name, seeds))

    if variant["curve_hash"] and not differs("curve_hash"):
        add("dead_knob", True, f"{name} has {other}'s loss curve to the last bit: the variant changed nothing")
    if differs("corpus_fingerprint"):
        corpora = _both(baseline, variant, "corpus_fingerprint", 9)
        add("other_corpus", True, f"{name} and {other} read different corpora ({corpora})")
    elif variant["status"] == "done" and baseline["status"] == "done":
        if differs("tokens"):
            text = f"{name} saw {variant['tokens']:,} tokens, {other} {baseline['tokens']:,}"
            add("unequal_tokens", True, text)
        elif differs("data_hash"):
            add("unequal_order", True, f"{name} and {other} saw their tokens in different order")
    measured = [c for c in ("vocab_size", "seq_len", "eval_seq_len", "bos", *_eval_columns(variant)) if differs(c)]
    if measured and variant["status"] == "done" and baseline["status"] == "done":
        add("unequal_evaluation", True, f"{name} and {other} were measured differently ({', '.join(measured)})")
    if differs("n_params"):
        found.append(Flag("unequal_parameters", False, _parameter_text(name, other, baseline, variant), name))
    if differs("git_commit"):
        text = f"{name} and {other} ran at different commits ({_both(baseline, variant, 'git_commit', 9)})"
        add("other_code", False, text)
    settings = [c for c in ("device", "precision", "threads", "n_devices", "compiled", "machine") if differs(c)]
    if settings:
        values = ", ".join(f"{column} {_both(baseline, variant, column)}" for column in settings)
        add("other_settings", False, f"{name} and {other} ran under different settings: {values}")
    return found


def saturated_gates(run: ProbedRun) -> list[Flag]:
    """Gates of a probed run that rest at the ends of the sigmoid, a flag a head; none blocks a comparison.

    Layers and heads count from 1. Probes of an older version, which have no figures by head, give none.
    """
    found = []
    for site in run.sites:
        activations = {gate.activation for gate in variants.get(run.variant).gates if gate.position == site}
        if activations != {"sigmoid"} or f"gate_{site}_head_at_end" not in run.arrays:
            continue
        mean, at_end, logit = (run.arrays[f"gate_{site}_head_{name}"] for name in ("mean", "at_end", "abs_logit"))
        for layer, head in zip(*((at_end > SATURATED_SHARE) & (logit > SATURATED_LOGIT)).nonzero(), strict=True):
            place = layer, head
            text = (
                f"{run.variant}: gate {site} of layer {layer + 1}, head {head + 1} is saturated: "
                f"mean |pre-activation| {logit[place]:.1f}, {at_end[place]:.0%} of its scores below 0.1 or above 0.9, "
                f"mean score {mean[place]:.2f}"
            )
            found.append(Flag("saturated_gate", False, text, run.variant, (run.seed,)))
    return found


def comparison_flags(baseline: pd.DataFrame, variant: pd.DataFrame, name: str) -> list[Flag]:
    """All flags of variant ``name`` against its baseline, equal findings of several seeds merged into one.

    Both frames hold the rows of one variant from ``results.load``, at most one a seed. Blocking flags come first.
    """
    found: list[Flag] = []
    names = list(baseline["variant"].unique())
    base: dict[int, Run] = {int(row["seed"]): row for row in baseline.to_dict("records")}
    other: dict[int, Run] = {int(row["seed"]): row for row in variant.to_dict("records")}
    lonely = tuple(seed for seed in other if seed not in base)
    if lonely:
        found.append(Flag("baseline_missing", True, f"{reference(*names)} has no run", name, lonely))
    missing = tuple(seed for seed in base if seed not in other)
    if missing:
        found.append(Flag("variant_missing", False, f"{name} has no run", name, missing))
    for seed, row in other.items():
        found.extend(run_flags(row))
        if seed in base:
            found.extend(flag for flag in run_flags(base[seed]))
            found.extend(pair_flags(base[seed], row))
    found.extend(_repeated_curves(baseline))
    found.extend(_repeated_curves(variant))
    return sorted(_merged(found), key=lambda flag: not flag.blocking)


def reference(name: str = "baseline") -> str:
    """How a text calls what a variant is compared with: by its name, where that is not the baseline's."""
    return "the baseline" if name == "baseline" else name


def one_model(frame: pd.DataFrame, name: str, other: str) -> bool:
    """Whether two variants have the same loss curve at some seed: under this setting they are one model."""
    return distinct(frame[frame["variant"].isin([name, other])], [name, other]) == [name]


def distinct(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """The names without those that are :func:`one_model` with an earlier one: what a rank correlation counts."""
    with_curve = frame[frame["curve_hash"] != ""]
    curves: dict[str, set[tuple[int, str]]] = {}
    for name, seed, curve in zip(*(with_curve[c] for c in ("variant", "seed", "curve_hash")), strict=True):
        curves.setdefault(name, set()).add((int(seed), curve))
    kept: list[str] = []
    seen: set[tuple[int, str]] = set()
    for name in names:
        own = curves.get(name, set())
        if seen.isdisjoint(own):
            kept.append(name)
            seen |= own
    return kept


def blocking_texts(flags: Iterable[Flag]) -> list[str]:
    """The texts of the blocking flags, with their seeds."""
    return [flag_text(flag) for flag in flags if flag.blocking]


def flag_text(flag: Flag) -> str:
    """The flag as one sentence with its seeds, without a full stop."""
    if not flag.seeds:
        return flag.text
    return f"{flag.text} ({seed_text(flag.seeds)})"


def _repeated_curves(runs: pd.DataFrame) -> list[Flag]:
    """Seeds of one variant with one loss curve: the seed reached nothing, so they are no independent samples."""
    found = []
    repeated = runs[(runs["curve_hash"] != "") & runs["curve_hash"].duplicated(keep=False)]
    for _, same in repeated.groupby("curve_hash", sort=True):
        name = str(same["variant"].iloc[0])
        seeds = tuple(int(seed) for seed in same["seed"])
        found.append(Flag("repeated_curve", True, f"{name} has one loss curve at several seeds", name, seeds))
    return found


def _merged(flags: Iterable[Flag]) -> list[Flag]:
    seeds: dict[tuple[str, bool, str, str], list[int]] = {}
    for flag in flags:
        seeds.setdefault((flag.code, flag.blocking, flag.text, flag.variant), []).extend(flag.seeds)
    return [Flag(*key[:3], key[3], tuple(sorted(set(found)))) for key, found in seeds.items()]


def _parameter_text(name: str, other: str, baseline: Run, variant: Run) -> str:
    added = int(variant["n_params"]) - int(baseline["n_params"])
    share = 100 * added / int(baseline["n_params"])
    text = f"{name} has {added:+,} parameters against {other} ({share:+.2g} %)"
    matching = str(variant["param_match"])
    if matching in ("", "none"):
        return text + ", not matched (param_match none)"
    return text + (", FLOPs matched" if matching == "flops" else f" left over by param_match {matching}")


def _eval_columns(run: Run) -> list[str]:
    return [str(name) for name in run.keys() if str(name).startswith("eval_tokens/")]  # noqa: SIM118, a Series too


def _both(baseline: Run, variant: Run, column: str, length: int | None = None) -> str:
    return f"{str(variant[column])[:length]} against {str(baseline[column])[:length]}"


def _missing(value: Any) -> bool:
    return value is None or value != value
