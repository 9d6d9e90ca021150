"""What the native kernel is told to read: each key that an entry sees once, and what branches share once for all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import Fork, PagedCase, Shape, make_case, make_forked_case, spec_of

from radixkv.kernels.native_plan import ITEM_ROWS, SPLIT_KEYS, NativePlan, plan_native

SHAPE = Shape()
GROUP = SHAPE.num_heads // SHAPE.num_kv_heads


def plan_of(case: PagedCase, window: int | None = None) -> NativePlan:
    return plan_native(case.plan(), spec_of(case.shape, sliding_window=window), GROUP)


def test_a_long_shared_prompt_is_read_once_for_all_branches() -> None:
    case = make_forked_case([Fork(0, 64, 20 + index) for index in range(32)], SHAPE)
    assert len(plan_of(case).blocks) == 64 + sum(-(-(20 + index) // 16) for index in range(32))


def test_what_branches_share_below_the_root_is_read_once_as_well() -> None:
    subtrees = [Fork(0, 64, 16 * 64 + 1) for _ in range(4)]
    branches = [Fork(parent, 128, 10) for parent in range(4) for _ in range(7)]
    assert len(plan_of(make_forked_case([*subtrees, *branches], SHAPE)).blocks) == 64 + 4 * 64 + 32


def test_a_prefix_of_a_block_is_not_worth_an_item_of_its_own() -> None:
    plan = plan_of(make_forked_case([Fork(0, 1, 20), Fork(0, 1, 20)], SHAPE))
    assert len(plan.items) == 2
    assert plan.num_part_rows == 0


def test_a_long_context_is_cut_for_the_threads() -> None:
    plan = plan_of(make_case([(1, 2 * SPLIT_KEYS + 5), (300, 300)], SHAPE))
    assert sorted(tuple(item[3:]) for item in plan.items.tolist() if item[0] == 300 or item[4] > 300) == [
        (0, SPLIT_KEYS),
        (SPLIT_KEYS, 2 * SPLIT_KEYS),
        (2 * SPLIT_KEYS, 2 * SPLIT_KEYS + 5),
    ]
    assert max(int(last - first) for first, last, *_ in plan.items) * GROUP <= ITEM_ROWS


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 8), st.sampled_from([0, 1, 3, 70]), st.sampled_from([1, 9, 40]), st.sampled_from([1, 3, 70])
        ),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from([None, 20, 200]),
)
def test_every_key_that_an_entry_sees_is_read_for_it_once(
    forks: list[tuple[int, int, int, int]], window: int | None
) -> None:
    case = make_forked_case([Fork(min(parent, index), *rest) for index, (parent, *rest) in enumerate(forks)], SHAPE)
    plan = plan_of(case, window)
    seen: dict[int, list[int]] = {}
    for first, last, _, first_key, last_key in plan.items.tolist():
        for entry in range(first, last):
            low, high = max(first_key, int(plan.first_keys[entry])), min(last_key, int(plan.positions[entry]) + 1)
            seen.setdefault(entry, []).extend(range(low, high))
    assert sorted(plan.tokens.tolist()) == list(range(sum(case.query_lens)))
    for entry, position in enumerate(plan.positions.tolist()):
        assert sorted(seen[entry]) == list(range(plan.first_keys[entry], position + 1))
