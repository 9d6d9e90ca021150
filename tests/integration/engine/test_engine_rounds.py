"""Rounds driven by hand, with a cache whose answers come late or whose lease is lost: deterministic, without a thread."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from desk import Desk, LateCache, advance, greedy, take
from drafts import LyingSource
from torch import Tensor

from radixkv import PrefixCache, UnavailableError, pack_tokens
from radixkv.core.api import AcquireOp, InsertOp, StepOp, StepResult
from radixkv.core.errors import StaleIncarnationError
from radixkv.generation.request import BACKGROUND_PRIORITY, UnknownGenerationError
from radixkv.testing.hash_model import VOCAB_SIZE, HashRunner, generate
from radixkv.worker.engine import loop
from radixkv.worker.generations.generation import Generation
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import SpeculationSettings


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_decode_never_waits_for_an_answer_that_comes_within_a_block(lag: int) -> None:
    cache = LateCache(64, 8)
    desk = Desk(cache, HashRunner(64, 8), SchedulerLimits())
    generation = desk.put([1, 2, 3], greedy(40))
    desk.loop.run()
    cache.answer()
    num_rounds = 0
    due: deque[int] = deque()
    while desk.loop.generations:
        assert desk.loop.run()
        num_rounds += 1
        due += [num_rounds + lag] * (len(cache.waiting) - len(due))
        while due and due[0] <= num_rounds:
            due.popleft()
            cache.answer()
    assert num_rounds == 40  # one for the prompt, one for every token but the last; none was idle
    assert take(generation) == {0: generate([1, 2, 3], 40)}


def test_a_decode_says_a_step_for_every_block_and_all_it_has_when_another_begins() -> None:
    cache = LateCache(64, 8)
    steps: list[Sequence[StepOp]] = []
    submit = cache.submit

    def noting(ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        steps.append(ops)
        answer = submit(ops)
        cache.answer()
        return answer

    cache.submit = noting  # type: ignore[method-assign]
    desk = Desk(cache, HashRunner(64, 8), SchedulerLimits())
    desk.put([1, 2, 3], greedy(38))
    while len(desk.runner.rows) < 20:
        desk.loop.run()
    reports = [op.num_computed for ops in steps for op in ops if isinstance(op, InsertOp)]
    assert reports == [3, 8, 16]
    desk.put([1, 2, 3], greedy(2))
    desk.loop.run()
    assert [type(op) for op in steps[-1][:2]] == [InsertOp, AcquireOp]
    while desk.loop.generations:
        desk.loop.run()
    desk.loop.run()
    assert cache.match(pack_tokens([1, 2, 3, *generate([1, 2, 3], 38)])).num_tokens == 40  # all but the last, never run


def test_decodes_run_on_while_a_new_request_waits_to_be_acquired() -> None:
    cache = LateCache(64, 8)
    desk = Desk(cache, HashRunner(64, 8), SchedulerLimits())
    desk.put([1, 2, 3], greedy(40))
    desk.loop.run()
    cache.answer()
    desk.loop.run()
    desk.put([4, 5, 6], greedy(2))
    num_before = len(desk.runner.rows)
    for _ in range(4):
        assert desk.loop.run()
    assert [end - start for start, end in desk.runner.rows[num_before:]] == [1] * 4


def test_a_new_request_begins_in_its_first_round_if_the_answer_comes_within_a_fifth_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = LateCache(64, 8)
    seconds = itertools.count()  # every look at the clock is a second later, so a batch takes one
    desk = Desk(cache, HashRunner(64, 8), SchedulerLimits(), clock=lambda: float(next(seconds)))
    desk.put([1, 2, 3], greedy(40))
    desk.loop.run()
    cache.answer()
    desk.loop.run()
    waited = []

    def wait(_answers: object, timeout: float) -> None:
        waited.append(timeout)
        cache.answer()

    monkeypatch.setattr(loop, "wait", wait)
    desk.put([4, 5, 6], greedy(2))
    num_before = len(desk.runner.rows)
    assert desk.loop.run()
    assert [end - start for start, end in desk.runner.rows[num_before:]] == [1, 3]
    while len(desk.loop.generations) == 2:
        assert desk.loop.run()
    assert len(waited) == 1  # steps that let nobody in are not waited for
    assert 0 < waited[0] < 10


def test_a_batch_of_the_background_is_given_up_for_a_request_but_not_twice_in_a_row() -> None:
    desk = Desk(PrefixCache(64, 8), HashRunner(64, 8), SchedulerLimits())
    background = desk.put([1, 2, 3], greedy(20), priority=BACKGROUND_PRIORITY)
    desk.loop.has_arrival.value = 1  # and stays so: requests come faster than a batch runs
    rounds = []
    while desk.loop.generations:
        num_before = len(desk.runner.rows)
        assert desk.loop.run(), "it sleeps, and no message will come"
        rounds.append(len(desk.runner.rows) - num_before)
    assert rounds[:6] == [0, 1, 0, 1, 0, 1]
    assert take(background) == {0: generate([1, 2, 3], 20)}
    assert desk.loop.stats().num_computed_tokens == 3 + 19


def test_a_batch_with_drafts_is_given_up_for_a_request_but_not_twice_in_a_row() -> None:
    prompt = [1, 2, 3]
    reply = generate(prompt, 20)
    source = LyingSource(lambda branch: reply[len(branch.tokens) - 3 :][:4], 0.0, 1)
    settings = SpeculationSettings(always=True)
    desk = Desk(PrefixCache(64, 8), HashRunner(64, 8), SchedulerLimits(), speculation=settings, sources=[source])
    chat = desk.put(prompt, greedy(20))
    desk.loop.run()
    desk.loop.has_arrival.value = 1  # and stays so: requests come faster than a batch runs
    rounds = []
    while desk.loop.generations:
        num_before = len(desk.runner.rows)
        assert desk.loop.run(), "it sleeps, and no message will come"
        rounds.append([end - start for start, end in desk.runner.rows[num_before:]])
    assert rounds[:6] == [[], [5], [], [5], [], [5]]
    assert take(chat) == {0: reply}
    assert desk.loop.stats().accepted_tokens == {"own": 15}


@pytest.mark.parametrize(("priority", "is_drafted"), [(0, False), (BACKGROUND_PRIORITY, True)])
def test_nothing_is_drafted_while_a_request_waits_for_its_sequence(priority: int, is_drafted: bool) -> None:
    prompt = [1, 2, 3]
    source = LyingSource(lambda branch: generate(list(branch.tokens), 4), 0.0, 1)
    settings, cache = SpeculationSettings(always=True), LateCache(64, 8)
    desk = Desk(cache, HashRunner(64, 8), SchedulerLimits(), speculation=settings, sources=[source])
    desk.put(prompt, greedy(60))

    def lengths() -> list[int]:
        num_before = len(desk.runner.rows)
        assert desk.loop.run()
        return [end - start for start, end in desk.runner.rows[num_before:]]

    desk.loop.run()
    while cache.answer():
        pass
    assert [lengths(), lengths()] == [[3], [5]]
    while cache.answer():
        pass
    desk.put([4, 5, 6], greedy(3), priority=priority)
    assert lengths() == [5 if is_drafted else 1]
    while cache.answer():
        pass
    assert lengths() == [1, 3]
    assert lengths()[0] == 5


@pytest.mark.parametrize(("priority", "num_counted"), [(0, 1), (BACKGROUND_PRIORITY, 0)])
def test_requests_of_the_background_give_up_no_step_and_make_no_drafts_fewer(priority: int, num_counted: int) -> None:
    desk = Desk(PrefixCache(64, 8), HashRunner(64, 8), SchedulerLimits(), speculation=SpeculationSettings())
    desk.put([1, 2, 3], greedy(2), priority=priority)
    drafter = desk.loop._drafter
    assert drafter is not None
    assert (drafter._arrivals.per_s(0.0) > 0) == num_counted


def test_a_batch_of_the_background_that_a_request_waits_for_is_not_given_up() -> None:
    desk = Desk(PrefixCache(64, 8), HashRunner(64, 8), SchedulerLimits(max_batch_tokens=8, chunk_tokens=8))
    prompt = [1, 2, 3, 4] * 12
    desk.put(prompt, greedy(4), priority=BACKGROUND_PRIORITY)
    desk.loop.run()
    person = desk.put(prompt, greedy(4))
    desk.loop.has_arrival.value = 1  # others come faster than a batch runs
    for _ in range(5):
        num_before = len(desk.runner.rows)
        assert desk.loop.run()
        assert len(desk.runner.rows) > num_before
    assert desk.loop.stats().num_pending_branches == 1
    while desk.loop.generations:
        assert desk.loop.run()
    assert take(person) == {0: generate(prompt, 4)}


def test_a_round_waits_for_callers_who_ask_again_at_once_unless_somebody_is_queued() -> None:
    cache = LateCache(64, 8)
    now_s = [0.0]
    desk = Desk(cache, SlowRunner(now_s), SchedulerLimits(max_running=2), clock=lambda: now_s[0])
    desk.put([1, 2, 3], greedy(200))
    for token_id in range(20):  # a second caller, whose requests come right behind its replies
        behind = desk.put([4, token_id], greedy(2))
        assert desk.loop.next_round_s() == now_s[0]  # it has come, so there is nobody to wait for
        while behind.generation_id in desk.loop.generations:
            desk.loop.run()
            cache.answer()
    assert desk.loop.next_round_s() > now_s[0]
    desk.put([5], greedy(2))
    assert desk.loop.next_round_s() == now_s[0]
    waiting = [desk.put([6 + number], greedy(2)) for number in range(2)]
    while waiting[0].generation_id in desk.loop.generations:
        desk.loop.run()
        cache.answer()
        assert desk.loop.next_round_s() == now_s[0]  # also when a reply has ended: it made room for somebody


class SlowRunner(HashRunner):
    """Every forward takes 20 ms of a clock."""

    def __init__(self, now_s: list[float]) -> None:
        super().__init__(64, 8)
        self._now_s = now_s

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        self._now_s[0] += 0.02
        return super().forward(rows, drawn_ids)


@pytest.mark.parametrize("num_lines", [0, 1, 3])
@pytest.mark.parametrize("seed", range(40))
def test_tokens_are_right_however_late_answers_come_and_whenever_the_lease_is_lost(seed: int, num_lines: int) -> None:
    _play(seed, num_lines)


@pytest.mark.parametrize("window", [1, 6, 20])
@pytest.mark.parametrize("seed", range(20))
def test_so_they_are_where_few_blocks_have_what_a_window_shows(seed: int, window: int) -> None:
    _play(seed, 0, window)


def _play(seed: int, num_lines: int, window: int | None = None) -> None:
    rng = random.Random(seed)
    num_blocks, block_size = rng.choice([(4, 2), (6, 4), (20, 4)])
    arena = Arena(num_blocks, num_lines, num_blocks, block_size) if num_lines else None
    capacity = num_blocks * block_size
    current = LateCache(num_blocks, block_size)
    num_losses = 0

    def reattach() -> LateCache:
        nonlocal current, num_losses
        current = LateCache(num_blocks, block_size)
        num_losses += 1
        return current

    limits = SchedulerLimits(rng.choice([2, 32]), rng.choice([4, 32]), rng.choice([2, 8]))
    num_window_blocks = -(-(limits.chunk_tokens + 5 + (window or 0)) // block_size) + 1
    runner = HashRunner(
        num_blocks * (1 + num_lines), block_size, window=window, num_window_blocks=num_window_blocks if window else 0
    )

    def expect(history: Sequence[int], num_tokens: int) -> list[int]:
        return generate(history, num_tokens, window=window)

    source = LyingSource(lambda branch: expect(branch.tokens, 20), rng.choice([0.0, 0.3]), VOCAB_SIZE + 3, seed)
    drafts = {"speculation": SpeculationSettings(num_tokens=5, always=True), "sources": [source]} if seed % 3 else {}
    desk = Desk(current, runner, limits, reattach=reattach, arena=arena, **drafts)
    loses = seed % 2 == 0
    wanted: list[tuple[Generation, dict[int, list[int]]]] = []
    for _ in range(12):
        prompt = [rng.randrange(1, 3) for _ in range(rng.randint(1, capacity))]
        sampling = greedy(rng.randint(1, capacity + 1 - len(prompt)), rng.choice([1, 1, 3]))
        expected = dict.fromkeys(range(sampling.n), expect(prompt, sampling.max_tokens))
        wanted.append((desk.put(prompt, sampling), expected))
        if rng.random() < 0.2:
            desk.loop.cancel(wanted.pop(rng.randrange(len(wanted)))[0])
        for _ in range(rng.randrange(12)):
            advance(desk, lambda: current, rng)
        if loses and rng.random() < 0.15:
            current.lose()
    while desk.loop.generations:
        advance(desk, lambda: current, rng)
    for generation, expected in wanted:
        assert take(generation) == expected
    while desk.loop.run() or current.answer():
        pass
    current.check()
    assert current.stats().num_sequences == 0
    assert desk.scheduler.num_running == desk.scheduler.num_queued == 0


@pytest.mark.parametrize("can_reattach", [True, False])
@pytest.mark.parametrize("num_answered", [0, 1, 2])
def test_what_was_to_be_asked_of_the_cache_is_asked_though_the_lease_is_lost_before_the_answer_it_waits_for(
    num_answered: int, can_reattach: bool
) -> None:
    caches = [LateCache(64, 4)]

    def reattach() -> LateCache:
        caches.append(LateCache(64, 4))
        return caches[-1]

    desk = Desk(caches[0], HashRunner(64, 4), SchedulerLimits(), reattach=reattach if can_reattach else None)
    desk.put([1, 2, 3], greedy(40))
    asked: list[str] = []
    for number in range(3):  # each has a Step of its own to be answered
        desk.put([number + 5], greedy(40))
        desk.loop.run()
        desk.loop.call_later(lambda number=number: asked.append(f"before {number}"))  # type: ignore[misc]
    for _ in range(num_answered):
        caches[0].answer()
    desk.loop.run()
    assert len(asked) <= num_answered, "it waits for what was said before it"
    assert caches[0].waiting
    caches[0].lose()
    desk.loop.run()
    while caches[-1].answer():  # what was said to the next one, before it can be asked
        pass
    desk.loop.run()
    assert asked == ["before 0", "before 1", "before 2"]
    for number in range(3):
        desk.put([number + 9], greedy(2))
        desk.loop.call_later(lambda number=number: asked.append(f"after {number}"))  # type: ignore[misc]
        desk.loop.run()
        while caches[-1].answer():
            desk.loop.run()
    desk.loop.run()
    assert asked[3:] == ["after 0", "after 1", "after 2"]


def test_what_another_namespace_generates_is_unknown_whether_it_waits_runs_or_has_ended() -> None:
    cache = LateCache(4, 4)
    desk = Desk(cache, HashRunner(4, 4), SchedulerLimits())
    running, waiting = (desk.put([number] * 9, greedy(4), namespace="owner") for number in (1, 2))

    def assert_hidden() -> None:
        for generation in (running, waiting):
            with pytest.raises(UnknownGenerationError) as hidden:
                desk.loop.find_history(generation.generation_id, 0, "prober".__eq__)
            with pytest.raises(UnknownGenerationError) as unknown:
                desk.loop.find_history("nobody", 0, "prober".__eq__)
            assert str(hidden.value).replace(generation.generation_id, "nobody") == str(unknown.value)
            for sees in ("owner".__eq__, None):
                found = desk.loop.find_history(generation.generation_id, 0, sees)
                assert found.tokens.startswith(generation.prompt)

    assert_hidden()
    desk.loop.run()
    cache.answer()
    desk.loop.run()
    stats = desk.loop.stats()
    assert (stats.num_running_branches, stats.num_queued_branches, stats.num_remembered) == (1, 1, 0)
    assert_hidden()
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    assert_hidden()


def test_without_a_way_to_reattach_a_lost_lease_ends_what_runs_with_its_error() -> None:
    cache = LateCache(16, 4)
    desk = Desk(cache, HashRunner(16, 4), SchedulerLimits())
    running, queued = desk.put([1, 2], greedy(20)), desk.put([3] * 60, greedy(2))
    for _ in range(3):
        desk.loop.run()
        cache.answer()
    cache.lose()
    for _ in range(4):  # a block: then there is something to say
        desk.loop.run()
    for generation in (running, queued):
        with pytest.raises(StaleIncarnationError):
            take(generation)
    assert not desk.loop.generations


def test_a_refused_reattachment_ends_what_runs_and_the_next_request_tries_again() -> None:
    caches = [LateCache(16, 4)]
    is_down = True

    def reattach() -> LateCache:
        if is_down:
            raise UnavailableError("the service cannot be reached")
        caches.append(LateCache(16, 4))
        return caches[-1]

    desk = Desk(caches[0], HashRunner(16, 4), SchedulerLimits(), reattach=reattach)
    first = desk.put([1, 2], greedy(20))
    desk.loop.run()
    caches[0].lose()
    desk.loop.run()
    with pytest.raises(UnavailableError):
        take(first)
    is_down = False
    second = desk.put([1, 2], greedy(20))
    while desk.loop.generations:
        desk.loop.run()
        caches[-1].answer()
    assert take(second) == {0: generate([1, 2], 20)}


def test_nobody_overtakes_who_is_due_and_waits_for_blocks() -> None:
    cache = PrefixCache(16, 4)
    desk = Desk(cache, HashRunner(16, 4), SchedulerLimits(max_wait_s=0))
    first = desk.put([1] * 40, greedy(20))
    desk.loop.run()
    large = desk.put([2] * 60, greedy(2))
    desk.loop.run()
    small = desk.put([3] * 2, greedy(1))
    while desk.loop.generations:
        desk.loop.run()
    assert [len(take(generation)[0]) for generation in (first, large, small)] == [20, 2, 1]
    assert desk.runner.rows.index((0, 60)) < desk.runner.rows.index((0, 2))


def test_requests_that_share_a_prompt_compute_it_once_though_they_come_together() -> None:
    cache = LateCache(200, 4)
    desk = Desk(cache, HashRunner(200, 4), SchedulerLimits(max_batch_tokens=64, chunk_tokens=16))
    shared = [token % VOCAB_SIZE for token in range(50)]
    generations = [desk.put([*shared, number], greedy(1)) for number in range(10)]
    while desk.loop.generations:
        desk.loop.run()
        while cache.answer():
            pass
    assert generations[0].num_computed_tokens == 51
    # Nobody waits for less than a block.
    assert all(1 <= generation.num_computed_tokens < 1 + 4 for generation in generations[1:])


def test_chunks_end_at_absolute_multiples_whatever_was_cached() -> None:
    cache = LateCache(64, 4)
    desk = Desk(cache, HashRunner(64, 4), SchedulerLimits(max_batch_tokens=64, chunk_tokens=16))
    prompt = [number % VOCAB_SIZE for number in range(60)]
    desk.put(prompt[:21], greedy(1))
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    desk.put(prompt, greedy(1))
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    assert desk.runner.rows == [(0, 16), (16, 21), (21, 32), (32, 48), (48, 60)]


@pytest.mark.parametrize("num_branches", [6, 16])
def test_branches_of_a_prompt_run_together_where_few_blocks_have_what_its_window_shows(num_branches: int) -> None:
    """They show the same blocks of the prompt, which count once."""
    prompt = [1 + place % 30 for place in range(40)]

    def count_forwards(num_window_blocks: int) -> int:
        runner = HashRunner(160, 4, window=20, num_window_blocks=num_window_blocks)
        desk = Desk(PrefixCache(160, 4), runner, SchedulerLimits(chunk_tokens=8))
        generation = desk.put(prompt, greedy(6, num_branches))
        desk.put([7, 8, 9], greedy(6))
        while desk.loop.generations:
            assert desk.loop.run()
        assert take(generation) == dict.fromkeys(range(num_branches), generate(prompt, 6, window=20))
        return desk.loop.stats().num_forwards

    assert count_forwards(4 * num_branches) == count_forwards(160)
