"""Every quantity that gatebench records or measures, one entry each: its name, its titles, how it is written and typed.

The fields of `summary.json`, the columns of frames and CSV files, the rows of a comparison, the headings of tables,
model cards and docs/results.md are derived from these entries. Their order is that of the columns of a frame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

SCHEMA = 1
"""The version of `summary.json` and of the frames made from it."""

NOTHING = "-"
"""What stands where there is no number, as in the paper's tables."""

Kind = Literal[
    "perplexity", "bits", "nats", "share", "floor", "activation", "ratio", "score", "percent", "points",
    "count", "scale", "speed", "millions", "size", "yes or no",
]  # fmt: skip
"""How a number is written (`number`)."""
DECIMALS = {"bits": 4, "nats": 4, "share": 4, "floor": 4, "activation": 1, "score": 3, "ratio": 2, "points": 2}

Where = Literal[
    "run", "training", "evaluation", "domain", "synthetic", "retrieval", "probe", "gate", "long", "benchmark"
]
"""What measures it: the run itself (its names, costs, machine and time), `train.watch_every`, held-out text over all
domains or in each, data whose true distribution is known, `data.retrieval`, the probes, the probes of a model with
gates, `gatebench long`, `gatebench benchmark`."""


@dataclass(frozen=True)
class Metric:
    """One quantity."""

    key: str
    """Its field in `summary.json`, its column in frames. Of one that has several columns what stands before the `/`."""
    where: Where
    meaning: str
    """For docs/results.md, in Markdown."""
    title: str = ""
    """In a table of one model or two."""
    short: str = ""
    """In a narrow column; the title where nothing is given."""
    under: str = ""
    """The metric whose row its own follows, indented."""
    kind: Kind = "score"
    dtype: Literal["real", "whole", "flag", "text"] = "real"
    better: Literal["lower", "higher"] | None = None
    log: bool = False
    """Whether an axis of it is logarithmic."""
    family: Literal["primary", "domain", "probe"] | None = None
    """The tests whose p values Holm adjusts together; None for a number that is reported without a test."""
    floor: str | None = None
    """The metric with the value that uniform causal attention would give."""
    paper: str | None = None
    """Its column in the paper's tables (`results/paper`)."""
    in_summary: bool = True
    """Otherwise it is in `probes.json`, or in files of its own."""
    in_frames: bool = True
    """Whether every frame has the column; otherwise those have it of whose runs one has it."""
    parts: str = ""
    """What its columns are by: `<key>/<domain>`."""
    overview: str = ""
    """The table of `gatebench probe` that it stands in."""
    long: str = ""
    """Its column at longer windows (`gatebench long`). What has one is also followed over checkpoints and under
    interventions."""

    @property
    def heading(self) -> str:
        """The short title."""
        return self.short or self.title

    @property
    def wrapped(self) -> str:
        """The short title in two lines, as a narrow column of a terminal has it."""
        return "\n".join(self.heading.rsplit(" ", 1))

    @property
    def row_title(self) -> str:
        """The title of its row in a comparison."""
        return f"  {self.words}" if self.under else self.title

    @property
    def words(self) -> str:
        """The title within a sentence."""
        return f"{self.title[0].lower()}{self.title[1:]}" if self.title[1:2].islower() else self.title

    @property
    def lower_is_better(self) -> bool:
        """Which sign of a difference a verdict calls better."""
        return self.better != "higher"

    def text(self, value: float | None) -> str:
        """The value as text; `NOTHING` for none."""
        return NOTHING if value is None else number(value, self.kind)


def number(
    value: float, kind: str, *, signed: bool = False, like: float | None = None, decimals: int | None = None
) -> str:
    """A value of a metric's kind as text; "-" for NaN. A difference gets the decimals of ``like``, the value itself.

    ``decimals`` stand in place of those of a kind that has some.
    """
    if not math.isfinite(value):
        return NOTHING
    sign = "+" if signed else ""
    if kind == "percent":
        return f"{100 * value:{sign}.1f} %"
    if kind in ("count", "speed"):
        return f"{value:{sign},.0f}"
    if kind == "millions":  # 201, 1.6, 0.0023
        return f"{value:{sign}.{0 if abs(value) >= 10 else 2}{'f' if abs(value) >= 10 else 'g'}}"
    if kind == "scale":
        return scale(value)
    if kind == "size":
        return f"{value:.0f}"
    if kind == "yes or no":
        return "true" if value else "false"
    decimals = DECIMALS.get(kind) if decimals is None else decimals
    if decimals is None:
        decimals = 3 if abs(value if like is None else like) < 10 else 2
    return f"{value:{sign},.{decimals}f}"


