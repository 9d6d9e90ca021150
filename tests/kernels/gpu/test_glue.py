"""Kernels between a decoder's products give what transformers' modules give, and leave few launches to a layer."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from test_decode_steps_by_triton import NUM_BLOCKS, fuse, load
from tiny_models import VOCAB_SIZE
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton_device import DEVICE, INTERPRETED, needs_triton_device

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, write_kv
from radixkv.kernels.gpu.glue import HeadEmbedding, add_norm, embed_heads, gate
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.worker.model import model
from radixkv.worker.model.cuda import fused_decoder
from radixkv.worker.model.model import ForwardRow, ModelRunner

pytestmark = needs_triton_device

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ERRORS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 2e-2}
MOST_LAUNCHES = 12

VIEWS = {
    "_unsafe_view", "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "lift_fresh", "permute",
    "flatten", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unflatten", "unsqueeze", "view",
}  # fmt: skip
"""Operations that launch nothing."""


def assert_close(found: Tensor, expected: Tensor) -> None:
    error = (found.cpu().double() - expected.double()).norm() / expected.double().norm()
    assert error < ERRORS[found.dtype], f"relative error {error:.1e}"


def normed(rows: Tensor, weight: Tensor) -> Tensor:
    """In float64."""
    rows = rows.double()
    return weight.double() * rows / (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_delta", [False, True])
@pytest.mark.parametrize("width", [48, 128])
def test_a_norm_is_of_the_sum_which_is_kept(width: int, has_delta: bool, dtype: torch.dtype) -> None:
    hidden, delta = (torch.randn(5, width).to(dtype) for _ in range(2))
    weight = torch.randn(width).to(dtype)
    total = (hidden.float() + delta.float()).to(dtype) if has_delta else hidden.clone()
    on_device = hidden.to(DEVICE)
    found = add_norm(on_device, delta.to(DEVICE) if has_delta else None, weight.to(DEVICE), 1e-5)
    assert_close(on_device, total)  # the interpreter rounds to bfloat16 towards zero
    assert_close(found, normed(total, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gate_is_of_columns_of_one_matrix(dtype: torch.dtype) -> None:
    both = torch.randn(5, 2 * 1100).to(dtype)
    gates, ups = torch.split(both.to(DEVICE), 1100, dim=1)
    first, second = both.double().split(1100, dim=1)
    assert_close(gate(gates, ups), first * torch.sigmoid(first) * second)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("format", [None, KVFormat.INT8], ids=str)
def test_heads_are_embedded_and_keys_and_values_are_in_their_slots_alone(
    format: KVFormat | None, has_norm: bool, dtype: torch.dtype
) -> None:
    heads, kv_heads, width, v_width = 6, 3, 32, 16
    sizes = 4, 8, kv_heads, width, dtype, DEVICE
    cache, expected = (
        allocate_kv(*sizes, v_head_dim=v_width, format=format, layout=Layout.HEAD_MAJOR) for _ in range(2)
    )
    slots = torch.tensor([17, -1, 3, 30])
    qkv = torch.randn(4, heads * width + kv_heads * (width + v_width)).to(dtype)
    q, k, v = torch.split(qkv, [heads * width, kv_heads * width, kv_heads * v_width], dim=1)
    q, k, v = q.unflatten(1, (heads, width)), k.unflatten(1, (kv_heads, width)), v.unflatten(1, (kv_heads, v_width))
    angles = torch.rand(4, width // 2).repeat(1, 2) * math.tau
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    weights = [torch.randn(width).to(dtype) for _ in range(2)]

    def embedded(rows: Tensor, weight: Tensor) -> Tensor:
        rows = normed(rows, weight) if has_norm else rows.double()
        first, second = rows.chunk(2, dim=-1)
        return rows * cos.double()[:, None] + torch.cat([-second, first], -1) * sin.double()[:, None]

    on_device = [tensor.to(DEVICE) for tensor in (q, k, v)]
    norms = [weight.to(DEVICE) if has_norm else None for weight in weights]
    how = HeadEmbedding(cos.to(DEVICE), sin.to(DEVICE), *norms, 1e-5)
    found = embed_heads(*on_device, how, cache, slots.to(DEVICE))
    assert_close(found, embedded(q, weights[0]))
    keys = embedded(k, weights[1]).to(dtype).to(DEVICE)
    write_kv(keys, on_device[2], expected, slots.to(DEVICE))
    if format is None:
        for got, wanted in zip(cache.tensors, expected.tensors, strict=True):
            assert_close(got, wanted.cpu())
            assert torch.equal(got == 0, wanted == 0)
    else:
        for block in range(4):
            for got, wanted in zip(cache.rows(block), expected.rows(block), strict=True):
                torch.testing.assert_close(got, wanted, atol=0.2, rtol=0)


def test_what_does_not_fit_is_refused() -> None:
    rows = torch.zeros(3, 8, device=DEVICE)
    with pytest.raises(InvalidArgumentError, match=r"hidden\.stride\(\)"):
        add_norm(torch.zeros(3, 16, device=DEVICE)[:, :8], None, rows[0], 1e-5)
    with pytest.raises(InvalidArgumentError, match=r"weight\.shape"):
        add_norm(rows, None, torch.zeros(7, device=DEVICE), 1e-5)
    with pytest.raises(InvalidArgumentError, match=r"ups\.shape"):
        gate(rows, rows[:2])
    cache = allocate_kv(2, 4, 1, 8, torch.float32, DEVICE, layout=Layout.HEAD_MAJOR)
    heads, slots = torch.zeros(3, 1, 8, device=DEVICE), torch.zeros(3, dtype=torch.int64, device=DEVICE)
    with pytest.raises(InvalidArgumentError, match=r"how\.cos\.shape"):
        embed_heads(heads, heads, heads, HeadEmbedding(rows[:2], rows), cache, slots)


class Launches(TorchDispatchMode):
    """Counts torch's operations that launch a kernel, and Triton's launches."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not INTERPRETED, reason="counts the interpreter's launches")
