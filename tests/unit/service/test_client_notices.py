"""Notices on their way through a holder: in order, once, and none before the answer that it belongs to."""

from __future__ import annotations

import pytest

from radixkv.client.notices import NoticeBox
from radixkv.core.api import Notice, Pending
from radixkv.core.errors import LeaseError
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.steps import notices_to_proto


def message(number: int, after_step: int, *notices: Notice) -> workers.Notices:
    proto = workers.Notices(number=number, after_step=after_step)
    notices_to_proto(notices, proto)
    return proto


FIRST, SECOND = Notice("published", 1, 8), Notice("gone", 2, 16)


def receive(box: NoticeBox, notices: workers.Notices) -> None:
    box.hold(notices)
    box.release()


def test_a_notice_is_taken_once_and_a_repeated_message_is_dropped() -> None:
    calls: list[int] = []
    box = NoticeBox(lambda: calls.append(1))
    receive(box, message(1, 0, FIRST))
    receive(box, message(1, 0, FIRST))
    assert box.take() == [FIRST]
    assert box.take() == []
    receive(box, message(1, 0, FIRST))
    assert box.take() == []
    assert (len(calls), box.num_received) == (1, 1)


def test_a_notice_waits_for_the_answer_that_it_belongs_to() -> None:
    calls: list[int] = []
    box = NoticeBox(lambda: calls.append(1))
    receive(box, message(1, 3, FIRST))
    receive(box, message(2, 4, SECOND))
    assert box.take() == []
    box.answered(2)
    assert (box.take(), calls) == ([], [])
    box.answered(3)
    assert (box.take(), calls) == ([FIRST], [1])
    box.answered(4)
    assert (box.take(), calls) == ([SECOND], [1, 1])


def test_a_number_left_out_ends_the_lease() -> None:
    box = NoticeBox(None)
    with pytest.raises(LeaseError, match="Notices 2 in place of 1"):
        receive(box, message(2, 0, FIRST))


@pytest.mark.parametrize("outcomes_follow", [False, True])
def test_each_awaited_outcome_is_delivered_once_over_a_restart(outcomes_follow: bool) -> None:
    box = NoticeBox(None)
    box.await_outcomes([None, Pending(1, 8), Pending(2, 16), Pending(3, 4)])
    box.answered(1)
    receive(box, message(1, 1, FIRST))
    receive(box, message(2, 2, SECOND))  # held until an answer that never comes
    assert box.take() == [FIRST]
    assert box.awaited == [Pending(2, 16), Pending(3, 4)]
    outcomes = [SECOND, Notice("gone", 3, 4)]
    box.lost(outcomes_follow=outcomes_follow)
    if outcomes_follow:
        assert box.take() == []
        receive(box, message(3, 1, *outcomes))
    assert box.take() == outcomes
    box.answered(2)
    assert (box.take(), box.awaited) == ([], [])