def scale(value: float) -> str:
    """A large count in the unit people say it in: 2.40 M, 1.72 B."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f}"


SINKS = "First-token share against that of uniform attention (floor), and largest activations"
OUTPUT = "SDPA output and gates, means over layers"
RESIDUAL = "Residual stream, means over layers"


def _text(key: str, meaning: str) -> Metric:
    return Metric(key, "run", meaning, dtype="text")


def _whole(key: str, meaning: str, title: str = "", *, in_frames: bool = True) -> Metric:
    return Metric(key, "run", meaning, title, kind="count", dtype="whole", in_frames=in_frames)


def _output(key: str, kind: Kind, short: str, meaning: str) -> Metric:
    return Metric(key, "probe", meaning, short=short, kind=kind, overview=OUTPUT, in_summary=False)


METRICS = (
    # --- what ran
    _text("run", "the name of the run"),
    _text("status", "`done` or `diverged`"),
    Metric("diverged_step", "run", "the step whose loss was not finite, else `null`", kind="count"),
    _text("variant", "the attention design"),
    _text("recipe", "everything else that the settings are on top of"),
    _whole("seed", "of initial values", "seed"),
    _whole("data_seed", "of the order of the training data"),
    _text("overrides", "list of `key=value` settings on top of the recipe"),
    _text("fingerprint", "hash of everything in the configuration that decides the result"),
    _text("param_match", "`none`, `ffn` or `flops`: whether they or a token's FLOPs are the baseline's"),
    Metric("parent", "run", "the run that this one goes on from (`gatebench extend`)", dtype="text", in_frames=False),
    # --- what it costs
    _whole("n_params", "parameters of the model", "Parameters"),
    _whole("n_params_baseline", "parameters of the baseline in the same recipe"),
    _whole("n_params_added", "the difference of the two"),
    _whole("n_params_active", "parameters that one token goes through; all of them in a dense model", in_frames=False),
    _whole("ffn_dim", "inner size of the FFN after parameter matching", in_frames=False),
    Metric("flops_per_token", "run", "training FLOPs a token, analytic", kind="count"),
    _whole("flops_per_token_baseline", "training FLOPs a token of the baseline", in_frames=False),
    # --- what it read, where, and how it went
    _text("corpus", "what it read"),
    _text("corpus_fingerprint", "hash of the corpus"),
    _whole("vocab_size", "tokens in the vocabulary"),
    _whole("seq_len", "training context in tokens"),
    Metric("bos", "run", "whether windows begin with the constant BOS token", dtype="flag"),
    _text("precision", "`fp32` or `bf16`, in training"),
    Metric("compiled", "run", "whether blocks were compiled in training", dtype="flag"),
    _text("device", "`cpu`, `cuda` or `mps`"),
    _whole("threads", "CPU threads"),
    _whole("n_devices", "devices"),
    _whole("steps", "optimiser steps"),
    Metric("tokens", "run", "training tokens", "tokens", kind="scale", dtype="whole"),
    _text("data_hash", "hash over all training tokens in order: equal for two runs that saw the same data"),
    _text("curve_hash", "hash of the loss curve: equal only for runs that computed the same losses"),
    Metric("final_train_loss", "run", "mean training loss over the last 5 % of steps, nats per token",
           "Training loss", "training loss", kind="nats", better="lower"),
    *(
        Metric(key, "training", f"{meaning}: largest over training, with `train.watch_every`", title, in_frames=False)
        for key, title, meaning in (
            ("attn_logit_max", "attention logit", "q·k / √D of a query and a key that it sees"),
            ("gate_logit_max", "gate logit", "absolute pre-activation of a gate, `null` without gates"),
            ("activation_max", "activation", "absolute residual activation after a layer"),
            ("update_ratio", "", "norm of a step's change over that of the weights, all matrices together"),
            ("update_ratio_max", "update / weights", "the same of one matrix"),
        )
    ),
    # --- held-out text
    Metric("avg_ppl", "evaluation", "arithmetic mean of the domains' perplexities", "Avg PPL", kind="perplexity",
           better="lower", log=True, family="primary", paper="avg_ppl"),
    Metric("avg_bpb", "evaluation", "arithmetic mean of the domains' bits per byte", "Bits per byte", kind="bits",
           better="lower"),
    Metric("micro_ppl", "evaluation", "exp of the mean negative log-likelihood over all domains' tokens together",
           "PPL over all tokens", kind="perplexity", better="lower", log=True),
    Metric("eval_seq_len", "evaluation", "evaluation context in tokens", kind="count"),
    Metric("ppl", "domain", "exp of the token-weighted mean negative log-likelihood over the domain's scored tokens",
           "PPL", kind="perplexity", better="lower", log=True, family="domain", parts="domain"),
    Metric("bpb", "domain", "bits per UTF-8 byte", "Bits per byte", kind="bits", better="lower", parts="domain"),
    Metric("nll", "domain", "mean nats per token", "Loss (nats)", kind="nats", better="lower", parts="domain"),
    Metric("eval_tokens", "domain", "scored tokens", "Tokens", kind="count", dtype="whole", parts="domain"),
    # --- data whose true distribution is known
    Metric("entropy_floor", "synthetic", "loss of the true distribution, nats per target ([sinks](sinks.md))",
           "Entropy floor (nats)", kind="floor", in_frames=False),
    Metric("excess_loss", "synthetic", "divergence of the model from it, nats per target",
           "Excess loss (nats)", "excess loss (nats)", kind="nats", better="lower", in_frames=False),
    Metric("excess_loss_copy", "synthetic", "the same on targets that follow a trigger", "On copies",
           under="excess_loss", kind="nats", better="lower", in_frames=False),
    Metric("excess_loss_other", "synthetic", "the same on all other targets", "Elsewhere",
           under="excess_loss", kind="nats", better="lower", in_frames=False),
    Metric("copy_accuracy", "synthetic", "share of copies to which the model gives the largest logit",
           "Copy accuracy", "copy accuracy", kind="percent", better="higher", in_frames=False),
    Metric("retrieval_accuracy", "retrieval", "with `data.retrieval`: share of answers found", "Retrieval accuracy",
           kind="percent", better="higher", in_frames=False),
    # --- attention sinks, large activations, gate scores
    Metric("first_token_share", "probe",
           "mean attention paid to position 0, over layers, heads and queries, query 0 included",
           "First-token share", "share", kind="share", better="lower", family="probe", floor="first_token_floor",
           paper="f_attn", overview=SINKS, long="long_share"),
    Metric("first_token_share_excl", "probe", "the same without query 0", "Without query 0", under="first_token_share",
           kind="share", better="lower", floor="first_token_floor_excl"),
    Metric("first_token_floor", "probe", "what uniform causal attention would give: H_T/T", "Uniform floor", "floor",
           under="first_token_share", kind="floor", overview=SINKS),
    Metric("first_token_floor_excl", "probe", "the same without query 0: (H_T - 1)/(T - 1)", "Floor without query 0",
           kind="floor"),
    Metric("first_token_excess", "probe", "`first_token_share / first_token_floor`", "Times the floor", "share / floor",
           under="first_token_share", kind="ratio", better="lower", log=True, overview=SINKS,
           long="long_excess"),
    Metric("sink_rate", "probe", "share of (window, layer, head) with mean attention above 0.3 on position 0",
           "Sink rate", "sink rate", kind="percent", better="lower", overview=SINKS, long="long_sink_rate"),
    Metric("sink_rate_64", "probe", "the same over the first 64 tokens of each window", "Sink rate at T=64", "at T=64",
           kind="percent", better="lower", overview=SINKS, in_summary=False),
    Metric("m_act", "probe", "mean over layers of the largest absolute residual activation after the layer", "M-Act",
           kind="activation", better="lower", log=True, family="probe", paper="m_act", overview=SINKS,
           long="long_m_act"),
    Metric("massive_ratio", "probe", "largest layer mean of maximum / median of the residual stream",
           "Maximum / median", "max / median", kind="count", log=True, overview=SINKS, in_summary=False),
    _output("sdpa_abs_before", "score", "|SDPA| before", "mean absolute SDPA output before G1"),
    _output("sdpa_abs_after", "score", "after", "the same after G1"),
    _output("sdpa_below_before_1e-02", "percent", "<0.01 before", "share of SDPA outputs below 0.01 before G1"),
    _output("sdpa_below_after_1e-02", "percent", "after", "the same after G1"),
    _output("sdpa_below_mean_gate_1e-02", "percent", "x mean gate", "the same before G1, times the mean gate"),
    Metric("gate_mean", "gate", "mean gate score; `null` without gates, as the next three", "Gate mean", "gate",
           kind="score", paper="gate_score", overview=OUTPUT, long="long_gate"),
    Metric("gate_closed", "gate", "share of scores below 0.1", "Closed (< 0.1)", "closed", under="gate_mean",
           kind="percent", overview=OUTPUT),
    Metric("gate_open", "gate", "share of scores above 0.9", "Open (> 0.9)", under="gate_mean", kind="percent"),
    Metric("gate_abs_logit", "gate", "mean absolute pre-activation", "Mean |logit|", under="gate_mean", kind="ratio"),
    Metric("probe_tokens", "probe", "tokens that the probes ran over", kind="count"),
    Metric("residual_sinks", "probe", "dimensions of the residual stream that are above 3 times the token's rms on "
           "at least half of all tokens, mean over layers", "Residual sinks", "residual sinks", kind="activation",
           overview=RESIDUAL, in_frames=False),
    Metric("residual_sink_share", "probe", "their share of the squared norm, mean over tokens and layers",
           "Share of the squared norm", "of |h|²", under="residual_sinks", kind="percent", overview=RESIDUAL,
           in_frames=False),
    Metric("residual_kurtosis", "probe", "kurtosis of a token's residual stream over its dimensions, mean over tokens "
           "and layers; 3 for a normal distribution", "Kurtosis", "kurtosis", under="residual_sinks", kind="activation",
           log=True, overview=RESIDUAL, in_frames=False),
    Metric("norm_weight_min", "probe", "least absolute weight of the RMSNorms that read the residual stream",
           "Least RMSNorm weight", "least norm weight", under="residual_sinks", kind="score", overview=RESIDUAL,
           in_frames=False),
    # --- when, and with which code
    Metric("tokens_per_s", "run", "median over the steps after the first ten", "Tokens/s", "tokens/s", kind="speed",
           better="higher"),
    Metric("train_wall_s", "run", "seconds in training, over all attempts", kind="count", better="lower"),
    _text("started", "ISO 8601, of the first attempt"),
    _text("finished", "ISO 8601"),
    _whole("attempts", "how many times the run was started until it was done", in_frames=False),
    _text("git_commit", "commit of the code"),
    Metric("git_dirty", "run", "whether the tree had uncommitted changes, outside `results/`", dtype="flag"),
    _text("machine", "where it ran"),
    _text("torch_version", "version of torch"),
    _text("gatebench_version", "version of gatebench"),
    _whole("schema", f"{SCHEMA}"),
    # --- measured later, in files of their own beside summary.json
    Metric("ruler", "long", "mean RULER score", "RULER", kind="points", better="higher", parts="length"),
    Metric("long_loss", "long", "loss over the last quarter of a window", "loss on the last quarter of a window (nats)",
           kind="nats", better="lower", parts="length"),
    Metric("bench", "benchmark", "score", kind="points", better="higher", parts="task"),
    Metric("bench_stderr", "benchmark", "standard error of the score over items", kind="points", parts="task"),
    Metric("bench_chance", "benchmark", "the score of guessing", kind="points", parts="task"),
    Metric("bench_bpb", "benchmark", "bits per byte of the right answer", kind="bits", better="lower", parts="task"),
    Metric("bench_n", "benchmark", "items", kind="count", parts="task"),
)  # fmt: skip
"""In the order of a frame's columns."""