@pytest.mark.parametrize("joins", [True, False])
def test_a_layer_of_a_decode_step_takes_few_launches(
    joins: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def counted(executor: Any, *arguments: Any, **options: Any) -> Any:
        launches.counts[executor.fn.__name__] += 1
        with _disable_current_modes():
            return launch(executor, *arguments, **options)

    monkeypatch.setattr(GridExecutor, "__call__", counted)
    launches = Launches()
    with patch.object(model, "pack_linears"):
        runner, _ = load("llama", tmp_path)
    assert fuse(runner, joins=joins)
    fused = runner._model.model.forward
    totals, layers = [], fused._layers
    for num_layers in (1, 2):
        fused._layers = layers[:num_layers]
        runner._steps = None
        step(runner)
        launches = Launches()
        with launches:
            step(runner)
        totals.append(launches.counts.copy())
    layer = totals[1] - totals[0]
    assert sum(layer.values()) == (9 if joins else MOST_LAUNCHES), layer


def step(runner: ModelRunner) -> Tensor:
    table = array("i", range(NUM_BLOCKS))
    return runner.forward([ForwardRow([VOCAB_SIZE // 2], 9, table, 0, True)])


def test_a_decoder_whose_logits_differ_keeps_its_own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner, _ = load("llama", tmp_path)
    decoder = runner._model.model
    decoder.forward = own = getattr(decoder.forward, "own", decoder.forward)  # on a GPU it was fused when loaded
    monkeypatch.setattr(fused_decoder, "gate", lambda gates, ups: gates * ups)
    assert not fuse(runner)
    assert runner._model.model.forward == own


def test_other_architectures_keep_their_own_code(tmp_path: Path) -> None:
    runner, _ = load("gpt2", tmp_path)
    assert not fuse(runner)


def test_joined_matrices_are_the_modules_own(tmp_path: Path) -> None:
    runner, _ = load("qwen2", tmp_path, is_fused=True)
    layer = runner._model.model.layers[0]
    attention = layer.self_attn
    weights = [module.weight for module in (attention.q_proj, attention.k_proj, attention.v_proj)]
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    assert (
        layer.mlp.gate_proj.weight.untyped_storage().data_ptr() == layer.mlp.up_proj.weight.untyped_storage().data_ptr()
    )
    assert runner.weight_bytes == sum(
        tensor.nbytes for tensor in (*runner._model.parameters(), *runner._model.buffers())
    )


def test_without_a_site_a_fused_model_runs_its_own_code_and_is_fused_once(tmp_path: Path) -> None:
    runner, reference = load("llama", tmp_path, is_fused=True)
    weight = runner._model.model.layers[0].mlp.up_proj.weight
    assert fuse(runner)
    assert runner._model.model.layers[0].mlp.up_proj.weight is weight
    runner._model.set_attn_implementation("sdpa")
    ids = torch.arange(3, 20, device=DEVICE)[None]
    with torch.inference_mode():
        found, expected = runner._model(ids).logits.cpu(), reference(ids.cpu()).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
