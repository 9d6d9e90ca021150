"""The rule that ranks workers for a request, and what a router remembers beside the reports."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from random import Random
from typing import Any

import pytest

from radixkv.core.api import PoolRoute, WorkerLoad, WorkerReport
from radixkv.routing import Choice, OwnChoices, Refusals, choose
from radixkv.routing.choose import RECOMPUTED_WEIGHT as W


def offer(
    name: str,
    found: int = 0,
    *,
    pending: int = 0,
    stored: int = 0,
    backlog: int = 0,
    speed: float = 1000.0,
    room: int = 0,
    freed: float = 0.0,
    **load: Any,
) -> PoolRoute:
    measured = WorkerLoad(backlog, speed, 0, **{"is_accepting": True, **load})
    return PoolRoute(found, pending, WorkerReport(1, name, name, load=measured), stored, room, freed)


def ranked(*offers: PoolRoute, prompt: int = 1000, recent: dict[str, int] | None = None, seed: int = 0) -> list[Choice]:
    return choose(offers, prompt, recent or {}, Random(seed))


def names(choices: list[Choice]) -> list[str]:
    return [choice.worker for choice in choices]


def test_the_cost_is_the_backlog_and_the_weighed_time_of_what_is_to_be_computed() -> None:
    first, second = ranked(offer("a", 600, backlog=500, speed=2000.0), offer("b", backlog=100))
    assert (first.worker, first.num_found_tokens, first.reason) == ("a", 600, "matched")
    assert first.backlog_s == pytest.approx(0.25)
    assert first.cost_s == pytest.approx(0.25 + W * 400 / 2000)
    assert (second.worker, second.cost_s, second.reason) == ("b", pytest.approx(0.1 + W), "load")


def test_a_worker_that_holds_the_prefix_is_left_once_it_is_too_busy() -> None:
    assert names(ranked(offer("holds", 900, backlog=round(900 * W) - 100), offer("idle"))) == ["holds", "idle"]
    assert names(ranked(offer("holds", 900, backlog=round(900 * W) + 100), offer("idle"))) == ["idle", "holds"]


def test_what_a_running_sequence_is_about_to_publish_counts_as_cached() -> None:
    first, _ = ranked(offer("cached", 300), offer("computes it", 100, pending=800))
    assert (first.worker, first.num_found_tokens, first.reason) == ("computes it", 800, "pending")


def test_what_is_stored_costs_the_time_to_load_it() -> None:
    first, second, third = ranked(
        offer("cached", 800), offer("stored", 200, stored=700, loaded_tokens_per_s=5000.0), offer("neither")
    )
    assert (first.worker, first.num_found_tokens, first.reason) == ("stored", 900, "stored")
    assert first.cost_s == pytest.approx(700 / 5000 + W * 100 / 1000)
    assert (second.worker, third.worker) == ("cached", "neither")


def test_what_loads_slower_than_it_is_computed_counts_for_nothing() -> None:
    first, second = ranked(offer("slow", 200, stored=700, loaded_tokens_per_s=999.0), offer("cached", 201))
    assert (first.worker, second.worker, second.num_found_tokens, second.reason) == ("cached", "slow", 200, "matched")


def test_a_load_whose_speed_is_not_known_is_taken_for_a_fast_one() -> None:
    (choice,) = ranked(offer("a", stored=1000))
    assert (choice.num_found_tokens, choice.cost_s) == (1000, pytest.approx(0.1))


def test_of_stored_tokens_only_those_beyond_what_is_cached_or_about_to_be_are_loaded() -> None:
    (choice,) = ranked(offer("a", 100, pending=600, stored=400, loaded_tokens_per_s=5000.0))
    assert (choice.num_found_tokens, choice.reason) == (600, "pending")
    (choice,) = ranked(offer("a", 100, pending=600, stored=5000, loaded_tokens_per_s=5000.0))
    assert (choice.num_found_tokens, choice.cost_s) == (1000, pytest.approx(400 / 5000))


def test_where_blocks_are_short_the_wait_for_those_that_are_not_cached_counts_like_computing() -> None:
    first, second = ranked(offer("full", 300, room=200, freed=250.0), offer("roomy", 100, room=900, freed=250.0))
    assert (first.worker, first.waiting_s, first.cost_s) == ("roomy", 0.0, pytest.approx(W * 0.9))
    assert (second.waiting_s, second.cost_s) == (2.0, pytest.approx(W * (0.7 + 2.0)))
    assert names(ranked(offer("full", 800, freed=1000.0), offer("roomy", 100, room=900))) == ["full", "roomy"]


def test_what_is_loaded_needs_room_and_what_is_about_to_be_published_does_not() -> None:
    (choice,) = ranked(offer("a", 100, stored=900, freed=900.0, loaded_tokens_per_s=5000.0))
    assert choice.waiting_s == pytest.approx(1.0)
    (choice,) = ranked(offer("a", 100, pending=1000, freed=900.0))
    assert choice.waiting_s == 0.0


@pytest.mark.parametrize("freed", [0.0, math.nan, -1.0, math.inf])
def test_a_pool_that_does_not_tell_how_fast_blocks_come_makes_nobody_wait(freed: float) -> None:
    (choice,) = ranked(offer("a", freed=freed))
    assert (choice.waiting_s, choice.cost_s) == (0.0, W)


def test_choices_that_no_report_covers_count_as_backlog() -> None:
    offers = (offer("a"), offer("b"))
    assert names(ranked(*offers, recent={"a": 1})) == ["b", "a"]


def test_equal_costs_are_decided_at_random() -> None:
    firsts = Counter(ranked(offer("a"), offer("b"), offer("c"), seed=seed)[0].worker for seed in range(300))
    assert set(firsts) == {"a", "b", "c"}
    assert min(firsts.values()) > 60


def test_like_workers_get_new_prompts_alike_however_their_speeds_were_measured() -> None:
    offers = [offer("a", speed=900.0), offer("b", speed=1000.0), offer("c", speed=1200.0), offer("slow", speed=400.0)]
    firsts = Counter(ranked(*offers, seed=seed)[0].worker for seed in range(300))
    assert set(firsts) == {"a", "b", "c"}
    assert min(firsts.values()) > 60


@pytest.mark.parametrize("speed", [math.inf, 1e308, 1e-308, 5e-324])
def test_a_speed_that_no_worker_has_stops_no_choice(speed: float) -> None:
    for offers in ([offer("odd", speed=speed)], [offer("odd", speed=speed), offer("a"), offer("b")]):
        assert len(ranked(*offers)) == len(offers)


def test_a_choice_is_told_in_characters_that_a_header_can_have() -> None:
    (choice,) = ranked(offer("unix:/日本\r\nx"))
    assert str(choice).isascii()
    assert str(choice).isprintable()


def test_workers_that_stop_or_serve_nowhere_are_left_out() -> None:
    stopping, nowhere = offer("stopping", 1000, is_accepting=False), offer("", 1000)
    assert names(ranked(stopping, nowhere, offer("a"))) == ["a"]
    assert ranked(stopping, nowhere) == []
    assert ranked() == []


def test_a_worker_without_a_measured_speed_counts_with_the_usual_one() -> None:
    unmeasured = [offer("new", speed=0.0), PoolRoute(0, 0, WorkerReport(1, "silent", "silent"))]
    costs = {choice.worker: choice.cost_s for choice in ranked(*unmeasured, offer("a", speed=500.0))}
    assert costs == dict.fromkeys(("new", "silent", "a"), 2 * W)
    assert {choice.cost_s for choice in ranked(*unmeasured)} == {W}


def test_choosing_is_pure_and_found_tokens_are_those_of_the_prompt() -> None:
    offers, recent = [offer("a", 400, pending=900), offer("b", backlog=3)], {"b": 7}
    before = (list(offers), dict(recent))
    assert choose(offers, 300, recent, Random(1)) == choose(offers, 300, recent, Random(1))
    assert (offers, recent) == before
    assert ranked(*offers, prompt=300)[0].num_found_tokens == 300


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_own_choice_counts_until_a_report_covers_it() -> None:
    clock = Clock()
    chosen = OwnChoices(clock)
    chosen.chose("a", 500)
    clock.now_s += 1.0
    chosen.chose("a", 70)
    assert chosen.since("a", age_s=1.5) == 570  # the report is older than both
    assert chosen.since("a", age_s=0.5) == 70
    assert chosen.since("b", age_s=9.0) == 0
    chosen.withdraw("a")
    assert chosen.since("a", age_s=0.0) == 0
    chosen.chose("a", 9)
    clock.now_s += 10.5
    assert chosen.since("a", age_s=60.0) == 0  # a worker without reports is not avoided for ever


def test_a_refusing_worker_is_out_for_ever_longer_and_let_in_by_one_request() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    assert refusals.admit("a")
    for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0):
        refusals.refused("a")
        clock.now_s += pause_s - 1e-6
        assert not refusals.admit("a")
        clock.now_s += 2e-6
        assert refusals.admit("a")
        assert not refusals.admit("a"), "one request tries, others wait for its outcome"
    refusals.served("a")
    assert refusals.admit("a")
    assert refusals.admit("a")
    refusals.refused("a")
    clock.now_s += 0.11
    assert refusals.admit("a"), "the next pause is the first again"


def test_routing_needs_neither_grpc_nor_torch() -> None:
    check = "import sys, radixkv.routing; assert not {'grpc', 'torch'} & set(sys.modules), 'imported'"
    subprocess.run([sys.executable, "-c", check], check=True)
