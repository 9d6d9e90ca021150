"""JSON from outside: its bound on nesting counts levels and nothing else."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.core.json_text import MAX_NESTING, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def nested(depth: int, inner: str = "1") -> str:
    """Arrays and objects in turns."""
    opened = ('{"a\\"[{": ', "[")
    closed = ("}", "]")
    return "".join(opened[i % 2] for i in range(depth)) + inner + "".join(closed[i % 2] for i in reversed(range(depth)))


@given(VALUES, st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_what_was_written_is_read(value: Any, encoding: str) -> None:
    assert read_json(json.dumps(value)) == value
    assert read_json(json.dumps(value).encode(encoding)) == value


def test_as_many_levels_as_are_allowed_are_read_and_no_more() -> None:
    assert read_json(nested(MAX_NESTING)) == json.loads(nested(MAX_NESTING))
    with pytest.raises(json.JSONDecodeError, match=f"nested deeper than {MAX_NESTING} levels"):
        read_json(nested(MAX_NESTING + 1))
    with pytest.raises(json.JSONDecodeError, match="nested deeper"):
        read_json("[" * 1_000_000)


def test_many_values_side_by_side_are_not_deep() -> None:
    many = [{"role": "user", "content": "[" * 50}] * 500
    assert read_json(json.dumps(many)) == many
    marks = nested(MAX_NESTING, json.dumps('"[[{{\\' * 500))
    assert read_json(marks) == json.loads(marks)


@pytest.mark.parametrize("text", ["", "[1,]", "{", "[" * 100, '"open [[[' + "[" * 500, "]" * 500, b"\xff[", "nul"])
def test_what_is_no_json_is_refused_as_the_standard_parser_does(text: str | bytes) -> None:
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)) as expected:
        json.loads(text)
    with pytest.raises(type(expected.value)) as refused:
        read_json(text)
    assert str(refused.value) == str(expected.value)


def test_numbers_are_read_as_the_standard_parser_does() -> None:
    assert read_json("1e999") == math.inf
    assert read_json("9" * 400) == 10**400 - 1
