"""A decode worker whose slots hold hashes: whatever block a cache gets wrong, a read then shows.

A slot at position p of a history holds a hash of (namespace, history[0 .. p]); an unshared sequence has a namespace of its own
there. The worker carries out block ops and keeps block tables exactly as one with tensors would, up to two answers late, and
knows nothing but the answers that it has applied. After the last token of a history it writes rejected drafts, as far as it has
room. `verify` reads as an attention kernel would: every computed position of every sequence, through its table.

    submitted ──►  [ unapplied answers, oldest first ]  ──► applied: copies carried out, tables and room taken over
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import pack_tokens, unpack_tokens

__all__ = ["ANSWER_TIMEOUT_S", "MAX_ANSWERS_BEHIND", "HashKvWorker", "WorkerSequence", "kv_of"]

MAX_ANSWERS_BEHIND = 2
ANSWER_TIMEOUT_S = 30.0

_SequenceOp = ExtendOp | InsertOp | ForkOp | ReleaseOp | AcquireOp

POISON = -1
"""Content of a slot before its first write; no hash below is negative."""
REJECTED, NUM_DRAFTED = -2, 5
"""Content of a slot of a rejected draft, and the longest draft."""


def kv_of(namespace: str, tokens: Sequence[int]) -> list[int]:
    """The KV of every position of a history: position p depends on the namespace and on tokens[0 .. p]. O(n)."""
    state = hash(namespace)
    kv = []
    for token in tokens:
        state = hash((state, token)) & 0x7FFF_FFFF_FFFF_FFFF
        kv.append(state)
    return kv


@dataclass(slots=True, eq=False)
class WorkerSequence:
    """One life of a sequence id, as the worker knows it.

    `tokens[:num_reported]` is the history as it was sent to the cache, the rest is sampled and not reported yet. Positions
    below `num_computed` hold KV, positions in [num_stored, room) are the worker's to write. While `num_uncertain` inserts
    that may fail with an op before them are under way, no other tokens may be reported: they could arrive with a gap.
    """

    seq_id: int | None
    namespace: str
    tokens: list[int]
    num_reported: int
    table: list[int] = field(default_factory=list)
    num_stored: int = 0
    num_computed: int = 0
    room: int = 0
    is_open: bool = False
    is_lost: bool = False
    num_releases_sent: int = 0
    num_uncertain: int = 0
    previous: WorkerSequence | None = None

    @property
    def is_usable(self) -> bool:
        """Open as far as the worker knows, and not asked to end."""
        return self.is_open and not self.num_releases_sent


@dataclass(slots=True)
class _Sent:
    """One op on its way, and the lives of sequences that it is about (a fork: the parent, then the children)."""

    op: StepOp
    lives: list[WorkerSequence | None]
    is_uncertain: bool = False


class HashKvWorker:
    """The worker end of a `CacheHolder`: sends ops, applies answers in order and late, writes and checks hashes."""

    def __init__(self, holder: CacheHolder, num_blocks: int, block_size: int) -> None:
        self.holder = holder
        self.block_size = block_size
        self.slots = [POISON] * (num_blocks * block_size)
        self.sequences: dict[int, WorkerSequence] = {}
        self._num_acquired = 0
        self._unapplied: deque[tuple[list[_Sent], Future[list[StepResult]]]] = deque()

    @property
    def num_behind(self) -> int:
        """Answers that were sent for and are not applied yet."""
        return len(self._unapplied)

    def submit(
        self, ops: Sequence[StepOp], *, by_call: bool = False, may_be_refused: bool = False
    ) -> Future[list[StepResult]]:
        """Send one Step (or, `by_call`, its only op through the façade's own method); applies no answer.

        `may_be_refused`: its inserts may be bad ones, so that none of them counts before its answer is there.
        """
        shaky_ids: set[int | None] = set()
        sent = []
        for op in ops:
            is_uncertain = may_be_refused or (isinstance(op, _SequenceOp) and op.seq_id in shaky_ids)
            sent.append(self._register(op, is_uncertain=is_uncertain))
            shaky_ids.update(_fallible_ids(op))
        answers = self._call(ops[0]) if by_call else self.holder.submit(list(ops))
        self._unapplied.append((sent, answers))
        return answers

    def catch_up(self, num_behind: int = 0) -> None:
        """Apply answers, oldest first, until at most `num_behind` are left."""
        while len(self._unapplied) > num_behind:
            sent, answers = self._unapplied.popleft()
            results = answers.result(ANSWER_TIMEOUT_S)
            assert len(results) == len(sent), f"{len(sent)} ops were answered by {len(results)} results"
            for one, result in zip(sent, results, strict=True):
                self._apply(one, result)

    def lose(self, seq_id: int) -> None:
        """The sequence is gone: later answers about it are errors."""
        life = self.sequences.pop(seq_id)
        life.is_open, life.is_lost = False, True

    def sample(self, sequence: WorkerSequence, token: int) -> None:
        """Append a token that is not reported to the cache yet."""
        sequence.tokens.append(token)

    def compute(self, sequence: WorkerSequence, length: int) -> None:
        """Run the model up to `length` tokens, as far as there are tokens and room: write the KV of what is not stored."""
        end = min(length, sequence.room, len(sequence.tokens))
        if end <= sequence.num_computed:
            return
        kv = kv_of(sequence.namespace, sequence.tokens[:end])
        for position in range(max(sequence.num_computed, sequence.num_stored), end):
            self.slots[self._slot(sequence, position)] = kv[position]
        sequence.num_computed = end
        if end == len(sequence.tokens):
            for position in range(max(end, sequence.num_stored), min(end + NUM_DRAFTED, sequence.room)):
                self.slots[self._slot(sequence, position)] = REJECTED

    def verify(self) -> None:
        """Read every computed position of every open sequence through its block table. O(all tokens)."""
        for sequence in self.sequences.values():
            if sequence.is_usable:
                self.verify_blocks(sequence.namespace, sequence.tokens, sequence.num_computed, sequence.table)

    def verify_blocks(self, namespace: str, tokens: Sequence[int], num_computed: int, table: Sequence[int]) -> None:
        """Assert that `table` holds the KV of tokens[:num_computed]."""
        size = self.block_size
        for position, expected in enumerate(kv_of(namespace, tokens[:num_computed])):
            block = table[position // size]
            found = self.slots[block * size + position % size]
            assert found == expected, (
                f"position {position} of {list(tokens[:num_computed])} in {namespace!r}, table {list(table)}: "
                f"block {block} offset {position % size} holds {'nothing' if found == POISON else 'other KV'}"
            )

    def _slot(self, sequence: WorkerSequence, position: int) -> int:
        return sequence.table[position // self.block_size] * self.block_size + position % self.block_size

    def _register(self, op: StepOp, *, is_uncertain: bool) -> _Sent:
        if isinstance(op, AcquireOp):
            tokens = unpack_tokens(op.tokens)
            self._num_acquired += 1
            namespace = op.namespace if op.share_prefix else f"{op.namespace}, alone {self._num_acquired}"
            return _Sent(op, [self._new_life(op.seq_id, namespace, tokens)])
        if not isinstance(op, _SequenceOp):
            return _Sent(op, [None])
        life = self.sequences.get(op.seq_id)
        if isinstance(op, ForkOp):
            namespace, tokens = (life.namespace, life.tokens[: max(op.position, 0)]) if life else ("", [])
            seq_ids: Sequence[int | None] = op.seq_ids if op.seq_ids is not None else [None] * max(op.n, 0)
            return _Sent(op, [life, *(self._new_life(seq_id, namespace, list(tokens)) for seq_id in seq_ids)])
        if life is not None and isinstance(op, ReleaseOp):
            life.num_releases_sent += 1
        elif life is not None and isinstance(op, InsertOp):
            life.tokens[life.num_reported :] = life.tokens[life.num_reported :] or unpack_tokens(op.new_tokens)
            life.num_reported += len(op.new_tokens) // 4
            life.num_uncertain += is_uncertain
        return _Sent(op, [life], is_uncertain)

    def _new_life(self, seq_id: int | None, namespace: str, tokens: list[int]) -> WorkerSequence:
        life = WorkerSequence(seq_id, namespace, tokens, num_reported=len(tokens), room=len(tokens))
        if seq_id is not None:
            life.previous = self.sequences.get(seq_id)
            if life.previous is None or life.previous.num_releases_sent:
                self.sequences[seq_id] = life
        return life

    def _call(self, op: StepOp) -> Future[list[StepResult]]:
        answers: Future[list[StepResult]] = Future()
        try:
            answers.set_result([_call_facade(self.holder, op)])
        except RadixKVError as error:
            answers.set_result([error])
        return answers

    def _apply(self, sent: _Sent, result: StepResult) -> None:
        life, *children = sent.lives
        match sent.op, result:
            case (AcquireOp(), AcquireResult()):
                assert life is not None
                self._open(life, result)
            case (ForkOp(), list()):
                assert len(result) == len(children)
                for child, opened in zip(children, result, strict=True):
                    assert child is not None
                    self._open(child, opened)
            case (AcquireOp() | ForkOp(), _):
                for never_opened in sent.lives if isinstance(sent.op, AcquireOp) else children:
                    assert never_opened is not None
                    self._forget(never_opened)
            case (ExtendOp(num_tokens=num_tokens), ExtendResult()):
                self._carry_out(result.ops)
                if life is not None:
                    life.table[result.first_changed :] = result.block_ids
                    life.room = max(life.room, num_tokens)
            case (InsertOp(), _) if life is not None:
                life.num_uncertain -= sent.is_uncertain
                if isinstance(result, RadixKVError):
                    life.num_reported -= len(sent.op.new_tokens) // 4
            case (ReleaseOp(), RadixKVError()) if life is not None:
                life.num_releases_sent -= 1
            case (ReleaseOp(), _) if life is not None:
                life.is_open = False
                self._forget(life)
            case _:
                pass

    def _open(self, life: WorkerSequence, opened: AcquireResult) -> None:
        self._carry_out(opened.ops)
        if life.is_lost:
            return
        life.seq_id = opened.seq_id
        life.table = list(opened.block_table)
        life.num_stored = life.num_computed = opened.num_stored_tokens
        life.is_open = True
        if opened.seq_id not in self.sequences:
            self.sequences[opened.seq_id] = life

    def _forget(self, life: WorkerSequence) -> None:
        if life.seq_id is not None and self.sequences.get(life.seq_id) is life:
            del self.sequences[life.seq_id]
            if life.previous is not None and life.previous.is_usable:
                self.sequences[life.seq_id] = life.previous

    def _carry_out(self, ops: Sequence[Copy]) -> None:
        size = self.block_size
        for src, dst, num_tokens in ops:
            self.slots[dst * size : dst * size + num_tokens] = self.slots[src * size : src * size + num_tokens]


def _fallible_ids(op: StepOp) -> list[int | None]:
    """The sequences whose later ops in the same Step fall with this one, if the pool is out of blocks."""
    match op:
        case ForkOp():
            return [op.seq_id, *(op.seq_ids or ())]
        case AcquireOp() | ExtendOp():
            return [op.seq_id]
        case _:
            return []


def _call_facade(holder: CacheHolder, op: StepOp) -> StepResult:
    match op:
        case AcquireOp():
            acquire = holder.acquire_or_wait if op.waits else holder.acquire
            return acquire(
                op.tokens,
                reserve=op.reserve,
                namespace=op.namespace,
                seq_id=op.seq_id,
                share_prefix=op.share_prefix,
                retention=op.retention,
                at_least=op.at_least,
                whole_blocks=op.whole_blocks,
            )
        case MatchOp():
            return holder.match(op.tokens, namespace=op.namespace)
        case ExtendOp():
            return holder.extend(op.seq_id, op.num_tokens)
        case InsertOp():
            holder.insert(op.seq_id, op.num_computed, pack_tokens(op.new_tokens))
            return None
        case ForkOp():
            return holder.fork(op.seq_id, op.position, op.n, op.reserve, op.seq_ids)
        case ReleaseOp():
            holder.release(op.seq_id, op.keep)
            return None
        case _:
            raise TypeError(f"no call of the façade for {op}")
