"""Bounds of the first message of a holder."""

from __future__ import annotations

from radixkv.core.api import PoolShape, WorkerLoad
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.sequences.single_flight import MAX_WAITS
from radixkv.service.config import MAX_NAME_CHARACTERS, ServiceConfig
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.values import SHAPE, WORKER_LOAD

__all__ = ["check_hello", "check_load"]

MAX_ADDRESS_CHARACTERS = 256

MAX_NUMBER = (1 << 63) - 1
"""Of a Step or of Notices; far from the end of their fields."""


def check_hello(hello: workers.Hello, config: ServiceConfig) -> PoolShape:
    """The shape of the pool that a holder asks for.

    Raises:
        InvalidArgumentError: a shape, name, number or incarnation out of bounds, or more awaited outcomes than can be.
    """
    shape = SHAPE.read(hello.pool)
    if not 1 <= len(shape.name) <= MAX_NAME_CHARACTERS:
        raise InvalidArgumentError("name", shape.name[:256], f"of 1 to {MAX_NAME_CHARACTERS} characters")
    if len(hello.holder_name) > MAX_NAME_CHARACTERS:
        bound = f"of at most {MAX_NAME_CHARACTERS} characters"
        raise InvalidArgumentError("holder_name", hello.holder_name[:256], bound)
    if len(hello.generation_address) > MAX_ADDRESS_CHARACTERS:
        bound = f"of at most {MAX_ADDRESS_CHARACTERS} characters"
        raise InvalidArgumentError("generation_address", hello.generation_address[:256], bound)
    if len(hello.fingerprint) > MAX_NAME_CHARACTERS:
        bound = f"of at most {MAX_NAME_CHARACTERS} characters"
        raise InvalidArgumentError("fingerprint", hello.fingerprint[:256], bound)
    for name in ("acknowledged_through", "notices_acknowledged_through"):
        if getattr(hello, name) > MAX_NUMBER:
            raise InvalidArgumentError(name, getattr(hello, name), f"at most {MAX_NUMBER}")
    max_awaited = 2 * MAX_WAITS + config.max_unacknowledged_notices  # one more while as many outcomes are on their way
    if len(hello.awaited) > max_awaited:
        raise InvalidArgumentError("awaited", f"{len(hello.awaited)} of them", f"at most {max_awaited}")
    if not hello.incarnation:
        raise InvalidArgumentError("incarnation", 0, "a random number that is not 0")
    if hello.HasField("load"):
        check_load(hello.load)
    if shape.num_blocks > config.max_blocks_per_pool:
        bound = f"at most {config.max_blocks_per_pool}"
        raise InvalidArgumentError("num_blocks", shape.num_blocks, bound)
    return shape


def check_load(load: types.WorkerLoad) -> WorkerLoad:
    """The load that a holder reports.

    Raises:
        InvalidArgumentError: a negative number.
    """
    read = WORKER_LOAD.read(load)
    for name in ("num_backlog_tokens", "tokens_per_s", "num_running", "loaded_tokens_per_s", "num_ahead"):
        if not getattr(read, name) >= 0:
            raise InvalidArgumentError(f"load.{name}", getattr(read, name), "at least 0")
    return read
