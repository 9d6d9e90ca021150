"""What the kernels are told to read: each key that an entry sees once, and what branches share once for all of them."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import Fork, PagedCase, Shape, make_case, make_forked_case, spec_of

from radixkv.kernels import AttentionBatch, plan_attention
from radixkv.kernels.cpu.native_attention import NATIVE_LIMITS
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.work_list import SplitRule, WorkLimits, WorkList, make_work_list

SHAPE = Shape()
GROUP = SHAPE.num_heads // SHAPE.num_kv_heads
LIMITS = NATIVE_LIMITS._replace(min_saved_tokens=16)
SPLIT_KEYS = LIMITS.split_keys

RULE = LIMITS._replace(
    item_rows=64,
    rule=SplitRule(narrow_entries=5, target_items=(40, 20), least_keys=(64, 128), most_keys=512, full_items=9),
)
"""Of a small chip with tiles of 64 rows."""

Forks = list[tuple[int, int, int, int]]
FORKS = st.lists(
    st.tuples(
        st.integers(0, 8), st.sampled_from([0, 1, 3, 70]), st.sampled_from([1, 9, 40]), st.sampled_from([1, 3, 70])
    ),
    min_size=1,
    max_size=9,
)


def forked(forks: Forks) -> PagedCase:
    return make_forked_case([Fork(min(parent, index), *rest) for index, (parent, *rest) in enumerate(forks)], SHAPE)


def work_of(case: PagedCase, window: int | None = None, limits: WorkLimits = LIMITS) -> WorkList:
    return make_work_list(case.plan(), spec_of(case.shape, sliding_window=window), GROUP, limits)


def keys_read(work: WorkList) -> int:
    """Of one kv head: an item reads no key that none of its entries sees."""
    total = 0
    for first, end, _, first_key, end_key, _ in work.items.tolist():
        low = max(first_key, int(work.first_keys[first:end].min()))
        total += max(0, min(end_key, int(work.positions[first:end].max()) + 1) - low)
    return total


def test_a_long_shared_prompt_is_read_once_for_all_branches() -> None:
    case = make_forked_case([Fork(0, 64, 20 + index) for index in range(32)], SHAPE)
    assert keys_read(work_of(case)) == 1024 + sum(20 + index for index in range(32))


def test_what_branches_share_below_the_root_is_read_once_as_well() -> None:
    subtrees = [Fork(0, 64, 16 * 64 + 1) for _ in range(4)]
    branches = [Fork(parent, 128, 10) for parent in range(4) for _ in range(7)]
    case = make_forked_case([*subtrees, *branches], SHAPE)
    assert keys_read(work_of(case)) == 1024 + 4 * 1024 + 4 + 28 * 10


def test_a_prefix_of_a_block_is_not_worth_an_item_of_its_own() -> None:
    work = work_of(make_forked_case([Fork(0, 1, 20), Fork(0, 1, 20)], SHAPE))
    assert len(work.items) == 2
    assert work.num_part_rows == 0


def test_a_long_context_is_cut_for_the_threads() -> None:
    work = work_of(make_case([(1, 2 * SPLIT_KEYS + 5), (300, 300)], SHAPE))
    assert sorted(tuple(item[3:5]) for item in work.items.tolist() if item[2] == 0) == [
        (0, SPLIT_KEYS),
        (SPLIT_KEYS, 2 * SPLIT_KEYS),
        (2 * SPLIT_KEYS, 3 * SPLIT_KEYS),
    ]
    assert max(int(end - first) for first, end, *_ in work.items) * GROUP <= LIMITS.item_rows


@settings(max_examples=100)
@given(FORKS, st.sampled_from([None, 20, 200]), st.sampled_from([LIMITS, RULE]))
def test_every_key_that_an_entry_sees_is_read_for_it_once(forks: Forks, window: int | None, limits: WorkLimits) -> None:
    case = forked(forks)
    assert_complete(work_of(case, window, limits), case)


@pytest.mark.parametrize(("batch", "context"), [(1, 1000), (1, 9000), (4, 3000), (30, 700), (3, 20)])
def test_few_long_sequences_are_cut_for_a_whole_chip_and_many_less_often(batch: int, context: int) -> None:
    work = work_of(make_case([(1, context)] * batch, SHAPE), limits=RULE)
    ideal = -(-batch * context // 40)
    assert work.split_keys == min(512, max(64, -(-ideal // 64) * 64))
    assert len(work.items) == batch * -(-context // work.split_keys)


def test_branches_are_cut_by_the_form_that_reads_them() -> None:
    work = work_of(make_forked_case([Fork(0, 256, 100) for _ in range(12)], SHAPE), limits=RULE)
    sizes = {(int(end - first), int(past - begin)) for first, end, _, begin, past, _ in work.items}
    assert sizes == {(12, 256), (1, 64)}  # 4,096 tokens of a prefix in 20 wide items at most, 1,200 of branches in 40


@pytest.mark.parametrize(("queries", "context"), [(300, 300), (300, 130_000), (100, 130_000), (2000, 130_000)])
def test_the_parts_of_a_prompt_do_not_grow_with_its_context(queries: int, context: int) -> None:
    work = work_of(make_case([(queries, context)], SHAPE, consecutive=True), limits=RULE)
    num_tiles = -(-queries // 21) + 1
    if num_tiles - 1 > 9:
        assert len(work.items) <= num_tiles
        assert work.num_part_rows == 0
    else:
        assert 9 < len(work.items) <= 20 + 2 * num_tiles
        assert work.num_part_rows <= 21 * len(work.items)


def test_a_batch_that_shares_nothing_is_cut_at_the_same_keys_whoever_is_in_it() -> None:
    case = make_case([(1, 3000), (40, 2000)], SHAPE)
    batch = plan_attention(case.query_lens, case.context_lens, case.block_tables, 16, "cpu", shares=False)
    work = make_work_list(batch, spec_of(SHAPE), GROUP, RULE)
    assert {int(past) % SPLIT_KEYS for past in work.items[:, 4] if past < 1900} <= {0}
    assert work.split_keys == SPLIT_KEYS


def assert_complete(work: WorkList, case: PagedCase) -> None:
    seen: dict[int, list[int]] = {}
    for first, end, row, first_key, end_key, part in work.items.tolist():
        for entry in range(first, end):
            low, high = max(first_key, int(work.first_keys[entry])), min(end_key, int(work.positions[entry]) + 1)
            if low < high:
                assert owner_blocks(case, int(work.tokens[entry]), low, high) == blocks(case, row, low, high)
            seen.setdefault(entry, []).extend(range(low, high))
        assert part < work.num_part_rows
    assert sorted(work.tokens.tolist()) == list(range(sum(case.query_lens)))
    for entry, position in enumerate(work.positions.tolist()):
        assert sorted(seen[entry]) == list(range(work.first_keys[entry], position + 1))


def blocks(case: PagedCase, row: int, low: int, high: int) -> list[int]:
    size = case.shape.block_size
    return list(case.block_tables[row][low // size : -(-high // size)])


def owner_blocks(case: PagedCase, token: int, low: int, high: int) -> list[int]:
    row = int(np.searchsorted(np.cumsum(case.query_lens), token, side="right"))
    return blocks(case, row, low, high)


@settings(max_examples=50)
@given(FORKS, st.sampled_from([None, 20, 200]))
def test_parts_are_numbered_once_each_and_merged_in_the_order_of_their_keys(forks: Forks, window: int | None) -> None:
    work = work_of(forked(forks), window)
    rows: dict[int, tuple[int, int]] = {}  # part row: entry, first key
    answered = []
    for first, end, _, first_key, _, part in work.items.tolist():
        for entry in range(first, end):
            if part < 0:
                answered.append(entry)
            else:
                rows[part + entry - first] = entry, first_key
    assert sorted(rows) == list(range(work.num_part_rows))
    merged = {
        entry: work.merge_parts[first:end].tolist()
        for entry, (first, end) in enumerate(pairwise(work.part_starts.tolist()))
        if first < end
    }
    assert sorted([*merged, *answered]) == list(range(len(work.tokens)))
    for entry, parts in merged.items():
        keys = [rows[part] for part in parts]
        assert keys == sorted(keys)
        assert {owner for owner, _ in keys} == {entry}
    assert sum(map(len, merged.values())) == work.num_part_rows


class Growing:
    """Branches of one prompt that decode a token a step."""

    def __init__(self, lens: list[int], shared_blocks: int = 4) -> None:
        self.lens = lens
        own = max(lens) // SHAPE.block_size + 2
        self.tables = [
            array("i", [*range(shared_blocks), *range(shared_blocks + own * row, shared_blocks + own * (row + 1))])
            for row in range(len(lens))
        ]
        self.last = self.plan()

    def plan(self) -> AttentionBatch:
        return plan_attention([1] * len(self.lens), self.lens, self.tables, SHAPE.block_size, "cpu")

    def step(self) -> tuple[AttentionBatch, AttentionBatch]:
        before, self.lens = self.last, [length + 1 for length in self.lens]
        self.last = self.plan()
        return before, self.last


@pytest.mark.parametrize("limits", [LIMITS, RULE], ids=["constant", "rule"])
@pytest.mark.parametrize("window", [None, 70])
def test_work_goes_on_from_step_to_step(window: int | None, limits: WorkLimits) -> None:
    spec = AttentionSpec(1.0, sliding_window=window)
    growing = Growing([65, 90, 70])
    work = make_work_list(growing.last, spec, GROUP, limits)
    for _ in range(37):
        assert work.advance(*growing.step(), spec)
        fresh = make_work_list(growing.last, spec, GROUP, limits)
        for name in ("positions", "first_keys"):
            by_token = getattr(work, name)[np.argsort(work.tokens)]
            np.testing.assert_array_equal(by_token, getattr(fresh, name)[np.argsort(fresh.tokens)])
        case = make_case([(1, length) for length in growing.lens], SHAPE)
        case.block_tables[:] = growing.tables
        assert_complete(work, case)


@pytest.mark.parametrize("lens", [[65, SPLIT_KEYS], [SPLIT_KEYS, SPLIT_KEYS + 7]], ids=str)
def test_a_sequence_that_outgrows_its_split_is_planned_anew(lens: list[int]) -> None:
    spec = AttentionSpec(1.0)
    growing = Growing(lens)
    work = make_work_list(growing.last, spec, GROUP, LIMITS)
    positions = work.positions.copy()
    assert not work.advance(*growing.step(), spec)
    np.testing.assert_array_equal(work.positions, positions)


def test_work_of_another_tree_or_of_other_branches_is_not_kept() -> None:
    spec = AttentionSpec(1.0)

    def goes_on(growing: Growing, batch: AttentionBatch) -> bool:
        return make_work_list(growing.last, spec, GROUP, LIMITS).advance(growing.last, batch, spec)

    def planned(lens: list[int], tables: list[array[int]], queries: int = 1) -> AttentionBatch:
        return plan_attention([queries] * len(lens), lens, tables, SHAPE.block_size, "cpu")

    growing = Growing([65, 90])
    tables = [array("i", table) for table in growing.tables]
    assert goes_on(growing, planned([66, 91], tables))
    assert not goes_on(growing, planned([65, 90], tables))
    assert not goes_on(growing, planned([66, 92], tables))
    assert not goes_on(growing, planned([66], tables[:1]))
    assert not goes_on(growing, planned([66, 91, 70], [*tables, tables[0]]))
    assert not goes_on(growing, planned([66, 91], tables, queries=2))
    tables[1][3] = 99  # the second no longer stands on the whole of what they shared
    assert not goes_on(growing, planned([66, 91], tables))
