"""The state machine: every call of a cache, in any order, over tiny alphabets and pools, against worker and oracle.

One machine for every backend: in process, and over a stream that breaks and resumes at any moment. The driver checks after
every call; a rule only chooses what to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from radixkv.core.api import AcquireOp, CacheHolder, ExtendOp, ForkOp, InsertOp, ReleaseOp, StepOp
from radixkv.core.errors import OutOfBlocksError
from radixkv.core.tokens import pack_tokens

from .driver import NAMESPACES, Backend, CacheDriver
from .hash_kv_worker import WorkerSequence
from .oracle import Branch, Tokens

__all__ = ["CacheMachine"]

NO_SUCH_ID = 999
MAX_PROMPT = 14
MAX_LIVE = 8
MAX_REMEMBERED = 12

picks = st.integers(0, 63)
namespaces = st.sampled_from((*NAMESPACES, NAMESPACES[0], NAMESPACES[0]))
lags = st.sampled_from((0, 0, 1, 2))
reserves = st.sampled_from((0, 0, 0, 1, 3, 7))
tokens_0_to_2 = st.sampled_from((0, 0, 0, 1, 1, 2))
suffixes: st.SearchStrategy[list[int]] = st.one_of(
    st.just([]), st.lists(tokens_0_to_2, max_size=2), st.lists(tokens_0_to_2, max_size=7)
)


class CacheMachine(RuleBasedStateMachine):
    """Calls drawn at random. Subclasses set `backend`."""

    backend: Backend

    @initialize(
        num_blocks=st.sampled_from((4, 6, 8, 8, 10, 12, 16, 20, 24)),
        block_size=st.integers(2, 4),
        alphabet=st.integers(2, 3),
    )
    def open_pool(self, num_blocks: int, block_size: int, alphabet: int) -> None:
        self.driver = CacheDriver(self.backend, num_blocks, block_size)
        self.alphabet = alphabet
        self.histories: list[Tokens] = [(0,)]
        self.num_ids = 0

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            try:
                self.driver.end()
            finally:
                self.driver.close()

    # -- one call at a time -------------------------------------------------------------------------------------------

    @rule(pick=picks, cut=picks, suffix=suffixes, reserve=reserves, namespace=namespaces, style=picks, lag=lags)
    def acquire(
        self, *, pick: int, cut: int, suffix: list[int], reserve: int, namespace: str, style: int, lag: int
    ) -> None:
        if len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        tokens = self._prompt(pick, cut, suffix)
        op = AcquireOp(pack_tokens(tokens), reserve, namespace, self._new_id() if style % 2 else None)
        expected = self.driver.match(namespace, tokens)
        must_fit = self.driver.fits_alone(len(tokens) + reserve)
        (result,) = self.driver.carry([op], by_call=style % 4 < 2, lag=lag)
        if isinstance(result, OutOfBlocksError):
            assert not must_fit, f"{op} fits the pool alone, and failed: {result}"
        else:
            assert result.num_stored_tokens == expected, f"{op} answered {result} where {expected} tokens matched"

    @rule(pick=picks, more=st.integers(-1, 9), by_call=st.booleans(), lag=lags)
    def extend(self, *, pick: int, more: int, by_call: bool, lag: int) -> None:
        if life := self._pick(pick):
            self.driver.carry([ExtendOp(_id(life), max(1, life.room + more))], by_call=by_call, lag=lag)

    @rule(pick=picks, sampled=suffixes, steps=picks, by_call=st.booleans(), lag=lags)
    def compute_and_insert(self, *, pick: int, sampled: list[int], steps: int, by_call: bool, lag: int) -> None:
        life = self._pick(pick)
        if life is None or life.num_uncertain:
            return
        for token in sampled[:3]:
            self._sample(life, token)
        self.driver.worker.compute(life, life.num_computed + steps % 8)
        self.driver.carry([self._insert(life, steps)], by_call=by_call, lag=lag)
        if self.driver.oracle.is_current(self.driver.oracle.branches[_id(life)]):
            computed = tuple(life.tokens[: life.num_computed])
            assert self.driver.match(life.namespace, computed) == len(computed), (
                f"{computed} does not match after its insert"
            )

    @rule(pick=picks, back=picks, n=st.sampled_from((1, 1, 2, 3)), reserve=reserves, style=picks, lag=lags)
    def fork(self, *, pick: int, back: int, n: int, reserve: int, style: int, lag: int) -> None:
        life = self._pick(pick)
        if life is None or len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        computed = self.driver.oracle.branches[_id(life)].num_computed
        if computed:
            ids = tuple(self._new_id() for _ in range(n)) if style % 2 else None
            op = ForkOp(_id(life), 1 + back % computed if back % 4 else computed, n, reserve, ids)
            self.driver.carry([op], by_call=style % 4 < 2, lag=lag)

    @rule(pick=picks, keep=st.sampled_from((True, True, False)), by_call=st.booleans(), lag=lags)
    def release(self, pick: int, keep: bool, by_call: bool, lag: int) -> None:
        if life := self._pick(pick):
            self.driver.carry([ReleaseOp(_id(life), keep)], by_call=by_call, lag=lag)

    # -- Steps --------------------------------------------------------------------------------------------------------

    @rule(choices=st.lists(picks, min_size=1, max_size=6), lag=lags)
    def scheduling_round(self, choices: list[int], lag: int) -> None:
        """One Step over the whole batch, as an engine sends it."""
        self.driver.carry(self._round(choices), lag=lag)

    @rule(
        first=st.lists(picks, min_size=1, max_size=3),
        second=st.lists(picks, min_size=1, max_size=3),
        break_at=st.integers(0, 5),
    )
    def rounds_on_the_way(self, first: list[int], second: list[int], break_at: int) -> None:
        """Two Steps sent before either answer is looked at, the connection broken before, between or after them."""
        self.driver.carry(self._round(first), lambda: self._round(second), lag=2, break_at=break_at)

    @rule(data=st.data(), size=st.integers(2, 5), lag=lags)
    def mixed_step(self, data: st.DataObject, size: int, lag: int) -> None:
        """Any ops, failing ones and ids opened in the same Step among them."""
        new_ids = [self._new_id(), self._new_id()]
        ops: list[StepOp] = []
        for _ in range(size):
            ops.append(self._any_op(data, new_ids, ops))
        self.driver.carry(ops, lag=lag, may_be_refused=True)

    @rule(
        pick=picks, cut=picks, suffix=suffixes, namespace=namespaces, num_new=st.integers(0, 5), keep=st.integers(0, 3)
    )
    def serve_request(self, *, pick: int, cut: int, suffix: list[int], namespace: str, num_new: int, keep: int) -> None:
        """One request from its prompt to its end, as most traffic is."""
        seq_id = self._new_id()
        tokens = self._prompt(pick, cut, suffix)
        (result,) = self.driver.carry([AcquireOp(pack_tokens(tokens), num_new, namespace, seq_id)])
        if isinstance(result, OutOfBlocksError):
            return
        life = self.driver.worker.sequences[seq_id]
        self.driver.worker.compute(life, len(tokens))
        self.driver.carry(
            [self._insert(life, 1), ExtendOp(seq_id, len(tokens) + num_new)] if num_new else [self._insert(life, 1)]
        )
        for index in range(num_new):
            self.driver.worker.sample(life, (pick >> index) % self.alphabet if index % 2 else 0)
        self.driver.worker.compute(life, len(life.tokens))
        self.driver.carry([self._insert(life, 1), ReleaseOp(seq_id, keep=keep > 0)])

    @rule(
        pick=picks,
        cut=picks,
        suffix=st.lists(tokens_0_to_2, min_size=1, max_size=7),
        parting=picks,
        stop=picks,
        style=picks,
    )
    def twins(self, *, pick: int, cut: int, suffix: list[int], parting: int, stop: int, style: int) -> None:
        """Two sequences compute the same, or nearly, at the same time: whoever is later finds it in the tree already."""
        if len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        ids = (self._new_id(), self._new_id())
        tokens = self._prompt(pick, cut, [*suffix, 0, 1, 0])
        other = tokens if parting % 4 else (*tokens[: parting % len(tokens)], 0, 0, 1, 0, 0)[:MAX_PROMPT]
        acquires: list[StepOp] = [
            AcquireOp(pack_tokens(each), seq_id=seq_id) for each, seq_id in zip((tokens, other), ids, strict=True)
        ]
        if any(isinstance(result, OutOfBlocksError) for result in self.driver.carry(acquires)):
            return
        first, second = (self.driver.worker.sequences[seq_id] for seq_id in ids)
        self._compute_and_insert(first, len(tokens) - 1 - stop % 8)
        computed = self.driver.oracle.branches[ids[0]].num_computed
        if style % 2 and computed:
            self.driver.carry([ForkOp(ids[0], computed, seq_ids=(self._new_id(),))])
        self._compute_and_insert(second, len(other) if style // 2 % 4 else stop)
        if style // 8 % 2:
            self.driver.carry([ReleaseOp(ids[1], keep=style % 5 > 0)])
        self._compute_and_insert(first, len(tokens))

    @rule(
        pick=picks,
        cut=picks,
        new=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        by_fork=st.booleans(),
        ending=picks,
    )
    def branch_off(self, *, pick: int, cut: int, new: list[int], by_fork: bool, ending: int) -> None:
        """Another reply to a history that is there, from its tokens or by a fork; then one of the two may end."""
        parent = self._pick(pick)
        if len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        op: StepOp = AcquireOp(pack_tokens(self._prompt(pick, cut, [])), seq_id=self._new_id())
        if by_fork and parent and (computed := self.driver.oracle.branches[_id(parent)].num_computed):
            op = ForkOp(_id(parent), 1 + cut % computed, seq_ids=(self._new_id(),))
        opened = self.driver.carry([op])[0]
        if isinstance(opened, OutOfBlocksError):
            return
        child = self.driver.worker.sequences[100 + self.num_ids]
        self.driver.carry([ExtendOp(_id(child), len(child.tokens) + len(new))])
        for token in new:
            self._sample(child, token)
        self._compute_and_insert(child, len(child.tokens))
        ended = (child, parent, None, None)[ending % 4]
        if ended and ended.is_usable:
            self.driver.carry([ReleaseOp(_id(ended), keep=ending // 4 % 3 > 0)])

    # -- the whole cache ----------------------------------------------------------------------------------------------

    @rule(which=picks, pick=picks, cut=picks, suffix=suffixes, namespace=namespaces)
    def whole_cache(self, *, which: int, pick: int, cut: int, suffix: list[int], namespace: str) -> None:
        """Calls that are about no sequence, and calls that are refused."""
        match which % 16:
            case 0 | 1 | 2:
                self.driver.read_a_match(namespace, self._prompt(pick, cut, suffix))
            case 3 | 4 | 5 | 6 | 7:
                self.driver.evict((0, 1, 1, 1, 2, 2, 3, 5)[pick % 8])
            case 8 if cut % 2:
                self.driver.clear(namespace)
            case 9:
                self.driver.interrupt()
            case 10:
                self.driver.apply_answers()
            case _:
                life = self._pick(pick)
                bad_calls = _bad_calls(self.driver.holder, self.driver.oracle.branches[_id(life)] if life else None)
                self.driver.call_badly(bad_calls[cut % len(bad_calls)])

    # -- inside ----------------------------------------------------------------------------------------------------------

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
        return InsertOp(_id(life), life.num_computed, pack_tokens(life.tokens[life.num_reported : end]))

    def _compute_and_insert(self, life: WorkerSequence, length: int) -> None:
        """Compute up to about this length, and publish it."""
        self.driver.worker.compute(life, length % (len(life.tokens) + 1))
        self.driver.carry([self._insert(life, 1)])

    def _round(self, choices: list[int]) -> list[StepOp]:
        ops: list[StepOp] = []
        for choice in choices:
            life = self._pick(choice)
            if life is None or any(getattr(op, "seq_id", None) == life.seq_id for op in ops):
                continue
            if not life.num_uncertain:
                self._sample(life, choice // 8 % 4 // 2 * choice)
                self.driver.worker.compute(life, len(life.tokens))
                ops.append(self._insert(life, choice))
            ops.append(ExtendOp(_id(life), min(len(life.tokens) + 1 + choice % 3, MAX_PROMPT * 3)))
        if not ops:
            ops.append(AcquireOp(pack_tokens(self._prompt(choices[0], choices[0], choices[:1])), seq_id=self._new_id()))
        return ops

    def _any_op(self, data: st.DataObject, new_ids: list[int], before: list[StepOp]) -> StepOp:
        kind, pick, number = data.draw(st.tuples(st.integers(0, 6), picks, picks))
        life = self._pick(pick)
        ids = [*new_ids, NO_SUCH_ID, *([_id(life)] * 4 if life else [])]
        seq_id = ids[pick % len(ids)]
        match kind:
            case 0 | 1:
                tokens = self._prompt(pick, number, [number % 2, pick % 2])
                taken = _id(life) if life else None
                chosen = (new_ids[0], new_ids[1], taken, None)[number % 4]
                return AcquireOp(pack_tokens(tokens), number % 5, NAMESPACES[pick % 8 == 0], chosen)
            case 2:
                return ExtendOp(seq_id, number % 24 - 1)
            case 3:
                return ForkOp(seq_id, number % 9, 1, pick % 3, (new_ids[1],))
            case 4:
                return InsertOp(seq_id, 0, pack_tokens([pick % 2]) if seq_id in new_ids else b"")
            case 5 if life and seq_id == life.seq_id and not life.num_uncertain and not _is_opened_by(before, seq_id):
                self.driver.worker.compute(life, len(life.tokens))
                return InsertOp(seq_id, life.num_computed)
            case _:
                return ReleaseOp(seq_id, keep=number % 3 > 0)


def _id(life: WorkerSequence) -> int:
    assert life.seq_id is not None, "an open sequence has an id"
    return life.seq_id


def _is_opened_by(ops: list[StepOp], seq_id: int) -> bool:
    """Whether these ops may open a new life of an id."""
    return any(isinstance(op, AcquireOp) and op.seq_id == seq_id for op in ops)


def _bad_calls(holder: CacheHolder, branch: Branch | None) -> list[Callable[[], object]]:
    """Calls that must be refused: on no sequence, and on this one."""
    some = pack_tokens([0, 1])
    calls: list[Callable[[], object]] = [
        lambda: holder.acquire(b""),
        lambda: holder.acquire(b"\0\0\0"),
        lambda: holder.acquire(some, reserve=-1),
        lambda: holder.acquire(some, namespace=""),
        lambda: holder.match([-1]),
        lambda: holder.match(some, namespace=""),
        lambda: holder.evict(-1),
        lambda: holder.extend(NO_SUCH_ID, 3),
        lambda: holder.insert(NO_SUCH_ID, 0),
        lambda: holder.fork(NO_SUCH_ID, 1),
        lambda: holder.release(NO_SUCH_ID),
    ]
    if branch is None:
        return calls
    seq_id, computed, room = branch.seq_id, branch.num_computed, branch.room
    return [
        *calls,
        lambda: holder.acquire(some, seq_id=seq_id),
        lambda: holder.extend(seq_id, 0),
        lambda: holder.insert(seq_id, computed - 1),
        lambda: holder.insert(seq_id, len(branch.tokens) + 1),
        lambda: holder.insert(seq_id, room + 1, [0] * (room + 1)),
        lambda: holder.insert(seq_id, computed, [2**32]),
        lambda: holder.insert(seq_id, computed, [0] * 200),
        lambda: holder.fork(seq_id, 0),
        lambda: holder.fork(seq_id, computed + 1),
        lambda: holder.fork(seq_id, computed, n=0),
        lambda: holder.fork(seq_id, computed, reserve=-1),
        lambda: holder.fork(seq_id, computed, n=2, seq_ids=[NO_SUCH_ID]),
        lambda: holder.fork(seq_id, computed, n=2, seq_ids=[NO_SUCH_ID, NO_SUCH_ID]),
        lambda: holder.fork(seq_id, computed, seq_ids=[seq_id]),
    ]
