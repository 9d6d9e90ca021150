"""The arena: keeps lines in spans of their own, between the engine's rounds and the cache of its pool.

    rounds   -- Step --> arena -- ops on blocks -------> cache
    rounds <-- answers --  |   <-------- answers ---------

A Step goes through the arena, which answers the ops on lines itself. To the scheduler a line is a sequence whose block table
counts upwards. An acquire is handled as the first of these that applies:

- It continues an idle line: the branch runs in the line's span.
- It shares enough with a line (see `is_worth_sharing`): the line is moved into blocks and shared from there. If that part is
  still being computed, the acquire waits for it. A branch that runs on the line stays in the span until it ends; then the rest
  is moved.
- Neither a line nor the cache has enough of it: a new line opens in a free span, or in that of the least recently used idle
  line, which is moved into blocks, or dropped if these are short. The cache is asked first how much it has.
- Otherwise, and for branches that fork by themselves: an acquire of blocks.

A move opens a sequence on the line's tokens, reports them as computed, and releases it. The answer has the blocks to copy to.
Copies go out before all others with the next answer that gives blocks. So no branch reads a block before it is filled, or
writes to one that is still to be filled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    CacheHolder,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    MatchOp,
    MatchResult,
    Notice,
    Pending,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import AbortedError, RadixKVError
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes, num_tokens
from radixkv.worker.generations.branch import OpenedLine
from radixkv.worker.scheduling.spans import ContiguousSpan, LineAcquireOp, Move, Spans, is_worth_sharing

__all__ = ["Arena"]

_FIRST_OWN_ID = 1 << 62
"""First sequence id of the arena's own sequences; a scheduler counts from 1."""

_Results = list[StepResult]


@dataclass(slots=True)
class _Step:
    """The ops of a Step for the cache, and functions that make the Step's answers, in order, of the cache's."""

    ops: list[StepOp] = field(default_factory=list)
    answers: list[Callable[[_Results], StepResult]] = field(default_factory=list)
    moves: dict[int, list[tuple[int, Move]]] = field(default_factory=dict)  # by the answer that they precede
    waiting: set[int] = field(default_factory=set)  # sequences that were not opened
    notices: list[Notice] = field(default_factory=list)  # sent after the answers that name the waiting acquires

    def send(self, op: StepOp) -> int:
        """Append an op. Returns the index of its answer."""
        self.ops.append(op)
        return len(self.ops) - 1


class _Answer(Future[_Results]):
    """The cache's answers, translated into the Step's on the engine's thread by the first call of `result`."""

    def __init__(self, translate: Callable[[_Results], _Results]) -> None:
        super().__init__()
        self._translate = translate
        self._translated: _Results | None = None

    def result(self, timeout: float | None = None) -> _Results:
        """See `Future.result`."""
        results = super().result(timeout)
        if self._translated is None:
            self._translated = self._translate(results)
        return self._translated


