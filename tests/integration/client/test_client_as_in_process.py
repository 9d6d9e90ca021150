"""Every call over the wire is answered as in process, whatever happens to the stream."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from live_service import Clock

from radixkv import (
    AcquireOp,
    CacheEvent,
    ExtendOp,
    ForkOp,
    InsertOp,
    PinOp,
    PoolShape,
    PrefixCache,
    RadixKVError,
    ReleaseOp,
    Retention,
    connect,
    pack_tokens,
)
from radixkv.client import RemoteHolder
from radixkv.service import ServiceThread


def unnumbered(events: list[CacheEvent]) -> list[CacheEvent]:
    """A service's pools begin with other numbers than a cache in process."""
    return [event._replace(sequence_number=0) for event in events]


def outcome(call: Callable[[], Any]) -> object:
    """What a call answers or raises, comparable."""
    try:
        return call()
    except RadixKVError as error:
        return comparable(error)


def comparable(result: object) -> object:
    if isinstance(result, RadixKVError):
        return type(result), str(result), vars(result)
    return result


class RandomCalls:
    """Random calls of every kind, mostly valid, from a tiny alphabet."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ids = list(range(1, 9))

    def tokens(self, longest: int = 30) -> bytes:
        return pack_tokens([self._random.randrange(2) for _ in range(self._random.randrange(longest))])

    def ranges(self) -> tuple[Retention, ...]:
        """Ranges of a history, one in a few of them out of bounds."""
        choose = self._random

        def some() -> Retention:
            start, priority = choose.randrange(-1, 20), choose.choice([0, 20, 35, 80, 80, 101])
            end = choose.choice([None, None, start + choose.randrange(12)])
            return Retention(start, end, priority, choose.choice([None, 0.03, 0.2, 60, -1.0]))

        return tuple(some() for _ in range(choose.choice([0, 0, 1, 1, 2, 70])))

    def op(self) -> Any:
        choose = self._random
        seq_id, namespace = choose.choice(self._ids), choose.choice(["default", "other", ""])
        match choose.randrange(10):
            case 0 | 1:
                chosen, at_least, whole = (
                    choose.choice([seq_id, None, -1]),
                    choose.choice([0, 0, -1, 3]),
                    choose.random() < 0.2,
                )
                reserve, ranges = choose.randrange(-1, 9), self.ranges()
                options: dict[str, Any] = {"retention": ranges, "at_least": at_least, "whole_blocks": whole}
                return AcquireOp(self.tokens(), reserve, namespace, chosen, **options)
            case 2 | 3:
                return ExtendOp(seq_id, choose.randrange(40))
            case 4 | 5:
                return InsertOp(seq_id, choose.randrange(40), self.tokens(4))
            case 6 | 7:
                n = choose.randrange(3)
                ids = choose.choice([None, tuple(choose.sample(self._ids, n))])
                return ForkOp(seq_id, choose.randrange(40), n, choose.randrange(3), ids)
            case 8:
                return PinOp(self.tokens(), choose.choice([0.05, 0.3, 300.0, -1.0]), namespace)
        return ReleaseOp(seq_id, choose.random() < 0.5)

    def call(self) -> Callable[[Any], Any]:
        """A call to be made of a holder."""
        choose = self._random
        kind = choose.randrange(16)
        if kind < 6:
            ops = [self.op() for _ in range(choose.randrange(6))]
            return lambda holder: [comparable(result) for result in holder.step(ops)]
        tokens, count, ttl = self.tokens(), choose.randrange(-1, 4), choose.choice([0.05, 0.3, "5m", "1h", -1.0])
        namespace, ranges = choose.choice([None, "default", "other"]), self.ranges()
        also = ("other", "default", "")[: choose.choice([0, 1, 2, 2, 3])]
        blocks, sequences = choose.choice([None, -1, 6, 12, 20, 25, True]), choose.choice([None, None, -1, 1, 3])
        calls: list[Callable[[Any], Any]] = [
            lambda holder: holder.match(tokens, namespace=namespace or "default"),
            lambda holder: holder.explain(tokens, namespace=namespace or "default", other_namespaces=also),
            lambda holder: holder.evict(count),
            lambda holder: holder.clear("other"),
            lambda holder: holder.pin(tokens, ttl=ttl, namespace=namespace or "default"),
            lambda holder: holder.unpin(tokens, namespace=namespace or "default"),
            lambda holder: holder.retain(tokens, retention=ranges, namespace=namespace or "default"),
            lambda holder: holder.set_quota(namespace or "default", blocks, sequences),
            lambda holder: holder.usage("nobody"),
            lambda holder: (
                holder.stats(),
                holder.usage(namespace),
                holder.dump(namespace),
                holder.pins(namespace),
                unnumbered(holder.events(min(count, 0), namespace)),
            ),
        ]
        return calls[kind - 6]


@pytest.mark.parametrize("seed", range(12))
def test_every_call_answers_as_in_process_also_over_broken_streams(
    seed: int, service: ServiceThread, clock: Clock
) -> None:
    calls, breaks = RandomCalls(seed), random.Random(seed)
    local = PrefixCache(24, 4, clock=clock)
    with connect(service.addresses[0], PoolShape(24, 4)) as remote:
        for _ in range(60):
            call = calls.call()
            clock.now_s += 0.01
            if breaks.random() < 0.1:
                remote.interrupt()
            assert outcome(lambda call=call: call(remote)) == outcome(lambda call=call: call(local))  # type: ignore[misc]  # bound now
            remote.check()


def test_the_methods_answer_as_in_process(holder: RemoteHolder) -> None:
    local = PrefixCache(64)
    for cache in (local, holder):
        opened = cache.acquire(list(range(100)), reserve=20)
        cache.insert(opened.seq_id, 100)
        assert cache.extend(opened.seq_id, 120).first_changed == 7
        cache.insert(opened.seq_id, 101, [7])
        first, second = cache.fork(opened.seq_id, position=50, n=2, seq_ids=[8, 9])
        assert (first.seq_id, second.num_stored_tokens) == (8, 50)
        cache.release(8, keep=False)
        cache.release(opened.seq_id)
    assert holder.stats() == local.stats()
    assert holder.match(range(101)) == local.match(range(101))
