"""The index of a host pool: a Step is answered in time or not at all, and a holder that is lost has a successor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from desk import LateCache
from own_threads import own_threads
from waiting import wait_until

from radixkv.connectors.index import HostIndex
from radixkv.core.api import AcquireOp, AcquireResult, InsertOp, MatchOp, MatchResult, Notice, StepOp, StepResult
from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.core.tokens import pack_tokens

TOKENS = pack_tokens(range(8))
OPEN = [AcquireOp(TOKENS, seq_id=7), InsertOp(7, 8)]
PATIENCE_S = 300.0


class Holder(LateCache):
    """Answers at once, unless it is late; can be closed, as one over gRPC."""

    def __init__(self) -> None:
        super().__init__(16, 4)
        self.is_late = False
        self.num_closed = 0
        self.said: list[list[StepOp]] = []

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        future = super().submit(ops)
        self.said.append(list(ops))
        if not self.is_late:
            self.answer()
        return future

    def close(self) -> None:
        self.num_closed += 1


class Service:
    """Makes holders, unless it is down."""

    def __init__(self) -> None:
        self.made: list[Holder] = []
        self.num_refused = 0
        self.is_up = threading.Event()
        self.is_up.set()

    def connect(self) -> Holder:
        if not self.is_up.is_set():
            self.num_refused += 1
            raise UnavailableError("the service cannot be reached")
        self.made.append(Holder())
        return self.made[-1]


@pytest.fixture
def service() -> Service:
    return Service()


def index_of(service: Service, **options: float) -> HostIndex:
    return HostIndex(service.connect, **{"timeout_s": PATIENCE_S, "retry_s": 0.001} | options)


def test_a_step_is_answered_in_order(service: Service) -> None:
    answers = index_of(service).step([*OPEN, MatchOp(TOKENS)])
    assert answers is not None
    opened, inserted, matched = answers
    assert isinstance(opened, AcquireResult)
    assert inserted is None
    assert isinstance(matched, MatchResult)
    assert matched.num_tokens == 8


def test_an_orphan_is_released_once_before_the_next_step_and_keeps_nothing(service: Service) -> None:
    index = index_of(service)
    index.step(OPEN)
    index.orphan([7])
    index.orphan([])
    answers = index.step([MatchOp(TOKENS)])
    assert answers is not None
    assert [answer.num_tokens for answer in answers if isinstance(answer, MatchResult)] == [0]
    assert len(answers) == 1
    index.step([MatchOp(TOKENS)])
    assert [len(ops) for ops in service.made[0].said] == [2, 2, 1]
    assert service.made[0].stats().num_sequences == 0


def test_until_a_late_answer_is_there_steps_go_unanswered_and_unsaid(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    index = index_of(service, timeout_s=0.001)
    (holder,) = service.made
    holder.is_late = True
    assert index.step(OPEN) is None
    assert "has not answered for 0.001 s" in caplog.text
    holder.is_late = False
    assert index.step([MatchOp(TOKENS)]) is None
    assert holder.said == [OPEN]
    holder.answer()
    assert index.step([MatchOp(TOKENS)]) is not None
    assert service.made == [holder]


@pytest.mark.parametrize("is_late", [False, True], ids=["at the call", "at the answer"])
def test_a_lost_holder_is_closed_and_its_successor_knows_nothing_of_its_sequences(
    service: Service, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    index = index_of(service)
    (lost,) = service.made
    index.step(OPEN)
    lost.told.append(Notice("lost", 7, 0))
    assert index.take_notices() == [Notice("lost", 7, 0)]
    index.orphan([7])
    service.is_up.clear()
    lost.is_late = is_late
    if is_late:
        threading.Thread(target=lambda: (wait_until(lambda: lost.waiting), lost.lose())).start()  # type: ignore[func-returns-value]
    else:
        lost.lose()
    assert index.step([MatchOp(TOKENS)]) is None
    assert "the host pool's index is lost: that incarnation has ended" in caplog.text
    wait_until(lambda: service.num_refused > 2)
    assert lost.num_closed == 1
    assert index.step([MatchOp(TOKENS)]) is None
    assert index.take_notices() == []
    service.is_up.set()
    wait_until(lambda: index.step([MatchOp(TOKENS)]) is not None)
    assert all(ops == [MatchOp(TOKENS)] for ops in service.made[1].said), "nothing is released there"
    index.close()
    assert [holder.num_closed for holder in service.made] == [1, 1]


def test_a_closed_index_looks_for_no_successor(service: Service) -> None:
    index, before = index_of(service, retry_s=3600.0), own_threads()
    service.is_up.clear()
    service.made[0].lose()
    index.step(OPEN)
    wait_until(lambda: service.num_refused == 1)
    (thread,) = (each for each in own_threads() - before if each.name == "radixkv-reconnect")
    index.close()
    index.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it does not sleep to the end of its pause"
    assert len(service.made) == 1
    assert index.step(OPEN) is None


def test_a_successor_that_comes_while_the_index_is_closed_is_closed_too() -> None:
    made, may_connect = [Holder()], threading.Event()

    def connect() -> Holder:
        if len(made) == 1 and made[0].is_lost:
            may_connect.wait()
            made.append(Holder())
        return made[-1]

    index = HostIndex(connect)
    made[0].lose()
    index.step(OPEN)
    index.close()
    may_connect.set()
    wait_until(lambda: made[-1].num_closed == 1 and len(made) == 2)
    assert made[0].num_closed == 1


def test_without_a_first_holder_there_is_no_index(service: Service) -> None:
    service.is_up.clear()
    with pytest.raises(RadixKVError, match="cannot be reached"):
        index_of(service)
