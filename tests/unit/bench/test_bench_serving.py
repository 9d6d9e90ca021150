"""What bench.serving judges by: the information limit and the bound over a peer; workloads are played as they are written."""

from __future__ import annotations

import threading
import zlib
from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest

from bench.serving.__main__ import Bench
from bench.serving.figures import OURS, bars, prefill_bars, prefill_seconds, summarise_runs
from bench.serving.limit import information_limit
from bench.serving.made_up import MadeUp
from bench.serving.plan import Call, Outcome, Quote, ReadyCall, Workload
from bench.serving.play import play
from bench.serving.system import Counts, Run
from bench.serving.workloads import WORKLOADS, Ingredients


def outcome(prompt: list[int], *replies: list[int], first_s: float = 1.0) -> Outcome:
    return Outcome(prompt, list(replies), 0.0, first_s, 2.0)


class TestInformationLimit:
    def test_a_prompt_alone_is_computed_once_and_its_reply_but_the_last_token(self) -> None:
        limit = information_limit([outcome([1, 2, 3], [7, 8, 9])])
        assert (limit.num_prompt, limit.num_decode, limit.most) == (3, 2, 6)

    def test_a_prompt_asked_for_again_costs_only_its_reply_and_one_position(self) -> None:
        limit = information_limit([outcome([1, 2, 3], [7, 8]), outcome([1, 2, 3], [9, 9])])
        assert (limit.num_prompt, limit.num_decode, limit.most) == (3, 2, 7)

    def test_a_turn_behind_a_reply_computes_the_reply_s_last_token_and_what_is_new(self) -> None:
        limit = information_limit([outcome([1, 2], [7, 8, 9]), outcome([1, 2, 7, 8, 9, 4], [5])])
        assert limit.num_prompt == 2 + 2

    def test_the_order_in_which_calls_ended_does_not_matter(self) -> None:
        calls = [outcome([1, 2], [7, 8, 9]), outcome([1, 2, 7, 8, 9, 4], [5]), outcome([1, 3], [6])]
        assert information_limit(calls) == information_limit(calls[::-1])

    def test_equal_tokens_behind_different_ones_are_different_prefixes(self) -> None:
        assert information_limit([outcome([1, 5, 6], [7]), outcome([2, 5, 6], [7])]).num_prompt == 6

    def test_every_draft_of_a_call_is_decoded_and_the_prompt_computed_once(self) -> None:
        limit = information_limit([outcome([1, 2, 3, 4], [7, 8], [7, 8], [9, 9])])
        assert (limit.num_prompt, limit.num_decode) == (4, 3)


WORKLOAD = Workload("two", "", (((Call(((1, 2),), 2),), (Call(((1, 2), Quote(0), (3,)), 2),)),), 1)


def answering(call: ReadyCall) -> Outcome:
    return outcome(call.prompt, *([sum(call.prompt) % 97] * call.num_tokens for _ in range(call.n)))


class TestPlay:
    def test_a_later_prompt_quotes_the_system_s_own_reply(self) -> None:
        outcomes = play(WORKLOAD, answering)
        assert [done.prompt for done in outcomes] == [[1, 2], [1, 2, 3, 3, 3]]

    def test_the_calls_of_a_wave_are_asked_together(self) -> None:
        together = threading.Barrier(3)

        def ask(call: ReadyCall) -> Outcome:
            together.wait(timeout=300)
            return answering(call)

        wave = tuple(Call(((number,),), 1) for number in range(3))
        assert len(play(Workload("wave", "", ((wave,),), 1), ask)) == 3

    def test_a_reply_of_another_length_is_no_result(self) -> None:
        with pytest.raises(AssertionError, match=r"replies of \[1\] tokens in place of 1 of 2"):
            play(WORKLOAD, lambda call: outcome(call.prompt, [5]))

    def test_an_error_of_the_system_reaches_the_caller(self) -> None:
        def fail(call: ReadyCall) -> Outcome:
            raise RuntimeError(f"no answer to {call.prompt}")

        with pytest.raises(RuntimeError, match="no answer"):
            play(WORKLOAD, fail)


