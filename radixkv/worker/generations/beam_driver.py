"""Branches of a beam search: one sequence per beam, forked and released as the search advances.

    beams before   b0  b1  b2           branches   B0  B1  B2
    beams after    b0+x  b0+y  b2+z                B0  B1' B2         B1' is forked from B0; what B1 held is released

The first child of a beam continues in its beam's sequence, without a copy. Further children are forks, which share all blocks
except the last, partly filled one. Each branch gives its candidates once its history has been run, and waits. When all have
given theirs, the beams advance together. A branch that loses its sequence meanwhile has given its candidates already, or
gives the same ones again: they follow from its history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from radixkv.worker.generations.beam_search import BeamSearch, Candidate
from radixkv.worker.generations.branch import Branch, Phase

if TYPE_CHECKING:
    from radixkv.worker.generations.generation import Generation

__all__ = ["BeamBranches"]


class BranchScheduler(Protocol):
    """The part of a `Scheduler` that beams use."""

    def add(self, branch: Branch) -> None: ...

    def fork(self, parent: Branch, position: int, children: Sequence[Branch]) -> None: ...

    def finish(self, branch: Branch) -> None: ...


class BeamBranches:
    """Assigns the beams of one generation to branches. Starts with the generation's branch 0 and the empty reply."""

    def __init__(self, generation: Generation, search: BeamSearch) -> None:
        self.search = search
        self._generation = generation
        self._standing = [generation.branches[0]]  # of beam i
        self._given: dict[Branch, Sequence[Candidate]] = {}

    def beam_of(self, branch: Branch) -> int:
        """Index of the beam that a branch runs."""
        return self._standing.index(branch)

    def give(self, branch: Branch, candidates: Sequence[Candidate]) -> bool:
        """Set the most likely continuations of a branch's beam. Returns whether all beams have theirs."""
        self._given[branch] = candidates
        return len(self._given) == len(self._standing)

    def advance(self, scheduler: BranchScheduler) -> None:
        """Advance the search one step, and fork, keep or release branches to match."""
        before, search = self._standing, self.search
        search.advance([self._given[branch] for branch in before])
        self._given.clear()
        if search.is_done:
            for branch in before:
                scheduler.finish(branch)
            return
        heirs: dict[int, int] = {}  # parent beam -> the beam that continues in its branch
        for index, beam in enumerate(search.beams):
            heirs.setdefault(beam.parent, index)
        vacant = [branch.index for index, branch in enumerate(before) if index not in heirs]
        for index, branch in enumerate(before):
            if index not in heirs:
                scheduler.finish(branch)
        children: dict[int, list[Branch]] = {}
        after: list[Branch] = []
        for index, beam in enumerate(search.beams):
            branch = before[beam.parent]
            if heirs[beam.parent] != index:
                branch = self._generation.put_branch(vacant.pop() if vacant else None, branch)
                children.setdefault(beam.parent, []).append(branch)
            after.append(branch)
        position = len(before[0].tokens)
        for branch, beam in zip(after, search.beams, strict=True):
            branch.tokens.append(beam.sampled[-1].token_id)
            branch.siblings = after
        for parent, forked in children.items():
            self._open(scheduler, before[parent], position, forked)
        for parent in heirs:
            if before[parent].phase is Phase.RESTING:
                scheduler.add(before[parent])
        self._standing = after

    def _open(self, scheduler: BranchScheduler, parent: Branch, position: int, children: Sequence[Branch]) -> None:
        if parent.phase is Phase.RUNNING and parent.num_computed >= position:
            scheduler.fork(parent, position, children)
            return
        for child in children:  # the parent's sequence is gone; its cached part is acquired
            scheduler.add(child)
