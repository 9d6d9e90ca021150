"""Calls of a cache with what no annotation allows: refused by name, each alone, and nothing has changed."""

from __future__ import annotations

import dataclasses
import inspect
from array import array
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from radixkv import (
    AcquireOp,
    AdoptBlocksOp,
    AdoptOp,
    AdoptSequenceOp,
    ExtendOp,
    ForkOp,
    InsertOp,
    InvalidArgumentError,
    PrefixCache,
    RadixKVError,
    ReleaseOp,
    Retention,
    UnknownSequenceError,
)
from radixkv.core.api import AcquireOptions, StepOp

TOKENS = [1, 2, 3, 4, 5]


def opened() -> PrefixCache:
    cache = PrefixCache(16, 4)
    cache.acquire(TOKENS, seq_id=1)
    cache.insert(1, 5)
    return cache


@pytest.mark.parametrize("bad", [1, None, "op", object(), (), ExtendOp, ForkOp([], 1, 1, 0, 7), ExtendOp({}, 5)])  # type: ignore[arg-type]  # bad
def test_what_is_no_op_fails_alone(bad: Any) -> None:
    cache = opened()
    before, error, after = cache.step([ExtendOp(1, 9), bad, ExtendOp(1, 13)])
    assert isinstance(error, RadixKVError)
    assert not isinstance(before, RadixKVError)
    assert not isinstance(after, RadixKVError)
    cache.check()


@pytest.mark.parametrize("seq_id", [None, [], {}, "1", 1.5, 99])
def test_what_names_no_sequence_is_unknown(seq_id: Any) -> None:
    cache = opened()
    for call in (cache.release, lambda one: cache.extend(one, 9), lambda one: cache.fork(one, 1)):
        with pytest.raises(UnknownSequenceError):
            call(seq_id)


@pytest.mark.parametrize("seq_ids", [7, [2, 2], [2], "23", [[], 3], [2.5, 3], [-1, 2], {2: 0, 3: 0}, None])
def test_ids_of_children_that_are_none_are_refused(seq_ids: Any) -> None:
    cache = opened()
    if seq_ids is None:
        cache.fork(1, 5, 2, seq_ids=(2, 3))
        return
    with pytest.raises(InvalidArgumentError):
        cache.fork(1, 5, 2, seq_ids=seq_ids)
    assert cache.stats().num_sequences == 1
    cache.check()


@pytest.mark.parametrize("namespace", ["\ud800", "a\udfff", "", "x" * 257, None, 3, b"a"])
def test_a_namespace_that_cannot_be_written_is_refused(namespace: Any) -> None:
    cache = opened()
    with pytest.raises(InvalidArgumentError, match="namespace"):
        cache.acquire(TOKENS, namespace=namespace)
    cache.check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_blocks", "16"),
        ("block_size", 0),
        ("eviction", None),
        ("eviction", 3),
        ("eviction", "no such"),
        ("event_capacity", 0),
        ("first_event_number", "1"),
        ("max_waits", -1),
        ("pin_budget", "x"),
        ("pin_budget", float("nan")),
        ("clock", 1.0),
        ("record_key", "x"),
        ("record_key", -1),
        ("seq_ids", [1, 2]),
        ("seq_ids", 5),
    ],
)
def test_a_cache_is_not_made_of_what_it_cannot_be(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"num_blocks": 16, "block_size": 4, name: value}
    with pytest.raises(InvalidArgumentError, match=name):
        PrefixCache(**arguments)


@pytest.mark.parametrize("open_one", [lambda cache: cache.acquire([9, 9]), lambda cache: cache.fork(1, 5, 2)])
def test_a_source_of_ids_that_ends_is_told_and_nothing_was_opened(open_one: Callable[[PrefixCache], Any]) -> None:
    cache = PrefixCache(16, 4, seq_ids=iter([1]))
    cache.step([AcquireOp(b"\1\0\0\0" * 5), InsertOp(1, 5)])
    before = cache.stats()
    with pytest.raises(InvalidArgumentError, match="seq_ids"):
        open_one(cache)
    assert cache.stats() == before
    cache.check()
    assert cache.step([ReleaseOp(1)]) == [None]


