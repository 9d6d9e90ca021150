"""Paged attention on the CPU, in torch and compiled, against the float64 reference; pools hold NaN where nobody should look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from paged_cases import CPU_PATHS, LATENTS, PagedCase, Shape, assert_agrees, make_case, spec_of, take_cpu_path
from torch.nn import functional

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import Scratch, allocate_kv, paged_attention, plan_attention
from radixkv.kernels.attention_reference import decode_reference, prefill_reference
from radixkv.kernels.cpu import native_attention, torch_plan

SHAPES = [
    Shape(),
    Shape(num_heads=8, num_kv_heads=2, head_dim=128, v_head_dim=128, block_size=32),
    Shape(num_heads=4, num_kv_heads=4, head_dim=80, v_head_dim=80, block_size=8),
    Shape(num_heads=4, num_kv_heads=1, head_dim=256, v_head_dim=256, block_size=64),
    Shape(num_heads=6, num_kv_heads=2, head_dim=192, v_head_dim=128, block_size=128),
    LATENTS,
    replace(LATENTS, num_heads=3, head_dim=24, v_head_dim=24, block_size=3),
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"sliding_window": 11},
    {"softcap": 1.5},
    {"sinks": True},
    {"sliding_window": 19, "softcap": 3.0, "sinks": True},
]


@pytest.fixture(params=CPU_PATHS, autouse=True)
def cpu_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take_cpu_path(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def with_sinks(variant: dict[str, Any], shape: Shape) -> dict[str, Any]:
    if "sinks" not in variant:
        return variant
    return {**variant, "sinks": torch.linspace(-2.0, 3.0, shape.num_heads)}


def _kind(shape: Shape) -> str:
    return "latents" if shape.is_latent else "heads"


def mixed_case(shape: Shape, dtype: torch.dtype) -> PagedCase:
    size = shape.block_size
    decodes = [(1, 1), (1, size - 1), (1, size), (1, size + 1), (1, 5 * size + 3)]
    prefills = [(1, 1), (0, 2 * size), (size + 1, size + 1), (2, 3 * size), (size, 4 * size + 5)]
    return make_case(decodes + prefills, shape, dtype)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "+".join(v) or "plain")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_lengths_agree_with_the_reference(shape: Shape, variant: dict[str, Any]) -> None:
    variant = with_sinks(variant, shape)
    case = mixed_case(shape, torch.float32)
    assert_agrees(case.on_cpu(**variant), case.expected(spec_of(shape, **variant)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[4]], ids=["plain", "all"])
@pytest.mark.parametrize("shape", [SHAPES[0], LATENTS], ids=_kind)
def test_every_dtype_agrees_with_the_reference(dtype: torch.dtype, variant: dict[str, Any], shape: Shape) -> None:
    variant = with_sinks(variant, shape)
    case = mixed_case(shape, dtype)
    assert_agrees(case.on_cpu(**variant), case.expected(spec_of(shape, **variant)))


def test_reference_agrees_with_attention_over_contiguous_keys() -> None:
    shape = SHAPES[0]
    case = make_case([(7, 40)], shape, torch.float64)
    table = list(case.block_tables[0])
    keys, values = (cache[table].flatten(0, 1)[:40].transpose(0, 1) for cache in (case.k_cache, case.v_cache))
    mask = torch.ones(7, 40, dtype=torch.bool).tril(33)
    expected = functional.scaled_dot_product_attention(
        case.q.transpose(0, 1), keys, values, attn_mask=mask, enable_gqa=True
    )
    assert_agrees(case.expected(spec_of(shape)), expected.transpose(0, 1))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "+".join(v) or "plain")
def test_the_two_references_agree(variant: dict[str, Any]) -> None:
    shape = SHAPES[0]
    case = make_case([(1, 1), (1, 37), (1, 64)], shape, torch.float64)
    spec = spec_of(shape, **with_sinks(variant, shape))
    assert_agrees(decode_reference(case.q, case.k_cache, case.v_cache, case.plan(), spec), case.expected(spec))


@pytest.mark.parametrize("window", [None, 100, 300])
@pytest.mark.parametrize("lens", [(600, 600), (300, 555), (2, 600), (30, 530)], ids=str)
@pytest.mark.parametrize("shape", [Shape(num_heads=2, num_kv_heads=1), replace(LATENTS, num_heads=2)], ids=_kind)
def test_chunks_across_query_tiles_agree_with_the_reference(
    lens: tuple[int, int], window: int | None, shape: Shape
) -> None:
    case = make_case([lens], shape)
    assert_agrees(case.on_cpu(sliding_window=window), case.expected(spec_of(shape, sliding_window=window)))


@pytest.mark.parametrize("cut", [1, 15, 16, 100, 256, 299])
def test_a_prompt_in_chunks_gives_the_rows_of_the_whole_prompt(cut: int) -> None:
    shape = Shape(num_heads=2, num_kv_heads=1)
    whole = make_case([(300, 300)], shape)
    first = replace(whole, q=whole.q[:cut], query_lens=[cut], context_lens=[cut])
    second = replace(whole, q=whole.q[cut:], query_lens=[300 - cut])
    torch.testing.assert_close(torch.cat([first.on_cpu(), second.on_cpu()]), whole.on_cpu(), rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("shape", [SHAPES[0], LATENTS], ids=_kind)
def test_branches_that_share_blocks_agree_with_the_reference(window: int | None, shape: Shape) -> None:
    case = make_case([(1, 64), (1, 65), (1, 90), (1, 66), (5, 70), (1, 130)], shape, shared_blocks=4)
    assert_agrees(case.on_cpu(sliding_window=window), case.expected(spec_of(shape, sliding_window=window)))


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("lens", [[(1, 70)], [(70, 70)], [(9, 70)], [(1, 64), (1, 64)], [(1, 60), (1, 70)]], ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], LATENTS], ids=_kind)
def test_blocks_that_follow_one_another_agree_with_the_reference(
    lens: list[tuple[int, int]], window: int | None, shape: Shape
) -> None:
    case = make_case(lens, shape, consecutive=True)
    assert_agrees(case.on_cpu(sliding_window=window), case.expected(spec_of(shape, sliding_window=window)))


@pytest.mark.parametrize("num_sequences", [2, 20], ids=["heads are shared among threads", "items are"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_change_no_bit_of_the_compiled_kernel(cpu_path: str, num_sequences: int, dtype: torch.dtype) -> None:
    if cpu_path == "torch":
        pytest.skip("torch cuts its own work for its threads")
    case = make_case([(1, 150 + row) for row in range(num_sequences)], SHAPES[0], dtype)
    alone = case.on_cpu()
    torch.set_num_threads(2)
    torch.testing.assert_close(case.on_cpu(), alone, rtol=0.0, atol=0.0)


def test_reading_leaves_the_cache_as_it_was() -> None:
    case = make_case([(1, 60), (1, 70), (5, 33)], SHAPES[0], consecutive=True)
    cache = case.cache()
    before = [tensor.clone() for tensor in cache.tensors]
    paged_attention(case.q, cache, case.plan(), scale=0.125)
    torch.testing.assert_close(list(cache.tensors), before, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("size", [1, 100, 1 << 30])
def test_any_cut_into_groups_or_items_gives_the_same_answer(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_plan, "SCRATCH_BYTES", 2_000 * size)
    limits = native_attention.NATIVE_LIMITS._replace(split_keys=size, item_rows=size)
    monkeypatch.setattr(native_attention, "NATIVE_LIMITS", limits)
    shape = SHAPES[0]
    case = make_case([(1, 1 + 7 * index) for index in range(30)], shape)
    assert_agrees(case.on_cpu(), case.expected(spec_of(shape)))


def test_scratch_that_held_nan_does_not_leak_into_the_next_batch() -> None:
    shape = SHAPES[0]
    scratch = Scratch()
    case = make_case([(1, 33), (1, 50), (1, 64)], shape)
    for name in ("keys", "values", "part_out", "part_lse"):
        scratch.take(name, (100_000,), case.q).fill_(torch.nan)
    batch = plan_attention(
        case.query_lens, case.context_lens, case.block_tables, shape.block_size, "cpu", scratch=scratch
    )
    got = paged_attention(case.q, case.cache(), batch, scale=shape.head_dim**-0.5)
    assert_agrees(got, case.expected(spec_of(shape)))


def test_one_plan_serves_layers_of_different_variants_and_dtypes() -> None:
    shape = SHAPES[0]
    case = make_case([(1, 33), (1, 50), (3, 64)], shape)
    batch = case.plan()
    for window in (None, 5, None):
        for dtype in (torch.float32, torch.bfloat16):
            layer = replace(case, q=case.q.to(dtype), k_cache=case.k_cache.to(dtype), v_cache=case.v_cache.to(dtype))
            got = paged_attention(layer.q, layer.cache(), batch, scale=0.125, sliding_window=window)
            assert_agrees(got, layer.expected(spec_of(shape, sliding_window=window)))


def test_a_batch_without_queries_gives_no_rows() -> None:
    case = make_case([(0, 0), (0, 5)], SHAPES[0])
    assert case.on_cpu().shape == (0, 9, 64)


def test_queries_that_are_a_transposed_view_are_taken_as_they_are() -> None:
    shape = SHAPES[0]
    case = make_case([(1, 20), (4, 20)], shape)
    view = case.q.transpose(0, 1).contiguous().transpose(0, 1)
    assert not view.is_contiguous()
    assert_agrees(replace(case, q=view).on_cpu(), case.expected(spec_of(shape)))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"q": torch.zeros(1, 9, 32)}, "q.shape"),
        ({"q": torch.zeros(2, 9, 64)}, "q.shape"),
        ({"q": torch.zeros(1, 8, 64)}, r"q.shape\[1\]"),
        ({"q": torch.zeros(1, 9, 64, dtype=torch.float16)}, "q.dtype"),
        ({"cache": allocate_kv(4, 16, 3, 64, torch.bfloat16, "cpu")}, "q.dtype"),
        ({"cache": allocate_kv(4, 8, 3, 64, torch.float32, "cpu")}, "batch.block_size"),
        ({"softcap": 0.0}, "softcap"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sinks": torch.zeros(3)}, "sinks.shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misfit_is_refused_by_name(change: dict[str, Any], argument: str) -> None:
    case = make_case([(1, 3)], SHAPES[0])
    arguments: dict[str, Any] = {"q": case.q, "cache": case.cache(), "batch": case.plan()}
    with pytest.raises(InvalidArgumentError, match=f"^{argument} "):
        paged_attention(**{**arguments, "scale": 1.0, **change})


def test_a_block_id_past_the_pool_is_refused() -> None:
    case = make_case([(1, 3)], SHAPES[0])
    case.block_tables[0][0] = 4
    with pytest.raises(InvalidArgumentError, match="highest_block is 4"):
        case.on_cpu()


@pytest.mark.parametrize("cache", ["k_cache", "v_cache"])
def test_a_nan_that_a_sequence_owns_does_reach_its_rows(cache: str) -> None:
    shape = SHAPES[0]
    case = make_case([(1, 20), (1, 20)], shape)
    getattr(case, cache)[case.block_tables[0][0], 3] = torch.nan
    got = case.on_cpu()
    assert got[0].isnan().all()
    assert not got[1].isnan().any()
    assert prefill_reference(case.q, case.k_cache, case.v_cache, case.plan(), spec_of(shape))[0].isnan().all()
