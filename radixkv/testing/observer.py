"""The observer: from the messages of a holder's streams alone, which rules the holder breaks.

    holder ── sent ──▶ Observer ──▶ service           one `Life` per incarnation: its Steps under way, its record
           ◀─ delivered ─┘  ◀──────

It knows no gRPC and reads no clock: its owner reports messages with the time. Answers count once they are acknowledged, since
a message that was written to a broken stream may never have arrived.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from radixkv.core.api import AcquireResult, AdoptionOp, Pending, StepOp, StepResult
from radixkv.core.errors import InvalidArgumentError, RadixKVError, UnknownSequenceError
from radixkv.core.tree.journal import without_records
from radixkv.testing.adoption import Adoption
from radixkv.testing.life import Flight, Life, Note, StreamWatch
from radixkv.testing.messages import describe_request, describe_response, line_of, name_of, short
from radixkv.testing.outlook import Outlook, named_id
from radixkv.testing.record import PoolRecord
from radixkv.testing.rules import RULES, Broken
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.journal import RECORDED, journal_from_proto
from radixkv.wire.steps import PENDING, notices_from_proto, op_from_proto, result_from_proto

__all__ = ["Observer"]

_KEPT_MESSAGES = 20_000
_KEPT_BREACHES = 5
_NUMBERS = re.compile(r"\w*\d\w*(?:\W+\w*\d\w*)*")

Report = Callable[..., None]


class Observer:
    """Follows every stream of one service over its restarts.

    Attributes:
        seen: how often each thing was exercised.
        breaches: of each rule the first ones that differ in more than numbers. num_breaches: all of them, by rule.
        messages: a line for each of the latest messages, by number.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.breaches: list[Broken] = []
        self.num_breaches: Counter[str] = Counter()
        self.messages: dict[int, str] = {}
        self._shown: set[int] = set()  # messages that show a breach
        self._kinds: dict[tuple[str, str], int] = {}  # breaches that differ in numbers alone: the index of the kept one
        self.lives: dict[int, Life] = {}
        self._num_messages = 0
        self._streams: set[StreamWatch] = set()
        self._ticked_at_s: float | None = None

    def broke(self, rule: str, facts: str, *messages: int) -> None:
        """Report a breach."""
        assert rule in RULES, rule
        self.num_breaches[rule] += 1
        self._shown.update(messages)
        kind = rule, _NUMBERS.sub("#", facts)
        index = self._kinds.setdefault(kind, len(self.breaches))
        if index < len(self.breaches):
            self.breaches[index] = self.breaches[index]._replace(num_times=self.breaches[index].num_times + 1)
        elif sum(breach.rule == rule for breach in self.breaches) < _KEPT_BREACHES:
            self.breaches.append(Broken(rule, short(facts), tuple(sorted({number for number in messages if number}))))
        else:
            del self._kinds[kind]

    def note(self, line: str) -> int:
        """Number and keep a line of the log of messages."""
        self._num_messages += 1
        self.messages[self._num_messages] = short(line)
        self.messages.pop(self._num_messages - _KEPT_MESSAGES, None)
        return self._num_messages

    def tick(self, now_s: float) -> None:
        """Notice silence; call it several times per TTL. Time in which it was not called does not count as silence."""
        gap_s = now_s - self._ticked_at_s if self._ticked_at_s is not None else 0.0
        self._ticked_at_s = now_s
        for stream in self._streams:
            if stream.limits is None or stream.is_silent:
                continue
            ttl_s = stream.limits.lease_ttl_ms / 1000
            if gap_s > ttl_s / 12:
                stream.heard_at_s += gap_s
            silence_s = now_s - stream.heard_at_s
            if silence_s > ttl_s * 2 / 3:
                stream.is_silent = True
                facts = (
                    f"nothing was sent for {silence_s:.2f} s; the TTL is {ttl_s:g} s, a third of it {ttl_s / 3:.2f} s"
                )
                self.broke("heartbeat", facts, stream.last_message)

    # -- streams

    def opened(self) -> StreamWatch:
        """A stream was opened."""
        self.seen["streams"] += 1
        stream = StreamWatch()
        self._streams.add(stream)
        return stream

    def ended(self, stream: StreamWatch, error: RadixKVError | None, *, is_lost: bool, is_fault: bool) -> None:
        """A stream is over. `is_lost`: the holder's lease is over, and it was informed; `is_fault`: it ended for a fault."""
        stream.is_over = True
        self._streams.discard(stream)
        number = self.note(f"the stream ends: {error or 'without an error'}")
        if stream.life is not None and stream.life.stream is stream and error is not None:
            stream.life.is_cut = True
        if stream.life is not None and is_lost and not stream.life.ended_by:
            stream.life.ended_by = number
            self.seen["leases lost"] += 1
        if is_fault and stream.last_message not in self._shown:
            self.broke("stream-accepted", f"the service ended the stream: {error}", stream.last_message, number)

    @property
    def has_streams(self) -> bool:
        """Whether a stream is open."""
        return bool(self._streams)

    def finished(self, exit_status: int | None) -> None:
        """The holder has ended; None: its exit status is not known."""
        for life in self.lives.values():
            if life.is_attached and not life.ended_by and not life.is_cut:
                self.broke(
                    "goodbye", f"incarnation {life.hello.incarnation:#x} was left attached", life.last_step_message
                )
        if exit_status:
            self.broke("holder-exit", f"exit status {exit_status}")

    # -- from the holder

    def sent(self, stream: StreamWatch, request: workers.AttachRequest, now_s: float) -> None:
        """The holder sent a message."""
        kind = request.WhichOneof("message") or "empty"
        number = self.note(describe_request(kind, request))
        stream.heard_at_s, stream.last_message, stream.is_silent = now_s, number, False
        if (kind == "hello") != (stream.hello_message == 0):
            self.broke("hello-first", f"{kind} is {'not ' * (kind != 'hello')}Hello, and is out of turn", number)
            return
        if kind == "hello":
            stream.hello_message = number
            self._hello(stream, request.hello, number)
            return
        life = stream.life
        if life is None or stream.limits is None:
            self.broke("attached-first", f"{kind} was sent before Attached", stream.hello_message, number)
            return
        if life.stream is not stream:
            return  # a late message of a stream that a newer one has replaced
        if kind == "step":
            self._step(stream, life, request.step, request.ByteSize(), number)
        elif kind == "heartbeat":
            self.seen["heartbeats"] += 1
            self._acknowledge(life, request.heartbeat, number)
        elif kind == "goodbye":
            self.seen["goodbyes"] += 1
            life.ended_by = number
        ttl_s = stream.limits.lease_ttl_ms / 1000
        for notices, (message, delivered_at_s) in list(life.unacknowledged.items()) if kind != "goodbye" else ():
            if now_s > delivered_at_s + ttl_s:
                self.broke("notices-ack", f"Notices {notices} is not acknowledged", message, number)
                del life.unacknowledged[notices]

    def _hello(self, stream: StreamWatch, hello: workers.Hello, number: int) -> None:
        life = self.lives.get(hello.incarnation)
        if not hello.incarnation:
            self.broke("incarnation-new", "the incarnation is 0", number)
        elif life is None:
            life = self.lives[hello.incarnation] = Life(hello, PoolRecord(hello.pool.block_size))
            life.acknowledged = life.delivered = hello.acknowledged_through
            life.notices_acknowledged = life.notices_delivered = hello.notices_acknowledged_through
        else:
            if life.ended_by:
                facts = f"incarnation {hello.incarnation:#x} had ended"
                self.broke("incarnation-new", facts, life.ended_by, number)
            if hello.pool != life.hello.pool:
                facts = f"{line_of(hello.pool)}, was {line_of(life.hello.pool)}"
                self.broke("same-pool", facts, number)
            if life.stream_number and hello.stream_number <= life.stream_number:
                facts = f"stream {hello.stream_number} follows stream {life.stream_number}"
                self.broke("stream-number", facts, number)
            self._acknowledge(life, hello, number)
            self._check_awaited(life, hello, number)
            for flight in life.flights.values():  # all answers that arrived are acknowledged
                flight.results = None
            life.notes = [note for note in life.notes if note.number <= hello.notices_acknowledged_through]
            life.unacknowledged.clear()
            life.delivered = life.acknowledged
            life.notices_delivered = life.notices_acknowledged
        if life is not None:
            life.hello = hello
            life.stream_number = max(life.stream_number, hello.stream_number)
            stream.life, life.stream = life, stream

    def _check_awaited(self, life: Life, hello: workers.Hello, number: int) -> None:
        listed = set(map(PENDING.read, hello.awaited))
        for pending in life.record.awaited if hello.can_adopt else ():
            if pending not in listed:
                facts = f"sequence {pending.seq_id} to {pending.num_tokens} is awaited, and Hello.awaited leaves it out"
                self.broke("awaited", facts, number)

    def _acknowledge(
        self,
        life: Life,
        message: workers.Hello | workers.Step | workers.Heartbeat,
        number: int,
        *,
        may_fall: bool = False,
    ) -> None:
        through, notices = message.acknowledged_through, message.notices_acknowledged_through
        for what, value, before, delivered in (
            ("answers", through, life.acknowledged, life.delivered),
            ("Notices", notices, life.notices_acknowledged, life.notices_delivered),
        ):
            if value > delivered:
                self.broke("ack-delivered", f"{what} to {value} are acknowledged, delivered to {delivered}", number)
            elif value < before and not may_fall:
                self.broke("ack-falls", f"{what} are acknowledged to {value}, were to {before}", number)
        while life.notices_acknowledged < min(notices, life.notices_delivered):
            life.notices_acknowledged += 1
            life.unacknowledged.pop(life.notices_acknowledged, None)
        while life.acknowledged < min(through, life.delivered):
            self._note_until(life, life.acknowledged)
            life.acknowledged += 1
            flight = life.flights.pop(life.acknowledged, None)
            if flight is not None and flight.results is not None:
                for facts in life.record.answered(flight.number, flight.ops, flight.results):
                    self.broke("insert-again", f"Step {flight.number}, {facts}", flight.message)
                if flight.recorded is not None:
                    life.record.keep(flight.recorded)
        self._note_until(life, life.acknowledged, life.notices_acknowledged)
        for received, (after_step, outcomes) in list(life.outcomes.items()):
            if received <= life.notices_acknowledged and after_step <= life.acknowledged:
                del life.outcomes[received]
                for outcome in outcomes:
                    life.record.awaited.pop(outcome, None)

    def _note_until(self, life: Life, step: int, acknowledged: int | None = None) -> None:
        """Apply the Notices that come after that Step: delivered before its successor, or acknowledged."""
        due = [
            note
            for note in life.notes
            if note.after_step <= step and (acknowledged is None or note.number <= acknowledged)
        ]
        for note in due:
            life.record.noted(note.entries, note.after_step)
            life.notices_noted = max(life.notices_noted, note.number)
            life.notes.remove(note)

    def _step(self, stream: StreamWatch, life: Life, step: workers.Step, size_bytes: int, number: int) -> None:
        assert stream.limits is not None
        num_before = sum(self.num_breaches.values())
        known = life.flights.get(step.number)
        self._check_number(stream, life, step, number)
        self._acknowledge(life, step, number, may_fall=known is not None)
        self._check_size(stream.limits, step, size_bytes, number)
        protos = list(step.ops)
        if known is not None:
            self.seen["Steps sent again"] += 1
            if protos != known.protos:
                facts = f"Step {step.number} has other ops than before"
                self.broke("resend-unchanged", facts, known.message, number)
            return
        self.seen["Steps"] += 1
        outlook = Outlook(
            life.record, [(flight.ops, flight.results) for flight in life.flights.values()], life.released
        )
        ops: list[StepOp | AdoptionOp | None] = []
        unsure: list[bool] = []
        for proto in protos:
            kind = proto.WhichOneof("op") or "unknown op"
            self.seen[kind] += 1
            try:
                op = op_from_proto(proto)
            except InvalidArgumentError as error:
                if proto.WhichOneof("op") is not None:
                    self.broke("op-valid", f"Step {step.number}, {kind}: {error}", number)
                ops.append(None)
                unsure.append(True)
                continue
            if life.adopting is not None:
                self._check_adoption(life, kind, op, number)
            for rule, facts in outlook.faults(op):
                self.broke(rule, f"Step {step.number}, {facts}", life.released.get(named_id(op), 0), number)
            unsure.append(outlook.is_unsure(op))
            outlook.expect(op, number)
            ops.append(op)
        is_clean = sum(self.num_breaches.values()) == num_before
        life.flights[step.number] = Flight(step.number, protos, ops, number, unsure, is_clean)

    def _check_number(self, stream: StreamWatch, life: Life, step: workers.Step, number: int) -> None:
        expected = stream.expected_step
        if step.number > expected:
            if expected in life.flights:
                facts = f"Step {step.number} is sent before the unanswered Step {expected} is sent again"
                self.broke("resend-first", facts, life.flights[expected].message, number)
            else:
                self.broke("step-numbers", f"Step {step.number} in place of {expected}", number)
        elif step.number < expected and step.number not in life.flights:
            self.broke("step-numbers", f"Step {step.number} was acknowledged before; the next is {expected}", number)
        stream.expected_step = max(expected, step.number + 1)

    def _check_size(self, limits: workers.Attached, step: workers.Step, size_bytes: int, number: int) -> None:
        num_unacknowledged = step.number - step.acknowledged_through
        if num_unacknowledged > limits.max_unacknowledged_steps:
            facts = f"{num_unacknowledged} Steps are unacknowledged, at most {limits.max_unacknowledged_steps} may be"
            self.broke("window", facts, number)
        num_children = max((max(op.fork.n, len(op.fork.seq_ids.values)) for op in step.ops), default=0)
        for what, value, limit in (
            ("ops", len(step.ops), limits.max_ops_per_step),
            ("children of a fork", num_children, limits.max_children_per_fork),
            ("bytes", size_bytes, limits.max_message_bytes),
        ):
            if value > limit:
                self.broke("step-size", f"a Step of {value} {what}; the limit is {limit}", number)

    def _check_adoption(self, life: Life, kind: str, op: StepOp | AdoptionOp, number: int) -> None:
        adopting = life.adopting
        assert adopting is not None
        found = adopting.faults(op)
        if adopting.is_over(op):
            life.adopting, found = None, adopting.missing(kind)
        for rule, facts in found:
            self.broke(rule, facts, number)

    # -- to the holder

    def delivered(self, stream: StreamWatch, response: workers.AttachResponse, now_s: float) -> None:
        """A message is written to the holder."""
        kind, life = response.WhichOneof("message"), stream.life
        number = self.note(describe_response(kind, response))
        if life is None:
            return
        if kind == "attached":
            self._attached(stream, life, response.attached, now_s)
        elif kind == "step_answer":
            self._answered(life, response.step_answer, number)
        elif kind == "notices" and response.notices.number > life.notices_delivered:
            notices = response.notices
            self.seen["Notices"] += 1
            life.notices_delivered = notices.number
            life.unacknowledged[notices.number] = number, now_s
            outcomes = [Pending(seq_id, num_tokens) for _, seq_id, num_tokens in notices_from_proto(notices)]
            life.outcomes[notices.number] = notices.after_step, outcomes
            entries = journal_from_proto(notices)
            if life.adopting is not None:
                life.adopting.noted(entries)
            if notices.number > life.notices_noted:
                life.notes.append(Note(notices.number, notices.after_step, entries))

    def _attached(self, stream: StreamWatch, life: Life, attached: workers.Attached, now_s: float) -> None:
        stream.limits, stream.heard_at_s = attached, now_s
        stream.expected_step = life.acknowledged + 1
        if life.is_attached and not attached.resumed:
            life.flights.clear()
            life.released.clear()
            for note in life.notes:  # received, and their Step not answered
                life.record.noted(without_records(note.entries), note.after_step)
            life.notes.clear()
            life.outcomes.clear()
            life.notices_noted = life.notices_acknowledged  # their numbers go on from there
            stream.expected_step = attached.next_step
            if life.hello.can_adopt:
                self.seen["restarts to adopt after"] += 1
                life.adopting = Adoption(life.record.begin_again(), life.record, life.hello)
                self.seen.update(life.adopting.counts)
                life.record.awaited = dict.fromkeys(map(PENDING.read, life.hello.awaited))
            else:
                life.record = PoolRecord(life.hello.pool.block_size)
        elif life.is_attached:
            self.seen["streams resumed"] += 1
        life.is_attached, life.is_cut = True, False

    def _answered(self, life: Life, answer: workers.StepAnswer, number: int) -> None:
        life.delivered = max(life.delivered, answer.number)
        flight = life.flights.get(answer.number)
        if flight is None or len(answer.results) != len(flight.ops):
            return
        results: list[StepResult] = []
        for op, proto, is_unsure in zip(flight.ops, answer.results, flight.unsure, strict=True):
            result = result_from_proto(op, proto) if op is not None else None
            results.append(result)
            copies = result if isinstance(result, list) else [result]
            self.seen["COPY"] += sum(len(getattr(each, "ops", ())) for each in copies)
            self.seen["Pending"] += isinstance(result, Pending)
            if isinstance(result, RadixKVError):
                self.seen[f"answered by {type(result).__name__}"] += 1
            is_lost = named_id(op) in life.record.lost
            is_refused = isinstance(result, InvalidArgumentError | UnknownSequenceError)
            if is_refused and flight.is_clean and not is_unsure and not is_lost:
                facts = f"Step {flight.number}, {name_of(op)}: {result}"
                self.broke("op-valid", facts, flight.message, number)
            if isinstance(result, AcquireResult) and result.num_stored_tokens:
                self.seen["prefixes reused"] += 1
        flight.results = results
        flight.recorded = RECORDED.read(answer.records) if answer.HasField("records") else None