class Arena:
    """Lines of one worker. Owned by the engine's thread. O(lines + open sequences) per acquire, O(1) per other op.

    Args:
        first_block: first block after the cache's.
        num_lines, blocks_each: spans, and their length.
        block_size: token slots of a block.

    Attributes:
        num_moves: times that a line, or a new part of it, was moved into blocks.
    """

    def __init__(self, first_block: int, num_lines: int, blocks_each: int, block_size: int) -> None:
        self.first_block = first_block
        self.num_moves = 0
        self._spans = Spans(first_block, num_lines, blocks_each)
        self._block_size = block_size
        self._running: dict[int, ContiguousSpan] = {}
        self._others: dict[int, AcquireOp] = {}  # acquired in blocks and not released
        self._copies: list[Copy] = []
        self._notices: list[Notice] = []
        self._releases: list[ReleaseOp] = []
        self._own_ids = itertools.count(_FIRST_OWN_ID)

    @property
    def num_lines(self) -> int:
        """Lines, running or idle."""
        return len(self._spans)

    def submit(self, holder: CacheHolder, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        """Submit a Step to the holder, without the ops on lines; see `CacheHolder.submit`."""
        step = _Step(list(self._releases))
        self._releases.clear()
        for op in ops:
            step.answers.append(self._say(op, step))
        answer = _Answer(lambda results: self._translate(step, results))
        if not step.ops:
            answer.set_result([])
            return answer

        def pass_on(answered: Future[_Results]) -> None:
            if error := answered.exception():
                answer.set_exception(error)
            else:
                answer.set_result(answered.result())

        holder.submit(step.ops).add_done_callback(pass_on)
        return answer

    def take_notices(self) -> list[Notice]:
        """As of a `CacheHolder`, for acquires that wait for lines."""
        notices, self._notices = self._notices, []
        return notices

    def lose(self) -> None:
        """The lease is lost: no branch runs on a line. Lines stay, with the positions reported as computed."""
        for line in self._running.values():
            line.rest()
            if not line.num_computed:
                self._spans.free(line)
        self._running.clear()
        self._others.clear()
        for told in (self._copies, self._notices, self._releases):
            told.clear()

    # -- ops of a Step

    def _say(self, op: StepOp, step: _Step) -> Callable[[_Results], StepResult]:
        if isinstance(op, AcquireOp):
            return self._acquire(op, step)
        if isinstance(op, MatchOp):
            return self._match(op, step)
        if not isinstance(op, (ExtendOp, InsertOp, ForkOp, ReleaseOp)):  # these ops concern a sequence
            return _answer_at(step.send(op))
        if op.seq_id in step.waiting:
            error = AbortedError("an earlier op of this Step waits")
            return lambda _: error
        line = self._running.get(op.seq_id)
        if line is None:
            if isinstance(op, ReleaseOp):
                self._others.pop(op.seq_id, None)
            return _answer_at(step.send(op))
        if isinstance(op, ForkOp):
            return self._fork(line, op, step)
        answer = self._extend(line, op) if isinstance(op, ExtendOp) else None
        if isinstance(op, InsertOp):
            self._insert(line, op, step)
        elif isinstance(op, ReleaseOp):
            self._release(line, op, step)
        return lambda _: answer

    def _acquire(self, op: AcquireOp, step: _Step) -> Callable[[_Results], StepResult]:
        if not op.share_prefix or op.seq_id is None:
            return self._pass_on(op, step)
        line, num_shared = self._spans.nearest(op.namespace, op.tokens)
        if line is not None and self._goes_on(op, line, num_shared):
            return self._go_on(op, line)
        length = num_tokens(op.tokens)
        matched = op.num_matched if isinstance(op, LineAcquireOp) else 0
        if line is not None and num_shared >= (matched or 0) and is_worth_sharing(num_shared, length):
            if op.waits and num_shared > line.num_computed:
                return self._wait(op, line, num_shared, step)
            if min(num_shared, line.num_computed) > line.num_moved:
                self._move(line, step)
            return self._pass_on(op, step)
        if not isinstance(op, LineAcquireOp) or not self._can_open(op):
            return self._pass_on(op, step)
        if op.num_matched is None:
            return self._ask_first(op, step)
        if is_worth_sharing(op.num_matched, length) or not self._make_room(step):
            return self._pass_on(op, step)
        return self._run(op, self._spans.open(op.namespace, op.tokens, op.seq_id))

    def _goes_on(self, op: AcquireOp, line: ContiguousSpan, num_shared: int) -> bool:
        """Whether an acquire can continue in the span of an idle line."""
        is_all = not line.seq_id and num_shared == num_tokens(line.tokens)
        return is_all and isinstance(op, LineAcquireOp) and self._fits(op) and num_shared >= (op.num_matched or 0)

    def _fits(self, op: LineAcquireOp) -> bool:
        return max(op.max_tokens, num_tokens(op.tokens)) <= self._spans.blocks_each * self._block_size

    def _can_open(self, op: LineAcquireOp) -> bool:
        """Whether a span can be freed, and no other sequence computes the same beginning."""
        if not self._fits(op) or not (self._spans.has_free or self._spans.least_recent_idle()):
            return False
        length = num_tokens(op.tokens)
        return not any(
            is_worth_sharing(common_prefix_bytes(op.tokens, 0, other.tokens, len(other.tokens)) // TOKEN_BYTES, length)
            for other in self._others.values()
            if other.share_prefix and other.namespace == op.namespace
        )

    def _make_room(self, step: _Step) -> bool:
        """Free a span if none is. Returns whether one is free now."""
        idle = None if self._spans.has_free else self._spans.least_recent_idle()
        if idle is not None:
            self._move(idle, step)
        return self._spans.has_free

    def _go_on(self, op: AcquireOp, line: ContiguousSpan) -> Callable[[_Results], StepResult]:
        assert op.seq_id is not None
        self._spans.go_on(line, op.tokens, op.seq_id)
        return self._run(op, line)

    def _run(self, op: AcquireOp, line: ContiguousSpan) -> Callable[[_Results], StepResult]:
        self._running[line.seq_id] = line
        length = num_tokens(op.tokens)
        table = line.give(-(-length // self._block_size))
        stored = line.num_computed
        answer = OpenedLine(line.seq_id, min(stored, length - 1), stored, table, ())
        return lambda _: answer

    def _pass_on(self, op: AcquireOp, step: _Step) -> Callable[[_Results], StepResult]:
        """Send an acquire to the cache."""
        index, seq_id = step.send(op.in_blocks() if isinstance(op, LineAcquireOp) else op), op.seq_id
        if seq_id is None:
            return _answer_at(index)
        self._others[seq_id] = op

        def answer(results: _Results) -> StepResult:
            if not isinstance(results[index], AcquireResult):
                self._others.pop(seq_id, None)
            return results[index]

        return answer

    def _ask_first(self, op: AcquireOp, step: _Step) -> Callable[[_Results], StepResult]:
        """Ask how much is cached: the acquire waits for that answer alone."""
        index, own_id = step.send(MatchOp(op.tokens, op.namespace)), next(self._own_ids)
        assert op.seq_id is not None
        step.waiting.add(op.seq_id)

        def answer(results: _Results) -> StepResult:
            matched = results[index]
            if not isinstance(matched, MatchResult):
                return matched
            self._notices.append(Notice("published", own_id, matched.num_tokens))
            return Pending(own_id, matched.num_tokens)

        return answer

    def _wait(
        self, op: AcquireOp, line: ContiguousSpan, num_shared: int, step: _Step
    ) -> Callable[[_Results], StepResult]:
        """Let an acquire wait for positions of a line that are still being computed."""
        assert op.seq_id is not None
        step.waiting.add(op.seq_id)
        line.waits.add(num_shared)
        answer = Pending(line.seq_id, num_shared)
        return lambda _: answer

    def _match(self, op: MatchOp, step: _Step) -> Callable[[_Results], StepResult]:
        line, num_shared = self._spans.nearest(op.namespace, op.tokens)
        found = min(num_shared, line.num_computed) if line is not None else 0
        index = step.send(op)

        def answer(results: _Results) -> StepResult:
            matched = results[index]
            if isinstance(matched, MatchResult) and matched.num_tokens < found:
                return MatchResult(found, found)
            return matched

        return answer

    # -- ops on a running line

    def _extend(self, line: ContiguousSpan, op: ExtendOp) -> ExtendResult:
        first_changed = line.num_given
        return ExtendResult(first_changed, line.give(-(-op.num_tokens // self._block_size)), ())

    def _insert(self, line: ContiguousSpan, op: InsertOp, step: _Step) -> None:
        line.tokens += op.new_tokens
        line.num_computed = op.num_computed
        for num_waited in sorted(line.waits):
            if num_waited <= line.num_computed:
                line.waits.remove(num_waited)
                step.notices.append(Notice("published", line.seq_id, num_waited))

    def _fork(self, line: ContiguousSpan, op: ForkOp, step: _Step) -> Callable[[_Results], StepResult]:
        """Move a line as far as it is computed, and fork the moved sequence. The branch that runs on the line stays."""
        at_start = len(step.ops)
        own_id = self._open_move(line, step)
        index = step.send(ForkOp(own_id, op.position, op.n, op.reserve, op.seq_ids))
        at_end = step.send(ReleaseOp(own_id))

        def answer(results: _Results) -> StepResult:
            if isinstance(results[at_end], AbortedError) and not isinstance(results[at_start], RadixKVError):
                self._releases.append(ReleaseOp(own_id))  # the fork was refused, and the sequence is open
            return results[index]

        return answer

    def _release(self, line: ContiguousSpan, op: ReleaseOp, step: _Step) -> None:
        del self._running[line.seq_id]
        step.notices += [Notice("gone", line.seq_id, num_waited) for num_waited in sorted(line.waits)]
        was_read = line.num_moved > 0
        line.rest()
        if not op.keep or not line.num_computed:
            self._spans.free(line)
        elif was_read:
            self._move(line, step)

    # -- moves

    def _move(self, line: ContiguousSpan, step: _Step) -> None:
        """Move a line into blocks, as far as it is computed. Its span is freed if no branch runs on it."""
        step.send(ReleaseOp(self._open_move(line, step)))
        if not line.seq_id:
            self._spans.free(line)

    def _open_move(self, line: ContiguousSpan, step: _Step) -> int:
        """Open a sequence of the cache on the computed part of a line."""
        own_id, length = next(self._own_ids), line.num_computed
        tokens = bytes(line.tokens[: length * TOKEN_BYTES])
        index = step.send(AcquireOp(tokens, 0, line.namespace, own_id))
        step.send(InsertOp(own_id, length))
        step.moves.setdefault(len(step.answers), []).append((index, Move(line.first_block, length)))
        line.num_moved = length
        self.num_moves += 1
        return own_id

    def _translate(self, step: _Step, results: _Results) -> _Results:
        translated = []
        for number, answer in enumerate(step.answers):
            for index, move in step.moves.get(number, ()):
                opened = results[index]
                if isinstance(opened, AcquireResult):  # otherwise no blocks were free, and the part is lost
                    self._copies += move.copies(opened, self._block_size)
            translated.append(self._with_copies(answer(results)))
        self._notices += step.notices
        return translated

    def _with_copies(self, result: StepResult) -> StepResult:
        """Attach the copies to the first answer that gives blocks."""
        copies = tuple(self._copies)
        match result:
            case AcquireResult() | ExtendResult():
                self._copies.clear()
                return result._replace(ops=(*copies, *result.ops))
            case list() if result:
                self._copies.clear()
                first, *others = result
                return [first._replace(ops=(*copies, *first.ops)), *others]
        return result


def _answer_at(index: int) -> Callable[[_Results], StepResult]:
    return lambda results: results[index]
