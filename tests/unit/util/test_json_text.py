"""JSON from outside: its bound on nesting counts levels and nothing else."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixkv.util.json_text import (
    FULL_BYTES,
    MAX_CONTAINERS,
    MAX_DIGITS,
    MAX_FRACTIONS,
    MAX_NAMES,
    MAX_NESTING,
    MAX_STRINGS,
    MAX_VALUES,
    num_values,
    read_json,
)

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
        read_json("[" * 60_000)


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


def members(number: int, first: str = "") -> str:
    return "{" + first + ",".join(f'"{n}":0' for n in range(number)) + "}"


BOUNDS = {
    "arrays and objects": lambda extra: "[" + ",".join(["[]"] * (MAX_CONTAINERS - 1 + extra)) + "]",
    "names": lambda extra: members(MAX_NAMES + extra),
    "strings": lambda extra: "[" + ",".join(['""'] * (MAX_STRINGS + extra)) + "]",
    "a fraction": lambda extra: "[" + ",".join(["1.5"] * (MAX_FRACTIONS + extra)) + "]",
    "an exponent": lambda extra: "[" + ",".join(["1e1"] * (MAX_FRACTIONS + extra)) + "]",
    "values": lambda extra: "[" + ",".join(["1"] * (MAX_VALUES + 1 + extra)) + "]",
    "digits": lambda extra: "[" + "1" * (MAX_DIGITS + extra) + ", " + json.dumps("x" * 70_000) + "]",
}


@pytest.mark.parametrize("what", BOUNDS)
def test_as_much_as_is_allowed_is_read_and_no_more(what: str) -> None:
    text = BOUNDS[what](0)
    assert read_json(text) == json.loads(text)
    with pytest.raises(json.JSONDecodeError, match=what):
        read_json(BOUNDS[what](1))


def test_a_longer_text_may_hold_more_in_proportion() -> None:
    text = BOUNDS["arrays and objects"](MAX_CONTAINERS // 2)
    assert len(read_json(text.replace("[]", "[]" + " " * (2 * FULL_BYTES // len(text) * 3)))) > MAX_CONTAINERS
    with pytest.raises(json.JSONDecodeError, match="arrays and objects"):
        read_json(text + " " * 1000)


@pytest.mark.parametrize("piece", ['"', "\\", '\\"', '"\\\\', '"[{,:1.5\\', "[é"])
def test_what_stands_in_strings_is_not_counted(piece: str) -> None:
    text = json.dumps([piece * 100_001, {"a": [1, 2]}])
    assert read_json(text) == json.loads(text)
    assert num_values(text) == 6


@given(VALUES)
def test_values_are_counted_where_they_are(value: Any) -> None:
    def count(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + max(0, len(value) - 1) + sum(count(each) - 1 for each in value.values()) + 1
        if isinstance(value, list):
            return 1 + max(0, len(value) - 1) + sum(count(each) - 1 for each in value) + 1
        return 1

    assert num_values(json.dumps(value)) == count(value)


@given(st.text(alphabet='[]{}"\\,:a1', max_size=60), st.integers(0, 250))
@example("1,[]", MAX_NESTING - 1)
@example('"[[{\\"[",[]', MAX_NESTING)
@example("[[]],[]", MAX_NESTING - 1)
def test_depth_is_judged_as_by_counting(inner: str, num_opened: int) -> None:
    text = "[" * num_opened + inner + "]" * num_opened
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if value is not None and _depth(value) <= MAX_NESTING:
        assert read_json(text) == value
    else:
        with pytest.raises(json.JSONDecodeError) as refused:
            read_json(text)
        assert value is None or "nested deeper" in str(refused.value)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
