"""Branches that hold sequences, and the ops on these sequences for the next Step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from radixkv.core.api import ExtendOp, ForkOp, InsertOp, PinOp, ReleaseOp, StepOp
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.swap import Cut, Parked

__all__ = ["RunningSet", "Sent"]


class Sent(NamedTuple):
    """An op and the branches that its answer concerns. `was_alone`: no other branch held a sequence; `was_only_tenant`: no
    other branch of its namespace did. `num_freed`: of `Admission` at that time.
    """

    op: StepOp
    branches: tuple[Branch, ...] = ()
    was_alone: bool = False
    was_only_tenant: bool = False
    num_freed: int = 0
    parked: Parked | None = None


class _Fork(NamedTuple):
    parent_seq_id: int
    position: int
    children: list[Branch]


_order = attrgetter("order")


class RunningSet:
    """OPENING and RUNNING branches by sequence id. Ops are ordered so that each finds the state it needs.

    Args:
        block_size: token slots per block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._by_seq_id: dict[int, Branch] = {}
        self._num_of: Counter[str] = Counter()
        self._forks: list[_Fork] = []
        self._cuts: list[Cut] = []
        self._last_reports: list[Sent] = []
        self._releases: list[ReleaseOp] = []
        self._last_seq_id = 0

    def __len__(self) -> int:
        return len(self._by_seq_id)

    def __iter__(self) -> Iterator[Branch]:
        return iter(list(self._by_seq_id.values()))

    def of(self, owner: str) -> list[Branch]:
        """Branches of one owner. O(running)."""
        return [branch for branch in self if branch.owner == owner]

    def has_any_of(self, owner: str) -> bool:
        """Whether an owner has any. O(1)."""
        return owner in self._num_of

    def num_blocks_by_owner(self) -> Counter[str]:
        """Blocks that the branches of each owner hold or have requested; shared blocks count once per branch. O(running)."""
        held: Counter[str] = Counter()
        for branch in self._by_seq_id.values():
            held[branch.owner] += 0 if branch.is_line else -(-branch.room_asked // self._block_size)
        return held

    def new_seq_id(self) -> int:
        """A new sequence id, unique in this pool."""
        self._last_seq_id += 1
        return self._last_seq_id

    def open(self, branch: Branch, num_tokens: int) -> None:
        """Add a branch whose acquire or fork of `num_tokens` positions is submitted."""
        branch.open(self.new_seq_id(), num_tokens)
        self._by_seq_id[branch.seq_id] = branch
        self._num_of[branch.owner] += 1

    def fork(self, parent: Branch, position: int, children: Sequence[Branch]) -> None:
        """Open children on a parent's first `position` tokens."""
        for child in children:
            self.open(child, position)
            child.num_computed = min(position, len(child.tokens) - 1)
        self._forks.append(_Fork(parent.seq_id, position, list(children)))

    def cut(self, cut: Cut) -> None:
        """Cut a sequence short; see `Cut`. A sequence held by a branch is released with that branch."""
        self._cuts.append(cut)
        if cut.seq_id not in self._by_seq_id:
            self.release_sequence(cut.seq_id)

    def release(self, branch: Branch) -> None:
        """Release a branch's sequence after its last report and pins."""
        if report := _report(branch):
            self._last_reports.append(Sent(report))
        self._last_reports += _pins(branch)
        self.release_sequence(branch.seq_id)
        self.forget(branch)

    def release_sequence(self, seq_id: int) -> None:
        """Release a sequence that no branch holds."""
        self._releases.append(ReleaseOp(seq_id))

    def forget(self, branch: Branch) -> None:
        """Remove a branch whose sequence was never opened."""
        del self._by_seq_id[branch.seq_id]
        self._num_of[branch.owner] -= 1
        if not self._num_of[branch.owner]:
            del self._num_of[branch.owner]

    def clear(self) -> None:
        """All sequences are lost: drop every branch and op."""
        for outstanding in (self._by_seq_id, self._num_of, self._forks, self._cuts, self._last_reports, self._releases):
            outstanding.clear()

    # -- ops of the next Step

    def take_reports(self, *, waits: bool) -> list[Sent]:
        """Reports of computed positions, and pins due; they come before all other ops. O(running).

        With `waits`, a decoding branch reports whole blocks alone: a Step for each token would cost the decode more than the
        cache gains. An op of this worker that could use less than a block has all reports before it.
        """
        sent = []
        for branch in self._by_seq_id.values():
            if (not waits or self._is_due(branch)) and (report := _report(branch)):
                sent.append(Sent(report, (branch,)))
            sent += _pins(branch)
        return sent

    def _is_due(self, branch: Branch) -> bool:
        is_in_reply = branch.num_reported >= branch.num_known  # its opening history is published
        return not is_in_reply or branch.num_computed // self._block_size > branch.num_reported // self._block_size

    def take_ops(self, reserve: Callable[[Branch], int]) -> list[Sent]:
        """Last reports, forks, releases, extends. O(running). `reserve`: tokens to reserve for a child."""
        sent = [*self._last_reports, *self._take_forks(reserve)]
        sent += [Sent(release) for release in self._releases]
        self._last_reports.clear()
        self._releases.clear()
        for branch in sorted(self._by_seq_id.values(), key=_order):
            sent += self.ask_for_room(branch)
        return sent

    def _take_forks(self, reserve: Callable[[Branch], int]) -> Iterator[Sent]:
        for parent_seq_id, position, children in self._forks:
            living = tuple(child for child in children if child.phase is Phase.OPENING)
            if living:
                seq_ids = tuple(child.seq_id for child in living)
                yield Sent(ForkOp(parent_seq_id, position, len(living), reserve(living[0]), seq_ids), living)
        self._forks.clear()
        for cut in self._cuts:
            if cut.position:
                op = ForkOp(cut.seq_id, cut.position, 1, 0, (cut.parked.seq_id,))
                yield Sent(op, parked=cut.parked)
        self._cuts.clear()

    def ask_for_room(self, branch: Branch) -> list[Sent]:
        """Extend up to the end of the block after the next, if less than a block is left or requested.

        A refused branch asks again, unless it is idle: several such branches would keep Steps unanswered for ever, and victims
        are chosen when no Step is unanswered.
        """
        if branch.starved and branch.is_idle:
            return []
        if branch.room_asked >= branch.max_room or branch.room_asked - len(branch.tokens) >= self._block_size:
            return []
        ahead = branch.room_asked + 1 if branch.starved else len(branch.tokens) + self._block_size
        room = min(branch.max_room, -(-ahead // self._block_size) * self._block_size)
        branch.room_asked = room
        branch.starved = False
        return [Sent(ExtendOp(branch.seq_id, room), (branch,))]


def _report(branch: Branch) -> InsertOp | None:
    if branch.phase is not Phase.RUNNING or branch.num_computed <= branch.num_reported:
        return None
    return InsertOp(branch.seq_id, branch.num_computed, branch.take_report())


def _pins(branch: Branch) -> list[Sent]:
    """Pins that are due for the reported part of a branch."""
    generation = branch.generation
    if branch.phase is not Phase.RUNNING or not generation.pinning.has_due:
        return []
    due = generation.pinning.take_due(branch.num_reported)
    return [
        Sent(PinOp(generation.prompt[: pin.num_tokens * TOKEN_BYTES], pin.ttl_s, generation.namespace), (branch,))
        for pin in due
    ]
