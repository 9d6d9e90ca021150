"""Finding what tables share: the runs cover exactly common leading blocks, and only those that pay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.kernels.shared_runs import SharedRun, SharedRuns, find_shared_runs


def find(tables: list[list[int]], limits: list[int] | None = None, min_saved: int = 1) -> SharedRuns | None:
    """Over all tables, runs that save at least `min_saved` reads of a block."""
    padded = np.zeros((len(tables), max(map(len, tables))), dtype=np.int32)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    worth: Callable[[int, int], bool] = lambda rows, blocks: (rows - 1) * blocks >= min_saved  # noqa: E731
    return find_shared_runs(padded, range(len(tables)), limits or [len(table) for table in tables], worth)


def test_runs_follow_the_tree_from_its_root() -> None:
    found = find([[7, 2, 3, 6], [7, 2, 6, 0, 5], [7, 2, 9, 4, 5, 1], [7, 2, 9, 4, 8]])
    assert found is not None
    (root, subtree) = found.runs
    assert root == SharedRun(0, 4, 0, 2)
    assert (subtree.first, subtree.end) == (2, 4)
    assert set(found.order[subtree.low : subtree.high]) == {2, 3}
    assert dict(zip(found.order, found.covered, strict=True)) == {0: 2, 1: 2, 2: 4, 3: 4}


def test_a_run_that_does_not_pay_is_left_to_its_children() -> None:
    found = find([[1, 2, 3, 4], [1, 2, 3, 5], [1, 9, 9, 9]], min_saved=3)
    assert found is not None
    assert [(run.first, run.end) for run in found.runs] == [(0, 3)]
    assert sorted(found.covered) == [0, 3, 3]


@pytest.mark.parametrize(
    ("tables", "limits"),
    [
        ([[1, 2], [3, 4]], [2, 2]),
        ([[1, 2], [1, 2]], [0, 2]),
        ([[1], [2, 1]], [1, 2]),
        ([[5, 6]], [2]),
        ([[4, 4]] * 2, [0, 0]),
    ],
    ids=str,
)
def test_what_shares_nothing_has_no_runs(tables: list[list[int]], limits: list[int]) -> None:
    assert find(tables, limits) is None


def test_a_limit_holds_for_its_row_alone() -> None:
    found = find([[1, 2, 3, 4]] * 3, [1, 4, 4])
    assert found is not None
    assert dict(zip(found.order, found.covered, strict=True)) == {0: 1, 1: 4, 2: 4}


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=9).flatmap(
        lambda tables: st.tuples(st.just(tables), st.tuples(*(st.integers(0, len(table)) for table in tables)))
    ),
    st.integers(1, 6),
)
def test_runs_cover_common_leading_blocks_once_and_pay(
    case: tuple[list[list[int]], tuple[int, ...]], min_saved: int
) -> None:
    tables, limits = case
    found = find(tables, list(limits), min_saved)
    if found is None:
        pairs = [(a, b) for a in range(len(tables)) for b in range(a)]
        common = [
            next(
                (i for i in range(min(limits[a], limits[b])) if tables[a][i] != tables[b][i]), min(limits[a], limits[b])
            )
            for a, b in pairs
        ]
        assert all(blocks < min_saved for blocks in common)
        return
    assert sorted(found.order) == list(range(len(tables)))
    reached = [0] * len(tables)
    for run in found.runs:
        rows = found.order[run.low : run.high]
        assert (len(rows) - 1) * (run.end - run.first) >= min_saved
        assert len({tuple(tables[row][: run.end]) for row in rows}) == 1
        for row in rows:
            assert reached[row] == run.first
            assert run.end <= limits[row]
            reached[row] = run.end
    assert [reached[row] for row in found.order] == found.covered
