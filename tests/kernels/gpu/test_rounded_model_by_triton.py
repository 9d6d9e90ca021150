"""A model whose weights a GPU keeps in fewer bits answers what a model of the weights that the codes stand for does."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from test_decode_steps_by_triton import BLOCK_SIZE, NUM_BLOCKS, Branches, fuse
from tiny_gguf import TOKENS, Kind, round_weights, tiny_model, write_gguf
from tiny_models import reference_logits, reference_model, save_wide
from triton_device import DEVICE, needs_triton_device

from radixkv.kernels.gpu.grouped_weight import restore_grouped
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.worker.loading import gguf_weights, packed_linear
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.loading.packed_linear import RoundedLinear
from radixkv.worker.model import model, model_loading
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ForwardRow, ModelRunner

pytestmark = needs_triton_device


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (packed_linear, model, model_loading, gguf_weights):
        monkeypatch.setattr(module, "takes_grouped", lambda _: True)


def load(folder: str, quantization: str, **arguments: Any) -> ModelRunner:
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}
    runner = ModelRunner(folder, **sizes, dtype="float32", device=DEVICE, quantization=quantization, **arguments)
    how = {"kv_format": runner.kv_format, "layout": Layout.HEAD_MAJOR}
    runner.pool = KVPool(runner._layers, *sizes.values(), runner.dtype, runner.device, **how)
    return runner


def restored(runner: ModelRunner, reference: Any) -> Any:
    """transformers' model with the numbers of the runner's rounded layers."""
    with torch.no_grad():
        for name, module in runner._model.named_modules():
            if isinstance(module, RoundedLinear) and module.num_stacked > 1:
                stack = module.quantised
                weights = [
                    stack._replace(codes=stack.codes[i], scales=stack.scales[i]) for i in range(len(stack.codes))
                ]
                reference.get_parameter(name).copy_(torch.stack([restore_grouped(each).cpu() for each in weights]))
            elif isinstance(module, RoundedLinear):
                weight = restore_grouped(module.quantised).cpu()
                reference.get_submodule(name).weight = torch.nn.Parameter(weight)  # a tied head is its own from here on
    return reference


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_branches_get_what_the_restored_weights_answer(family: str, quantization: str, tmp_path: Path) -> None:
    folder = save_wide(family, tmp_path)
    runner = load(folder, quantization)
    assert runner.quantization == quantization
    assert not runner.is_native
    if family != "gemma3" and runner.device.type == "cpu":  # a GPU's runner has done it
        assert fuse(runner)
    branches = Branches(runner, restored(runner, reference_model(folder)))
    for own_tokens in (6, 30):
        branches.begin(own_tokens)
    for _ in range(2):
        branches.decode(0, 1)


def test_joined_matrices_are_parts_of_one_and_no_memory_is_taken_twice(tmp_path: Path) -> None:
    runner = load(save_wide("llama", tmp_path), "int4")
    before = sum(tensor.nbytes for tensor in (*runner._model.parameters(), *runner._model.buffers()))
    if runner.device.type == "cpu":
        assert fuse(runner)
    attention, mlp = (getattr(runner._model.model.layers[0], name) for name in ("self_attn", "mlp"))
    for modules in ((attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)):
        assert len({module.quantised.codes.untyped_storage().data_ptr() for module in modules}) == 1
        assert len({module.packed.untyped_storage().data_ptr() for module in modules}) == 1
    assert runner.weight_bytes == before
    assert before == sum(tensor.nbytes for tensor in (*runner._model.parameters(), *runner._model.buffers()))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_are_those_of_the_restored_weights(quantization: str, tmp_path: Path) -> None:
    folder = save_wide("qwen3_moe", tmp_path, moe_intermediate_size=64)
    runner = load(folder, quantization)
    plain = load(folder, "none")
    assert runner.num_parameters == plain.num_parameters
    assert runner.weight_bytes < 0.5 * plain.weight_bytes
    branches = Branches(runner, restored(runner, reference_model(folder)))
    for own_tokens in (6, 30):
        branches.begin(own_tokens)
    for _ in range(2):
        branches.decode(0, 1)


def test_experts_of_a_file_in_4_bits_have_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "wants_rounding", lambda *_: True)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "moe_intermediate_size": 64}
    exact = tiny_model("qwen3_moe", **sizes)
    write_gguf(exact, "qwen3_moe", tmp_path / "tiny.gguf", kinds=lambda _: Kind.Q4_0)
    folder = resolve_model(str(tmp_path / "tiny.gguf"), cache=tmp_path / "cache", progress=False)
    assert load(folder, "auto").weight_bits == (4,)
    assert load(folder, "int8").weight_bits == (8,)


def test_latents_stay_latents(tmp_path: Path) -> None:
    runner = load(save_wide("deepseek_v3", tmp_path, head_dim=8, kv_lora_rank=64), "int8")
    assert all(layer.is_latent for layer in runner._layers)
    assert runner.quantization == "int8"


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("quantization", ["auto", "int8", "int4"])
def test_a_file_s_4_bits_are_kept(
    quantization: str, is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kinds(name: str) -> Kind:
        return Kind.Q8_0 if any(part in name for part in ("v_proj", "embed", "head")) else Kind.Q4_0

    monkeypatch.setattr(model, "wants_rounding", lambda *_: True)
    sizes = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
    exact = tiny_model("llama", tie_word_embeddings=is_tied, num_attention_heads=4, num_key_value_heads=2, **sizes)
    round_weights(exact, kinds)
    write_gguf(exact, "llama", tmp_path / "tiny.gguf", kinds=kinds)
    folder = resolve_model(str(tmp_path / "tiny.gguf"), cache=tmp_path / "cache", progress=False)
    runner = load(folder, quantization)
    bits = {"auto": (4, 8), "int8": (8,), "int4": (4,)}[quantization]
    assert runner.weight_bits == bits
    if runner.device.type == "cpu":
        assert fuse(runner)
    token_ids = random.Random(1).choices(range(3, len(TOKENS)), k=40)
    row = ForwardRow(token_ids, 0, array("i", range(10)), 0, True)
    found, expected = runner.forward([row])[0].cpu(), reference_logits(exact, token_ids)[-1]
    if quantization == "auto":
        assert (found - expected).norm() < 3e-2 * expected.norm()
    same = reference_logits(restored(runner, exact), token_ids)[-1]
    torch.testing.assert_close(found, same, atol=1e-3, rtol=0)
