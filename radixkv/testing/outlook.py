"""The view of a holder that sends a Step: the acknowledged state, and the effect of its Steps under way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    AdoptionOp,
    AdoptSequenceOp,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    Pending,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import num_tokens
from radixkv.testing.record import PoolRecord

__all__ = ["Outlook", "named_id"]

AnyOp = StepOp | AdoptionOp


@dataclass
class _Look:
    """A sequence. `granted`: room whose blocks are known; `asked`: room that was asked for; `computed` None: not known yet."""

    length: int
    computed: int | None
    granted: int
    asked: int
    is_unsure: bool = False


def named_id(op: AnyOp | None) -> int:
    """The sequence that an op names, or -1."""
    seq_id = getattr(op, "seq_id", None)
    return seq_id if isinstance(seq_id, int) else -1


class Outlook:
    """The sequences that a holder may count on.

    Args:
        record: the state that is acknowledged.
        flights: the ops of each later Step, and its answer if it was delivered.
        released: the message that released a sequence, by id; `expect` adds to it.
    """

    def __init__(
        self,
        record: PoolRecord,
        flights: Iterable[tuple[Sequence[AnyOp | None], Sequence[StepResult] | None]],
        released: dict[int, int],
    ) -> None:
        self._record = record
        self._released = released
        self._looks = {
            seq_id: _Look(opened.num_tokens, opened.num_computed, opened.room, opened.room)
            for seq_id, opened in record.open.items()
        }
        for ops, results in flights:
            for index, op in enumerate(ops):
                if op is None:
                    continue
                if results is None:
                    self.expect(op)
                else:
                    self._apply(op, results[index])

    def faults(self, op: AnyOp) -> Iterator[tuple[str, str]]:
        """The rules that an op breaks, with the facts."""
        name = f"{type(op).__name__.removesuffix('Op').lower()}"
        match op:
            case AcquireOp(seq_id=int(seq_id)):
                yield from self._opening(name, (seq_id,))
            case ExtendOp() | InsertOp() | ForkOp() | ReleaseOp():
                look = self._looks.get(op.seq_id)
                if look is None:
                    if op.seq_id in self._record.lost:
                        return
                    rule = "use-after-release" if op.seq_id in self._released else "unknown-sequence"
                    reason = "was released" if rule == "use-after-release" else "is not open"
                    yield rule, f"{name}: sequence {op.seq_id} {reason}"
                elif isinstance(op, InsertOp):
                    yield from self._inserting(op, look)
                elif isinstance(op, ForkOp):
                    yield from self._opening(name, op.seq_ids or ())
                    most = look.length if look.computed is None else look.computed
                    if not 1 <= op.position <= most:
                        yield "fork-computed", f"fork of sequence {op.seq_id} at {op.position}, {most} are computed"
            case _:
                pass

    def _opening(self, name: str, seq_ids: Iterable[int]) -> Iterator[tuple[str, str]]:
        for seq_id in seq_ids:
            if seq_id in self._looks:
                yield "id-in-use", f"{name}: sequence {seq_id} is open"

    def _inserting(self, op: InsertOp, look: _Look) -> Iterator[tuple[str, str]]:
        facts = f"insert of sequence {op.seq_id} to {op.num_computed}: "
        length = look.length + num_tokens(op.new_tokens)
        if op.num_computed > length:
            yield "insert-tokens", facts + f"its history has {length} tokens"
        elif op.num_computed > look.asked:
            yield "insert-room", facts + f"its room is {look.asked}"
        elif op.num_computed > look.granted:
            yield "insert-early", facts + f"its room is {look.granted}, more is asked for and not answered yet"
        elif look.computed is not None and op.num_computed < look.computed:
            yield "insert-falls", facts + f"{look.computed} were computed"

    def is_unsure(self, op: AnyOp) -> bool:
        """Whether the state of the op's sequence depends on answers that are not there yet."""
        look = self._looks.get(named_id(op))
        return look is not None and look.is_unsure

    def expect(self, op: AnyOp, message: int = 0) -> None:
        """Count on the success of an op that is sent."""
        look = self._looks.get(named_id(op))
        match op:
            case AcquireOp(seq_id=int(seq_id)):
                self._look(seq_id, _Look(num_tokens(op.tokens), None, 0, num_tokens(op.tokens), True))
            case AdoptSequenceOp():
                self._look(op.seq_id, _Look(num_tokens(op.tokens), op.num_computed, op.room, op.room, True))
            case ForkOp(seq_ids=ids) if look is not None:
                for seq_id in ids or ():
                    self._look(seq_id, _Look(op.position, op.position, op.position, op.position, True))
            case ExtendOp() if look is not None:
                look.asked, look.is_unsure = max(look.asked, op.num_tokens), True
            case InsertOp() if look is not None:
                look.length += num_tokens(op.new_tokens)
                look.computed = max(look.computed or 0, op.num_computed)
            case ReleaseOp() if look is not None:
                del self._looks[op.seq_id]
                if message:
                    self._released[op.seq_id] = message
            case _:
                pass

    def _look(self, seq_id: int, look: _Look) -> None:
        self._looks[seq_id] = look
        self._released.pop(seq_id, None)

    def _apply(self, op: AnyOp, result: StepResult) -> None:
        """Take in a delivered answer."""
        look = self._looks.get(named_id(op))
        match op, result:
            case AdoptSequenceOp(), RadixKVError():
                self._record.lost.add(op.seq_id)
            case _, RadixKVError() | Pending():
                pass
            case AcquireOp(), AcquireResult():
                length, stored = num_tokens(op.tokens), result.num_stored_tokens
                self._looks[result.seq_id] = _Look(length, stored, length, length)
            case ForkOp(), list():
                for child in result:
                    self._looks[child.seq_id] = _Look(op.position, op.position, op.position, op.position)
            case ExtendOp(), ExtendResult() if look is not None:
                look.granted = max(look.granted, op.num_tokens)
                look.asked = max(look.asked, op.num_tokens)
            case _:
                self.expect(op)
                if look is not None:
                    look.is_unsure = False
