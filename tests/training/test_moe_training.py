"""Training a mixture of experts: what balances, what is recorded, and that batches may be split in any way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.model.accounting import account
from gatebench.model.build import build_run_model
from gatebench.model.moe import take_routings
from gatebench.recipes import make_run
from gatebench.training import run as run_module
from gatebench.training.callbacks import MetricsWriter
from gatebench.training.datamodule import MicroBatches
from gatebench.training.hardware import compile_blocks
from gatebench.training.module import LanguageModel, RouterStatistics
from gatebench.training.router_metrics import RouterMetrics
from gatebench.training.speed import dense_counterpart
from tests.training.test_resume import Killed, kill_after
from tests.training.tiny_run import (
    RunTiny,
    assert_same_result,
    rows_of,
    set_options,
    start,
    tiny_config,
    train_command,
    wait_for_step,
)

MOE = ("model.moe={n_experts: 8, top_k: 2, expert_dim: 64}", "train.batch_size=8")
ROUTER = ("load_balancing_loss", "z_loss", "router_entropy", "max_load", "dead_experts")


def moe_run(recipe: str, *overrides: str, variant: str = "baseline") -> RunConfig:
    return tiny_config(recipe, *MOE, "model.init_std=0.1", *overrides, variant=variant)


def step_ids(config: RunConfig) -> Tensor:
    return torch.randint(512, (8, config.data.seq_len + 1), generator=torch.Generator().manual_seed(0))


def one_step(config: RunConfig, bf16: bool = False) -> tuple[LanguageModel, dict[str, Tensor], Tensor]:
    """Return the module, its gradients and the counts (L, E) of one optimiser step on eight sequences."""
    module = LanguageModel(config, build_run_model(config))
    ids, counts = step_ids(config), torch.zeros(1, dtype=torch.long)
    for i, part in enumerate(ids.split(config.micro_batch_size)):
        batch = {"ids": part}
        if i == 0 and config.accumulate > 1 and config.model.moe and config.model.moe.lbl_scope == "global_batch":
            batch["step_ids"] = ids
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = module.training_step(batch, i)
        (loss / config.accumulate).backward()
        module.on_after_backward()
        assert module.router is not None
        counts = counts + module.router.counts
    gradients = {name: p.grad for name, p in module.model.named_parameters() if p.grad is not None}
    return module, gradients, counts


@pytest.mark.parametrize("recompute", ["false", "true"])
@pytest.mark.parametrize("convention", ["megatron", "transformers"])
def test_one_batch_of_eight_and_four_of_two_give_the_same_counts_and_gradients(
    tiny_recipe: str, recompute: str, convention: str
) -> None:
    settings = (f"model.moe.lbl_convention={convention}", "model.moe.lbl_coef=1")
    _, whole, counts = one_step(moe_run(tiny_recipe, *settings))
    split = (*settings, "train.micro_batch_size=2", f"train.recompute={recompute}")
    _, parts, counts_of_parts = one_step(moe_run(tiny_recipe, *split))
    assert torch.equal(counts_of_parts, counts)
    assert counts.sum(-1).tolist() == [8 * 32 * 2] * 2  # every token goes to two experts, once
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-6, rtol=1e-4, msg=name)
    # The same split balanced within each micro-batch is another objective:
    _, local, _ = one_step(moe_run(tiny_recipe, *split, "model.moe.lbl_scope=micro_batch"))
    router = "blocks.0.ffn.router.weight"
    assert (local[router] - whole[router]).abs().max() > 1e-3 * whole[router].abs().max()


def test_counting_ahead_leaves_gradients_whole_under_autocast(tiny_recipe: str) -> None:
    # Weights that autocast casts without gradient must not be found again by the pass that needs it.
    _, whole, _ = one_step(moe_run(tiny_recipe), bf16=True)
    _, parts, _ = one_step(moe_run(tiny_recipe, "train.micro_batch_size=2"), bf16=True)
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        assert (parts[name] - gradient).norm() < 0.05 * gradient.norm(), name


def test_recomputation_changes_no_bit(tiny_recipe: str) -> None:
    for settings in (("model.moe.lbl_scope=running", "train.micro_batch_size=4"), ()):
        _, plain, counts = one_step(moe_run(tiny_recipe, *settings))
        module, again, counts_again = one_step(moe_run(tiny_recipe, *settings, "train.recompute=true"))
        assert torch.equal(counts, counts_again)
        for name, gradient in plain.items():
            assert torch.equal(again[name], gradient), name
        assert take_routings(module.model) == []  # those of the second forward pass are dropped


def test_running_counts_are_cumulative_and_start_anew_with_each_step(tiny_recipe: str) -> None:
    config = moe_run(tiny_recipe, "model.moe.lbl_scope=running", "train.micro_batch_size=4")
    module = LanguageModel(config, build_run_model(config))
    first, second = step_ids(config).split(4)
    probs, counts = [], []
    for part in (first, second):
        module.model.hidden(part[:, :-1])
        routings = take_routings(module.model)
        probs.append(torch.stack([r.mean_probs for r in routings]).detach())
        counts.append(torch.stack([r.counts for r in routings]))

    def lbl(p: Tensor, c: Tensor) -> float:
        return (8 * (p * c / c.sum(-1, keepdim=True)).sum(-1)).mean().item()

    expected = [lbl(probs[0], counts[0]), lbl(probs[1], counts[0] + counts[1])]
    for _ in range(2):
        for i, part in enumerate((first, second)):
            module.training_step({"ids": part}, i)
            assert module.router is not None
            assert module.router.means[0].item() == pytest.approx(expected[i], rel=1e-5)


def test_the_first_micro_batch_of_a_step_brings_the_whole_step(tiny_recipe: str) -> None:
    class Windows:
        def batch(self, index: int, size: int) -> object:
            return torch.arange(index * size, (index + 1) * size)[:, None].expand(size, 33).numpy()

    split = moe_run(tiny_recipe, "train.micro_batch_size=2")
    batches = iter(MicroBatches(Windows(), split, 3, 0, 1))  # type: ignore[arg-type]
    taken = [next(batches) for _ in range(5)]
    assert taken[0]["step_ids"][:, 0].tolist() == list(range(24, 32))
    assert ["step_ids" in batch for batch in taken] == [True, False, False, False, True]
    assert torch.equal(torch.cat([batch["ids"] for batch in taken[:4]]), taken[0]["step_ids"])
    for other in (
        moe_run(tiny_recipe),
        moe_run(tiny_recipe, "train.micro_batch_size=2", "model.moe.lbl_scope=running"),
    ):
        assert "step_ids" not in next(iter(MicroBatches(Windows(), other, 0, 0, 1)))  # type: ignore[arg-type]


def test_a_run_records_its_routers_and_its_loss_stays_the_cross_entropy(tmp_path: Path, run_tiny: RunTiny) -> None:
    summary = run_tiny(tmp_path / "run", *MOE)
    rows = rows_of(tmp_path / "run")
    for row in rows:
        assert 1.0 <= row["load_balancing_loss"] < 2.0
        assert 0 < row["router_entropy"] <= math.log(8) + 1e-6
        assert 1.0 <= row["max_load"] <= 4.0  # all tokens on two of eight
        assert 0 <= row["dead_experts"] <= 12  # in two layers of eight each token goes to two
        assert row["z_loss"] > 0
    # Small weights: logits near 0, so even routing, logsumexp ln 8, and a loss of ln V without the routers' share.
    assert rows[0]["load_balancing_loss"] == pytest.approx(1.0, abs=0.02)
    assert rows[0]["z_loss"] == pytest.approx(math.log(8) ** 2, rel=0.02)
    assert rows[0]["loss"] == pytest.approx(math.log(512), abs=0.05)
    assert summary["n_params_active"] < summary["n_params"]
    run_tiny(tmp_path / "coefficients", *MOE, "model.moe.lbl_coef=0", "model.moe.z_loss_coef=0", "train.log_every=7")
    other = rows_of(tmp_path / "coefficients")
    assert other[0]["loss"] == rows[0]["loss"]
    assert other[-1]["loss"] != rows[-1]["loss"]


def test_between_two_readings_of_the_metrics_nothing_waits_for_the_device(
    tmp_path: Path, run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and router columns are read once each per `log_every` steps, and nothing else is."""
    reads: list[int] = []

    class Watched(MetricsWriter):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, *args)
            reads.append(n_reads[0])

    def counting(original: Any) -> Any:
        def counted(tensor: Tensor, *args: Any) -> Any:
            n_reads[0] += 1
            return original(tensor, *args)

        return counted

    n_reads = [0]
    for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(Tensor, name, counting(getattr(Tensor, name)))
    monkeypatch.setattr(run_module, "MetricsWriter", Watched)
    run_tiny(tmp_path / "run", *MOE, "train.micro_batch_size=4", "train.log_every=5", "train.checkpoint_every=20")
    by_step = [reads[i] - reads[1] for i in range(1, 40, 2)]  # two micro-batches a step
    assert by_step == [0] * 4 + [2] * 5 + [4] * 5 + [6] * 5 + [8]


