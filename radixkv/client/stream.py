"""A holder's streams over gRPC: two threads that serve its `HolderSession`, and its retries.

One thread opens streams, one after the other, and reads them; one sends heartbeats and notices silence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

import grpc

from radixkv.client.session import FINAL_ERRORS, HolderSession, again
from radixkv.core.api import StepOp, StepResult
from radixkv.core.errors import LeaseError, RadixKVError, UnauthenticatedError, UnavailableError
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.errors import error_from_rpc

__all__ = ["StepStream"]

_METHOD = f"/{workers.DESCRIPTOR.services_by_name['Workers'].full_name}/Attach"
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.02, 0.5
_CLOSE_TIMEOUT_S = 2.0
_LOAD_S = 0.1  # between two looks at whether the load has changed


class StepStream:
    """Numbered Steps to one pool, each applied exactly once.

    Args:
        channel: to the service; the caller closes it after this.
        address: of the service, for messages.
        session: the protocol's state.
        timeout_s: how long the first attachment may take; the constructor waits for it.
        patience_s: how long to try to reach a lost service, before the lease is given up; None: for its TTL.

    Raises:
        UnavailableError: the service could not be reached in time.
        LeaseError, InvalidArgumentError, LimitError, UnauthenticatedError, PermissionDeniedError: the service refused.
        UnimplementedError: the service lacks a feature that the holder needs.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        session: HolderSession,
        timeout_s: float,
        patience_s: float | None = None,
    ) -> None:
        self._channel = channel
        self._address = address
        self._session = session
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()  # of the stream that is open
        self._call: Any = None
        self._closing = threading.Event()  # a goodbye is due, or was sent
        self._abandoned = threading.Event()  # open no other stream
        self._opened: Future[None] = Future()
        self._timeout_s = timeout_s
        self._given_patience_s = patience_s
        self._heard_at_s = time.monotonic()
        self._reader = threading.Thread(target=self._run, name="radixkv-holder", daemon=True)
        self._pulse = threading.Thread(target=self._keep_alive, name="radixkv-heartbeat", daemon=True)
        self._reader.start()
        try:
            self._opened.result(timeout_s)
        except BaseException as error:  # an interrupt too
            self.close(wait_s=0.0)
            if isinstance(error, TimeoutError):
                raise UnavailableError(
                    f"the service at {address} did not answer within {timeout_s:g} s; start it with `radixkv serve`, or give "
                    "another address"
                ) from None
            raise
        self._pulse.start()

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        """Send a Step, now or when the window allows; see `RemoteHolder.submit`. O(size)."""
        return self._session.submit(ops)

    @property
    def features(self) -> Collection[str]:
        """See `RemoteHolder.features`."""
        return self._session.features

    @property
    def _silence_s(self) -> float:
        """The longest time without a message on a stream."""
        return self._session.lease_ttl_s or self._timeout_s

    @property
    def _patience_s(self) -> float:
        """The longest time without a working stream."""
        return self._silence_s if self._given_patience_s is None else max(self._silence_s, self._given_patience_s)

    # -- the reading thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._hold()
        except Exception as error:
            self._fail(RadixKVError(f"the holder's own thread failed: {error!r}"))
            raise

    def _hold(self) -> None:
        """Open streams, one after the other, until the holder is closed, refused, or out of patience."""
        backoff_s = _FIRST_BACKOFF_S
        while not self._abandoned.is_set():
            heard_at_s = self._heard_at_s
            error = self._converse()
            is_unknown = (
                isinstance(error, UnauthenticatedError) and not self._opened.done()
            )  # later its token may be replaced
            if isinstance(error, FINAL_ERRORS) or is_unknown:
                self._fail(error)
                return
            if self._heard_at_s != heard_at_s:  # after a stream that worked, retry without delay
                backoff_s = _FIRST_BACKOFF_S
                continue
            if self._closing.is_set():
                return
            if time.monotonic() + backoff_s > self._heard_at_s + self._patience_s:
                if self._opened.done():
                    error = UnavailableError(f"out of reach for {self._patience_s:g} s, so the lease is lost: {error}")
                self._fail(error)
                return
            self._closing.wait(backoff_s)
            backoff_s = min(backoff_s * 2, _LONGEST_BACKOFF_S)

    def _converse(self) -> RadixKVError:
        """Open one stream and read it to its end; returns why it ended."""
        requests = self._requests = SimpleQueue()
        send = requests.put
        self._session.open(send)
        attach: Any = self._channel.stream_stream(_METHOD, response_deserializer=partial(self._receive, send))
        call = self._call = attach(self._sent(requests))
        if self._abandoned.is_set():
            call.cancel()
        try:
            is_attached = False
            failure: RadixKVError | Literal[False]
            for failure in call:
                if failure:
                    call.cancel()
                    return failure
                if not is_attached and self._session.is_attached:
                    is_attached = True
                    self._attached()
        except grpc.RpcError as error:
            return error_from_rpc(error, self._address)
        finally:
            self._session.lose_stream()
            requests.put(None)
        return UnavailableError(f"the service at {self._address} has ended the stream")

    def _sent(self, requests: SimpleQueue[bytes | None]) -> Iterator[bytes]:
        """The messages of a stream, up to a None."""
        while (request := requests.get()) is not None:
            yield request
            self._session.prepare()  # while the message travels

    def _attached(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)
        if self._closing.is_set():
            self._say_goodbye()

    def _receive(self, send: Callable[[bytes], None], message: bytes) -> RadixKVError | Literal[False]:
        """Take in one message on the channel's own thread; returns an error for the reading thread to handle. Never raises.

        Waking the reading thread first would add its wake-up time to every call.
        """
        self._heard_at_s = time.monotonic()
        try:
            self._session.receive(message, send)
        except RadixKVError as error:
            return error
        except Exception as error:
            return LeaseError(f"a message of the service could not be handled: {error!r}")
        return False  # gRPC reads None as an unreadable message

    def _fail(self, error: RadixKVError) -> None:
        """Fail every outstanding Step, and every later one, with this error."""
        self._session.fail(error)
        if not self._opened.done():
            self._opened.set_exception(again(error))

    # -- the heartbeat thread -----------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        """Send three heartbeats per TTL, and one for each change of the load; cancel a stream without a message for a TTL."""
        beaten_at_s = time.monotonic()
        while self._session.error is None:
            period_s = self._silence_s / 3
            if self._closing.wait(min(period_s, _LOAD_S) if self._session.reports_load else period_s):
                return
            call, now_s = self._call, time.monotonic()
            if not self._session.reports_load or now_s - beaten_at_s >= period_s:
                self._session.heartbeat()
                beaten_at_s = now_s
            else:
                self._session.report_load()
            if call is not None and time.monotonic() > self._heard_at_s + self._silence_s:
                call.cancel()

    # -- ending -------------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Break the stream, as a network would."""
        self._session.stop_sending()
        if self._call is not None:
            self._call.cancel()

    def close(self, wait_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Send goodbye, wait `wait_s` for the end of the stream, and fail outstanding Steps. May be repeated."""
        self._closing.set()
        self._session.refuse(LeaseError("this holder was closed"))
        self._say_goodbye()
        self._reader.join(wait_s)
        self._abandoned.set()
        if self._call is not None:  # a call opened after this check is cancelled by its opener
            self._call.cancel()
        self._reader.join()
        if self._pulse.ident is not None:
            self._pulse.join()
        self._fail(LeaseError("this holder was closed"))

    def _say_goodbye(self) -> None:
        """End the lease by the last message of this stream, if it is attached; no other is opened."""
        if self._session.say_goodbye():
            self._requests.put(None)
            self._abandoned.set()
