"""Work lists of trees, made the plain way, and the Triton kernels over them: pools, outputs and parts hold NaN beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from paged_cases import PagedCase
from torch import Tensor
from triton_device import DEVICE

from radixkv.kernels.attention_reference import prefill_reference
from radixkv.kernels.gpu.device_work import DeviceWork, WorkCapacity
from radixkv.kernels.gpu.tree_attention import KVScales, attend_by_work, form_limits, layer_shape
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.work_list import WorkList

RELATIVE_ERRORS = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def assert_near(got: Tensor, expected: Tensor) -> None:
    """The norm of the error over the norm of the answer; a NaN in either fails."""
    error = (got.double() - expected).norm() / expected.norm()
    assert error < RELATIVE_ERRORS[got.dtype], f"relative error {error:.2e}"


@dataclass(frozen=True)
class TreeItem:
    """Rows of the case that share the blocks of these keys."""

    rows: list[int]
    first_key: int
    last_key: int


def cut_tree(case: PagedCase, split_keys: int) -> tuple[list[int], list[TreeItem]]:
    """Rows in the order of a walk over the tree, and what is shared, or one row's own, cut at multiples of `split_keys`.

    The last item of a row ends at the end of its split, past the row's length.
    """
    size = case.shape.block_size
    whole = [(c - n) // size for n, c in zip(case.query_lens, case.context_lens, strict=True)]
    order: list[int] = []
    items: list[TreeItem] = []

    def add(rows: list[int], first_key: int, last_key: int) -> None:
        while first_key < last_key:
            end = min(last_key, (first_key // split_keys + 1) * split_keys)
            items.append(TreeItem(rows, first_key, end))
            first_key = end

    def walk(rows: list[int], depth: int) -> None:
        def next_block(row: int) -> int:
            return case.block_tables[row][depth] if depth < whole[row] else -1 - row

        for _, together in groupby(sorted(rows, key=next_block), key=next_block):
            branch = list(together)
            if len(branch) == 1:
                order.append(branch[0])
                context = case.context_lens[branch[0]]
                add(branch, depth * size, -(-context // split_keys) * split_keys)
                continue
            end = depth
            while all(end < whole[row] for row in branch) and len({case.block_tables[row][end] for row in branch}) == 1:
                end += 1
            add(branch, depth * size, end * size)
            walk(branch, end)

    walk([row for row, queries in enumerate(case.query_lens) if queries], 0)
    return order, items


def make_tree_list(case: PagedCase, spec: AttentionSpec, wide_entries: int, split_keys: int) -> WorkList:
    """One item per piece of the tree and per `wide_entries` entries on it; an entry with several has parts."""
    order, tree_items = cut_tree(case, split_keys)
    starts = np.concatenate([[0], np.cumsum(case.query_lens)])
    tokens, positions, spans, num_entries = [], [], {}, 0
    for row in order:
        queries, context = case.query_lens[row], case.context_lens[row]
        tokens.append(np.arange(starts[row], starts[row + 1]))
        positions.append(np.arange(context - queries, context))
        spans[row] = (num_entries, num_entries + queries)
        num_entries += queries
    pieces = [
        (first, min(first + wide_entries, past), item)
        for item in tree_items
        for low, past in [(min(spans[row][0] for row in item.rows), max(spans[row][1] for row in item.rows))]
        for first in range(low, past, wide_entries)
    ]
    parts: list[list[int]] = [[] for _ in range(num_entries)]
    counts = np.zeros(num_entries, dtype=int)
    for first, past, _ in pieces:
        counts[first:past] += 1
    items, num_part_rows = [], 0
    for first, past, item in sorted(pieces, key=lambda piece: piece[2].first_key):
        part = -1
        if counts[first:past].max() > 1:
            part = num_part_rows
            num_part_rows += past - first
            for entry in range(first, past):
                parts[entry].append(part + entry - first)
        items.append((first, past, item.rows[0], item.first_key, item.last_key, part))
    ends = np.cumsum([len(rows) for rows in parts])
    last = np.concatenate(positions)
    window = spec.sliding_window
    return WorkList(
        tokens=np.concatenate(tokens).astype(np.int32),
        positions=last.astype(np.int32),
        first_keys=(last * 0 if window is None else np.maximum(last - window + 1, 0)).astype(np.int32),
        items=np.array(items, dtype=np.int32).reshape(-1, 6),
        part_starts=np.concatenate([[0], ends]).astype(np.int32),
        merge_parts=np.array([row for rows in parts for row in rows], dtype=np.int32),
        num_part_rows=num_part_rows,
    )


@dataclass
class TreeRun:
    """A case on the device: head-major caches in a format, its work list and its buffers.

    `expected` is made from what the caches hold, in float64.
    """

    case: PagedCase
    spec: AttentionSpec
    k_cache: Tensor
    v_cache: Tensor | None
    scales: KVScales | None
    work: DeviceWork
    out: Tensor
    tables: Tensor

    def attend(self, q: Tensor | None = None) -> Tensor:
        self.out.fill_(torch.nan)
        self.work.parts.fill_(torch.nan)
        self.work.lse.fill_(torch.nan)
        q = (self.case.q if q is None else q).to(DEVICE)
        attend_by_work(q, self.k_cache, self.v_cache, self.tables, self.work, self.spec, self.out, self.scales)
        return self.out.cpu()


def start_run(
    case: PagedCase,
    spec: AttentionSpec,
    *,
    cache_dtype: torch.dtype | None = None,
    is_latent: bool = False,
    split_keys: int = 64,
    room: int = 0,
) -> TreeRun:
    """Buffers with `room` more of everything than the list needs, loaded. A latent's values are columns of its keys."""
    if is_latent:
        case = replace(case, v_cache=case.k_cache[..., : case.shape.v_head_dim])
    scales = None
    k_cache, v_cache = case.k_cache, case.v_cache
    if cache_dtype is not None:
        (k_cache, k_scales), (v_cache, v_scales) = (quantise(cache, cache_dtype) for cache in (k_cache, v_cache))
        keys, values = dequantise(k_cache, k_scales), dequantise(v_cache, v_scales)
        if is_latent:
            rest, rest_scales = quantise(case.k_cache[..., case.shape.v_head_dim :], cache_dtype)
            k_cache = torch.cat([v_cache, rest], dim=-1)
            k_scales = rest_scales
            keys = torch.cat([values, dequantise(rest, rest_scales)], dim=-1)
        case = replace(case, k_cache=keys, v_cache=values)
        scales = KVScales(*(to_device(scale).transpose(2, 3).contiguous() for scale in (k_scales, v_scales)))
    sinks = spec.sinks if spec.sinks is None else spec.sinks.to(DEVICE)
    spec = AttentionSpec(spec.scale, spec.sliding_window, spec.softcap, sinks)
    keys = to_device(k_cache)
    q = case.q.to(DEVICE)
    limits = form_limits(layer_shape(q, keys, case.shape.v_head_dim, is_latent=is_latent), q.device)
    work_list = make_tree_list(case, spec, limits.wide_entries, split_keys)
    exact = WorkCapacity.of(work_list)
    capacity = WorkCapacity(
        *(size + room for size in (exact.entries, exact.items, exact.merge_parts)), exact.part_rows + room
    )
    work = DeviceWork(capacity, limits, case.shape.num_heads, case.shape.v_head_dim, DEVICE)
    work.load(work_list)
    out = q.new_empty(*q.shape[:2], case.shape.v_head_dim)
    values_on_device = None if is_latent else to_device(v_cache)
    return TreeRun(case, spec, keys, values_on_device, scales, work, out, case.plan(DEVICE).block_tables)