def test_router_columns_by_hand() -> None:
    """Two steps of two micro-batches, two layers of four experts: loads of 6, 2, 0, 0 and 2, 2, 2, 2; then all even."""
    metrics = RouterMetrics()
    skewed, even = torch.tensor([[3, 1, 0, 0], [1, 1, 1, 1]]), torch.ones(2, 4, dtype=torch.long)
    for counts, means in ((skewed, [1.0, 2.0, 0.5]), (even, [1.0, 1.0, 1.0])):
        metrics.add(RouterStatistics(counts, torch.tensor(means)))
        metrics.add(RouterStatistics(counts, torch.tensor([2.0, 4.0, math.inf])))
        metrics.close_step()
    first, second = metrics.read(2)
    assert (first["max_load"], first["dead_experts"]) == (2.0, 2)  # the mean of 6 / 2 and 1
    assert (second["max_load"], second["dead_experts"]) == (1.0, 0)
    assert (first["load_balancing_loss"], first["z_loss"], first["router_entropy"]) == (1.5, 3.0, None)
    assert metrics.read(1) == [{}]


def test_split_batches_train_the_same_model(tmp_path: Path, run_tiny: RunTiny) -> None:
    run_tiny(tmp_path / "whole", *MOE)
    run_tiny(tmp_path / "split", *MOE, "train.micro_batch_size=2", "train.recompute=true")
    whole, split = rows_of(tmp_path / "whole"), rows_of(tmp_path / "split")
    assert [row["batch"] for row in whole] == [row["batch"] for row in split]
    for column in ("loss", "grad_norm", *ROUTER):
        assert [row[column] for row in split] == pytest.approx([row[column] for row in whole], rel=1e-3), column


