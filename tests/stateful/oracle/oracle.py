"""What a cache may and must answer, from token tuples alone: no tree, no blocks, nothing shared with the core.

A history is known while the tuple of its tokens is a key of a dictionary; the value says who published it. Everything
below follows from the contracts: what was published and neither evicted, cleared nor withdrawn matches to the token,
nothing else ever does, and a live sequence's whole blocks match whatever is evicted.

`begin` and `end` enclose a batch of observed calls; between two batches the machine has looked at what the cache holds, and
`end` forgets what is no longer there (it can come back only by being published again).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    MatchOp,
    MatchResult,
    Pending,
    ReleaseOp,
    Retention,
    StepOp,
    StepResult,
)
from radixkv.core.errors import (
    AbortedError,
    InvalidArgumentError,
    NotCachedError,
    RadixKVError,
    UnknownSequenceError,
)
from radixkv.core.tokens import unpack_tokens

from .shares import REFUSALS, Shares, owner_of
from .waits import Waits

__all__ = ["Branch", "Oracle", "Tokens"]

Tokens = tuple[int, ...]

UNSHARED = -1
"""The generation of a sequence that shares with nobody, and of its forks."""


@dataclass(slots=True, eq=False)
class Branch:
    """A live sequence as the answers describe it. `generation`: how often its namespace was cleared before it began."""

    serial: int
    seq_id: int
    namespace: str
    generation: int
    tokens: Tokens
    table: list[int]
    num_stored: int
    num_computed: int
    room: int
    promised_room: int
    retention: tuple[Retention, ...] = ()


@dataclass(slots=True)
class _Known:
    """Who published a history (`serial`s, live or ended with keep), and whether others have ever used it.

    `is_shaky`: of those who published it none surely holds it any more, as after a release without keep; it may stay while
    it lies in a block that others use, and go when they do. `is_left`: one who published it gave up its copy; should all others
    be evicted, that copy may be what is left.
    """

    publishers: set[int] = field(default_factory=set)
    is_used: bool = False
    is_shaky: bool = False
    is_left: bool = False


class Oracle:
    """Observes ops and their results in the order in which the cache applied them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.branches: dict[int, Branch] = {}
        self.waits = Waits(self)
        self.shares = Shares(self)
        self.pins: set[tuple[str, Tokens]] = set()
        self.watchers: list[Callable[[Branch, bool], None]] = []
        self.kept: list[Branch] = []  # released with keep, until somebody takes note of them
        self.num_acquired = 0
        self.num_acquired_tokens = 0
        self.num_forked = 0
        self.num_copied_tokens = 0
        self.num_hit_tokens = 0
        self.num_inserted_tokens = 0
        self.num_missed_tokens = 0
        self._serials = count(1)
        self._generations: dict[str, int] = {}
        self._known: dict[str, dict[Tokens, _Known]] = {}
        self._ever: dict[str, set[Tokens]] = {}
        self._has_evicted = False

    # -- what must match ----------------------------------------------------------------------------------------------

    def is_current(self, branch: Branch) -> bool:
        """Whether newcomers may match what this sequence publishes: its namespace was not cleared since it began."""
        return branch.generation == self._generations.get(branch.namespace, 0)

    def namespaces(self) -> list[str]:
        return list(self._known)

    def most(self, namespace: str) -> set[Tokens]:
        """Every non-empty history that may match now."""
        return set(self._known.get(namespace, ()))

    def least(self, namespace: str) -> set[Tokens]:
        """Every history that must match now."""
        certain: set[Tokens] = set()
        if not self._has_evicted:
            certain = {tokens for tokens, entry in self._known.get(namespace, {}).items() if not entry.is_shaky}
        for pinned_in, tokens in self.pins:
            if pinned_in == namespace:
                certain.update(_prefixes(tokens, len(tokens)))
        for branch in self.branches.values():
            if branch.namespace == namespace and self.is_current(branch):
                certain.update(_prefixes(branch.tokens, self._whole(branch)))
        return certain

    def least_match(self, namespace: str, tokens: Tokens) -> int:
        return _longest(tokens, self.least(namespace))

    def most_match(self, namespace: str, tokens: Tokens) -> int:
        return _longest(tokens, self._known.get(namespace, {}))

    def usable(self, op: AcquireOp, num_matched: int) -> int:
        """How much of a match this acquire uses."""
        if not op.share_prefix:
            return 0
        return num_matched - num_matched % self.block_size if op.whole_blocks else num_matched

    def was_cached(self, namespace: str, tokens: Tokens) -> bool:
        """Whether this history was ever published for others."""
        return tokens in self._ever.get(namespace, ())

    # -- observing ----------------------------------------------------------------------------------------------------

    def begin(self, *, has_evicted: bool) -> None:
        """A batch was carried out, in which something was evicted or nothing was."""
        self._has_evicted = has_evicted

    def end(self, cached: dict[str, set[Tokens]]) -> None:
        """The batch has been observed, and `cached` is what the cache holds after it: known, and certain from now on."""
        live = {branch.serial for branch in self.branches.values()}
        for namespace, known in self._known.items():
            held = cached.get(namespace, set())
            if self._has_evicted:  # of those that ended, it may be theirs that went
                for entry in known.values():
                    entry.is_used |= not entry.publishers <= live
                    entry.publishers &= live
                    entry.is_shaky |= entry.is_left
            for tokens in [tokens for tokens in known if tokens not in held]:
                del known[tokens]
        self._has_evicted = False

    def cleared(self, namespace: str) -> None:
        """Nothing that was published before matches for newcomers; who is open goes on in a world of its own."""
        self.waits.cleared(
            branch
            for branch in self.branches.values()
            if namespace in (branch.namespace, owner_of(branch.namespace)) and self.is_current(branch)
        )
        names = {
            *self._ever,
            *(branch.namespace for branch in self.branches.values()),
        }  # some have published nothing yet
        for name in {namespace, *(name for name in names if owner_of(name) == namespace)}:
            self._generations[name] = self._generations.get(name, 0) + 1
            self._known.pop(name, None)
            self.pins = {pin for pin in self.pins if pin[0] != name}

    def pinned(self, namespace: str, tokens: Tokens) -> None:
        """These tokens are pinned, to the last."""
        self.pins.add((namespace, tokens))
        known = self._known[namespace]
        for prefix in _prefixes(tokens, len(tokens)):
            known[prefix].is_used = True
            known[prefix].is_shaky = False

    def observe_step(self, ops: Sequence[StepOp], results: Sequence[StepResult]) -> None:
        """Assert that each result is one that its op may have, and take it over."""
        failed: set[int] = set()
        for op, result in zip(ops, results, strict=True):
            expected = self._expected_errors(op, failed)
            if isinstance(result, RadixKVError):
                may_run_out = not expected and isinstance(op, (AcquireOp, ExtendOp, ForkOp))
                if may_run_out and isinstance(op, AcquireOp):
                    tokens = tuple(unpack_tokens(op.tokens))
                    most = self.most_match(op.namespace, tokens)
                    assert not self.waits.must_wait(op, tokens, most), f"{op} answered {result!r} in place of waiting"
                allowed = REFUSALS if may_run_out else expected
                if may_run_out and isinstance(op, AcquireOp) and isinstance(result, NotCachedError):
                    self._observe_too_little(op, result)
                else:
                    assert isinstance(result, allowed), f"{op} answered {result!r}, expected one of {allowed}"
                    self._observe_failure(op, result)
                failed.update(_named(op))
            else:
                assert not expected, f"{op} answered {result}, expected one of {expected}"
                self._observe_success(op, result)
                if isinstance(result, Pending):
                    failed.update(_named(op))

    def _observe_too_little(self, op: AcquireOp, error: NotCachedError) -> None:
        tokens = tuple(unpack_tokens(op.tokens))
        least = self.usable(op, self.least_match(op.namespace, tokens))
        most = self.usable(op, self.most_match(op.namespace, tokens))
        assert least <= error.num_cached <= most, f"{op} answered {error!r}, {least} to {most} are cached"
        assert error.num_cached < error.at_least == op.at_least, f"{op} answered {error!r}"

    def _observe_failure(self, op: StepOp, error: RadixKVError) -> None:
        if not isinstance(error, REFUSALS):
            return
        self.shares.refused(op, error)
        if isinstance(op, ExtendOp):
            branch = self.branches[op.seq_id]
            assert op.num_tokens > branch.promised_room, f"{op} failed within the promised {branch.promised_room}"

    def _observe_success(self, op: StepOp, result: StepResult) -> None:
        if isinstance(op, MatchOp) or isinstance(result, Pending):
            self._observe_nothing_opened(op, result)
            return
        ended = self.branches.get(op.seq_id) if isinstance(op, ReleaseOp) else None
        self._take_over(op, result)
        seq_id = result.seq_id if isinstance(result, AcquireResult) else op.seq_id
        branch = ended if seq_id is None or ended else self.branches[seq_id]
        assert branch is not None, f"{op} answered {result}"
        for watcher in self.watchers:
            watcher(branch, ended is not None)

    def _observe_nothing_opened(self, op: StepOp, result: StepResult) -> None:
        assert isinstance(op, (AcquireOp, MatchOp)), f"{op} answered {result}"
        tokens = tuple(unpack_tokens(op.tokens))
        least, most = self.least_match(op.namespace, tokens), self.most_match(op.namespace, tokens)
        if isinstance(op, AcquireOp):
            assert isinstance(result, Pending), f"{op} answered {result}"
            self.waits.pending(op, tokens, result, least)
        else:
            assert isinstance(result, MatchResult), f"{op} answered {result}"
            assert least <= result.num_tokens <= most, f"{op} answered {result}, expected {least} to {most}"

    def _take_over(self, op: StepOp, result: StepResult) -> None:
        match op, result:
            case (AcquireOp(), AcquireResult()):
                self._observe_acquire(op, result)
            case (ExtendOp(), ExtendResult()):
                self._observe_extend(self.branches[op.seq_id], op, result)
            case (ForkOp(), list()):
                self._observe_fork(self.branches[op.seq_id], op, result)
            case (InsertOp(), None):
                branch = self.branches[op.seq_id]
                branch.tokens += tuple(unpack_tokens(op.new_tokens))
                self.num_inserted_tokens += op.num_computed - branch.num_computed
                branch.num_computed = op.num_computed
                self._publish(branch, branch.num_computed)
                self.waits.computed(branch)
            case (ReleaseOp(), None):
                self._observe_release(self.branches.pop(op.seq_id), op.keep)
            case _:
                raise AssertionError(f"{op} answered {result}")

    def _observe_acquire(self, op: AcquireOp, result: AcquireResult) -> None:
        tokens = tuple(unpack_tokens(op.tokens))
        stored = result.num_stored_tokens
        least, most = self.least_match(op.namespace, tokens), self.most_match(op.namespace, tokens)
        least, most = self.usable(op, least), self.usable(op, most)
        assert stored >= op.at_least, f"{op} answered {result}"
        assert not (op.whole_blocks and (result.ops or stored % self.block_size)), f"{op} answered {result}"
        assert least <= stored <= most, f"{op} answered {stored} stored tokens, expected {least} to {most}"
        assert op.seq_id in (None, result.seq_id)
        assert not self.waits.must_wait(op, tokens, stored), f"{op} answered {result} in place of waiting"
        generation = self._generations.get(op.namespace, 0) if op.share_prefix else UNSHARED
        branch = self._opened(op.namespace, generation, tokens, op.reserve, result)
        branch.retention = op.retention
        if op.retention:
            self.shares.ranked.add(op.namespace)
        self._use(branch, stored)
        self.num_acquired += 1
        self.num_acquired_tokens += len(tokens)
        self.num_hit_tokens += result.num_cached_tokens
        if op.share_prefix:
            self.num_missed_tokens += (len(tokens) // self.block_size - stored // self.block_size) * self.block_size

    def _observe_fork(self, parent: Branch, op: ForkOp, results: Sequence[AcquireResult]) -> None:
        assert len(results) == op.n
        assert op.seq_ids is None or [result.seq_id for result in results] == list(op.seq_ids)
        self._publish(parent, parent.num_computed, num_certain=op.position)
        for result in results:
            assert result.num_stored_tokens == op.position, f"{op} answered {result}"
            tokens = parent.tokens[: op.position]
            branch = self._opened(parent.namespace, parent.generation, tokens, op.reserve, result)
            branch.retention = parent.retention
            self._use(branch, op.position)
        self.num_forked += op.n

    def _opened(self, namespace: str, generation: int, tokens: Tokens, reserve: int, result: AcquireResult) -> Branch:
        stored = result.num_stored_tokens
        assert result.seq_id not in self.branches, f"id {result.seq_id} is open already"
        assert result.num_cached_tokens == max(min(stored, len(tokens) - 1), 0), result
        table = list(result.block_table)
        assert len(table) == -(-len(tokens) // self.block_size), f"{len(tokens)} tokens got the table {table}"
        room = len(tokens)
        branch = Branch(
            next(self._serials),
            result.seq_id,
            namespace,
            generation,
            tokens,
            table,
            stored,
            stored,
            room,
            room + reserve,
        )
        self.shares.opened(branch)
        self.branches[result.seq_id] = branch
        self.num_copied_tokens += sum(op.num_tokens for op in result.ops)
        return branch

    def _observe_extend(self, branch: Branch, op: ExtendOp, result: ExtendResult) -> None:
        room = max(branch.room, op.num_tokens)
        old, first = branch.table, result.first_changed
        assert 0 <= first <= len(old), f"{op} answered {result} to a table of {len(old)}"
        table = old[:first] + list(result.block_ids)
        assert len(table) == -(-room // self.block_size), f"{op} answered {result} to a table of {len(old)}"
        shared = branch.num_stored // self.block_size
        is_first_write = branch.room == branch.num_stored and branch.num_stored % self.block_size != 0
        for index in range(first, len(old)):
            may_change = is_first_write and index == shared and room > branch.room
            assert old[index] == table[index] or may_change, f"{op} remapped block {index}: {old} to {table}"
        branch.table, branch.room = table, room
        self.num_copied_tokens += sum(op.num_tokens for op in result.ops)

    def _observe_release(self, branch: Branch, keep: bool) -> None:
        self.waits.ended(branch)
        if not self.is_current(branch):
            return
        if keep:
            self._publish(branch, branch.num_computed)
            self.kept.append(branch)
            return
        known = self._known.setdefault(branch.namespace, {})
        live = {other.serial: self._whole(other) for other in self.branches.values()}
        for tokens in _prefixes(branch.tokens, branch.num_computed):
            entry = known.get(tokens)
            if entry is None:
                continue
            entry.is_left |= branch.serial in entry.publishers
            entry.publishers.discard(branch.serial)
            is_wanted = entry.publishers or entry.is_used
            if not is_wanted and not self._shares_last_block(tokens, branch.namespace):
                del known[tokens]
            elif all(live.get(serial, len(tokens)) < len(tokens) for serial in entry.publishers):
                entry.is_shaky = True

    def _publish(self, branch: Branch, length: int, *, num_certain: int | None = None) -> None:
        """What is computed is published up to `length`; only the first `num_certain` of it (all if None) must be."""
        if not self.is_current(branch):
            return
        known = self._known.setdefault(branch.namespace, {})
        self._ever.setdefault(branch.namespace, set()).update(_prefixes(branch.tokens, length))
        for tokens in _prefixes(branch.tokens, length):
            is_certain = num_certain is None or len(tokens) <= num_certain
            entry = known.setdefault(tokens, _Known({branch.serial}, is_shaky=True))
            entry.is_used |= entry.publishers != {branch.serial}
            entry.is_shaky &= not is_certain
            entry.publishers.add(branch.serial)

    def _use(self, branch: Branch, length: int) -> None:
        if not self.is_current(branch):
            return
        known = self._known.setdefault(branch.namespace, {})
        for tokens in _prefixes(branch.tokens, length):
            known[tokens].is_used = True

    def _shares_last_block(self, tokens: Tokens, namespace: str) -> bool:
        """Whether a live sequence or a pin uses a part of the block in which these tokens end: then all of it may stay."""
        start = self._block_start(tokens)
        users = [other for other in self.branches.values() if other.namespace == namespace and self.is_current(other)]
        histories = [branch.tokens for branch in users]
        histories += [pinned for pinned_in, pinned in self.pins if pinned_in == namespace]
        return any(history[: len(start)] == start for history in histories)

    def _block_start(self, tokens: Tokens) -> Tokens:
        """These tokens up to the first of the block in which they end."""
        return tokens[: (len(tokens) - 1) // self.block_size * self.block_size + 1]

    def _whole(self, branch: Branch) -> int:
        return branch.num_computed - branch.num_computed % self.block_size

    # -- what must fail -----------------------------------------------------------------------------------------------

    def _expected_errors(self, op: StepOp, failed: set[int]) -> tuple[type[RadixKVError], ...]:
        """The errors of which one must be answered; none where the op must succeed or may find no blocks."""
        if failed.intersection(_named(op)):
            return (AbortedError,)
        if isinstance(op, MatchOp):
            return () if op.namespace else (InvalidArgumentError,)
        if isinstance(op, AcquireOp):
            is_bad = not op.tokens or len(op.tokens) % 4 != 0 or op.reserve < 0 or op.seq_id in self.branches
            is_bad |= not 0 <= op.at_least <= len(op.tokens) // 4
            return (InvalidArgumentError,) if is_bad else ()
        branch = self.branches.get(op.seq_id)
        errors: list[type[RadixKVError]] = [UnknownSequenceError] if branch is None else []
        if self._is_bad(op, branch):
            errors.append(InvalidArgumentError)
        return tuple(errors)

    def _is_bad(self, op: ExtendOp | InsertOp | ForkOp | ReleaseOp, branch: Branch | None) -> bool:
        match op:
            case ExtendOp():
                return op.num_tokens < 1
            case InsertOp() if branch is not None:
                length = len(branch.tokens) + len(op.new_tokens) // 4
                is_too_long = bool(op.new_tokens) and length > self.num_blocks * self.block_size + 1
                return is_too_long or not branch.num_computed <= op.num_computed <= min(length, branch.room)
            case ForkOp():
                ids = op.seq_ids
                bad_ids = ids is not None and (len(set(ids)) != op.n or any(seq_id in self.branches for seq_id in ids))
                past_end = branch is not None and op.position > branch.num_computed
                return op.n < 1 or op.reserve < 0 or op.position < 1 or past_end or bad_ids
            case _:
                return False


def _named(op: StepOp) -> list[int]:
    """The sequences that an op is about."""
    if isinstance(op, MatchOp):
        return []
    if isinstance(op, ForkOp):
        return [op.seq_id, *(op.seq_ids or ())]
    return [] if op.seq_id is None else [op.seq_id]


def _prefixes(tokens: Tokens, length: int) -> list[Tokens]:
    return [tokens[:end] for end in range(1, length + 1)]


def _longest(tokens: Tokens, histories: Iterable[Tokens]) -> int:
    known = histories if isinstance(histories, (set, dict)) else set(histories)
    return max((end for end in range(1, len(tokens) + 1) if tokens[:end] in known), default=0)
