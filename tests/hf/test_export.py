"""`gatebench export` of a trained run: what is written, what loads it, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gatebench.hf
from gatebench.data.tokens import Corpus, heldout_windows
from gatebench.errors import UserError
from tests.cli.commands import Command
from tests.hf.models import wrapped
from tests.training.tiny_run import RunTiny, reference, run_tiny, tiny_corpus, tiny_recipe

__all__ = ["reference", "run_tiny", "tiny_corpus", "tiny_recipe"]

export = Command("export")
LAYOUT = {"baseline": "qwen3", "g1_headwise": "released", "g2_headwise": "gatebench"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, run_tiny: RunTiny) -> dict[str, Path]:
    """A trained run for each layout."""
    root = tmp_path_factory.mktemp("exported")
    for variant in LAYOUT:
        run_tiny(root / variant, variant=variant)
    return {variant: root / variant for variant in LAYOUT}


def test_auto_takes_the_layout_that_most_can_read(runs: dict[str, Path], tmp_path: Path) -> None:
    for variant, layout in LAYOUT.items():
        out = tmp_path / variant
        assert export.json(runs[variant], "--to", out) == {"variant": variant, "layout": layout, "to": str(out)}
        written = {path.name for path in out.iterdir()}
        assert written >= {"config.json", "model.safetensors", "tokenizer.json", "README.md", "generation_config.json"}
        model, tokenizer = gatebench.hf.load(out)
        expected, _ = gatebench.hf.from_run(runs[variant])
        assert tokenizer is not None and model.config.variant == variant
        state = model.transformer.state_dict()
        assert all(torch.equal(state[k], v) for k, v in expected.transformer.state_dict().items())
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 1


@torch.no_grad()
def test_a_baseline_loads_without_gatebench_and_scores_the_same(
    runs: dict[str, Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    assert export(runs["baseline"], "--to", tmp_path / "out").exit_code == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__module__ == "transformers.models.qwen3.modeling_qwen3"
    windows = heldout_windows(Corpus.open(tiny_corpus), "english", 32)
    logits = model(torch.from_numpy(windows.inputs)).logits
    nll = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(windows.targets).flatten(), ignore_index=-100, reduction="sum"
    )
    scored = int((windows.targets != -100).sum())
    found = json.loads((runs["baseline"] / "eval.json").read_text(encoding="utf-8"))["domains"]["english"]
    assert scored >= found["tokens"] and 1 < (nll / scored).exp() < 512
    ours, _ = gatebench.hf.from_run(runs["baseline"])
    torch.testing.assert_close(ours(torch.from_numpy(windows.inputs)).logits, logits, atol=1e-5, rtol=0)


def test_the_tokenizer_is_the_corpus_own_and_begins_with_bos(
    runs: dict[str, Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    assert export(runs["g2_headwise"], "--to", tmp_path / "out").exit_code == 0
    text = "The president of the union.\n  x = 1  # 天地玄黄"
    expected = Corpus.open(tiny_corpus).tokenizer().encode(text).ids
    for tokenizer in (AutoTokenizer.from_pretrained(tmp_path / "out"), gatebench.hf.from_run(runs["g2_headwise"])[1]):
        assert tokenizer(text).input_ids == [0, *expected]
        assert tokenizer(text, add_special_tokens=False).input_ids == expected
        assert tokenizer.decode([0, *expected], skip_special_tokens=True) == text
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 1)
        short = tokenizer("The").input_ids
        batch, padding = tokenizer([text, "The"], padding=True), 1 + len(expected) - len(short)
        assert batch.input_ids[1] == [1] * padding + short
        assert batch.attention_mask[1] == [0] * padding + [1] * len(short)
        assert tokenizer.model_max_length == 32


def test_a_run_without_bos_has_a_tokenizer_without_bos(run_tiny: RunTiny, tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", "data.bos=false", variant="baseline")
    model, tokenizer = gatebench.hf.from_run(tmp_path / "run")
    assert tokenizer is not None and tokenizer.bos_token is None and model.config.bos_token_id is None
    assert 0 not in tokenizer("The president").input_ids


def test_the_card_has_recipe_data_metrics_and_commit(runs: dict[str, Path], tmp_path: Path) -> None:
    export(runs["g1_headwise"], "--to", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    summary = json.loads((runs["g1_headwise"] / "summary.json").read_text(encoding="utf-8"))
    for part in (
        "library_name: transformers",
        "# g1_headwise",
        "Y_h' = Y_h ⊙ σ(X W_θ,h)",
        f"commit `{summary['git_commit']}`",
        f"fingerprint `{summary['corpus_fingerprint']}`",
        f"| Avg PPL | {summary['avg_ppl']:.2f} |",
        f"| PPL law | {summary['ppl/law']:.2f} |",
        f"{summary['n_params']:,} parameters",
        "  warmup_steps: 5",
    ):
        assert part in card, part


def test_refusals(runs: dict[str, Path], tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "kept").touch()
    cases = {
        (runs["g2_headwise"], "--to", tmp_path / "x", "--layout", "released"): (
            "--layout released: cannot hold g2_headwise (its gates are g1_headwise or g1_elementwise); legal: gatebench"
        ),
        (runs["g1_headwise"], "--to", tmp_path / "x", "--layout", "qwen3"): (
            "--layout qwen3: cannot hold g1_headwise (it has no gates); legal: released, gatebench"
        ),
        (runs["baseline"], "--to", tmp_path / "x", "--layout", "gguf"): (
            "--layout gguf: unknown; legal: auto, gatebench, qwen3, released"
        ),
        (runs["baseline"], "--to", full): f"--to {full}: is there and not an empty directory; legal: a new one",
        (full, "--to", tmp_path / "x"): f"{full}: holds no config.json to read; legal: a run",
    }
    for words, message in cases.items():
        assert export.refusal(*words).startswith(message)
    assert not (tmp_path / "x").exists() and {path.name for path in tmp_path.iterdir()} == {"full"}


def test_an_unfinished_run_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_bytes((runs["baseline"] / "config.yaml").read_bytes())
    message = export.refusal(unfinished, "--to", tmp_path / "x")
    assert message == f"{unfinished}: the run is not finished; legal: a finished run"


@pytest.mark.parametrize(
    ("name", "changes", "layout", "why"),
    [
        ("baseline", {"qk_norm": False}, "qwen3", "it has no model.qk_norm=false"),
        ("sandwich_norm", {}, "qwen3", "sandwich_norm is not in it"),
        ("g1_headwise_shared", {}, "released", "its gates are g1_headwise or g1_elementwise"),
        ("g1_headwise+g2_headwise", {}, "released", "its gates are g1_headwise or g1_elementwise"),
        (
            "baseline",
            {"ffn_dim": 12, "moe": {"n_experts": 6, "top_k": 2, "expert_dim": 12}},
            "released",
            "it has no experts",
        ),
    ],
)
def test_what_a_layout_cannot_hold(
    name: str, changes: dict[str, object], layout: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"cannot hold .*\({why}\)"):
        gatebench.hf.export(wrapped(name, **changes), None, tmp_path / "x", layout=layout)


def test_a_dtype_survives(tmp_path: Path) -> None:
    gatebench.hf.export(wrapped("g1_headwise").to(torch.bfloat16), None, tmp_path / "out")
    model, _ = gatebench.hf.load(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["torch_dtype"] == "bfloat16"
