"""Numbers of the replicas of a node."""

from __future__ import annotations

from radixkv.ray.numbers import ReplicaNumbers


def test_a_number_is_given_again_once_its_replica_is_idle() -> None:
    numbers = ReplicaNumbers(idle_s=10)
    assert [numbers.use(replica, None, 0) for replica in ("a", "b", "c")] == [0, 1, 2]
    assert numbers.use("b", 1, 9) == 1
    assert numbers.use("d", None, 9) == 3
    assert numbers.use("e", None, 10) == 0, "a has not been heard of for so long"
    assert numbers.use("f", None, 10) == 2


def test_a_replica_that_asks_again_keeps_its_number() -> None:
    numbers = ReplicaNumbers(idle_s=10)
    assert [numbers.use("a", None, 0), numbers.use("a", None, 1)] == [0, 0]


def test_replicas_tell_a_service_that_started_anew_which_numbers_they_have() -> None:
    numbers = ReplicaNumbers(idle_s=10)
    assert numbers.use("b", 1, 0) == 1
    assert [numbers.use("c", None, 1), numbers.use("d", None, 1)] == [0, 2]


def test_all_are_idle_when_the_last_is() -> None:
    numbers = ReplicaNumbers(idle_s=10)
    assert numbers.are_idle(0)
    numbers.use("a", None, 0)
    numbers.use("b", None, 5)
    assert not numbers.are_idle(14)
    assert numbers.are_idle(15)