def test_a_fork_of_what_has_computed_nothing_says_so() -> None:
    cache = PrefixCache(16, 4)
    cache.acquire(TOKENS, seq_id=1)
    with pytest.raises(InvalidArgumentError, match="of which there is none yet"):
        cache.fork(1, 1)


# -- of the wrong type altogether

WRONG: list[Any] = [
    None,
    -1,
    2**80,
    1.5,
    "x",
    b"abc",
    object(),
    [object()],
    (),
    {"a": 1},
    int,
    np.zeros((2, 2)),
    array("d", [1.0]),
    AcquireOp(b"abcd"),
    Retention(),
]
RIGHT: dict[str, Any] = {
    "tokens": b"abcd",
    "seq_id": 1,
    "num_tokens": 7,
    "num_computed": 5,
    "position": 4,
    "num_blocks": 1,
    "ttl_s": 5.0,
    "room": 1,
    "retention": (Retention(),),
    "block_ids": array("i", [9]),
    "block_table": array("i", [9]),
    "records": (b"abcdefgh",),
    "tier": "disk",
    "ops": [],
    "op": AdoptSequenceOp(2, b"abcd", array("i", [9]), 0, 1),
}
CALLS = sorted(name for name, _ in inspect.getmembers(PrefixCache, inspect.isfunction) if not name.startswith("_"))


def fails_by_name_alone(
    call: Callable[[PrefixCache, dict[str, Any]], Any], needed: list[str], names: list[str]
) -> None:
    """With each wrong value for each argument."""
    for name in names:
        for wrong in WRONG:
            cache = opened()
            before = cache.stats()
            try:
                result = call(cache, {each: RIGHT[each] for each in needed} | {name: wrong})
            except RadixKVError as error:
                result = [error]
            if isinstance(result, list) and result and isinstance(result[0], RadixKVError):
                assert cache.stats() == before, (name, wrong)
            cache.check()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_takes_no_argument_of_another_type(call: str) -> None:
    arguments = list(inspect.signature(getattr(PrefixCache, call)).parameters.values())[1:]
    named = [each for each in arguments if each.kind is not each.VAR_KEYWORD and each.name != "refused"]
    needed = [each.name for each in named if each.default is each.empty]
    options = AcquireOptions.__annotations__ if len(named) < len(arguments) and call != "step" else ()
    names = [*(each.name for each in named), *options]
    fails_by_name_alone(lambda cache, given: getattr(cache, call)(**given), needed, names)


@pytest.mark.parametrize("kind", [*get_args(StepOp), AdoptOp, AdoptBlocksOp, AdoptSequenceOp])
def test_an_op_takes_no_argument_of_another_type(kind: Any) -> None:
    fields = dataclasses.fields(kind)
    needed = [each.name for each in fields if each.default is dataclasses.MISSING]
    names = [each.name for each in fields]
    fails_by_name_alone(lambda cache, given: cache.step([kind(**given)]), needed, names)


@pytest.mark.parametrize("ops", [AcquireOp(b"abcd"), None, 5, "op", b"op", {"a": 1}, object()])
def test_a_step_is_a_list_of_ops(ops: Any) -> None:
    cache = opened()
    for call in (cache.step, cache.submit):
        with pytest.raises(InvalidArgumentError, match=r"ops is .* a list of ops"):
            call(ops)
    assert cache.step(iter([ReleaseOp(1)])) == [None]  # type: ignore[arg-type]  # as before


def test_a_fork_of_more_children_than_can_be_is_refused_at_once() -> None:
    with pytest.raises(InvalidArgumentError, match="n is"):
        opened().fork(1, 5, 2**40)
