"""Hostile calls over gRPC: every method of every service of the two servers, found by reflection.

Requests and responses travel as bytes, so a request need not be a message. A case is one call, or one stream of a holder's
messages from Hello on; it depends only on the run's seed and its number.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from bench.bad_input.messages import MessageMaker, Palette
from radixkv.net.rights import POOL_METADATA
from radixkv.net.rights import SERVICE_NAMES as KV_EVENT_SERVICES
from radixkv.v1 import generation_pb2, kv_events_pb2, types_pb2, workers_pb2

__all__ = ["Caller", "Case", "Method", "Outcome", "find_methods", "holder_palette"]

CALL_S = 60.0
"""A call that takes longer hangs."""
STREAM_S = 0.1
"""Time to read from a stream that may have no end."""
_FAULTS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)


class Method(NamedTuple):
    """A method at an address."""

    address: str
    path: str
    request: Descriptor
    streams_in: bool
    streams_out: bool


class Case(NamedTuple):
    """One call: its method and the messages to send. The result is an `Outcome`."""

    number: int
    method: Method
    messages: tuple[bytes, ...]


class Outcome(NamedTuple):
    """The status of a call, and the fault found; empty: none."""

    case: Case
    status: grpc.StatusCode
    fault: str


def find_methods(addresses: tuple[str, ...]) -> list[Method]:
    """Every method of every service at these addresses, by reflection, and KV events under each of their names."""
    found = []
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = descriptor_pool.DescriptorPool(database)
            for name in sorted(database.get_services()):
                for method in pool.FindServiceByName(name).methods:
                    path = f"/{name}/{method.name}"
                    streams = (method.client_streaming, method.server_streaming)
                    found.append(Method(address, path, method.input_type, *streams))
    request = kv_events_pb2.SubscribeKvEventsRequest.DESCRIPTOR
    paths = [f"/{name}/SubscribeKvEvents" for name in KV_EVENT_SERVICES]
    return found + [Method(addresses[0], path, request, False, True) for path in paths]


def holder_palette() -> Palette:
    """Values with which a call often refers to the pools under attack."""
    names = [b"fuzz-%d" % i for i in range(6)]
    spaces = [b"default", b"a", b"b"]
    json_texts = [b"", b"{}", b"[]", b'{"type": "object"}', b"[" * 3000, b'{"a":' * 3000, b"nul", b'"\\ud800"']
    return Palette(
        texts={
            "pool": [b"", b"default", *names],
            "name": names,
            "namespace": spaces,
            "also": spaces,
            "adapter": [b""],
            "text": [b"", b"Hello there", "é日🙂".encode(), b"\xff\xfe", b"x" * 3000],
            "role": [b"user", b"assistant", b"system", b"tool", b"\xff"],
            "service": [b"", b"radixkv.v1.PrefixCache", b"nobody"],
            **dict.fromkeys(("fields_json", "tools_json", "template_arguments_json", "json_schema"), json_texts),
        },
        numbers={
            "seq_id": [1, 2, 3, 4, 5, 6, 7, 8],
            "values": [5, 6, 7, 8, 9],
            "num_blocks": [1, 8, 64, 256],
            "block_size": [16, 16, 16, 1, 8],
            "num_tokens": [1, 16, 17, 48, 100],
            "num_computed": [0, 1, 16, 17, 48],
            "position": [0, 1, 16, 17],
            "reserve": [0, 0, 16],
            "max_tokens": [0, 1, 2, 8, 40],
            "n": [1, 1, 2, 3],
            "best_of": [1, 2, 4],
            "num_beams": [1, 2],
            "priority": [0, 1, 7, -1],
            "incarnation": [1, 2, 3],
            "acknowledged_through": [0, 0, 0, 1, 2],
            "notices_acknowledged_through": [0, 0, 0, 1],
            "start": [0, 0, 1, 50],
            "follow": [0, 1],
        },
        vocab_size=256,
    )


class Caller:
    """Draws cases and makes their calls. `call` is thread-safe."""

    def __init__(self, seed: int, methods: list[Method]) -> None:
        self._seed = seed
        self._methods = methods
        self._channels = {
            address: grpc.insecure_channel(
                address, options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            )
            for address in {method.address for method in methods}
        }
        self._stubs = {method[:2]: self._stub(method) for method in methods}

    def _stub(self, method: Method) -> Any:
        channel = self._channels[method.address]
        kinds = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }
        return kinds[method.streams_in, method.streams_out](method.path)

    def draw(self, number: int) -> Case:
        """Case `number` of this seed."""
        source = random.Random(f"{self._seed}:{number}")
        method = source.choice(self._methods)
        maker = MessageMaker(source, holder_palette())
        if not method.streams_in:
            good = _GOOD.get(method.request.name, b"") if source.random() < 0.6 else b""
            return Case(number, method, (good + maker.make(method.request),))  # of a repeated field the last counts
        if "hello" not in method.request.fields_by_name:
            return Case(number, method, tuple(maker.make(method.request) for _ in range(source.randint(0, 4))))
        return Case(number, method, tuple(_holding(source, maker, method.request)))

    def call(self, case: Case) -> Outcome:
        """Make the call and read its response."""
        method = case.method
        may_last = method.streams_out and not method.streams_in
        stub = self._stubs[method[:2]]
        request = iter(case.messages) if method.streams_in else case.messages[0]
        started_s = time.monotonic()
        try:
            metadata = ((POOL_METADATA, "default"),)
            answer = stub(request, timeout=STREAM_S if may_last else CALL_S, metadata=metadata)
            if method.streams_out:
                for _ in answer:
                    pass
            status = grpc.StatusCode.OK
        except grpc.RpcError as error:
            status = error.code()  # type: ignore[attr-defined]  # it is a call
            if status in _FAULTS:
                return Outcome(case, status, f"{status.name}: {error.details()}")  # type: ignore[attr-defined]  # the same
        if time.monotonic() - started_s >= CALL_S:
            return Outcome(case, status, f"no end within {CALL_S:g} s")
        return Outcome(case, status, "")

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()


def _holding(source: random.Random, maker: MessageMaker, kind: Descriptor) -> Iterator[bytes]:
    """A stream of a holder: usually Hello first and numbers in order, with deviations at any place."""
    fields = kind.fields_by_name
    if source.random() < 0.95:
        yield _hello(source, fields["hello"].number)
    says_goodbye = source.random() < 0.9  # otherwise the pool is unattended until its lease ends
    for number in range(1, source.randint(1, 20)):
        chance = source.random()
        if chance < 0.8:
            step = maker.generate(fields["step"].message_type)
            yield _inside(fields["step"].number, step + b"\x08" + bytes([number]) + b"\x10\x00\x20\x00")
        elif chance < 0.9:
            yield _inside(fields["heartbeat"].number, b"")
        else:
            yield maker.make(kind)
    if says_goodbye:
        yield _inside(fields["goodbye"].number, b"")


_GOOD = {
    "GenerateRequest": generation_pb2.GenerateRequest(
        prompt=generation_pb2.Prompt(text="Hello there"), sampling=generation_pb2.SamplingParams(max_tokens=4)
    ).SerializeToString(),
    "TokenizeRequest": generation_pb2.TokenizeRequest(prompt=generation_pb2.Prompt(text="Hello")).SerializeToString(),
}
"""Some hostile requests follow a valid one, so that they differ from it in a field or two."""


def _hello(source: random.Random, number: int) -> bytes:
    name = f"fuzz-{source.randrange(32)}"
    shape = types_pb2.PoolShape(name=name, num_blocks=source.choice((8, 64)), block_size=16)
    return _inside(number, workers_pb2.Hello(pool=shape, incarnation=source.getrandbits(64) | 1).SerializeToString())


def _inside(number: int, message: bytes) -> bytes:
    length, size = bytearray(), len(message)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + message
