"""How long a batch waits for requests that come right behind a reply, with times made up by hand."""

from __future__ import annotations

import pytest

from radixkv.worker.engine.closed_loop import ClosedLoopDelay

BATCH_S = 0.032
LATER_S = 10 * BATCH_S


def hold_dialogue(followers: ClosedLoopDelay, num_replies: int, pause_s: float, now_s: float = 0.0) -> float:
    """A caller who asks again so long after every reply; returns when the last one's reply has ended."""
    for _ in range(num_replies):
        followers.completed(now_s, BATCH_S)
        followers.came(now_s + pause_s)
        now_s += LATER_S
        assert followers.awaited_until_s(now_s) == now_s  # whoever has not come by now, is not waited for
    return now_s


def test_nobody_is_waited_for_before_anybody_has_followed() -> None:
    followers = ClosedLoopDelay()
    followers.completed(1.0, BATCH_S)
    assert followers.awaited_until_s(1.0) == 1.0


def test_a_request_is_waited_for_a_quarter_of_a_batch_where_requests_follow_replies() -> None:
    followers = ClosedLoopDelay()
    now_s = hold_dialogue(followers, 20, pause_s=0.004)
    followers.completed(now_s, BATCH_S)
    assert followers.awaited_until_s(now_s) == pytest.approx(now_s + BATCH_S / 4)
    assert followers.awaited_until_s(now_s + BATCH_S / 4 + 0.001) == now_s + BATCH_S / 4 + 0.001


def test_the_wait_ends_when_a_request_has_come_for_every_reply() -> None:
    followers = ClosedLoopDelay()
    now_s = hold_dialogue(followers, 20, pause_s=0.004)
    followers.completed(now_s, BATCH_S)
    followers.completed(now_s, BATCH_S)
    followers.came(now_s + 0.001)
    assert followers.awaited_until_s(now_s + 0.001) > now_s + 0.001
    followers.came(now_s + 0.002)
    assert followers.awaited_until_s(now_s + 0.002) == now_s + 0.002


def test_nobody_is_waited_for_where_replies_are_read_first() -> None:
    followers = ClosedLoopDelay()
    now_s = hold_dialogue(followers, 20, pause_s=0.004)
    now_s = hold_dialogue(followers, 20, pause_s=BATCH_S, now_s=now_s)
    followers.completed(now_s, BATCH_S)
    assert followers.awaited_until_s(now_s) == now_s


def test_what_was_asked_before_a_reply_has_ended_does_not_follow_it() -> None:
    followers = ClosedLoopDelay()
    now_s = hold_dialogue(followers, 40, pause_s=-0.001)
    followers.completed(now_s, BATCH_S)
    assert followers.awaited_until_s(now_s) == now_s


def test_the_wait_has_a_bound_however_long_a_batch_takes() -> None:
    followers = ClosedLoopDelay()
    now_s = hold_dialogue(followers, 20, pause_s=0.004)
    followers.completed(now_s, 100.0)
    assert followers.awaited_until_s(now_s) == pytest.approx(now_s + 0.01)
