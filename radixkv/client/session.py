"""The holder's end of `Workers.Attach` as a state machine: numbered Steps out, answers in, over any number of streams.

    submit ──> _pending: [ sent on this stream | waiting for the window ] ──> answered, in order

A Step stays in `_pending` until its answer has arrived; after a broken stream the sent ones are sent again under their numbers.
A restarted service gets the pool's contents first, from the ledger, then the unanswered Steps, under new numbers. The session
opens no connection, starts no thread and reads no clock: `stream` does.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice, starmap
from typing import NamedTuple

from radixkv.client.adoption import adoption_steps, take_outcomes
from radixkv.client.journal import JournalBox
from radixkv.client.ledger import Ledger
from radixkv.client.notices import NoticeBox
from radixkv.core import validation
from radixkv.core.api import (
    AcquireOp,
    AdoptionOp,
    ForkOp,
    InsertOp,
    PoolShape,
    StepOp,
    StepResult,
    WorkerLoad,
)
from radixkv.core.errors import (
    InvalidArgumentError,
    LeaseError,
    LimitError,
    PermissionDeniedError,
    RadixKVError,
    UnimplementedError,
)
from radixkv.core.tree.journal import JournalEntry
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.features import FEATURES, unknown_option
from radixkv.wire.journal import RECORDED
from radixkv.wire.steps import PENDING, op_from_proto, op_to_proto, result_from_proto
from radixkv.wire.values import SHAPE, WORKER_LOAD, unpack_blocks

__all__ = ["FINAL_ERRORS", "HolderSession", "again"]

_LOG = logging.getLogger(__name__)

FINAL_ERRORS = (LeaseError, InvalidArgumentError, LimitError, PermissionDeniedError, UnimplementedError)
"""Errors of a stream after which no new stream is tried: the lease is lost with them."""

MAX_PENDING_STEPS = 65_536
_ADOPTION_WINDOW = 8
_ACKNOWLEDGEMENT_BYTES = 32  # a Step that is sent again may grow by its acknowledgements


class _Answer(Future[list[StepResult]]):
    """The answer to a Step. It cannot be cancelled."""

    def cancel(self) -> bool:
        """See `Future.cancel`."""
        return False


class _Pending(NamedTuple):
    """A Step without an answer. `future` is None for the session's own adoption Steps."""

    request: workers.AttachRequest
    ops: Sequence[StepOp | AdoptionOp]
    future: _Answer | None = None


class _Limits(NamedTuple):
    """Limits of the service, as plain numbers: they are read at every Step."""

    max_message_bytes: int
    max_unacknowledged_steps: int
    max_ops_per_step: int
    max_children_per_fork: int

    @classmethod
    def of(cls, attached: workers.Attached) -> _Limits:
        return cls(*(getattr(attached, name) for name in cls._fields))