def test_a_dense_run_has_no_router_columns(reference: Path) -> None:
    assert not set(ROUTER) & set(rows_of(reference)[0])


@pytest.mark.parametrize("scope", ["running", "global_batch"])
def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path, run_tiny: RunTiny, scope: str) -> None:
    settings = (*MOE, f"model.moe.lbl_scope={scope}", "train.micro_batch_size=4")
    run_tiny(tmp_path / "whole", *settings)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(tmp_path / "killed", *settings)
    run_tiny(tmp_path / "killed", *settings)
    assert_same_result(tmp_path / "killed", tmp_path / "whole")
    ours, theirs = rows_of(tmp_path / "killed"), rows_of(tmp_path / "whole")
    assert [[row[c] for c in ROUTER] for row in ours] == [[row[c] for c in ROUTER] for row in theirs]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["running", "global_batch"])
def test_two_processes_train_as_one(tmp_path: Path, run_tiny: RunTiny, tiny_recipe: str, scope: str) -> None:
    settings = (*MOE, f"model.moe.lbl_scope={scope}")
    # one micro-batch of 4 a process, where `running` is exact, too; two of 2, where it is not
    ddp = (*settings, "train.devices=2", "train.strategy=ddp")
    if scope == "global_batch":
        ddp = (*ddp, "train.micro_batch_size=2", "train.recompute=true")
    process = start(train_command(tiny_recipe, tmp_path / "together", *set_options(*ddp)))
    _, messages = process.communicate(timeout=240)
    assert process.returncode == 0, messages
    alone = run_tiny(tmp_path / "alone", *settings)
    ours, theirs = rows_of(tmp_path / "together"), rows_of(tmp_path / "alone")
    assert [row["batch"] for row in ours] == [row["batch"] for row in theirs]
    for column in ("loss", "grad_norm", "lr", *ROUTER):
        assert [row[column] for row in ours] == pytest.approx([row[column] for row in theirs], rel=1e-3), column
    summary = json.loads((tmp_path / "together" / "summary.json").read_text(encoding="utf-8"))
    assert summary["n_devices"] == 2
    assert summary["avg_ppl"] == pytest.approx(alone["avg_ppl"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model", [MOE, ("train.batch_size=8",)], ids=["moe", "dense"])
def test_two_processes_that_share_the_model_train_as_one(
    tmp_path: Path, run_tiny: RunTiny, tiny_recipe: str, model: tuple[str, ...]
) -> None:
    out = tmp_path / "together"
    command = train_command(
        tiny_recipe,
        out,
        *set_options(*model, "train.devices=2", "train.strategy=fsdp", "train.micro_batch_size=2"),
        *set_options("train.recompute=true", "train.snapshot_every=15"),
    )
    process = start(command)
    wait_for_step(process, out, 10)
    process.terminate()
    process.communicate(timeout=60)
    assert not (out / "summary.json").exists()
    again = start(command)
    _, messages = again.communicate(timeout=240)
    assert again.returncode == 0, messages
    alone = run_tiny(tmp_path / "alone", *model, "train.snapshot_every=15")
    ours, theirs = rows_of(out), rows_of(tmp_path / "alone")
    assert [row["step"] for row in ours] == list(range(1, 21))
    assert [row["batch"] for row in ours] == [row["batch"] for row in theirs]
    for column in ("loss", "grad_norm", *(ROUTER if model == MOE else ())):
        assert [row[column] for row in ours] == pytest.approx([row[column] for row in theirs], rel=1e-3), column
    for name in ("model.safetensors", "weights_0000015.safetensors"):
        weights = [load_file(path / "checkpoints" / name) for path in (out, tmp_path / "alone")]
        assert weights[0].keys() == weights[1].keys()
        for key, values in weights[0].items():
            torch.testing.assert_close(values, weights[1][key], rtol=1e-2, atol=1e-3, msg=key)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["n_devices"], summary["attempts"]) == ("done", 2, 2)
    assert summary["avg_ppl"] == pytest.approx(alone["avg_ppl"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("bf16", "recompute"), [(False, "true"), (True, "false")], ids=["fp32-recomputed", "bf16"])
def test_compiled_blocks_give_the_same_gradients_and_counts(tiny_recipe: str, bf16: bool, recompute: str) -> None:
    torch._dynamo.reset()
    config = moe_run(tiny_recipe, f"train.recompute={recompute}", "train.micro_batch_size=4")
    _, expected, counts = one_step(config, bf16)
    module = LanguageModel(config, build_run_model(config))
    ids = step_ids(config)
    assert compile_blocks(module.model, ids[:4, :-1], "cpu", "bf16" if bf16 else "fp32") is None
    total = torch.zeros_like(counts)
    for i, part in enumerate(ids.split(4)):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = module.training_step({"ids": part} | ({"step_ids": ids} if i == 0 else {}), i)
        (loss / 2).backward()
        assert module.router is not None
        total += module.router.counts
    torch._dynamo.reset()
    assert (total - counts).abs().sum() <= (40 if bf16 else 0)  # near ties may fall the other way
    for name, parameter in module.model.named_parameters():
        assert parameter.grad is not None
        assert (parameter.grad - expected[name]).norm() < (0.2 if bf16 else 1e-4) * expected[name].norm(), name


def test_one_more_expert_needs_experts() -> None:
    assert make_run("moe_tiny", "experts_plus4").variant == "experts_plus4"
    with pytest.raises(UserError, match=r"^variant 'experts_plus4': model.moe is null; legal: a recipe with experts$"):
        make_run("quick", "experts_plus4")


def test_the_dense_counterpart_in_a_benchmark_does_the_work_of_the_active_experts() -> None:
    dense = dense_counterpart(make_run("moe_tiny", "baseline"))
    assert (dense.model.moe, dense.model.ffn_dim) == (None, 352)
    assert account(dense).n_params == account(make_run("quick", "baseline")).n_params


@pytest.mark.parametrize(
    ("variant", "dense"),
    [("experts_plus4", "baseline"), ("experts_plus4+g1_headwise", "g1_headwise"), ("kv_heads_x2", "kv_heads_x2")],
)
def test_more_experts_have_no_part_in_the_dense_counterpart(variant: str, dense: str) -> None:
    counterpart = dense_counterpart(make_run("moe_tiny", variant))
    assert counterpart.variant == dense
    assert account(counterpart).n_params == account(make_run("quick", dense)).n_params