def run(system: str, wall_s: float, num_computed: int) -> Run:
    outcomes = [outcome([1, 2, 3, 4], [7, 8]), outcome([1, 2, 3, 5], [7, 8])]
    return Run(system, "two", outcomes, wall_s, Counts(num_computed, None), None)


PREFILL = {4: 2.0}  # half a second per token


class TestFigures:
    def test_the_bound_takes_a_peer_s_redundant_prefill_off_its_time(self) -> None:
        # 5 distinct prompt positions and 2 decoded: 9 computed are 2 too many, a second of a peer's 4
        figures = summarise_runs(WORKLOAD, [run("peer", 4.0, 9)], PREFILL, 1)
        assert (figures.num_redundant, figures.redundant_s) == (2, 1.0)
        assert figures.bound == pytest.approx(4 / 3)

    def test_a_peer_that_computes_nothing_twice_leaves_nothing_to_gain(self) -> None:
        assert summarise_runs(WORKLOAD, [run("peer", 4.0, 7)], PREFILL, 1).bound == 1.0

    def test_figures_are_medians_over_the_runs(self) -> None:
        runs = [run("peer", wall_s, 7) for wall_s in (9.0, 2.0, 3.0)]
        figures = summarise_runs(WORKLOAD, runs, PREFILL, 1)
        assert (figures.wall_s, figures.wall_least_s, figures.wall_most_s) == (3.0, 2.0, 9.0)

    def test_prefill_speed_is_the_median_by_length_once_warm(self) -> None:
        samples = [outcome([1, 2], [7], first_s=first_s) for first_s in (90.0, 1.0, 5.0, 2.0)]
        assert prefill_seconds([Run("peer", "prefill", samples, 0, Counts(0, None), None)]) == {2: 2.0}

    def test_being_slower_than_the_peer_misses_a_bar(self) -> None:
        by_system = {
            name: summarise_runs(WORKLOAD, [run(name, wall_s, 7)], PREFILL, 1)
            for name, wall_s in ((OURS, 5.0), ("peer", 4.0))
        }
        missed = [bar.name for bar in bars(WORKLOAD, by_system, ["peer"], "") if not bar.passed]
        assert missed == ["two: faster than peer"]

    @pytest.mark.parametrize(("num_computed", "num_cached"), [(7, 3), (8, 2)])
    def test_several_workers_are_to_find_as_much_cached_as_one(self, num_computed: int, num_cached: int) -> None:
        by_system = {
            name: summarise_runs(WORKLOAD, [run(name, 1.0, number)], PREFILL, 1)
            for name, number in ((OURS, 7), (f"{OURS}, 2 workers", num_computed))
        }
        found = [bar for bar in bars(WORKLOAD, by_system, [], "") if "cached" in bar.name]
        assert [(bar.name, bar.value) for bar in found] == [("two: cached tokens of 2 workers / one's", num_cached / 3)]
        assert found[0].passed == (num_cached == 3)

    def test_a_shared_prompt_is_to_be_answered_several_times_faster_than_by_the_better_peer(self) -> None:
        workload = replace(WORKLOAD, least_faster=3.0)
        by_system = {
            name: summarise_runs(workload, [run(name, wall_s, 7)], PREFILL, 1)
            for name, wall_s in ((OURS, 2.0), ("one", 5.0), ("other", 9.0))
        }
        missed = [(bar.name, bar.value) for bar in bars(workload, by_system, ["one", "other"], "") if not bar.passed]
        assert missed == [("two: faster than the better peer", 2.5)]

    def test_a_plain_chat_is_to_decode_as_fast_and_a_prompt_to_be_computed_sooner(self) -> None:
        plain = replace(WORKLOAD, branches=False)
        figures = summarise_runs(plain, [run(OURS, 5.0, 7)], PREFILL, 1)
        assert figures.token_p50_s == 1.0  # the second token of two, a second behind the first
        by_system = {OURS: figures, "peer": replace(figures, token_p50_s=0.5)}
        missed = [(bar.name, bar.value) for bar in bars(plain, by_system, ["peer"], "") if not bar.passed]
        assert missed == [("two: decodes as fast as peer", 0.5)]
        found = prefill_bars({OURS: {64: 2.0, 256: 8.0}, "peer": {64: 4.0, 256: 4.0}}, ["peer"], "")
        assert [(bar.value, bar.passed) for bar in found] == [(2.0, True), (0.5, False)]
        assert prefill_bars({OURS: {64: 2.0}}, ["peer"], "not fetched")[0].value is None

    def test_computing_a_prompt_twice_misses_a_bar(self) -> None:
        figures = {OURS: summarise_runs(WORKLOAD, [run(OURS, 1.0, 10)], {}, 1)}
        assert [bar.passed for bar in bars(WORKLOAD, figures, [], "")] == [False]

    def test_a_peer_that_is_not_there_leaves_its_bar_unmet(self) -> None:
        figures = {OURS: summarise_runs(WORKLOAD, [run(OURS, 1.0, 7)], {}, 1)}
        assert [bar.value for bar in bars(WORKLOAD, figures, ["peer"], "not fetched")] == [-2, None]


