"""Attention that shares nothing: a row is the same to the last bit in every batch, however its sequence is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from paged_cases import CPU_PATHS, LATENTS, PagedCase, Shape, assert_agrees, make_case, spec_of, take_cpu_path
from torch import Tensor
from triton_device import DEVICE, needs_triton_device

from radixkv.kernels import paged_attention, plan_attention, work_list
from radixkv.kernels.cpu import native_attention, steady_attention
from radixkv.kernels.gpu import device_work, launch
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.work_list import KEY_STEP

GROUPED = Shape(num_heads=6, num_kv_heads=1, head_dim=32, v_head_dim=16, block_size=8)
THREE = replace(GROUPED, num_heads=3)  # 64 rows hold 21 of its entries, which straddle splits
LATENT = Shape(num_heads=2, num_kv_heads=1, head_dim=144, v_head_dim=128, is_latent=True)
LENGTH = 140
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 70},
    "narrow window": {"sliding_window": 9},
    "sinks": {"sinks": torch.linspace(-1.0, 2.0, 6)},
    "window, softcap and sinks": {"sliding_window": 50, "softcap": 3.0, "sinks": torch.linspace(-2.0, 3.0, 6)},
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def attend(case: PagedCase, spec: AttentionSpec, device: str = "cpu", layout: Layout | None = None) -> Tensor:
    """By a batch that shares nothing."""
    lens = case.query_lens, case.context_lens, case.block_tables
    batch = plan_attention(*lens, case.shape.block_size, device, shares=False)
    sinks = spec.sinks if spec.sinks is None else spec.sinks.to(device)
    return paged_attention(
        case.q.to(device),
        case.cache(device, layout),
        batch,
        scale=spec.scale,
        sliding_window=spec.sliding_window,
        softcap=spec.softcap,
        sinks=sinks,
    ).cpu()


def cut(case: PagedCase, row: int, start: int, end: int) -> PagedCase:
    """The queries of one sequence at positions [start, end), of a case all of whose tokens are new."""
    first = sum(case.query_lens[:row])
    return replace(
        case,
        q=case.q[first + start : first + end],
        query_lens=[end - start],
        context_lens=[end],
        block_tables=[case.block_tables[row]],
    )


def join(cases: list[PagedCase]) -> PagedCase:
    """As one batch."""
    return replace(
        cases[0],
        q=torch.cat([case.q for case in cases]),
        query_lens=[case.query_lens[0] for case in cases],
        context_lens=[case.context_lens[0] for case in cases],
        block_tables=[case.block_tables[0] for case in cases],
    )


def assert_steady(
    shape: Shape,
    dtype: torch.dtype,
    spec: AttentionSpec,
    device: str = "cpu",
    layout: Layout | None = None,
    num_trials: int = 6,
    length: int = LENGTH,
) -> None:
    """Rows one by one on one thread, of the whole prompt, of random cuts beside others on three; all near the reference."""
    source = random.Random(3)
    case = make_case([(length, length), (length - 40, length - 40)], shape, dtype, shared_blocks=2)
    torch.set_num_threads(3)
    whole = attend(case, spec, device, layout)
    assert_agrees(whole, case.expected(spec))
    rows = [whole[:length], whole[length:]]
    torch.set_num_threads(1)
    for at in source.sample(range(length), 2 * num_trials):
        assert torch.equal(attend(cut(case, 0, at, at + 1), spec, device, layout)[0], rows[0][at]), f"alone at {at}"
    torch.set_num_threads(3)
    for _ in range(num_trials):
        pieces = []
        for row in source.sample((0, 1, 0, 1), source.randint(1, 4)):
            start = source.randrange(len(rows[row]))
            pieces.append((row, start, min(len(rows[row]), start + source.choice((1, 1, 5, 30, 77)))))
        found = attend(join([cut(case, *piece) for piece in pieces]), spec, device, layout)
        assert torch.equal(found, torch.cat([rows[row][start:end] for row, start, end in pieces])), pieces


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("path", CPU_PATHS)
def test_rows_are_alike_on_a_cpu(
    path: str, variant: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_cpu_path(path, monkeypatch)
    monkeypatch.setattr(steady_attention, "CHUNK_KEYS", 32)
    limits = native_attention.NATIVE_LIMITS._replace(split_keys=64)
    monkeypatch.setattr(native_attention, "NATIVE_LIMITS", limits)
    assert_steady(GROUPED, dtype, spec_of(GROUPED, **variant))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_latents_are_alike_on_a_cpu(dtype: torch.dtype) -> None:
    assert_steady(replace(LATENTS, num_heads=5), dtype, spec_of(LATENTS))


class TestByTriton:
    pytestmark = needs_triton_device

    @pytest.fixture(autouse=True)
    def short_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several within the short contexts that the interpreter can afford."""
        monkeypatch.setattr(device_work, "SPLIT_KEYS", 32)
        monkeypatch.setattr(work_list, "KEY_STEP", 32)

    @pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
    def test_rows_are_alike(self, variant: dict[str, Any]) -> None:
        sinks = {"sinks": variant["sinks"][:3]} if "sinks" in variant else {}
        spec = spec_of(THREE, **{**variant, **sinks})
        assert_steady(THREE, torch.float16, spec, DEVICE, Layout.HEAD_MAJOR, 2, 66)

    def test_rows_of_latents_are_alike(self) -> None:
        assert_steady(LATENT, torch.float32, spec_of(LATENT), DEVICE, Layout.HEAD_MAJOR, 1, 60)

    def test_a_decoding_row_stays_alike_as_its_work_moves_on(self) -> None:
        spec = spec_of(THREE, sliding_window=50, sinks=torch.linspace(-2.0, 3.0, 3).to(DEVICE))
        case = make_case([(70, 70)], THREE)
        expected = attend(case, spec, DEVICE, Layout.HEAD_MAJOR)
        cache, before = case.cache(DEVICE, Layout.HEAD_MAJOR), None
        for at in range(58, 70):
            step = cut(case, 0, at, at + 1)
            lens = step.query_lens, step.context_lens, step.block_tables
            batch = plan_attention(*lens, THREE.block_size, DEVICE, shares=False, before=before)
            found = paged_attention(
                step.q.to(DEVICE), cache, batch, scale=spec.scale, sliding_window=50, sinks=spec.sinks
            )
            assert torch.equal(found[0].cpu(), expected[at]), at
            before = batch


def test_every_tile_begins_where_all_do() -> None:
    tiles = [tile for target in launch.TARGETS for forms in launch._forms(target).values() for tile in forms]
    assert all(KEY_STEP % tile.block_n == 0 for tile in tiles)
    assert device_work.SPLIT_KEYS % KEY_STEP == native_attention.NATIVE_LIMITS.split_keys % KEY_STEP == 0
