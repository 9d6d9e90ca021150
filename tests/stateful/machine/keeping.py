"""The rules of the machine that say what is to be kept: pins, retention, quotas."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from radixkv.core.api import ReleaseOp, Retention
from radixkv.testing.hash_kv_worker import WorkerSequence

from .draws import few_sequences, namespaces, picks, suffixes, worths
from .driver import NAMESPACES
from .player import Player, id_of

__all__ = ["KeepingRules"]


class KeepingRules(Player):
    """Calls about what is cached, of nobody's sequence."""

    # -- pins ---------------------------------------------------------------------------------------------------------

    @rule(which=picks, pick=picks, cut=picks, suffix=suffixes, namespace=namespaces)
    def pin_or_unpin(self, *, which: int, pick: int, cut: int, suffix: list[int], namespace: str) -> None:
        """Prefixes are protected, given up again, or left until their time is over."""
        pinned = sorted(self.driver.oracle.pins)
        match which % 8:
            case 0 | 1 | 2 | 3:
                self.driver.pin(namespace, self._prompt(pick, cut, suffix))
            case 4 if life := self._pick(pick):
                self._pin_and_give_up(life, cut)
            case 5 | 6 if pinned:
                self.driver.unpin(*pinned[pick % len(pinned)])
            case 7 if pick % 2:
                self.driver.pass_time()
            case _:
                self.driver.unpin(namespace, self._prompt(pick, cut, suffix))

    def _pin_and_give_up(self, life: WorkerSequence, cut: int) -> None:
        """A sequence's own prefix is pinned, and given up by both."""
        tokens = tuple(life.tokens[: max(1, life.num_computed - cut % 4)])
        self.driver.pin(life.namespace, tokens)
        if cut % 8 < 6:
            self.driver.unpin(life.namespace, tokens)
            self.driver.carry([ReleaseOp(id_of(life), keep=cut % 8 == 0)])

    # -- branches -----------------------------------------------------------------------------------------------------

    def evict_branches(self, pick: int, cut: int, suffix: list[int], namespace: str) -> None:
        """Branches that are there go, one after the other, or one that is none."""
        for number in range(1 + pick % 4):
            paths = list(self.driver.snapshot.paths.values())
            if (cut + number) % 4 and paths:
                path = paths[-1 - (pick + cut + number) % len(paths)]
                end = path.num_above + 1 + (cut + number) % (len(path.tokens) - path.num_above)
                self.driver.evict_branch(path.node.namespace, path.tokens[:end])
            else:
                self.driver.evict_branch(namespace, self._prompt(pick, cut, suffix)[: cut % 12])

    # -- retention ----------------------------------------------------------------------------------------------------

    @rule(which=picks, pick=picks, cut=picks, suffix=suffixes, namespace=namespaces, worth=worths)
    def retain_or_wait(
        self, *, which: int, pick: int, cut: int, suffix: list[int], namespace: str, worth: tuple[Retention, ...]
    ) -> None:
        """Branches come to be worth more or less than others, or time passes until they are not."""
        if which % 5 == 0:
            self.driver.pass_time()
            return
        if which % 5 == 1 and (life := self._pick(pick)) and life.num_computed:
            self._retain_in_use(life, worth)
            return
        tokens = self._prompt(pick, cut, suffix)
        for _ in range(1 + which % 2):  # what is said again lasts anew
            self.driver.retain(namespace, tokens, worth)

    def _retain_in_use(self, life: WorkerSequence, worth: tuple[Retention, ...]) -> None:
        """What a sequence stands on is worth more or less for a time, which is over before it ends."""
        self.driver.retain(life.namespace, tuple(life.tokens[: life.num_computed]), worth)
        self.driver.pass_time()
        self.driver.carry([ReleaseOp(id_of(life), keep=True)])

    # -- quotas -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.has_quotas)
    @rule(is_other=st.booleans(), pick=picks, sequences=few_sequences)
    def set_or_drop_a_quota(self, *, is_other: bool, pick: int, sequences: int | None) -> None:
        """A share of the pool is given to a namespace, changed or taken back, whatever runs; what is too much is refused."""
        blocks = pick % (self.driver.oracle.num_blocks + 2) if pick % 5 else None
        self.driver.set_quota(NAMESPACES[is_other], blocks, sequences)
