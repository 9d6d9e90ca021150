"""Drives one cache with its worker and its oracle, and compares the three after every call.

The machine draws calls at random and the named examples write them out; both go through here, so both are checked alike:
`check()`, the books, what is cached against what may and must be, matches, events, and each slot that a kernel would read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from radixkv.core.api import (
    AcquireOp,
    CacheHolder,
    Explanation,
    MatchResult,
    NamespaceUsage,
    Pending,
    PoolShape,
    ReleaseOp,
    Retention,
    StepOp,
)
from radixkv.core.errors import (
    InvalidArgumentError,
    PinBudgetError,
    RadixKVError,
    UnknownSequenceError,
)
from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.testing.hash_kv_worker import ANSWER_TIMEOUT_S, MAX_ANSWERS_BEHIND, HashKvWorker

from ..oracle.explanations import check_explanation, check_gone
from ..oracle.oracle import Oracle, Tokens
from ..oracle.pinned import check_refused_pin, pins_that_gave_way
from ..oracle.recency import Recency
from ..oracle.retained import Retained, check_none_better_went
from ..oracle.shares import REFUSALS, owner_of
from ..oracle.snapshot import Snapshot, check_books, check_branch_eviction, check_eviction, read_snapshot
from .event_follower import Followers

__all__ = ["NAMESPACES", "Backend", "CacheDriver"]

NAMESPACES = ("default", "other", "other#salt=1")
"""The last is derived: nothing of it matches in its owner's, and in the books it is that one's."""
MAX_TOLD = 12
PIN_TTL_S = 86400


class Backend(Protocol):
    """Where caches come from."""

    def open(self, shape: PoolShape) -> CacheHolder:
        """A fresh, empty pool."""
        ...

    def interrupt(self, holder: CacheHolder) -> None:
        """Break whatever connects the holder to its pool, if anything does; it must come back by itself."""
        ...

    def pass_time(self, holder: CacheHolder) -> bool:
        """Let every pin's time be over, by a day; whether this backend's clock can be moved."""
        ...

    def close(self, holder: CacheHolder) -> None: ...


class CacheDriver:
    """One pool, from open to close.

    `snapshot` is what the cache showed after the last call; `is_sound` that every check on it passed; `waiting`: acquires that
    wait, each with what it was answered; `told`: those of them that may ask again.
    """

    def __init__(self, backend: Backend, num_blocks: int, block_size: int) -> None:
        self.backend = backend
        self.holder = backend.open(PoolShape(num_blocks, block_size))
        self.worker = HashKvWorker(self.holder, num_blocks, block_size)
        self.oracle = Oracle(num_blocks, block_size)
        self.snapshot = read_snapshot(self.holder)
        self.is_sound = True
        self.waiting: list[tuple[Pending, AcquireOp]] = []
        self.told: list[AcquireOp] = []
        self._recency = Recency(self.oracle)
        self._retained = Retained(self.oracle)
        self._followers = Followers(self.holder, block_size)

    def carry(
        self,
        first: list[StepOp],
        *later: Callable[[], list[StepOp]],
        lag: int = 0,
        by_call: bool = False,
        may_be_refused: bool = False,
        break_at: int | None = None,
    ) -> Any:
        """Send Steps one upon the other, then check their answers and everything after them; the last Step's results.

        Args:
            first, later: the Steps; each later one is made when those before have been sent, not answered.
            lag: how many answers the worker leaves unapplied.
            by_call: send the only op of the only Step by its own method.
            may_be_refused: inserts in it may be bad ones.
            break_at: break the connection before the Step of this index, or after the last.
        """
        self.is_sound = False
        steps, answers = [], []
        for index, step in enumerate((lambda: first, *later)):
            if break_at == index:
                self.backend.interrupt(self.holder)
            self.worker.catch_up(MAX_ANSWERS_BEHIND - 1)
            steps.append(step())
            answers.append(self.worker.submit(steps[-1], by_call=by_call, may_be_refused=may_be_refused))
        if break_at == len(steps):
            self.backend.interrupt(self.holder)
        results = [answer.result(ANSWER_TIMEOUT_S) for answer in answers]
        after = read_snapshot(self.holder)
        harmless = (RadixKVError, Pending, MatchResult)
        if all(isinstance(result, harmless) for step_results in results for result in step_results):
            stats = after.stats._replace(num_pending=self.snapshot.stats.num_pending)
            assert after._replace(stats=stats) == self.snapshot, (
                "ops that failed, waited or only read changed something"
            )
        has_evicted = after.stats.num_evicted_blocks != self.snapshot.stats.num_evicted_blocks
        actors = self.oracle.shares.actors([op for ops in steps for op in ops])
        if len(steps) == len(first) == 1:
            self.oracle.shares.answered(first[0], results[0][0], self.snapshot)
            self.oracle.shares.check_who_gave_way(first[0], self.snapshot, after)
        self.oracle.shares.check_neighbours(self.snapshot, after, actors)
        self.oracle.begin(has_evicted=has_evicted)
        for ops, step_results in zip(steps, results, strict=True):
            self.oracle.observe_step(ops, step_results)
            for op, result in zip(ops, step_results, strict=True):
                if isinstance(op, AcquireOp) and isinstance(result, Pending):
                    self.waiting.append((result, op))
        ops = [op for step in steps for op in step]
        if has_evicted and len(ops) == 1:
            check_none_better_went(self.snapshot, after)
        withdraws = any(isinstance(op, ReleaseOp) and not op.keep for op in ops)
        self._settle(
            after, has_evicted=has_evicted, is_one_call=len(ops) == 1, keeps_all=not (has_evicted or withdraws)
        )
        self._take_notices(is_cached=not has_evicted)
        self.worker.catch_up(lag)
        self.verify()
        self.is_sound = True
        return results[-1]

    def match(self, namespace: str, tokens: Tokens) -> int:
        """Match, and compare with what the dump holds."""
        found, on_device, *below = self.holder.match(pack_tokens(tokens), namespace=namespace)
        assert found == on_device
        assert not any(below)
        expected = self.snapshot.match(namespace, tokens)
        assert found == expected, f"{tokens} matched {found} tokens in {namespace}, the dump holds {expected} of them"
        return found

    def read_a_match(self, namespace: str, tokens: Tokens) -> None:
        """A match is exact to the token, and a pure read."""
        found = self.match(namespace, tokens)
        assert self.oracle.least_match(namespace, tokens) <= found <= self.oracle.most_match(namespace, tokens)
        assert read_snapshot(self.holder) == self.snapshot, "a match changed something"

    def explain(self, namespace: str, tokens: Tokens, also: tuple[str, ...] = ()) -> Explanation:
        """An explanation is true, and a pure read."""
        explanation = check_explanation(self.holder, self.snapshot, self.oracle, namespace, tokens, also)
        assert read_snapshot(self.holder) == self.snapshot, "an explanation changed something"
        return explanation

    @property
    def num_missed(self) -> tuple[int, int, int]:
        """Tokens missed by acquires up to the last call: those new, parted, evicted before."""
        stats = self.snapshot.stats
        return stats.num_missed_new_tokens, stats.num_missed_parted_tokens, stats.num_missed_evicted_tokens

    def evict(self, num_blocks: int) -> None:
        self.is_sound = False
        num_evicted = self.holder.evict(num_blocks)
        before, after = self.snapshot, read_snapshot(self.holder)
        order = self.oracle.shares.eviction_order(before, num_blocks)
        check_eviction(before, after, num_evicted, order)
        check_gone(self.holder, before, after, self.oracle, "evict")
        self._settle(after, has_evicted=num_evicted > 0)
        self.is_sound = True

    def evict_branch(self, namespace: str, tokens: Tokens) -> None:
        """Just the unlocked nodes go whose histories begin with these tokens."""
        self.is_sound = False
        num_evicted = self.holder.evict_branch(pack_tokens(tokens), namespace=namespace)
        before, after = self.snapshot, read_snapshot(self.holder)
        check_branch_eviction(before, after, namespace, tokens, num_evicted)
        check_gone(self.holder, before, after, self.oracle, "evict")
        self._settle(after, has_evicted=num_evicted > 0)
        self.is_sound = True

    def pin(self, namespace: str, tokens: Tokens) -> None:
        """Pin what is cached of these tokens, or be refused and change nothing."""
        self.is_sound = False
        found = self.match(namespace, tokens)
        listed = [(pin.namespace, tuple(unpack_tokens(pin.tokens))) for pin in self.holder.pins()]
        try:
            info = self.holder.pin(pack_tokens(tokens), ttl=PIN_TTL_S, namespace=namespace)
        except (PinBudgetError, *REFUSALS) as error:
            assert read_snapshot(self.holder) == self.snapshot, "a refused pin changed something"
            check_refused_pin(self.snapshot, namespace, error)
        else:
            assert info.num_tokens == found == len(unpack_tokens(info.tokens)), f"{found} tokens match, pinned: {info}"
            after = read_snapshot(self.holder)
            if found:
                self.oracle.pins -= pins_that_gave_way(self.snapshot, after, listed, namespace)
                self.oracle.pinned(namespace, tokens[:found])
            self._settle(after)
        self.is_sound = True

    def unpin(self, namespace: str, tokens: Tokens) -> None:
        """End the pin of these tokens, if there is one."""
        self.is_sound = False
        was_pinned = self.holder.unpin(pack_tokens(tokens), namespace=namespace)
        assert was_pinned == ((namespace, tokens) in self.oracle.pins), f"{tokens} were pinned, or were not"
        after = read_snapshot(self.holder)
        if was_pinned:
            self.oracle.pins.discard((namespace, tokens))
            self._settle(after)
        else:
            assert after == self.snapshot, "ending no pin changed something"
        self.is_sound = True

    def retain(self, namespace: str, tokens: Tokens, ranges: Sequence[Retention]) -> None:
        """Say what is cached of these tokens is worth; nobody has used it by that."""
        self.is_sound = False
        found = self.match(namespace, tokens)
        num_tokens = self.holder.retain(pack_tokens(tokens), retention=ranges, namespace=namespace)
        self.oracle.shares.ranked.add(owner_of(namespace))
        assert num_tokens == found, f"{found} tokens match, and {num_tokens} were meant"
        after = read_snapshot(self.holder)
        assert after.cached == self.snapshot.cached, "what is worth more or less is cached no more"
        assert after.uses() == self.snapshot.uses(), "saying what it is worth was taken for a use"
        self._retained.said(namespace, tokens[:found], ranges)
        self._settle(after)
        self.is_sound = True

    def pass_time(self) -> None:
        """Past their time pinned and retained branches are ordinary ones."""
        if self.backend.pass_time(self.holder):
            self.is_sound = False
            self.oracle.pins.clear()
            self._retained.time_passed()
            self._settle(read_snapshot(self.holder))
            self.is_sound = True

    def set_quota(self, namespace: str, blocks: int | None, sequences: int | None) -> None:
        """Set a quota: at once it tells what is there, and nothing cached or open is touched by it."""
        self.is_sound = False
        shares = self.oracle.shares
        try:
            usage = self.holder.set_quota(namespace, blocks, sequences)
        except InvalidArgumentError:
            assert blocks is not None, f"a quota of {sequences} sequences was refused"
            assert blocks > shares.most_blocks(namespace), f"a quota of {blocks} blocks was refused"
            assert read_snapshot(self.holder) == self.snapshot, "a refused quota changed something"
        else:
            assert (blocks or 0) <= shares.most_blocks(namespace), f"a quota of {blocks} blocks was taken"
            shares.set(namespace, blocks, sequences)
            after = read_snapshot(self.holder)
            assert after._replace(usage=self.snapshot.usage) == self.snapshot, "a quota changed what is cached or open"
            nothing = NamespaceUsage(namespace, 0, 0, 0, None, None)
            assert usage._replace(held_block_s=0.0) == after.usage.get(namespace, nothing)
            self._settle(after)
        self.is_sound = True

    def clear(self, namespace: str) -> None:
        self.is_sound = False
        num_freed = self.holder.clear(namespace)
        after = read_snapshot(self.holder)
        assert num_freed == after.stats.num_free_blocks - self.snapshot.stats.num_free_blocks
        cleared = [name for name in after.cached if namespace in (name, owner_of(name))]
        assert not cleared, f"something matches in {cleared} after a clear of {namespace}"
        check_gone(self.holder, self.snapshot, after, self.oracle, "clear")
        self.oracle.cleared(namespace)
        self._settle(after)
        self._take_notices(is_cached=False)
        self.is_sound = True

    def interrupt(self) -> None:
        """A broken connection that comes back has changed nothing."""
        self.backend.interrupt(self.holder)
        assert read_snapshot(self.holder) == self.snapshot, "a broken connection changed something"

    def apply_answers(self) -> None:
        self.worker.catch_up()
        self.verify()

    def call_badly(self, bad_call: Callable[[], object]) -> None:
        """A refused call says so and changes nothing."""
        try:
            answer = bad_call()
        except (InvalidArgumentError, UnknownSequenceError):
            assert read_snapshot(self.holder) == self.snapshot, "a refused call changed something"
        else:
            raise AssertionError(f"a bad call was answered by {answer}")

    def verify(self) -> None:
        """Read what kernels would read; with no answer outstanding, all that is cached too."""
        self.worker.verify()
        if not self.worker.num_behind:
            for path in self.snapshot.paths.values():
                self.worker.verify_blocks(path.node.namespace, path.tokens, len(path.tokens), path.block_ids)

    def must_fit(self, namespace: str, length: int) -> bool:
        """Whether a history of this length fits, whatever of it is cached."""
        return self.oracle.shares.must_fit(namespace, length, self.snapshot)

    def end(self) -> None:
        """Nothing stays private, locked or promised once everyone is gone, and all that is cached goes in its order."""
        if not self.is_sound:
            return  # what broke has been reported
        self.carry([ReleaseOp(seq_id, keep=bool(seq_id % 2)) for seq_id in self.oracle.branches])
        for namespace, tokens in sorted(self.oracle.pins):
            self.unpin(namespace, tokens)
        stats = self.snapshot.stats
        assert stats.num_private_blocks == stats.num_promised_blocks == 0
        assert stats.num_evictable_blocks == stats.num_cached_blocks
        while self.snapshot.paths:
            self.evict(1)
        assert self.snapshot.stats.num_free_blocks == stats.num_blocks
        assert not self.oracle.waits.watched, "somebody waits for ever"
        left = [use[1:4] for use in self.snapshot.usage.values()]
        assert left == [(0, 0, 0)] * len(left), f"{left} are held by nobody"
        times, num_evicted = self.holder.block_times(), self.snapshot.stats.num_evicted_blocks
        assert sum(times.kv_block_lifetime_seconds.counts) == num_evicted
        assert sum(times.kv_block_idle_before_evict_seconds.counts) == num_evicted

    def close(self) -> None:
        self.backend.close(self.holder)

    def _take_notices(self, *, is_cached: bool) -> None:
        """Everything that is due was told, once, and nothing else; what was published matches, unless it `is_cached` no more.

        An empty Step makes sure of that: its answer comes down the stream after every notice from before it.
        """
        if not self.oracle.waits.num_pending:
            return
        self.holder.step([])
        notices = self.holder.take_notices()
        self.oracle.waits.told(notices)
        for notice in notices:
            branch = self.oracle.branches.get(notice.seq_id)
            if is_cached and notice.kind == "published" and branch is not None and self.oracle.is_current(branch):
                found = self.match(branch.namespace, branch.tokens[: notice.num_tokens])
                assert found == notice.num_tokens, f"{notice} was told, and {found} tokens match"
        told = {notice[1:] for notice in notices}
        self.told += [op for pending, op in self.waiting if pending in told]
        self.waiting = [(pending, op) for pending, op in self.waiting if pending not in told]
        del self.told[:-MAX_TOLD]

    def _settle(
        self, after: Snapshot, *, has_evicted: bool = False, is_one_call: bool = True, keeps_all: bool = False
    ) -> None:
        """Compare what is cached now with what the oracle allows, and remember it."""
        self.oracle.begin(has_evicted=has_evicted)
        for namespace in {*NAMESPACES, *after.cached}:
            cached = after.cached.get(namespace, set())
            least, most = self.oracle.least(namespace), self.oracle.most(namespace)
            assert least <= cached, f"{min(least - cached, key=len)} is lost from {namespace}"
            assert cached <= most, f"{min(cached - most, key=len)} must not match in {namespace}"
        self.holder.check()
        check_books(after, self.oracle)
        self.oracle.shares.check_usage(self.snapshot, after)
        self._followers.check(after)
        self._recency.check(after)
        self._retained.check(after, is_one_call=is_one_call, keeps_all=keeps_all)
        self.oracle.end(after.cached)
        self.snapshot = after
