"""The model as transformers sees it: saved and read again, padded, decoded with a cache, generated from."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import gatebench.hf
from gatebench.hf import GatebenchConfig, GatebenchForCausalLM
from gatebench.hf.versions import check_transformers
from gatebench.model.build import build_model
from tests.hf.models import LENGTHS, padded_batch, wrapped
from tests.model.shapes import GRAMMAR_EXTRAS, TINY, shape, token_ids

WIDE = (
    *("baseline", "g1_headwise", "g5_elementwise", "g1_elementwise_from_previous", "sandwich_norm", "switch_v_8top2"),
    *("registers2+value_residual+exclusive+kv_bias+g1_elementwise", "forgetting", "differential", "sink_logits"),
    *("softpick", "experts_plus4+g1_headwise", "g1_elementwise_input_independent", "g2_rmsnorm"),
)


@pytest.mark.parametrize("name", dict.fromkeys((*WIDE, *GRAMMAR_EXTRAS)))
@torch.no_grad()
def test_exported_and_loaded_the_weights_are_bit_identical(name: str, tmp_path: Path) -> None:
    model, ids = wrapped(name), token_ids()
    assert gatebench.hf.export(model, None, tmp_path / "out", layout="gatebench") == "gatebench"
    again, tokenizer = gatebench.hf.load(tmp_path / "out")
    assert again.config.variant == name and tokenizer is None
    state = again.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())
    torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", WIDE)
@torch.no_grad()
def test_the_auto_classes_read_what_save_pretrained_writes(name: str, tied: bool, tmp_path: Path) -> None:
    model, ids = wrapped(name, tie_embeddings=tied), token_ids()
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), GatebenchConfig)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, GatebenchForCausalLM)
    assert (again.transformer.lm_head.weight is again.transformer.embed.weight) is tied
    torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["baseline", "g2_headwise", "registers3+forgetting"])
def test_a_config_alone_is_the_model_as_gatebench_initialises_it(name: str) -> None:
    config = GatebenchConfig(variant=name, model=TINY.model_dump())
    expected = build_model(TINY, name, seed=0).state_dict()
    for model in (GatebenchForCausalLM(config), AutoModelForCausalLM.from_config(config)):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.transformer.state_dict().items())


def test_transformers_words_follow_from_ours() -> None:
    config = GatebenchConfig(variant="kv_heads_x2", model=shape("kv_heads_x2").model_dump())
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (24, 4, 4)
    assert (config.num_hidden_layers, config.head_dim, config.max_position_embeddings) == (2, 8, 128)
    assert config.tie_word_embeddings and config.vocab_size == 61


@pytest.mark.parametrize("name", WIDE)
@torch.no_grad()
def test_a_padded_batch_generates_what_its_rows_do_alone(name: str) -> None:
    """Greedily, and equal to taking the likeliest token of a model without a cache."""
    model, (ids, mask) = wrapped(name), padded_batch()
    made = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None)
    for row, length in enumerate(LENGTHS):
        alone = ids[row : row + 1, -length:]
        for _ in range(8):
            alone = torch.cat((alone, model(alone).logits[:, -1:].argmax(-1)), dim=1)
        assert made[row, -8 - length :].tolist() == alone[0].tolist()


@pytest.mark.parametrize("name", ["baseline", "registers2+value_residual+exclusive+kv_bias+g1_elementwise"])
def test_sampling_and_beams_are_the_same_with_and_without_a_cache(name: str) -> None:
    model, (ids, mask) = wrapped(name), padded_batch()
    for how in ({"do_sample": True, "top_p": 0.9}, {"num_beams": 3}, {"num_beams": 2, "do_sample": True}):
        made = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            made.append(model.generate(ids, attention_mask=mask, max_new_tokens=8, use_cache=use_cache, **how))
        assert torch.equal(*made), how


@torch.no_grad()
def test_loss_is_the_mean_over_shifted_labels() -> None:
    model, ids = wrapped("g1_headwise"), token_ids(batch=2, length=9)
    labels = ids.clone()
    labels[0, 5:] = -100
    output = model(ids, labels=labels)
    log_probs = output.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    scored = labels[:, 1:] != -100
    assert scored.sum() == 12
    torch.testing.assert_close(output.loss, -log_probs[scored].mean())


@torch.no_grad()
def test_only_the_logits_asked_for() -> None:
    model, ids = wrapped("baseline"), token_ids()
    assert torch.equal(model(ids, logits_to_keep=2).logits, model(ids).logits[:, -2:])
    assert model(ids, return_dict=False)[0].shape == (2, 9, 61)


@torch.no_grad()
def test_padding_after_a_text_changes_nothing() -> None:
    model, ids = wrapped("registers3+forgetting"), token_ids()
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[0, :6], model(ids).logits[0, :6])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1, 0, 1]], "no zero between two of them"),
        ([[0, 0, 0, 0]], "in each row some ones"),
        ([[0, 1, 1]], r"shape \(1, 3\): legal: \(1, 4\)"),
    ],
)
def test_masks_that_mean_nothing_here(mask: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrapped("baseline")(token_ids(batch=1, length=4), attention_mask=torch.tensor(mask))


def test_a_checkpoint_with_a_weight_missing_is_refused_by_from_pretrained(tmp_path: Path) -> None:
    model = wrapped("g1_headwise")
    weights = {name: tensor for name, tensor in model.state_dict().items() if "blocks.1.attn.g1" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ValueError, match=r"the checkpoint lacks blocks\.1\.attn\.g1\.gates\.0\.proj\.weight"):
        GatebenchForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("version", "legal"), [("4.57.6", False), ("5.3.0", False), ("5.24.0", True), ("6.0.0", False)]
)
def test_transformers_outside_the_range_stop_the_import(
    version: str, legal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    if legal:
        return check_transformers()
    with pytest.raises(ImportError, match=f"transformers {version} is installed; needed: transformers >= 5.24, < 6"):
        check_transformers()


def test_without_transformers_the_import_names_the_extra_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "def version(name, real=metadata.version):\n"
        "    if name == 'transformers':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "gatebench", "export", "run", "--to", "there"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "gatebench: gatebench.hf: transformers is not installed; needed: transformers >= 5.24, < 6 "
        "(pip install 'gatebench[hf]')"
    )
