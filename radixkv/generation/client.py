"""A worker's Generation service from another process, with the calls, events and errors of an in-process `Engine`."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import grpc

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    LimitError,
    PermissionDeniedError,
    RadixKVError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from radixkv.core.tokens import TokensLike, pack_tokens
from radixkv.generation import wire
from radixkv.generation.block_file import ImportedBlocks, chunks
from radixkv.generation.erasure import ErasedLevel, StoredPrefix
from radixkv.generation.request import ForkParams, GenerateParams, ModelInfo, Prompt, UnknownGenerationError
from radixkv.generation.stats import WorkerStats
from radixkv.generation.stream import GenerationStream, Started, StreamItem
from radixkv.generation.verification import Verification
from radixkv.net.channel import Credentials, make_channel
from radixkv.net.retry import retry_policy, retry_waits_s
from radixkv.util.closing import Closing
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1 import generation_pb2_grpc
from radixkv.wire.errors import error_from_rpc

__all__ = ["GenerationClient"]

DEFAULT_TIMEOUT_S = 30.0
FILE_TIMEOUT_S = 900.0
"""For an export or import as a whole."""


def _as(error: RadixKVError, message: str) -> RadixKVError:
    error.args = (message,)
    return error


def _rejected(message: str) -> RadixKVError:
    return _as(InvalidArgumentError("", "", ""), message)


_KINDS: dict[grpc.StatusCode, Callable[[str], RadixKVError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: _rejected,
    grpc.StatusCode.OUT_OF_RANGE: _rejected,
    grpc.StatusCode.FAILED_PRECONDITION: _rejected,
    grpc.StatusCode.NOT_FOUND: lambda message: _as(UnknownGenerationError(""), message),
    grpc.StatusCode.ALREADY_EXISTS: AbortedError,
    grpc.StatusCode.ABORTED: AbortedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitError,
    grpc.StatusCode.UNIMPLEMENTED: lambda message: _as(
        UnimplementedError(""), f"the server is no worker, or its engine lacks this call: {message}"
    ),
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
}
"""Errors of an engine that sends no details of ours, from its own message."""
_STREAM_KINDS = {**_KINDS, grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError}
"""A stream has no deadline of ours: it is the engine's."""