FRAME = tuple(metric for metric in METRICS if metric.in_summary and metric.in_frames and not metric.parts)
"""The columns that every frame has."""

_BY_KEY = {metric.key: metric for metric in METRICS}
_BY_KEY |= {metric.long: replace(metric, key=metric.long, parts="length") for metric in METRICS if metric.long}


def get(column: str) -> Metric:
    """Return the metric of a column, that of one part too: `ppl/english` is "PPL english". Raises KeyError for none."""
    key, _, part = column.partition("/")
    metric = _BY_KEY[key]
    if part and not metric.parts:
        raise KeyError(column)
    return replace(metric, key=column, title=f"{metric.title} {part}") if part else metric


def known(column: str) -> Metric | None:
    """Return the metric of a column; None for one that has no entry."""
    try:
        return get(column)
    except KeyError:
        return None


def measured(*where: Where) -> list[Metric]:
    """Return what these measure, in order."""
    return [metric for metric in METRICS if metric.where in where]


def evaluation_keys(domains: Sequence[str], *, synthetic: bool) -> list[str]:
    """Return the fields of `summary.json` that an evaluation over `domains` fills, null in that of a diverged run."""
    keys = [metric.key for metric in measured("evaluation", "probe", "gate") if metric.in_summary]
    keys += [f"{metric.key}/{domain}" for domain in domains for metric in measured("domain")]
    return keys + ([metric.key for metric in measured("synthetic")] if synthetic else [])


def followed() -> list[Metric]:
    """Return what is measured again over checkpoints, under interventions and at longer windows."""
    return [metric for metric in METRICS if metric.long]


def overviews() -> dict[str, list[Metric]]:
    """Return the columns of the tables of `gatebench probe`, by title."""
    titles = dict.fromkeys(metric.overview for metric in METRICS if metric.overview)
    return {title: [metric for metric in METRICS if metric.overview == title] for title in titles}


def summary_table() -> str:
    """Return the fields of `summary.json` as the table of docs/results.md."""
    lines = ["| field | meaning | better |", "|---|---|---|"]
    for metric in METRICS:
        if metric.in_summary and metric.where not in ("long", "benchmark"):
            field = f"{metric.key}/<{metric.parts}>" if metric.parts else metric.key
            lines.append(f"| `{field}` | {metric.meaning} | {metric.better or ''} |")
    return "\n".join(lines) + "\n"