class Spelling:
    """Enough of a tokenizer for shapes: a token per word."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:  # noqa: ARG002
        return [1 + zlib.crc32(word.encode()) % 1000 for word in text.split()]

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return [1, *self.encode(messages[-1]["content"]), 2]

    def continuation_ids(self, kept_ids: list[int], messages: list[dict[str, str]]) -> list[int]:  # noqa: ARG002
        return [3, *self.encode(messages[-1]["content"]), 2]


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("is_quick", [True, False])
def test_a_workload_can_be_played_and_branches_as_it_says(name: str, is_quick: bool) -> None:
    workload = WORKLOADS[name](Ingredients(MadeUp(0), Spelling(), 0, is_quick))  # type: ignore[arg-type]
    outcomes = play(workload, answering)
    assert len(outcomes) == workload.num_calls > 0
    num_prompt = sum(len(done.prompt) for done in outcomes)
    limit = information_limit(outcomes)
    several = any(call.n > 1 for call in workload.calls())
    assert several or limit.num_prompt < num_prompt  # something is shared
    assert workload.branches is (name != "chat")


class Interrupted:
    """A system that answers at once, until Ctrl-C comes in the middle of its run number `after`."""

    def __init__(self, after: float) -> None:
        self.played: list[str] = []
        self._after = after

    def run(self, workload: Workload) -> Run:
        if len(self.played) >= self._after:
            raise KeyboardInterrupt
        self.played.append(workload.name)
        return run(OURS, 1.0, 7)


class TestRepeats:
    LONG = Workload("long", "", WORKLOAD.lanes, 1, is_long=True)

    def bench(self, driver: Any, repeats: int = 3) -> Bench:
        options = Namespace(repeats=repeats, quick=True, seed=0)
        return Bench({OURS: driver}, [WORKLOAD, self.LONG], options)

    def test_a_long_workload_is_played_in_the_first_repeat_alone(self) -> None:
        driver = Interrupted(float("inf"))
        self.bench(driver).run()
        assert driver.played == ["prefill", "two", "long", "prefill", "two", "prefill", "two"]

    def test_an_interrupted_bench_keeps_the_repeats_that_are_whole(self) -> None:
        bench = self.bench(Interrupted(after=6))  # in the third repeat, behind its prefill
        bench.run()
        assert bench.num_repeats == 2
        assert {name: len(runs) for (name, _), runs in bench.runs.items()} == {"two": 2, "long": 1}
        assert len(bench.prefills[OURS]) == 2

    def test_an_interruption_of_the_first_repeat_ends_the_bench(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.bench(Interrupted(after=2)).run()