def expected_of(case: PagedCase, spec: AttentionSpec) -> Tensor:
    """The definition, in float64."""
    sinks = spec.sinks if spec.sinks is None else spec.sinks.cpu()
    spec = AttentionSpec(spec.scale, spec.sliding_window, spec.softcap, sinks)
    return prefill_reference(case.q.double(), case.k_cache.double(), case.v_cache.double(), case.plan(), spec)


def to_device(cache: Tensor) -> Tensor:
    """A token-major cache, or one of scales, head-major."""
    as_bytes = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
    moved = as_bytes.transpose(1, 2).contiguous().to(DEVICE)
    return moved.view(cache.dtype)


def quantise(cache: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Per token and head: values in `dtype` and their scale; a slot that holds NaN gets a NaN scale and arbitrary values."""
    limit = 127.0 if dtype == torch.int8 else 448.0
    scales = (cache.float().abs().amax(-1) / limit).bfloat16()
    values = cache.float().nan_to_num(1.0) / scales.float().nan_to_num(1.0)[..., None]
    return (values.round() if dtype == torch.int8 else values).clamp(-limit, limit).to(dtype), scales[..., None]


def dequantise(values: Tensor, scales: Tensor) -> Tensor:
    """In float64."""
    return values.double() * scales.double()


def first_sequences(case: PagedCase, count: int) -> PagedCase:
    """The case without the sequences after the first `count`."""
    query_lens = case.query_lens[:count]
    return replace(
        case,
        q=case.q[: sum(query_lens)],
        query_lens=query_lens,
        context_lens=case.context_lens[:count],
        block_tables=case.block_tables[:count],
    )


def grown(case: PagedCase, num_tokens: int) -> PagedCase:
    """Every sequence longer by so many tokens that its blocks hold already."""
    return replace(case, context_lens=[context + num_tokens for context in case.context_lens])


def steps(case: PagedCase, num_steps: int, seed: int) -> Iterator[tuple[PagedCase, Tensor]]:
    """The case as it grows by a token a step, and the step's queries."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(num_steps):
        q = torch.randn(case.q.shape, generator=generator).to(case.q.dtype)
        yield replace(grown(case, step), q=q), q
