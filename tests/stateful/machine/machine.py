"""The state machine: every call of a cache, in any order, over tiny alphabets and pools, against worker and oracle.

One machine for every backend: in process, and over a stream that breaks and resumes at any moment. The driver checks after
every call; a rule only chooses what to call.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from radixkv.core.api import (
    AcquireOp,
    ExtendOp,
    ForkOp,
    InsertOp,
    MatchOp,
    ReleaseOp,
    Retention,
    StepOp,
)
from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.testing.hash_kv_worker import WorkerSequence

from ..oracle.retained import RANGES
from ..oracle.shares import REFUSALS
from .bad_calls import NO_SUCH_ID, bad_calls
from .draws import lags, namespaces, parts, picks, reserves, sharings, suffixes, tokens_0_to_2, worths
from .driver import NAMESPACES
from .keeping import KeepingRules
from .player import MAX_PROMPT, id_of

__all__ = ["CacheMachine"]

MAX_LIVE = 8


class CacheMachine(KeepingRules):
    """Calls drawn at random. Subclasses set `backend`."""

    # -- one call at a time -------------------------------------------------------------------------------------------

    @rule(
        pick=picks,
        cut=picks,
        suffix=suffixes,
        reserve=reserves,
        namespace=namespaces,
        shares=sharings,
        worth=worths,
        part=parts,
        style=picks,
        lag=lags,
    )
    def acquire(
        self,
        *,
        pick: int,
        cut: int,
        suffix: list[int],
        reserve: int,
        namespace: str,
        shares: bool,
        worth: tuple[Retention, ...],
        part: int,
        style: int,
        lag: int,
    ) -> None:
        if len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        tokens = self._prompt(pick, cut, suffix)
        seq_id = self._new_id() if style % 2 else None
        waits, at_least, whole = style // 4 % 2 > 0, len(tokens) * part // 4, style // 8 % 4 == 3
        op = AcquireOp(pack_tokens(tokens), reserve, namespace, seq_id, waits, shares, worth, at_least, whole)
        self._acquire(op, tokens, by_call=style % 4 < 2, lag=lag)

    @rule(pick=picks, more=st.integers(-1, 9), by_call=st.booleans(), lag=lags)
    def extend(self, *, pick: int, more: int, by_call: bool, lag: int) -> None:
        if life := self._pick(pick):
            self.driver.carry([ExtendOp(id_of(life), max(1, life.room + more))], by_call=by_call, lag=lag)

    @rule(pick=picks, sampled=suffixes, steps=picks, by_call=st.booleans(), lag=lags)
    def compute_and_insert(self, *, pick: int, sampled: list[int], steps: int, by_call: bool, lag: int) -> None:
        life = self._pick(pick)
        if life is None or life.num_uncertain:
            return
        for token in sampled[:3]:
            self._sample(life, token)
        self.driver.worker.compute(life, life.num_computed + steps % 8)
        self.driver.carry([self._insert(life, steps)], by_call=by_call, lag=lag)
        computed = tuple(life.tokens[: life.num_computed])
        self.driver.explain(life.namespace, computed)
        if self.driver.oracle.is_current(self.driver.oracle.branches[id_of(life)]):
            assert self.driver.match(life.namespace, computed) == len(computed), (
                f"{computed} does not match after its insert"
            )

    @rule(pick=picks, back=picks, n=st.sampled_from((1, 1, 2, 3)), reserve=reserves, style=picks, lag=lags)
    def fork(self, *, pick: int, back: int, n: int, reserve: int, style: int, lag: int) -> None:
        life = self._pick(pick)
        if life is None or len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        computed = self.driver.oracle.branches[id_of(life)].num_computed
        if computed:
            ids = tuple(self._new_id() for _ in range(n)) if style % 2 else None
            op = ForkOp(id_of(life), 1 + back % computed if back % 4 else computed, n, reserve, ids)
            self.driver.carry([op], by_call=style % 4 < 2, lag=lag)

    @rule(pick=picks, keep=st.sampled_from((True, True, False)), by_call=st.booleans(), lag=lags)
    def release(self, pick: int, keep: bool, by_call: bool, lag: int) -> None:
        if life := self._pick(pick):
            self.driver.carry([ReleaseOp(id_of(life), keep)], by_call=by_call, lag=lag)

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
        pick=picks,
        cut=picks,
        suffix=suffixes,
        namespace=namespaces,
        num_new=st.integers(0, 5),
        worth=worths,
        keep=st.integers(0, 3),
    )
    def serve_request(
        self,
        *,
        pick: int,
        cut: int,
        suffix: list[int],
        namespace: str,
        num_new: int,
        worth: tuple[Retention, ...],
        keep: int,
    ) -> None:
        """One request from its prompt to its end, as most traffic is."""
        self._serve(pick, cut, suffix, namespace, num_new=num_new, worth=worth, keep=keep > 0)

    @rule(
        pick=picks,
        cut=picks,
        suffix=st.lists(tokens_0_to_2, min_size=1, max_size=7),
        parting=picks,
        stop=picks,
        worth=worths,
        style=picks,
    )
    def twins(
        self,
        *,
        pick: int,
        cut: int,
        suffix: list[int],
        parting: int,
        stop: int,
        worth: tuple[Retention, ...],
        style: int,
    ) -> None:
        """Two sequences compute the same, or nearly, at the same time: whoever is later finds it in the tree already."""
        if len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        ids = (self._new_id(), self._new_id())
        tokens = self._prompt(pick, cut, [*suffix, 0, 1, 0])
        other = tokens if parting % 4 else (*tokens[: parting % len(tokens)], 0, 0, 1, 0, 0)[:MAX_PROMPT]
        acquires: list[StepOp] = [
            AcquireOp(pack_tokens(each), seq_id=seq_id, retention=worth)
            for each, seq_id in zip((tokens, other), ids, strict=True)
        ]
        if any(isinstance(result, REFUSALS) for result in self.driver.carry(acquires)):
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
        if by_fork and parent and (computed := self.driver.oracle.branches[id_of(parent)].num_computed):
            op = ForkOp(id_of(parent), 1 + cut % computed, seq_ids=(self._new_id(),))
        opened = self.driver.carry([op])[0]
        if isinstance(opened, REFUSALS):
            return
        child = self.driver.worker.sequences[100 + self.num_ids]
        self.driver.carry([ExtendOp(id_of(child), len(child.tokens) + len(new))])
        for token in new:
            self._sample(child, token)
        self._compute_and_insert(child, len(child.tokens))
        ended = (child, parent, None, None)[ending % 4]
        if ended and ended.is_usable:
            self.driver.carry([ReleaseOp(id_of(ended), keep=ending // 4 % 3 > 0)])

    @rule(
        pick=picks,
        cut=picks,
        suffix=st.lists(tokens_0_to_2, min_size=3, max_size=9),
        endings=st.lists(picks, min_size=1, max_size=4),
        fates=st.lists(picks, min_size=1, max_size=3),
        namespace=namespaces,
    )
    def fan_out(
        self, *, pick: int, cut: int, suffix: list[int], endings: list[int], fates: list[int], namespace: str
    ) -> None:
        """Several want what one is about to compute; it gets on, grows, or comes to an end; then they ask again."""
        if len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        tokens, seq_id = self._prompt(pick, cut, suffix), self._new_id()
        if self._acquire(AcquireOp(pack_tokens(tokens), 0, namespace, seq_id), tokens) is None:
            return
        life = self.driver.worker.sequences[seq_id]
        for ending in endings:
            end = len(tokens) - ending % 5
            wanted = (*tokens[: max(end, 1)], *([0, 1][: ending // 5 % 3]))
            at_least, whole = len(wanted) * (0, 0, 3, 4)[ending // 16] // 4, ending % 7 == 6
            op = AcquireOp(
                pack_tokens(wanted),
                0,
                namespace,
                self._new_id(),
                waits=True,
                at_least=at_least,
                whole_blocks=whole,
            )
            if ending % 3:
                self._acquire(op, wanted)
            else:
                self.driver.carry([op, ExtendOp(100 + self.num_ids, len(wanted) + 1)])
        for fate in fates:
            self._befall(life, fate)
        self.ask_again(pick=pick, waits=fates[0] % 4 > 0)

    def _befall(self, life: WorkerSequence, fate: int) -> None:
        """Something happens to a sequence for which others may wait."""
        if not life.is_usable:
            return
        seq_id = id_of(life)
        match fate % 8:
            case 0 | 1 | 2:
                self._compute_and_insert(life, fate // 8 * 2)
            case 3:
                self.driver.worker.compute(life, len(life.tokens))
                self.driver.carry([self._insert(life, 1), ReleaseOp(seq_id, keep=fate % 3 > 0)])
            case 4:
                self.driver.carry([ReleaseOp(seq_id, keep=fate % 3 > 0)])
            case 5 if fate > 20:
                self.driver.clear(life.namespace)
            case 6 if life.num_computed:
                self.driver.carry([ForkOp(seq_id, life.num_computed, seq_ids=(self._new_id(),))])
            case 7:
                for token in range(fate // 8):
                    self._sample(life, token % 2)
                self.driver.carry([self._insert(life, 1), ExtendOp(seq_id, len(life.tokens))])
            case _:
                self.driver.evict(1)

    @rule(pick=picks, waits=sharings)
    def ask_again(self, *, pick: int, waits: bool) -> None:
        """One who waited has been told, and acquires again: just one of them is opened, the others may wait for it."""
        if not self.driver.told or len(self.driver.oracle.branches) >= MAX_LIVE:
            return
        op = self.driver.told.pop(pick % len(self.driver.told))
        tokens = tuple(unpack_tokens(op.tokens))
        self._acquire(AcquireOp(op.tokens, op.reserve, op.namespace, self._new_id(), waits), tokens)

    # -- tenants ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.has_quotas)
    @rule(tenants=st.lists(picks, min_size=1, max_size=4), suffix=suffixes, num_evicted=st.integers(0, 6))
    def tenants_in_turn(self, *, tenants: list[int], suffix: list[int], num_evicted: int) -> None:
        """Requests of both namespaces, so that one has what the other wants."""
        for pick in tenants:
            branch = [pick // 2 % 3, pick // 6 % 3, *suffix]
            worth = RANGES[pick // 8 % len(RANGES)]
            self._serve(
                pick, 3, branch, NAMESPACES[pick % 2 + (pick % 8 == 7)], num_new=pick % 4, worth=worth, keep=True
            )
        self.driver.evict(num_evicted)

    # -- the whole cache ----------------------------------------------------------------------------------------------

    @rule(which=picks, pick=picks, cut=picks, suffix=suffixes, namespace=namespaces)
    def whole_cache(self, *, which: int, pick: int, cut: int, suffix: list[int], namespace: str) -> None:
        """Calls that are about no sequence, and calls that are refused."""
        match which % 16:
            case 0 | 1:
                self.driver.read_a_match(namespace, self._prompt(pick, cut, suffix))
            case 2 | 11:
                self.driver.explain(namespace, self._prompt(pick, cut, suffix), NAMESPACES[: cut % 3])
            case 3 | 4 | 5 | 6 | 7:
                self.driver.evict((0, 1, 1, 1, 2, 2, 3, 5)[pick % 8])
            case 8 if cut % 2:
                self.driver.clear(namespace)
            case 12 | 13:
                self.evict_branches(pick, cut, suffix, namespace)
            case 9:
                self.driver.interrupt()
            case 10:
                self.driver.apply_answers()
            case _:
                life = self._pick(pick)
                bad = bad_calls(self.driver.holder, self.driver.oracle.branches[id_of(life)] if life else None)
                self.driver.call_badly(bad[cut % len(bad)])

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _serve(
        self,
        pick: int,
        cut: int,
        suffix: list[int],
        namespace: str,
        *,
        num_new: int,
        keep: bool,
        worth: tuple[Retention, ...],
    ) -> None:
        seq_id = self._new_id()
        tokens = self._prompt(pick, cut, suffix)
        (result,) = self.driver.carry([AcquireOp(pack_tokens(tokens), num_new, namespace, seq_id, retention=worth)])
        if isinstance(result, REFUSALS):
            return
        life = self.driver.worker.sequences[seq_id]
        self.driver.worker.compute(life, len(tokens))
        self.driver.carry(
            [self._insert(life, 1), ExtendOp(seq_id, len(tokens) + num_new)] if num_new else [self._insert(life, 1)]
        )
        for index in range(num_new):
            self.driver.worker.sample(life, (pick >> index) % self.alphabet if index % 2 else 0)
        self.driver.worker.compute(life, len(life.tokens))
        self.driver.carry([self._insert(life, 1), ReleaseOp(seq_id, keep=keep)])

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
            if choice % 8 == 7:
                ops.append(ReleaseOp(id_of(life)))
            else:
                ops.append(ExtendOp(id_of(life), min(len(life.tokens) + 1 + choice % 3, MAX_PROMPT * 3)))
        last = choices[-1]
        if not ops or (last % 4 == 0 and len(self.driver.oracle.branches) < MAX_LIVE):
            tokens = self._prompt(last, last, [*choices[:3], 0, 1])
            ops.append(AcquireOp(pack_tokens(tokens), seq_id=self._new_id(), waits=last % 8 == 0))
        return ops

    def _any_op(self, data: st.DataObject, new_ids: list[int], before: list[StepOp]) -> StepOp:
        kind, pick, number = data.draw(st.tuples(st.integers(0, 7), picks, picks))
        life = self._pick(pick)
        ids = [*new_ids, NO_SUCH_ID, *([id_of(life)] * 4 if life else [])]
        seq_id = ids[pick % len(ids)]
        match kind:
            case 0 | 1:
                tokens = self._prompt(pick, number, [number % 2, pick % 2])
                taken = id_of(life) if life else None
                chosen = (new_ids[0], new_ids[1], taken, None)[number % 4]
                waits, shares = pick % 3 == 0, number % 16 > 0
                worth = RANGES[number % len(RANGES)]
                at_least, whole = (0, 0, 0, 1, len(tokens) + 1)[number % 5], number % 8 == 7
                namespace = NAMESPACES[pick % 8 == 0]
                return AcquireOp(
                    pack_tokens(tokens), number % 5, namespace, chosen, waits, shares, worth, at_least, whole
                )
            case 7:
                tokens = self._prompt(pick, number, [number % 2])
                return MatchOp(pack_tokens(tokens), ("", *NAMESPACES)[number % 8 % 3])
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


def _is_opened_by(ops: list[StepOp], seq_id: int) -> bool:
    """Whether these ops may open a new life of an id."""
    return any(isinstance(op, AcquireOp) and op.seq_id == seq_id for op in ops)
