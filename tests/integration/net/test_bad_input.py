"""Bytes that are no message, and errors that quote what they refuse, over real gRPC."""

from __future__ import annotations

import gzip
import logging
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from bench.bad_input.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, OPENING, call_headers, frame
from radixkv import PrefixCache
from radixkv.client import RemoteHolder
from radixkv.service import ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.v1 import prefix_cache_pb2, types_pb2
from radixkv.wire.errors import ERROR_METADATA_KEY
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

NO_MESSAGE = b"\x0a\xff\xff\xff\xff\x0f"
TIMEOUT_S = 300.0
SERVICE_METHODS = (
    "/radixkv.v1.PrefixCache/Match",
    "/radixkv.v1.PrefixCache/Dump",
    "/radixkv.v1.Workers/Attach",
    "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
WORKER_METHODS = (
    "/radixkv.v1.Generation/Generate",
    "/radixkv.v1.Generation/Tokenize",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


@pytest.fixture
def worker() -> Iterator[GenerationServer]:
    engine = Engine(HashRunner(64, 4), PrefixCache(64, 4))
    with engine, GenerationServer(engine, "127.0.0.1:0") as server:
        yield server


def refusal(address: str, path: str, request: bytes) -> Any:
    """The error of a call whose request and answers are bytes."""
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as raised:
        list(channel.stream_stream(path)(iter([request]), timeout=TIMEOUT_S))
    return raised.value


@pytest.mark.parametrize("path", SERVICE_METHODS)
def test_bytes_that_are_no_message_are_the_callers_fault(
    service: ServiceThread, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        error = refusal(service.addresses[0], path, NO_MESSAGE)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "6 bytes" in error.details()
    assert not caplog.records


@pytest.mark.parametrize("path", WORKER_METHODS)
def test_bytes_that_are_no_message_are_the_callers_fault_at_the_worker(
    worker: GenerationServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        error = refusal(worker.address, path, NO_MESSAGE)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


def test_bytes_that_are_no_message_end_a_holders_stream_and_leave_its_lease(
    service: ServiceThread, holder: RemoteHolder
) -> None:
    sequence = holder.acquire([1, 2, 3])
    assert refusal(service.addresses[0], "/radixkv.v1.Workers/Attach", NO_MESSAGE)
    holder.insert(sequence.seq_id, num_computed=3)
    assert holder.match([1, 2, 3]).num_tokens == 3


@pytest.mark.parametrize("character", ["x", "é", "日", "🙂", '"', "\n"])
def test_an_error_that_quotes_a_huge_name_arrives_as_itself(holder: RemoteHolder, character: str) -> None:
    """It used to be too large for the trailing metadata, and came as RESOURCE_EXHAUSTED."""
    request = prefix_cache_pb2.MatchRequest(namespace=character * 100_000)
    error = refusal(holder.address, "/radixkv.v1.PrefixCache/Match", request.SerializeToString())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("namespace is '")
    assert ERROR_METADATA_KEY in dict(error.trailing_metadata())


def test_a_compressed_message_is_measured_after_it_is_inflated(service: ServiceThread) -> None:
    """A bomb of 64 KiB that inflates to 64 MiB is refused at the 16 MiB that a message may have."""
    bomb = gzip.compress(b"\x1a\x80\x80\x80\x20" + b"\x00" * (64 << 20), 9)
    body = b"\x01" + struct.pack(">I", len(bomb)) + bomb
    pieces = [body[i : i + 16_000] for i in range(0, len(body), 16_000)]
    frames = [frame(DATA, END_STREAM if piece is pieces[-1] else 0, 1, piece) for piece in pieces]
    headers = call_headers(b"/radixkv.v1.PrefixCache/Match", (b"grpc-encoding", b"gzip"))
    with _connected(service.addresses[0]) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.sendall(OPENING + frame(HEADERS, END_HEADERS, 1, headers) + b"".join(frames))
        answer = b""
        while b"grpc-status" not in answer:
            answer += connection.recv(65_536)
    assert b"grpc-status\x018" in answer  # RESOURCE_EXHAUSTED


def _connected(address: str) -> socket.socket:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def test_the_error_of_a_refused_call_is_told_whole(service: ServiceThread) -> None:
    error = refusal(service.addresses[0], "/radixkv.v1.PrefixCache/Match", NO_MESSAGE)
    details = types_pb2.Error.FromString(dict(error.trailing_metadata())[ERROR_METADATA_KEY])
    assert details.code == types_pb2.ERROR_CODE_INVALID_ARGUMENT
    assert details.invalid_argument.argument == "request"