class GenerationClient(Closing):
    """A `Generator` at an address. Thread-safe. Without `close` it closes once neither it nor a stream of it is used any more.

    Args:
        address: ``host:port`` or ``unix:path``.
        timeout_s: for calls other than generations, which have no limit by default.
        credentials: key and TLS settings; None: no key, in plaintext.
        id_prefix: of its generation ids, for callers that distinguish workers by it.
        accept_s: time that a worker has to accept a generation, which otherwise ends with `UnavailableError`; None: any.
        retries: whether a failed call that has no answer yet is retried for about a second and a half.

    Every call raises the engine's errors, and `UnavailableError` if the worker cannot be reached. An engine that sends a status
    without the details of ours raises by that status, with its message.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: bool = True,
        credentials: Credentials | None = None,
        id_prefix: str = "",
        accept_s: float | None = None,
    ) -> None:
        self.address = address
        self._id_prefix = id_prefix
        self._accept_s = accept_s
        self._timeout_s = timeout_s
        self._retries = retries
        service = pb.DESCRIPTOR.services_by_name["Generation"]
        retrying = retry_policy(service) if retries else ("grpc.enable_retries", 0)
        self._channel = make_channel(address, credentials, (retrying,))
        weakref.finalize(self, self._channel.close).atexit = False
        self._is_closed = threading.Event()
        self._stub: Any = generation_pb2_grpc.GenerationStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def model(self) -> ModelInfo:
        """Facts of the model served."""
        return wire.MODEL.read(self._ask(self._stub.GetModel, pb.GetModelRequest()))

    def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes:
        """Packed token ids of `history` with the prompt appended; `namespace`: whose turn to use, None: the caller's own."""
        request = pb.TokenizeRequest(
            prompt=wire.prompt_to_proto(prompt), history=pack_tokens(history), namespace=namespace
        )
        token_ids: bytes = self._ask(self._stub.Tokenize, request).token_ids
        return token_ids

    def detokenize(self, token_ids: TokensLike) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._ask(self._stub.Detokenize, pb.DetokenizeRequest(token_ids=pack_tokens(token_ids))).text
        return text

    def spell(self, token_ids: TokensLike) -> list[bytes]:
        """Bytes of each token by itself; special tokens by name."""
        return list(
            self._ask(self._stub.SpellTokens, pb.SpellTokensRequest(token_ids=pack_tokens(token_ids))).spellings
        )

    def stats(self) -> WorkerStats:
        """Gauges and counters of the worker and of its cache."""
        return wire.stats_from_proto(self._ask(self._stub.GetStats, pb.GetStatsRequest()))

    def verify_block(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Verification:
        """Recompute the last block of a cached branch and compare; see `Engine.verify_block`."""
        request = pb.VerifyBlockRequest(token_ids=pack_tokens(tokens), namespace=namespace)
        return wire.VERIFICATION.read(self._ask(self._stub.VerifyBlock, request))

    def find_stored(
        self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE, num_cached_tokens: int = 0
    ) -> StoredPrefix:
        """Tokens of a prompt on the disk level of the worker's block store; see `Engine.find_stored`."""
        request = pb.FindStoredRequest(
            token_ids=pack_tokens(tokens), namespace=namespace, num_cached_tokens=num_cached_tokens
        )
        return wire.STORED_PREFIX.read(self._ask(self._stub.FindStored, request))

    def erase(self, namespace: str = DEFAULT_NAMESPACE) -> list[ErasedLevel]:
        """Destroy a namespace's keys in the worker's block store, and delete its blocks there; see `Engine.erase`."""
        response = self._ask(self._stub.Erase, pb.EraseRequest(namespace=namespace))
        return [wire.ERASED_LEVEL.read(level) for level in response.levels]

    def export(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Iterator[bytes]:
        """The KV of a history as one file, in pieces as they come; see `Engine.export`."""
        request = pb.ExportRequest(token_ids=pack_tokens(tokens), namespace=namespace)
        try:
            for response in self._stub.Export(request, timeout=FILE_TIMEOUT_S):
                yield response.chunk
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from None

    def import_(self, file: bytes | Iterable[bytes], namespace: str = DEFAULT_NAMESPACE) -> ImportedBlocks:
        """Store an exported file's blocks in the worker's block store; see `Engine.import_`."""
        pieces = chunks((file,) if isinstance(file, bytes) else file)
        first = pb.ImportRequest(namespace=namespace)
        requests = chain((first,), (pb.ImportRequest(chunk=piece) for piece in pieces))
        try:
            return wire.IMPORTED.read(self._stub.Import(requests, timeout=FILE_TIMEOUT_S))
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from None

    def generate(self, params: GenerateParams) -> GenerationStream:
        """Continue or score a prompt; see `Engine.generate`. Returns once the worker has accepted it."""
        request = wire.generate_to_proto(params)
        return self._begin(lambda: self._stub.Generate(request), params.timeout_s)

    def fork(self, params: ForkParams) -> GenerationStream:
        """Continue a generation from a token position; see `Engine.fork`. Returns once the worker has accepted it."""
        worker_id = params.generation_id.removeprefix(self._id_prefix)
        request = wire.fork_to_proto(replace(params, generation_id=worker_id))
        return self._begin(lambda: self._stub.ForkGeneration(request), params.timeout_s)

    def close(self) -> None:
        """Close the connection; open streams end with `UnavailableError`."""
        self._is_closed.set()
        self._channel.close()

    def _ask(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address, _KINDS) from None

    def _begin(self, call: Callable[[], Any], timeout_s: float | None) -> GenerationStream:
        """The stream of the first call that a worker accepts."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        for wait_s in retry_waits_s() if self._retries else ():
            try:
                return self._stream(call())
            except UnavailableError:
                if self._is_closed.is_set() or time.monotonic() + wait_s > until_s:
                    raise
            self._is_closed.wait(wait_s)
        return self._stream(call())

    def _stream(self, call: Any) -> GenerationStream:
        items = self._items(call)
        first = next(items) if self._accept_s is None else self._accepted(items, call, self._accept_s)
        if isinstance(first, Exception):
            raise first
        if not isinstance(first, Started):
            call.cancel()
            raise RadixKVError(f"the worker at {self.address} began a stream with {first!r}")
        waiting: list[StreamItem] = [first]
        return GenerationStream(
            first.generation_id, lambda: waiting.pop() if waiting else next(items, None), call.cancel
        )

    def _accepted(self, items: Iterator[StreamItem], call: Any, accept_s: float) -> StreamItem:
        """The first item; an error where it has not come in time."""
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            call.cancel()

        timer = threading.Timer(accept_s, give_up)
        timer.daemon = True
        timer.start()
        first = next(items)
        timer.cancel()
        if is_late.is_set():
            return UnavailableError(f"the worker at {self.address} did not accept the request within {accept_s:g} s")
        return first

    def _items(self, call: Any) -> Iterator[StreamItem]:
        try:
            for message in call:
                event = wire.event_from_proto(message)
                if isinstance(event, Started):
                    event = replace(event, generation_id=self._id_prefix + event.generation_id)
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            yield error_from_rpc(error, self.address, _STREAM_KINDS)
        yield None