class HolderSession:
    """Numbered Steps to one pool, each applied exactly once. Calls may come from any thread.

    Args:
        pool: the pool's shape.
        incarnation: names this life of the pool's memory.
        notices: receives the notices.
        holder_name: name of the holder.
        on_restart: called when a restarted service has accepted the holder; must be short and must not raise.
        on_freed: called with freed block ids, before the answer that brings them is complete; as `on_restart`.
        on_journal: called with changes of the pool by others, after the answers before them; as `on_restart`.
        load: returns how busy the holder is, for routers; on any thread, short, and must not raise. None: it reports nothing.

    Attributes:
        error: the reason for which the lease is lost for good; None while it is not.
        lease_ttl_s: how long the service waits for a message; 0 before it is known.
        num_restarts: how often a restarted service has accepted the holder.
    """

    def __init__(
        self,
        pool: PoolShape,
        incarnation: int,
        notices: NoticeBox,
        holder_name: str = "",
        on_restart: Callable[[], None] | None = None,
        on_freed: Callable[[array[int]], None] | None = None,
        on_journal: Callable[[Sequence[JournalEntry]], Sequence[Future[None]] | None] | None = None,
        load: Callable[[], WorkerLoad] | None = None,
    ) -> None:
        self.error: RadixKVError | None = None
        self.lease_ttl_s = 0.0
        self.num_restarts = 0
        given = {"freed_blocks": on_freed is not None, "erasures": on_journal is not None}
        self._hello = workers.Hello(
            pool=SHAPE.to_proto(pool),
            incarnation=incarnation,
            holder_name=holder_name,
            can_adopt=True,
            features=[name for name in FEATURES if given.get(name, True)],
        )
        self._notices = notices
        self._on_restart, self._on_freed = on_restart, on_freed
        self._load = load
        self._sent_load: WorkerLoad | None = None
        self._pool = pool
        self._ledger: Ledger | None = None  # once the service has accepted the pool
        self._journal = JournalBox(notices, on_journal)
        # Never held while a call is opened or cancelled: `receive` takes it inside gRPC's own.
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._num_sent = 0
        self._num_answered = 0
        self._adoption: Iterator[_Pending] | None = None  # Steps that a restarted service has not got yet
        self._telling: deque[_Pending] = deque()  # those of them that are under way; `_pending` follow them
        self._limits = _Limits.of(workers.Attached())
        self._features: Collection[str] = ()  # of the service
        self._spare_answer: _Answer | None = None
        self._opened_send: Callable[[bytes], None] | None = None  # of the stream that is open
        self._send: Callable[[bytes], None] | None = None  # the same, once that stream is attached

    @property
    def features(self) -> Collection[str]:
        """The features of the service that accepted the holder last."""
        return self._features

    @property
    def records(self) -> Mapping[int, bytes]:
        """The latest record of each block."""
        return self._ledger.records if self._ledger is not None else {}

    @property
    def is_attached(self) -> bool:
        """Whether the service has accepted the holder on the open stream."""
        return self._send is not None

    @property
    def is_resumed(self) -> bool:
        """Whether that service knows all that the holder has; a restarted one is sent it first."""
        with self._lock:
            return self._send is not None and self._adoption is None

    # -- Steps --------------------------------------------------------------------------------------------------------

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        """Send a Step, now or when the window allows; see `RemoteHolder.submit`. O(size)."""
        validation.check_ops(ops)
        request = workers.AttachRequest()
        step = request.step
        protos = step.ops
        kept = []  # until they are answered, whatever the caller does with the ops' lists meanwhile
        for op in ops:
            proto = protos.add()
            op_to_proto(op, proto)
            kept.append(op if _is_frozen(op) else op_from_proto(proto))
            if isinstance(op, AcquireOp):
                if (option := unknown_option(op, self._features)) is not None:
                    raise UnimplementedError(option)
            elif isinstance(op, ForkOp) and op.n > self._limits.max_children_per_fork:
                raise LimitError(f"a fork of {op.n}; the service takes at most {self._limits.max_children_per_fork}")
        if len(protos) > self._limits.max_ops_per_step:
            raise LimitError(f"a Step of {len(protos)} ops; the service takes at most {self._limits.max_ops_per_step}")
        with self._lock:
            if self.error is not None:
                raise again(self.error)
            num_pending = len(self._pending)
            if num_pending >= MAX_PENDING_STEPS:
                raise LimitError(f"{num_pending} Steps wait for an answer; no more are taken")
            step.number = self._num_answered + num_pending + 1
            step.acknowledged_through = self._num_answered
            step.notices_acknowledged_through = self._notices.num_handled
            if self._load is not None:
                self._write_load(step)
            message = request.SerializeToString()
            if len(message) > (limit_bytes := self._limits.max_message_bytes - _ACKNOWLEDGEMENT_BYTES):
                raise LimitError(
                    f"a Step of {len(message)} bytes; the service takes at most {limit_bytes} in one message"
                )
            answer, self._spare_answer = self._spare_answer or _Answer(), None
            self._pending.append(_Pending(request, kept, answer))
            if (
                self._send is not None
                and num_pending == self._num_sent < self._limits.max_unacknowledged_steps
                and self._adoption is None
            ):
                self._send(message)
                self._num_sent += 1
        return answer

    def prepare(self) -> None:
        """Make the answer of the next Step, while the last one travels. One thread calls it, without the lock."""
        if self._spare_answer is None:
            self._spare_answer = _Answer()

    def _send_what_fits(self) -> None:
        """Send waiting Steps while the window of unacknowledged ones allows. The lock is held."""
        send = self._send
        window = self._limits.max_unacknowledged_steps
        if send is not None and self._adoption is not None:
            window = min(window, _ADOPTION_WINDOW)
            self._telling.extend(islice(self._adoption, window - len(self._telling)))
            if not self._telling:
                self._adoption = None
        unanswered = self._pending if self._adoption is None else self._telling
        while send is not None and self._num_sent < min(len(unanswered), window):
            request = unanswered[self._num_sent].request
            request.step.number = self._num_answered + self._num_sent + 1
            request.step.acknowledged_through = self._num_answered
            request.step.notices_acknowledged_through = self._notices.num_handled
            self._write_load(request.step)
            send(request.SerializeToString())
            self._num_sent += 1

    # -- streams ------------------------------------------------------------------------------------------------------

    def open(self, send: Callable[[bytes], None]) -> None:
        """Begin a stream with Hello. `send` takes every later message of this stream too, in order.

        `send` must be short and must not raise; it is called with the lock of this session held.
        """
        with self._lock:
            self._hello.acknowledged_through = self._num_answered
            self._hello.notices_acknowledged_through = self._notices.num_received
            self._hello.stream_number += 1
            del self._hello.awaited[:]
            self._hello.awaited.extend(map(PENDING.to_proto, self._notices.awaited))
            if self._load is not None:
                WORKER_LOAD.write(self._load(), self._hello.load)
            self._opened_send = send
            send(workers.AttachRequest(hello=self._hello).SerializeToString())

    def receive(self, message: bytes, send: Callable[[bytes], None] | None = None) -> None:
        """Take in a message: answers complete their futures here and now.

        Args:
            message: a message of the service.
            send: the `send` passed to `open` for the stream of the message: late messages of an ended stream are dropped. None:
                the open one's.

        Raises:
            LeaseError: the message is impossible; the stream is to be closed.
        """
        response = workers.AttachResponse.FromString(message)
        if response.HasField("step_answer"):
            self._take_answer(response.step_answer, send)
        elif response.HasField("notices"):
            self._take_notices(response.notices, send)
        elif response.HasField("attached"):
            self._take_attached(response.attached, send)
        self._journal.await_erasures(self.heartbeat)

    def announce(self, generation_address: str, fingerprint: str) -> None:
        """From the next stream on, say where Generation is served, and what."""
        with self._lock:
            self._hello.generation_address, self._hello.fingerprint = generation_address, fingerprint

    def _write_load(self, message: workers.Step | workers.Heartbeat) -> None:
        """Add the present load, for a service that reads it. The lock is held."""
        if self._load is not None and self.reports_load:
            self._sent_load = self._load()
            WORKER_LOAD.write(self._sent_load, message.load)

    @property
    def reports_load(self) -> bool:
        """Whether the service gets the load of this holder."""
        return self._load is not None and "load" in self._features

    def report_load(self) -> None:
        """Send a heartbeat with the load, if that has changed and the holder is attached."""
        if self._load is not None and self._load() != self._sent_load:
            self.heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat, if the holder is attached."""
        with self._lock:
            if self._send is not None:
                heartbeat = workers.Heartbeat(
                    acknowledged_through=self._num_answered, notices_acknowledged_through=self._notices.num_handled
                )
                self._write_load(heartbeat)
                self._send(workers.AttachRequest(heartbeat=heartbeat).SerializeToString())

    def stop_sending(self) -> None:
        """Send nothing else on this stream, if the holder is attached: it is about to end."""
        with self._lock:
            self._send = None

    def lose_stream(self) -> None:
        """The stream has ended: unanswered Steps are sent again on the next. May be repeated."""
        with self._lock:
            self._opened_send = self._send = None

    def say_goodbye(self) -> bool:
        """End the lease by the last message of this stream; returns whether the holder was attached."""
        with self._lock:
            if self._send is None:
                return False
            self._send(workers.AttachRequest(goodbye=workers.Goodbye()).SerializeToString())
            self._send = None
            return True

    def refuse(self, error: RadixKVError) -> None:
        """Stop accepting Steps; those under way go on. The first error stays."""
        with self._lock:
            if self.error is None:
                self.error = error

    def fail(self, error: RadixKVError) -> None:
        """Fail every outstanding Step with this error, and every later one with the first of them."""
        self.refuse(error)
        with self._lock:
            outstanding, self._pending = self._pending, deque()
            self._telling.clear()
            self._adoption = None
            self._num_sent = 0
        for pending in outstanding:
            assert pending.future is not None, "who submits a Step awaits its answer"
            pending.future.set_exception(again(error))

    def _take_attached(self, attached: workers.Attached, send: Callable[[bytes], None] | None) -> None:
        with self._lock:
            if self._is_over(send):
                return
            self._limits = _Limits.of(attached)
            self._features = frozenset(attached.features)
            if self._on_freed is not None and "freed_blocks" not in self._features:
                raise UnimplementedError("on_freed")
            self.lease_ttl_s = attached.lease_ttl_ms / 1000
            is_restart = self._ledger is not None and not attached.resumed
            if self._ledger is None:
                self._ledger = Ledger(self._pool)
            elif is_restart:
                self._begin_again(self._ledger)
            self._send = self._opened_send
            self._num_sent = 0
            self._send_what_fits()
        if is_restart and self._on_restart is not None:
            self._on_restart()

    def _is_over(self, send: Callable[[bytes], None] | None) -> bool:
        """Whether that stream is not the open one. The lock is held."""
        return self._opened_send is None or (send is not None and send is not self._opened_send)

    def _begin_again(self, ledger: Ledger) -> None:
        """Start the adoption in a restarted service; pending Steps follow it. The lock is held."""
        self.num_restarts += 1
        self._notices.lost(outcomes_follow="awaited" in self._features)
        for pending in self._pending:
            for op, proto in zip(pending.ops, pending.request.step.ops, strict=True):
                if unknown_option(op, self._features) is not None:
                    proto.Clear()  # to an earlier version, which rejects an unset op, and would ignore the option
        self._journal.note_all(ledger)
        self._telling.clear()
        steps = adoption_steps(ledger, self._limits.max_message_bytes, self._limits.max_ops_per_step, self._features)
        self._adoption = starmap(_Pending, steps)

    def _take_answer(self, answer: workers.StepAnswer, send: Callable[[bytes], None] | None) -> None:
        with self._lock:
            if self._is_over(send):
                return
            if answer.number != self._num_answered + 1 or not self._num_sent:
                raise LeaseError(f"the service answered Step {answer.number} in place of {self._num_answered + 1}")
            pending = self._pending.popleft() if self._adoption is None else self._telling.popleft()
            self._num_answered = answer.number
            self._num_sent -= 1
        try:
            results = self._apply(pending, answer)
        except Exception as error:  # the ledger would miss this Step
            lost = LeaseError(f"the answer to Step {answer.number} could not be applied: {error!r}")
            if pending.future is not None:
                pending.future.set_exception(again(lost))
            raise lost from error
        if pending.future is not None:
            pending.future.set_result(results)
        self._notices.answered(answer.number)

    def _apply(self, pending: _Pending, answer: workers.StepAnswer) -> list[StepResult]:
        """Read and record the answer to a Step, and send the Steps that waited for it."""
        with self._lock:
            results = [result_from_proto(op, told) for op, told in zip(pending.ops, answer.results, strict=True)]
            self._notices.await_outcomes(results)
            assert self._ledger is not None, "who was attached follows his Steps"
            if answer.HasField("records"):
                self._ledger.keep(RECORDED.read(answer.records))
            if pending.future is None:
                take_outcomes(pending.ops, results, self._ledger, self._notices)
            else:
                self._ledger.answered(pending.ops, results)
            self._journal.answered(answer.number, self._ledger)
            if self._adoption is not None or self._num_sent < len(self._pending):
                self._send_what_fits()
        if answer.freed_block_ids and self._on_freed is not None:
            self._on_freed(unpack_blocks(answer.freed_block_ids, "freed_block_ids"))
        return results

    def _take_notices(self, notices: workers.Notices, send: Callable[[bytes], None] | None) -> None:
        with self._lock:
            if self._is_over(send):
                return  # sent again, unless the service that sent it is gone
            self._journal.take(notices, self._num_answered, self._ledger)
            self._notices.hold(notices)
        self._notices.release()


def _is_frozen(op: StepOp) -> bool:
    """Whether the tokens and ranges of an op cannot change."""
    if isinstance(op, InsertOp):
        return type(op.new_tokens) is bytes
    return type(getattr(op, "tokens", b"")) is bytes and type(getattr(op, "retention", ())) is tuple


def again(error: RadixKVError) -> RadixKVError:
    """A copy of an error, since several threads may raise it."""
    copy = type(error).__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.args = error.args
    return copy
