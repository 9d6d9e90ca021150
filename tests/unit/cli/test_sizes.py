"""Sizes as people write them."""

from __future__ import annotations

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.planner import format_bytes, parse_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * GIB),
        ("80g", 80 * GIB),
        ("24GB", 24 * 10**9),
        ("1.5 MiB", 3 * 2**19),
        ("1024", 1024),
        ("7 kb", 7000),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 apples", "1e9", "nan", "9" * 400])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--memory"):
        parse_bytes(text, "--memory")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (70_272, "68.6 KiB"), (int(8.578 * GIB), "8.58 GiB"), (2**50 * 2000, "2,000 PiB")],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert format_bytes(size) == text
