"""Message parsers, called directly with hostile input: the conversions of both ends, and the Steps of a holder on a pool.

    python -m bench.bad_input.parsers SEED RUNS     the same under atheris, which searches for inputs that reach new code

A parser may refuse with an error of radixkv's or reject the bytes as not a message; anything else is a fault. A refused Step
leaves the pool unchanged.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from bench.bad_input.calls import holder_palette
from bench.bad_input.messages import MessageMaker
from radixkv.core.api import MatchOp
from radixkv.core.errors import RadixKVError
from radixkv.generation import wire
from radixkv.service.config import ServiceConfig
from radixkv.service.pools.table import HolderStream, Pool, PoolTable
from radixkv.v1 import generation_pb2, prefix_cache_pb2, types_pb2, workers_pb2
from radixkv.wire import reads as reader_conversion
from radixkv.wire import steps as conversion
from radixkv.wire.errors import error_from_proto, error_to_proto
from radixkv.wire.journal import journal_from_proto

__all__ = ["Parsers"]

CHECK_EVERY = 64
"""Steps between two checks of all invariants of the pool."""
LIFE_STEPS = 96
"""Steps after which a new pool is used: one full of sequences refuses nearly everything."""


class _NoStream(HolderStream):
    def end(self, error: RadixKVError) -> None:
        del error

    def send_notices(self) -> None:
        pass


class _Target(NamedTuple):
    message: Any
    read: Callable[[Any], object]


class Parsers:
    """Parsers, and a pool table with one pool.

    Args:
        seed: a case depends on it and the case's number; the state of the pool on the cases before.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._now_s = 0.0
        self._table = PoolTable(ServiceConfig(max_pools=8, lease_ttl_s=1e9), lambda: self._now_s, lambda: 1e9)
        self._num_steps = self._num_lives = 0
        self._pool = self._new_pool()
        convert, readers = conversion, reader_conversion
        cache_pb, worker_pb = prefix_cache_pb2, workers_pb2
        self._targets = (
            _Target(worker_pb.Step, self._apply),
            _Target(worker_pb.Hello, self._attach),
            _Target(worker_pb.Op, convert.op_from_proto),
            _Target(generation_pb2.GenerateRequest, wire.generate_from_proto),
            _Target(generation_pb2.ForkGenerationRequest, wire.fork_from_proto),
            _Target(generation_pb2.TokenizeRequest, lambda proto: wire.prompt_from_proto(proto.prompt)),
            _Target(cache_pb.RetainRequest, readers.RETAIN.read),
            _Target(worker_pb.OpResult, partial(convert.result_from_proto, MatchOp(b""))),
            _Target(worker_pb.Notices, lambda proto: (convert.notices_from_proto(proto), journal_from_proto(proto))),
            _Target(generation_pb2.GenerateResponse, wire.event_from_proto),
            _Target(generation_pb2.GetModelResponse, wire.MODEL.read),
            _Target(generation_pb2.GetStatsResponse, wire.stats_from_proto),
            _Target(cache_pb.Explanation, readers.EXPLANATION.read),
            _Target(cache_pb.Event, readers.EVENT.read),
            _Target(cache_pb.Node, readers.NODE.read),
            _Target(types_pb2.Error, lambda proto: error_to_proto(error_from_proto(proto))),
        )

    @property
    def num_targets(self) -> int:
        """Number of parsers."""
        return len(self._targets)

    def run(self, number: int) -> str:
        """Run case `number`. Returns the fault found, empty for none."""
        source = random.Random(f"{self._seed}:parsers:{number}")
        index = 0 if source.random() < 0.4 else source.randrange(len(self._targets))
        target = self._targets[index]
        data = MessageMaker(source, holder_palette()).make(target.message.DESCRIPTOR)
        fault = self.attempt(index, data)
        return f"case {number}, {target.message.__name__}: {fault}, {data[:200].hex()}" if fault else ""

    def attempt(self, index: int, data: bytes) -> str:
        """Pass bytes to a parser. Returns the fault found, empty for none."""
        target = self._targets[index % len(self._targets)]
        try:
            target.read(target.message.FromString(data))
        except (DecodeError, RadixKVError):
            return ""
        except Exception as error:
            return repr(error)
        return ""

    def _new_pool(self) -> Pool:
        shape = types_pb2.PoolShape(name="own", num_blocks=48, block_size=16)
        self._num_lives += 1
        hello = workers_pb2.Hello(pool=shape, incarnation=2**32 + self._num_lives)
        return self._table.attach(hello, _NoStream()).pool

    def _attach(self, hello: workers_pb2.Hello) -> None:
        hello.pool.num_blocks = min(hello.pool.num_blocks, 4096)  # the refusal is fuzzed, not the allocator
        self._table.end(self._table.attach(hello, _NoStream()).pool)
        if self._pool not in self._table.select(""):
            self._pool = self._new_pool()

    def _apply(self, step: workers_pb2.Step) -> None:
        pool = self._pool
        if step.number % 8:  # most numbers are right
            step.number = pool.next_step
            step.acknowledged_through = pool.next_step - 1
            step.notices_acknowledged_through = pool.next_notices - 1
        before = (pool.cache.stats(), pool.next_step) if step.number % 5 == 0 else None
        nodes = pool.cache.dump() if before else []
        try:
            pool.apply(step)
        except RadixKVError:
            if before and ((pool.cache.stats(), pool.next_step), pool.cache.dump()) != (before, nodes):
                raise AssertionError("a refused Step has changed the pool") from None
            raise
        pool.collect_notices()
        self._num_steps += 1
        if self._num_steps % CHECK_EVERY == 0:
            pool.cache.check()
        if self._num_steps % LIFE_STEPS == 0:
            self._table.end(pool)
            self._pool = self._new_pool()


def main() -> int:
    """Search for inputs that reach new code, for the number of runs on the command line."""
    import atheris

    seed, runs = sys.argv[1:3]
    parsers = Parsers(int(seed))

    def look(data: bytes) -> None:
        if data and (fault := parsers.attempt(data[0], data[1:])):
            raise AssertionError(fault)

    for module in (conversion, reader_conversion, wire):
        for value in vars(module).values():
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                setattr(module, value.__name__, atheris.instrument_func(value))
    atheris.Setup([sys.argv[0], f"-seed={int(seed) + 1}", f"-runs={runs}", "-max_len=2048", "-timeout=20"], look)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
