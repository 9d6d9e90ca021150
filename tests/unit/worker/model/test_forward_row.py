"""`radixkv.worker.model.rows`: what a model reads of a step's rows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.worker.model.rows import ForwardRow, step_inputs

BLOCK_SIZE = 4


@st.composite
def forward_rows(draw: st.DrawFn) -> ForwardRow:
    token_ids = array("I", draw(st.lists(st.integers(0, 2**32 - 1), max_size=12)))
    start, num_spare = draw(st.integers(0, 20)), draw(st.integers(0, 2))
    num_blocks = -(-(start + len(token_ids)) // BLOCK_SIZE) + num_spare
    table = array("i", draw(st.lists(st.integers(0, 2**31 - 1), min_size=num_blocks, max_size=num_blocks)))
    return ForwardRow(token_ids, start, table, draw(st.integers(0, 40)), True)


@given(st.lists(forward_rows(), max_size=6))
def test_every_token_has_its_position_and_its_slot_where_it_is_not_stored(rows: list[ForwardRow]) -> None:
    expected = [
        (token_id, at, -1 if at < row.num_stored else row.block_table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE)
        for row in rows
        for at, token_id in enumerate(row.token_ids, row.start)
    ]
    inputs = step_inputs(rows, BLOCK_SIZE)
    assert inputs.shape == (3, len(expected))
    assert list(zip(*inputs.tolist(), strict=True)) == expected


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda ids: array("I", ids)])
def test_ids_may_be_any_sequence_and_a_table_may_grow_afterwards(make: Callable[[list[int]], Sequence[Any]]) -> None:
    table = array("i", [7, 3])
    rows = [ForwardRow(make([5, 6, 9]), 2, table, 0, False), ForwardRow(make([8]), 5, table, 0, True)]
    assert step_inputs(rows, BLOCK_SIZE).tolist() == [[5, 6, 9, 8], [2, 3, 4, 5], [30, 31, 12, 13]]
    table.append(1)  # nothing holds on to its memory
