"""Who may begin: what holds an owner back, and what lets it go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from scheduler_bench import make_branch, no_growth

from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.admission import _MAX_REFUSALS, _MAX_REFUSED, Admission


class Desk:
    """An admission, and what each owner holds."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.admission = Admission(no_growth(), lambda owner: self.held[owner])
        self.num_branches = 0

    def queue(self, owner: str, due_s: float = 1e9, prompt: int = 4) -> Branch:
        branch = make_branch(self.num_branches, [1] * prompt, 8, namespace=owner, due_s=due_s)
        self.num_branches += 1
        self.admission.queue.add(branch)
        return branch

    def next(self, now_s: float = 0.0, *, full: str = "", is_idle: bool = False) -> Branch | None:
        """Who is taken; `full`: an owner of whom nobody may begin."""
        return self.admission.next(now_s, lambda branch: branch.owner != full, is_idle=is_idle)

    def refuse(self, branch: Branch) -> None:
        """Its acquire was answered by an error."""
        branch.close(Phase.RESTING)
        self.admission.refused(branch, self.admission.num_freed)


def finished(desk: Desk) -> None:
    desk.admission.finished(make_branch(900, [1], 1, namespace="somebody"))


def gave_way(desk: Desk) -> None:
    desk.admission.gave_way(make_branch(900, [1], 1, namespace="somebody"))


@pytest.mark.parametrize("end", [finished, gave_way])
def test_an_owner_of_which_a_branch_was_preempted_begins_nothing_until_blocks_come_free_by_an_end_or_by_giving_way(
    end: Callable[[Desk], None],
) -> None:
    desk = Desk()
    mine, others = desk.queue("a"), desk.queue("b")
    desk.admission.preempted("a")
    assert desk.next() is others
    assert desk.next() is None
    end(desk)
    assert desk.next() is mine


def test_what_was_preempted_begins_again_once_nobody_holds_anything() -> None:
    desk = Desk()
    mine = desk.queue("a")
    desk.admission.preempted("a")
    assert desk.next() is None
    assert desk.next(is_idle=True) is mine


def test_blocks_given_up_for_one_that_was_refused_are_for_it_first_and_end_no_recovery() -> None:
    desk = Desk()
    desk.admission.preempted("c")
    waiting = desk.queue("c")
    refused = desk.queue("b", prompt=40)
    assert desk.next() is refused
    desk.refuse(refused)
    desk.queue("a")
    desk.admission.gave_way_to(refused)
    assert desk.next(full="b") is not refused, "its owner has its fill"
    assert desk.next() is refused
    refused.phase = Phase.OPENING
    desk.queue("a")
    assert desk.next() is None, "it is tried alone"
    refused.phase = Phase.RUNNING
    taken = desk.next()
    assert taken is not None
    assert taken.owner == "a"
    assert waiting.phase is Phase.QUEUED


def test_an_owner_is_refused_so_often_and_so_many_owners_before_nobody_is_tried() -> None:
    desk = Desk()
    for number in range(_MAX_REFUSED):
        owner = f"owner {number}"
        for _ in range(_MAX_REFUSALS):
            branch = desk.queue(owner)
            assert desk.next() is branch
            desk.refuse(branch)
        desk.queue(owner)
        assert desk.next() is None
    late = desk.queue("late")
    assert desk.next() is None
    desk.admission.freed()
    assert desk.admission.num_queued == _MAX_REFUSED * (_MAX_REFUSALS + 1) + 1
    tried = [desk.next() for _ in range(_MAX_REFUSED + 1)]
    assert late in tried


def test_one_that_was_refused_and_is_due_lets_nobody_of_its_owner_by_nor_anybody_who_holds_and_was_given_as_much() -> (
    None
):
    desk = Desk()
    for _ in range(3):
        branch = desk.queue("b")
        assert desk.next() is branch
    refused = desk.queue("a", due_s=10.0, prompt=4)
    assert desk.next() is refused
    desk.refuse(refused)
    own, others = desk.queue("a"), desk.queue("b")
    desk.held.update(a=2, b=2)
    assert desk.next(10.0) is None
    assert refused.held_up_others
    desk.held["a"] = 3
    assert desk.next(10.0) is others, "who holds less begins"
    assert desk.next(10.0) is None, "nobody of its own owner does"
    assert desk.next(9.9) is own, "before it is due, anybody"


def test_one_that_was_refused_and_is_due_holds_up_nobody_who_was_given_less() -> None:
    desk = Desk()
    refused = desk.queue("a", due_s=10.0)
    assert desk.next() is refused
    desk.refuse(refused)
    for _ in range(3):
        branch = desk.queue("a")
        assert desk.next() is branch
    others = desk.queue("b")
    assert desk.next(10.0) is others
    assert not refused.held_up_others


def test_what_was_refused_before_blocks_came_free_is_tried_again_at_once() -> None:
    desk = Desk()
    branch = desk.queue("a")
    assert desk.next() is branch
    asked_when = desk.admission.num_freed
    desk.admission.freed()
    branch.close(Phase.RESTING)
    desk.admission.refused(branch, asked_when)
    assert desk.next() is branch
    desk.refuse(branch)
    assert desk.next() is None
    assert desk.admission.num_queued == 1
    desk.admission.discard(branch)
    assert desk.admission.num_queued == 0


@pytest.mark.parametrize("has_held_up", [True, False])
def test_one_that_others_waited_for_is_charged_though_it_leaves(has_held_up: bool) -> None:
    """An owner that queues what cannot begin, and cancels it, would otherwise hold up others for nothing."""
    desk = Desk()
    for owner in ("b", "a"):
        branch = desk.queue(owner)
        assert desk.next() is branch
    refused = desk.queue("a", due_s=10.0, prompt=40)
    others = desk.queue("b")
    assert desk.next(full="b") is refused
    desk.refuse(refused)
    if has_held_up:
        assert desk.next(10.0) is None
    assert refused.held_up_others is has_held_up
    served = desk.admission.queue._lines.served
    before = served("a")
    desk.admission.discard(refused)
    assert (served("a") > before) is has_held_up
    assert desk.next(10.0) is others


def test_a_branch_leaves_wherever_it_waits() -> None:
    desk = Desk()
    queued, pending, aside = desk.queue("a"), desk.queue("b"), desk.queue("c")
    for branch in (pending, aside):
        desk.admission.queue.take(branch)
    desk.admission.pending.add(pending, 7, 4)
    desk.refuse(aside)
    assert (desk.admission.num_queued, len(desk.admission.pending)) == (2, 1)
    for branch in (queued, pending, aside):
        desk.admission.discard(branch)
    assert (desk.admission.num_queued, len(desk.admission.pending)) == (0, 0)
    assert desk.next(is_idle=True) is None
