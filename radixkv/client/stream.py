"""The holder's end of `Workers.Attach`: numbered Steps out, answers in, across as many streams as it takes.

    submit ──> _pending: [ sent on this stream | waiting for the window ] ──> answered, in order

A Step stays in `_pending` until its answer has arrived; after a broken stream the sent ones are sent again under their
numbers. Two threads serve a holder: one opens streams and reads answers, one sends heartbeats and notices silence.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from radixkv.client.notices import NoticeBox
from radixkv.core.api import ForkOp, StepOp, StepResult
from radixkv.core.errors import InvalidArgumentError, LeaseError, LimitError, RadixKVError, UnavailableError
from radixkv.service.conversion import op_to_proto, result_from_proto
from radixkv.service.status import error_from_rpc
from radixkv.v1 import workers_pb2 as workers

__all__ = ["StepStream"]

MAX_PENDING_STEPS = 65_536
_METHOD = f"/{workers.DESCRIPTOR.services_by_name['Workers'].full_name}/Attach"
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.02, 0.5
_CLOSE_TIMEOUT_S = 2.0
_ACKNOWLEDGEMENT_BYTES = 32  # a Step that is sent again may grow by its acknowledgements
_FINAL = (LeaseError, InvalidArgumentError, LimitError)  # errors that no new stream can mend


class _Pending(NamedTuple):
    request: workers.AttachRequest
    future: Future[list[StepResult]]


class _Limits(NamedTuple):
    """What the service takes, as plain numbers: they are read at every Step."""

    max_message_bytes: int
    max_unacknowledged_steps: int
    max_ops_per_step: int
    max_children_per_fork: int

    @classmethod
    def of(cls, attached: workers.Attached) -> _Limits:
        return cls(*(getattr(attached, name) for name in cls._fields))


class StepStream:
    """Numbered Steps to one pool, each applied exactly once.

    Args:
        channel: to the service; the caller closes it after this.
        address: of the service, for messages.
        hello: who attaches, to what.
        timeout_s: how long the first attachment may take; the constructor waits for it.
        notices: where notices go.

    Raises:
        UnavailableError: the service could not be reached in time.
        LeaseError, InvalidArgumentError, LimitError: it refused.
    """

    def __init__(
        self, channel: grpc.Channel, address: str, hello: workers.Hello, timeout_s: float, notices: NoticeBox
    ) -> None:
        self._attach: Any = channel.stream_stream(_METHOD, response_deserializer=self._receive)
        self._address = address
        self._hello = hello
        self._notices = notices
        # Never held while a call is opened or cancelled: `_receive` takes it inside gRPC's own.
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._num_sent = 0
        self._next_number = 1
        self._num_answered = 0
        self._limits = _Limits.of(workers.Attached())
        self._spare_future = _new_future()
        self._requests: SimpleQueue[bytes | None] | None = None  # of the attached stream; None while there is none
        self._call: Any = None
        self._error: RadixKVError | None = None
        self._closing = threading.Event()  # a goodbye is due, or was said
        self._abandoned = threading.Event()  # no more streams
        self._opened: Future[None] = Future()
        self._patience_s = timeout_s
        self._heard_at_s = time.monotonic()
        self._reader = threading.Thread(target=self._run, name="radixkv-holder", daemon=True)
        self._pulse = threading.Thread(target=self._keep_alive, name="radixkv-heartbeat", daemon=True)
        self._reader.start()
        try:
            self._opened.result(timeout_s)
        except TimeoutError:
            self.close(wait_s=0.0)
            raise UnavailableError(f"the service at {address} did not answer within {timeout_s:g} s") from None
        except RadixKVError:
            self.close(wait_s=0.0)
            raise
        self._pulse.start()

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        """Send a Step, now or when the window allows; see `RemoteHolder.submit`. O(size)."""
        request = workers.AttachRequest()
        step = request.step
        protos = step.ops
        for op in ops:
            op_to_proto(op, protos.add())
            if isinstance(op, ForkOp) and op.n > self._limits.max_children_per_fork:
                raise LimitError(f"a fork of {op.n}; the service takes at most {self._limits.max_children_per_fork}")
        if len(protos) > self._limits.max_ops_per_step:
            raise LimitError(f"a Step of {len(protos)} ops; the service takes at most {self._limits.max_ops_per_step}")
        with self._lock:
            if self._error is not None:
                raise _again(self._error)
            num_pending = len(self._pending)
            if num_pending >= MAX_PENDING_STEPS:
                raise LimitError(f"{num_pending} Steps wait for an answer; no more are taken")
            step.number = self._next_number
            step.acknowledged_through = self._num_answered
            step.notices_acknowledged_through = self._notices.num_received
            message = request.SerializeToString()
            self._check_size(len(message))
            self._next_number += 1
            future = self._spare_future
            self._pending.append(_Pending(request, future))
            if self._requests is not None and num_pending == self._num_sent < self._limits.max_unacknowledged_steps:
                self._requests.put(message)
                self._num_sent += 1
            self._spare_future = _new_future()  # made while the message travels, not before it
        return future

    def _check_size(self, size_bytes: int) -> None:
        limit_bytes = self._limits.max_message_bytes - _ACKNOWLEDGEMENT_BYTES
        if size_bytes > limit_bytes:
            raise LimitError(
                f"a Step of {size_bytes} bytes; the service takes at most {limit_bytes} bytes in one message"
            )

    def _send_what_fits(self) -> None:
        """Put Steps that wait on the stream while the window of unacknowledged ones allows. The lock is held."""
        requests = self._requests
        window = self._limits.max_unacknowledged_steps
        while requests is not None and self._num_sent < min(len(self._pending), window):
            request = self._pending[self._num_sent].request
            request.step.acknowledged_through = self._num_answered
            request.step.notices_acknowledged_through = self._notices.num_received
            requests.put(request.SerializeToString())
            self._num_sent += 1

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
            if isinstance(error, _FINAL):
                self._fail(error)
                return
            if self._heard_at_s != heard_at_s:  # a stream that worked is opened anew without delay
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
        """Open one stream and read it to its end; why it ended."""
        requests: SimpleQueue[bytes | None] = SimpleQueue()
        with self._lock:
            self._hello.acknowledged_through = self._num_answered
            self._hello.notices_acknowledged_through = self._notices.num_received
            requests.put(workers.AttachRequest(hello=self._hello).SerializeToString())
        call = self._attach(_until_none(requests))
        self._call = call
        if self._abandoned.is_set():
            call.cancel()
        try:
            for response in call:
                if isinstance(response, RadixKVError):
                    call.cancel()
                    return response
                if response.HasField("attached"):
                    self._take_attached(response.attached, requests)
        except grpc.RpcError as error:
            return error_from_rpc(error, self._address)
        finally:
            with self._lock:
                self._requests = None
            requests.put(None)
        return UnavailableError(f"the service at {self._address} has ended the stream")

    def _receive(self, message: bytes) -> workers.AttachResponse | RadixKVError:
        """Read one message on the channel's own thread, for the reading thread to look at. Never raises.

        Answers are taken here and now, since to wake the reading thread first would cost every caller its wake-up time.
        """
        self._heard_at_s = time.monotonic()
        try:
            response = workers.AttachResponse.FromString(message)
            if response.HasField("step_answer"):
                self._take_answer(response.step_answer)
            elif response.HasField("notices"):
                self._notices.receive(response.notices)
        except RadixKVError as error:
            return error
        return response

    def _take_attached(self, attached: workers.Attached, requests: SimpleQueue[bytes | None]) -> None:
        with self._lock:
            self._limits = _Limits.of(attached)
            self._patience_s = attached.lease_ttl_ms / 1000
            self._requests = requests
            self._num_sent = 0
            self._send_what_fits()
            if self._closing.is_set():
                self._say_goodbye()
        if not self._opened.done():
            self._opened.set_result(None)

    def _take_answer(self, answer: workers.StepAnswer) -> None:
        results = [result_from_proto(result) for result in answer.results]
        with self._lock:
            if answer.number != self._num_answered + 1 or not self._num_sent:
                raise LeaseError(f"the service answered Step {answer.number} in place of {self._num_answered + 1}")
            self._num_answered = answer.number
            self._num_sent -= 1
            future = self._pending.popleft().future
            if self._num_sent < len(self._pending):
                self._send_what_fits()
        future.set_result(results)
        self._notices.answered(answer.number)

    def _fail(self, error: RadixKVError) -> None:
        """Fail every outstanding Step, and every later one, with this error."""
        with self._lock:
            if self._error is None:
                self._error = error
            outstanding, self._pending = self._pending, deque()
            self._num_sent = 0
        if not self._opened.done():
            self._opened.set_exception(_again(error))
        for pending in outstanding:
            pending.future.set_exception(_again(error))

    # -- the heartbeat thread -----------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        """Three heartbeats per TTL; a stream on which nothing is heard for a TTL is given up."""
        while not self._closing.wait(self._patience_s / 3) and self._error is None:
            with self._lock:
                requests, call = self._requests, self._call
                heartbeat = workers.Heartbeat(
                    acknowledged_through=self._num_answered, notices_acknowledged_through=self._notices.num_received
                )
            if requests is not None:
                requests.put(workers.AttachRequest(heartbeat=heartbeat).SerializeToString())
            if call is not None and time.monotonic() > self._heard_at_s + self._patience_s:
                call.cancel()

    # -- ending -------------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Break the stream, as a network would."""
        with self._lock:
            self._requests = None
            call = self._call
        if call is not None:
            call.cancel()

    def close(self, wait_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Say goodbye, wait so long for the end of the stream, and fail what is outstanding. May be repeated."""
        with self._lock:
            self._closing.set()
            self._say_goodbye()
            if self._error is None:
                self._error = LeaseError("this holder was closed")
        self._reader.join(wait_s)
        self._abandoned.set()
        if self._call is not None:  # one that is opened after this look is cancelled by its opener
            self._call.cancel()
        self._reader.join()
        if self._pulse.ident is not None:
            self._pulse.join()
        self._fail(LeaseError("this holder was closed"))

    def _say_goodbye(self) -> None:
        """End the lease by the last message of this stream, if it is attached; no other is opened. The lock is held."""
        if self._requests is not None:
            self._requests.put(workers.AttachRequest(goodbye=workers.Goodbye()).SerializeToString())
            self._requests.put(None)
            self._requests = None
            self._abandoned.set()


def _new_future() -> Future[list[StepResult]]:
    future: Future[list[StepResult]] = Future()
    future.set_running_or_notify_cancel()
    return future


def _until_none(requests: SimpleQueue[bytes | None]) -> Iterator[bytes]:
    while (request := requests.get()) is not None:
        yield request


def _again(error: RadixKVError) -> RadixKVError:
    """The same error as an object of its own, since several threads may raise it."""
    copy = type(error).__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.args = error.args
    return copy
