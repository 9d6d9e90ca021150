"""What a window shows is in rows while a branch needs it, and no longer than until another block needs the row."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.worker.model.rows import ForwardRow
from radixkv.worker.model.window_rows import WindowRows

SIZE = 4
WINDOW = 8
TABLE = array("i", range(10, 26))


def rows(num_rows: int = 16, window: int = WINDOW) -> WindowRows:
    return WindowRows(64, num_rows, SIZE, window)


def row(
    start: int, end: int, table: array[int] = TABLE, num_stored: int = 0, resumes_at: int | None = None
) -> ForwardRow:
    return ForwardRow([1] * (end - start), start, table, num_stored, 1, "", resumes_at)


def run(windows: WindowRows, *steps: ForwardRow) -> list[int]:
    """Slots that one step writes."""
    windows.take(steps)
    slots = windows.slots(steps).tolist()
    windows.written(steps)
    written = [slot for slot in slots if slot >= 0]
    assert len(set(written)) == len(written)
    return slots


def test_a_branch_goes_on_where_all_that_the_window_shows_is_there() -> None:
    windows = rows()
    assert windows.resumable(TABLE, 0) == 0
    assert windows.resumable(TABLE, 9) == 0
    run(windows, row(0, 11))
    for position in range(12):
        assert windows.resumable(TABLE, position) == position
        assert windows.has_window(TABLE, position)
    assert windows.resumable(TABLE, 12) == 8, "the third block lacks a token"
    assert not windows.has_window(TABLE, 12)


def test_a_step_that_was_given_up_has_written_nothing() -> None:
    windows = rows()
    windows.take([row(0, 8)])
    assert windows.resumable(TABLE, 8) == 0


def test_with_rows_for_less_than_a_prompt_its_end_stays() -> None:
    windows = rows(num_rows=5)
    for start in range(0, 48, 8):
        run(windows, row(start, start + 8))
    assert windows.resumable(TABLE, 48) == 48
    assert windows.resumable(TABLE, 47) == 47
    assert windows.resumable(TABLE, 24) == 0, "what it shows has gone"
    assert windows.num_taken > 0


@pytest.mark.parametrize("window", [1, 2, 4, 5, 8, 9, 13, 100])
def test_the_position_found_is_the_last_at_which_a_brute_search_finds_the_window(window: int) -> None:
    rng = np.random.default_rng(window)
    for _ in range(200):
        windows = rows(num_rows=64, window=window)
        for block in rng.choice(16, rng.integers(0, 17), replace=False).tolist():
            run(windows, row(block * SIZE, block * SIZE + (4 if rng.random() < 0.8 else int(rng.integers(1, 5)))))
        position = int(rng.integers(0, 65))
        filled = [int(windows._num_filled[TABLE[at // SIZE]]) > at % SIZE for at in range(64)]

        def is_shown(at: int, filled: list[bool] = filled) -> bool:
            return all(filled[max(0, at - window + 1) : at])

        candidates = [at for at in range(position) if at % SIZE == 0] + [position]
        whole = [at for at in candidates if all(_is_whole(filled, at, window, position)) and is_shown(at)]
        assert windows.resumable(TABLE, position) == max(whole)
        assert windows.has_window(TABLE, position) == (windows.resumable(TABLE, position) == position)


def _is_whole(filled: list[bool], at: int, window: int, position: int) -> list[bool]:
    """Whether the blocks that hold the window are there as a whole, as far as they are before `position`."""
    first = max(0, at - window + 1) // SIZE * SIZE
    return filled[first : min(at, position)]


def test_a_hit_that_ends_where_nothing_is_shown_is_written_again_for_the_window_alone() -> None:
    windows = rows(num_rows=5)
    for start in range(0, 48, 8):
        run(windows, row(start, start + 8))
    assert windows.resumable(TABLE, 20) == 0
    first = row(0, 8, num_stored=20, resumes_at=0)
    assert all(slot >= 0 for slot in run(windows, first))
    assert run(windows, first) == [-1] * 8, "what is there is not written twice"
    for start in (8, 16):
        run(windows, row(start, min(start + 8, 20), num_stored=20, resumes_at=0))
    assert windows.resumable(TABLE, 20) == 20


def test_a_row_that_writes_nothing_takes_no_row() -> None:
    windows = rows()
    assert run(windows, row(0, 8, num_stored=8)) == [-1] * 8
    assert windows.tables(np.array(TABLE)).tolist() == [windows.num_rows] * len(TABLE), "the row of zeros"


def test_a_row_that_writes_nothing_leaves_the_order_in_which_rows_are_taken() -> None:
    windows = rows(num_rows=5)
    for block in (40, 41, 42):
        run(windows, row(0, 4, array("i", [block])))
    run(windows, row(0, 8))
    run(windows, row(0, 24, num_stored=24))
    run(windows, row(0, 4, array("i", [43])))
    assert windows.resumable(TABLE, 8) == 8


def test_blocks_are_compared_where_both_have_all_of_their_slots() -> None:
    windows = rows()
    run(windows, row(0, 7))
    assert windows.rows_of(TABLE[0], TABLE[1]) is None
    run(windows, row(7, 8))
    assert windows.rows_of(TABLE[0], TABLE[1]) is not None
    assert windows.rows_of(TABLE[0], TABLE[2]) is None


def test_the_end_of_a_hit_outlives_what_prompts_pass_through() -> None:
    """The common start of two prompts, 16 tokens, is where the third one goes on, however long both were."""
    windows = rows(num_rows=12)
    run(windows, row(0, 16))
    other = array("i", [*TABLE[:4], *range(30, 60)])
    for start in range(16, 96, 8):
        run(windows, row(start, start + 8, other, num_stored=16, resumes_at=16))
    assert windows.resumable(TABLE, 16) == 16
    assert windows.resumable(other, 96) == 96
    assert windows.resumable(other, 48) < 48


def test_a_copy_takes_what_its_source_has() -> None:
    windows = rows()
    run(windows, row(0, 7))
    source = windows.tables(np.array([TABLE[1]]))[0]
    assert windows.copied([Copy(TABLE[1], 40, 2)]) == [Copy(source, 2, 2)]
    assert windows.resumable(array("i", [TABLE[0], 40]), 6) == 6
    assert windows.resumable(array("i", [TABLE[0], 40]), 7) == 4
    assert windows.copied([Copy(50, 40, 3)]) == [], "there is no row to copy"
    assert windows.resumable(array("i", [TABLE[0], 40]), 6) == 4


def test_spans_fit_as_far_as_there_are_rows() -> None:
    windows = rows(num_rows=8)
    apart = [array("i", range(first, first + 6)) for first in range(0, 30, 6)]
    assert windows.num_fitting((table, 20, 21) for table in apart) == 2  # three blocks each
    assert windows.num_fitting((array("i", [*apart[0][:5], last]), 20, 21) for last in range(10, 20)) == 6
    assert windows.num_fitting((table[:5], 20, 21) for table in [apart[0]] * 10) == 6, (
        "a block that comes is nobody else's"
    )
    assert windows.num_fitting([(TABLE, 0, 33), (TABLE, 20, 21)]) == 0
    assert windows.num_fitting([]) == 0


@pytest.mark.parametrize(("num_rows", "window"), [(0, 4), (4, 0)])
def test_sizes_below_one_are_rejected(num_rows: int, window: int) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        WindowRows(8, num_rows, SIZE, window)
