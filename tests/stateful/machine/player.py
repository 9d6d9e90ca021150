"""What every rule of the machine builds upon: the pool, prompts akin to earlier ones, the worker's sequences."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from radixkv.core.api import AcquireOp, AcquireResult, InsertOp, Pending
from radixkv.core.errors import NotCachedError
from radixkv.core.tokens import pack_tokens
from radixkv.testing.hash_kv_worker import WorkerSequence

from ..oracle.explanations import count_missed
from ..oracle.oracle import Tokens
from ..oracle.shares import REFUSALS
from .driver import NAMESPACES, Backend, CacheDriver

__all__ = ["MAX_PROMPT", "Player", "id_of"]

MAX_PROMPT = 14
MAX_REMEMBERED = 12


class Player(RuleBasedStateMachine):
    """A pool under a driver. Subclasses set `backend` and add rules."""

    backend: Backend

    @initialize(
        num_blocks=st.sampled_from((4, 6, 8, 8, 10, 12, 16, 20, 24)),
        block_size=st.integers(2, 4),
        alphabet=st.integers(2, 3),
        quarters=st.sampled_from(((), (), (), (0, 1), (2, 0), (1, 2), (2, 2))),
    )
    def open_pool(self, num_blocks: int, block_size: int, alphabet: int, quarters: tuple[int, ...]) -> None:
        """`quarters` of the pool are the quotas that namespaces begin with; without any there are none to the end."""
        self.has_quotas = bool(quarters)
        self.driver = CacheDriver(self.backend, num_blocks, block_size)
        self.alphabet = alphabet
        self.histories: list[Tokens] = [(0,)]
        self.num_ids = 0
        for namespace, quarter in zip(NAMESPACES, quarters, strict=False):
            if quarter:
                self.driver.set_quota(namespace, quarter * num_blocks // 4, None)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            try:
                self.driver.end()
            finally:
                self.driver.close()

    def _new_id(self) -> int:
        self.num_ids += 1
        return 100 + self.num_ids

    def _prompt(self, pick: int, cut: int, suffix: Sequence[int]) -> Tokens:
        known = self.histories[-1 - pick % len(self.histories)]
        start = (known, known[: -1 - cut // 4 % 3], known[: cut % (len(known) + 1)])[min(cut % 4, 2)]
        tokens = (*start, *(token % self.alphabet for token in suffix))[:MAX_PROMPT] or (0,)
        self._remember(tokens)
        return tokens

    def _remember(self, tokens: Tokens) -> None:
        if tokens in self.histories:
            self.histories.remove(tokens)
        self.histories.append(tokens)
        del self.histories[:-MAX_REMEMBERED]

    def _pick(self, pick: int) -> WorkerSequence | None:
        usable = [
            life
            for life in self.driver.worker.sequences.values()
            if life.is_usable and life.seq_id in self.driver.oracle.branches
        ]
        return usable[pick % len(usable)] if usable else None

    def _sample(self, life: WorkerSequence, token: int) -> None:
        capacity = self.driver.oracle.num_blocks * self.driver.oracle.block_size
        if len(life.tokens) < min(capacity, life.room + self.driver.oracle.block_size):
            self.driver.worker.sample(life, token % self.alphabet)

    def _insert(self, life: WorkerSequence, choice: int) -> InsertOp:
        """Report what was computed, and of what was sampled all, or no more than what was computed."""
        end = len(life.tokens) if choice % 2 else max(life.num_reported, life.num_computed)
        self._remember(tuple(life.tokens[: max(life.num_computed, 1)]))
        return InsertOp(id_of(life), life.num_computed, pack_tokens(life.tokens[life.num_reported : end]))

    def _compute_and_insert(self, life: WorkerSequence, length: int) -> None:
        """Compute up to about this length, and publish it."""
        self.driver.worker.compute(life, length % (len(life.tokens) + 1))
        self.driver.carry([self._insert(life, 1)])

    def _acquire(self, op: AcquireOp, tokens: Tokens, *, by_call: bool = False, lag: int = 0) -> AcquireResult | None:
        """One acquire, and just what it must be answered; None where it opens nothing."""
        expected = self.driver.oracle.usable(op, self.driver.match(op.namespace, tokens))
        explanation = self.driver.explain(op.namespace, tokens)
        missed_before = self.driver.num_missed
        must_fit = self.driver.must_fit(op.namespace, len(tokens) + op.reserve)
        must_wait = self.driver.oracle.waits.must_wait(op, tokens, expected)
        (result,) = self.driver.carry([op], by_call=by_call, lag=lag)
        assert isinstance(result, Pending) == must_wait, f"{op} answered {result} where {expected} tokens matched"
        if not must_wait and expected < op.at_least:
            assert isinstance(result, NotCachedError), f"{op} answered {result} where {expected} tokens matched"
            assert result.num_cached == expected, f"{op} answered {result!r} where {expected} tokens matched"
        elif isinstance(result, REFUSALS):
            assert not must_fit, f"{op} fits beside what is there, and failed: {result}"
        elif isinstance(result, AcquireResult):
            assert result.num_stored_tokens == expected, f"{op} answered {result} where {expected} tokens matched"
            if op.share_prefix:
                missed = tuple(
                    after - before for after, before in zip(self.driver.num_missed, missed_before, strict=True)
                )
                assert missed == count_missed(explanation, self.driver.oracle.block_size), f"{missed}: {explanation}"
            return result
        return None


def id_of(life: WorkerSequence) -> int:
    assert life.seq_id is not None, "an open sequence has an id"
    return life.seq_id
