"""How much is drafted, where steps cost what a clock says."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

import pytest
from drafts import LyingSource, a_branch

from radixkv.generation.stats import EngineCounters
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.generations.generation import Generation
from radixkv.worker.scheduling.batch import Row
from radixkv.worker.speculation.drafter import Drafter
from radixkv.worker.speculation.settings import SpeculationSettings
from radixkv.worker.speculation.sources import DraftSource, RecentReplies

Cost = Callable[[int], float]

ONE_CHAT = {1: 1.0, 2: 1.06, 4: 1.21, 8: 1.84, 16: 3.1, 68: 11.8}
"""Relative to a step of one position, as measured."""


def small_model(num_positions: int) -> float:
    known = sorted(ONE_CHAT)
    above = next(size for size in known if size >= num_positions)
    below = max((size for size in known if size <= num_positions), default=1)
    share = (num_positions - below) / max(1, above - below)
    return 0.012 * (ONE_CHAT[below] + share * (ONE_CHAT[above] - ONE_CHAT[below]))


def steep(num_positions: int) -> float:
    return 0.001 * num_positions


def a_drafter(
    source: DraftSource,
    settings: SpeculationSettings | None = None,
    num_ids: int = 50,
    clock: Callable[[], float] = time.thread_time,
) -> Drafter:
    return Drafter(
        settings or SpeculationSettings(),
        vocab_size=num_ids,
        block_size=16,
        counters=EngineCounters(),
        sources=[source],
        clock=clock,
    )


def tokens_per_s(
    lies: float,
    cost: Cost,
    num_rows: int = 1,
    settings: SpeculationSettings | None = None,
    num_steps: int = 500,
    lies_at_first: float | None = None,
) -> float:
    """Of a simulated engine; without settings nothing is drafted. The first 100 steps do not count, and may lie more."""
    now_s, num_tokens, began_s = 0.0, 0, 0.0
    rng = random.Random(5)
    truth = rng.choices(range(1000), k=30_000)
    source = LyingSource(lambda branch: truth[len(branch.tokens) : len(branch.tokens) + 20], lies, 1000, seed=3)
    source.lies = lies if lies_at_first is None else lies_at_first
    drafter = Drafter(
        settings or SpeculationSettings(),
        vocab_size=1000,
        block_size=16,
        counters=EngineCounters(),
        sources=[source] if settings else [],
        clock=lambda: now_s,
    )
    branches = [a_branch(truth[:20], truth[20:21]) for _ in range(num_rows)]
    for branch in branches:
        branch.phase, branch.room, branch.block_table = Phase.RUNNING, 100_000, array("i", [0])
    for step in range(num_steps):
        if step == 100:
            num_tokens, began_s, source.lies = 0, now_s, lies
        rows = [Row(branch, len(branch.tokens) - 1, len(branch.tokens)) for branch in branches]
        for branch in branches:
            branch.num_computed = len(branch.tokens) - 1
        drafter.plan(rows, 320)
        now_s += cost(num_rows + sum(len(branch.draft) for branch in branches))
        for branch in branches:
            after = truth[len(branch.tokens) : len(branch.tokens) + 20]
            num_drawn = 1 + sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(branch.draft, after, strict=False))
            )
            branch.tokens.extend(after[:num_drawn])
            num_tokens += num_drawn
        drafter.finished()
    return num_tokens / (now_s - began_s)


def test_what_always_lies_costs_next_to_nothing() -> None:
    assert tokens_per_s(1.0, small_model, settings=SpeculationSettings()) >= 0.97 * tokens_per_s(1.0, small_model)


def test_what_is_always_true_is_drafted_at_full_length() -> None:
    assert tokens_per_s(0.0, small_model, settings=SpeculationSettings()) >= 4.5 * tokens_per_s(0.0, small_model)


def test_where_every_position_costs_as_much_nothing_is_drafted() -> None:
    assert tokens_per_s(0.3, steep, 32, SpeculationSettings()) >= 0.99 * tokens_per_s(0.3, steep, 32)


@pytest.mark.parametrize("lies", [0.05, 0.2, 0.4, 0.7, 0.9])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_the_choice_is_about_as_good_as_the_best_fixed_length_in_hindsight(lies: float, num_rows: int) -> None:
    fixed = [tokens_per_s(lies, small_model, num_rows)]
    for length in (1, 2, 4, 8, 15 if num_rows == 1 else 12):
        fixed.append(tokens_per_s(lies, small_model, num_rows, SpeculationSettings(num_tokens=length, always=True)))
    assert tokens_per_s(lies, small_model, num_rows, SpeculationSettings()) >= 0.95 * max(fixed)


@pytest.mark.parametrize("dear", [2, 3, 5])
def test_sizes_that_are_dear_do_not_keep_those_past_them_from_being_tried(dear: int) -> None:
    def tiled(num_positions: int) -> float:
        return 0.01 + 0.0005 * num_positions + (0.005 if num_positions >= dear else 0.0)

    fixed = tokens_per_s(0.0, tiled, settings=SpeculationSettings(num_tokens=16, always=True))
    assert tokens_per_s(0.0, tiled, settings=SpeculationSettings(), lies_at_first=0.6) >= 0.8 * fixed


@pytest.mark.parametrize(("num_rows", "lies"), [(1, 0.0), (1, 0.2), (2, 0.3), (4, 0.3), (8, 0.1)])
def test_a_kernel_that_takes_more_positions_in_less_time_is_found_out(num_rows: int, lies: float) -> None:
    def tiled(num_positions: int) -> float:
        return 0.01 * (1.5 + 0.02 * (num_positions - 10) if num_positions >= 10 else 0.87 + 0.13 * num_positions)

    def of(settings: SpeculationSettings) -> float:
        return tokens_per_s(lies, tiled, num_rows, settings)

    best = max(of(SpeculationSettings(num_tokens=size, always=True)) for size in (1, 2, 4, 8, 16))
    assert of(SpeculationSettings()) >= 0.9 * best


@pytest.mark.parametrize(("lies", "base_s"), [(0.6, 0.0), (0.8, 0.001)])
def test_where_every_step_has_a_draft_what_one_without_takes_is_learned_too(lies: float, base_s: float) -> None:
    def dear(num_positions: int) -> float:
        return base_s + steep(num_positions)

    assert tokens_per_s(lies, dear, settings=SpeculationSettings()) >= 0.95 * tokens_per_s(lies, dear)


def test_other_lengths_are_tried_now_and_then_also_where_no_draft_is_as_long_as_the_longest() -> None:
    sizes: list[int] = []

    def cost(num_positions: int) -> float:
        sizes.append(num_positions)
        return small_model(num_positions)

    tokens_per_s(0.3, cost, settings=SpeculationSettings(num_tokens=12), num_steps=6000)
    assert 1 in sizes[2000:]
    assert 13 in sizes[2000:]
    assert sum(size in (1, 13) for size in sizes[2000:]) < 10


def test_a_draft_ends_before_what_is_no_token_and_within_the_room() -> None:
    source = LyingSource(lambda _branch: [1, 2, 50, 3], 0.0, 1)
    settings = SpeculationSettings(always=True)
    drafter = a_drafter(source, settings)
    branch = a_branch([1], [2, 3])
    branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 40, 2
    drafter.plan([Row(branch, 2, 3)], 320)
    assert list(branch.draft) == [1, 2]
    branch.room = 4
    drafter.plan([Row(branch, 2, 3)], 320)
    assert list(branch.draft) == [1]
    drafter.plan([Row(branch, 2, 3)], 1)
    assert list(branch.draft) == []


def test_drafts_of_a_batch_that_never_ran_are_gone_with_the_next_plan() -> None:
    known = [1, 2]
    settings = SpeculationSettings(always=True)
    source = LyingSource(lambda _branch: known, 0.0, 50)
    drafter = a_drafter(source, settings)
    branch = a_branch([1], [2, 3])
    branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 40, 2
    drafter.plan([Row(branch, 2, 3)], 320)
    assert list(branch.draft) == [1, 2]
    known.clear()
    drafter.plan([Row(branch, 2, 3)], 320)
    assert list(branch.draft) == []


def test_branches_that_read_a_long_common_prefix_draft_nothing() -> None:
    source = LyingSource(lambda _branch: [1, 2], 0.0, 1)
    settings = SpeculationSettings(always=True, shared_tokens=32)
    drafter = a_drafter(source, settings)
    tables = ([0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 5, 6], [0, 1], [0, 1, 8], [7], [])
    branches = [a_branch([1], [2, 3], name=str(table)) for table in tables]
    for branch, table in zip(branches, tables, strict=True):
        branch.phase, branch.room, branch.num_computed, branch.block_table = Phase.RUNNING, 40, 2, array("i", table)
    drafter.plan([Row(branch, 2, 3) for branch in branches], 320)
    assert [len(branch.draft) for branch in branches] == [0, 0, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("num_rows", "pays_at", "looked"),
    [
        (1, (), [*range(2, 18), *range(24, 81, 8)]),
        (4, (40,), [*range(2, 18), 24, 32, *range(40, 57), 64, 72, 80]),
        (5, (), [*range(2, 6), *range(16, 81, 16)]),
        (5, (4, 7), [*range(2, 12), *range(16, 81, 16)]),
        (24, (5, 32), [*range(2, 10), 16, *range(32, 37), *range(48, 81, 16)]),
    ],
)
def test_a_branch_whose_drafts_do_not_pay_looks_for_them_in_few_steps_and_another_goes_on(
    num_rows: int, pays_at: tuple[int, ...], looked: list[int]
) -> None:
    looks: dict[str, list[int]] = {}

    def find(branch: Branch) -> list[int]:
        looks.setdefault(branch.generation.generation_id, []).append(len(branch.tokens))
        return [1] if branch.generation.generation_id == "1" or len(branch.tokens) in pays_at else []

    source = LyingSource(find, 0.0, 1)
    settings = SpeculationSettings(always=True)
    drafter = a_drafter(source, settings)
    branches = [a_branch([1], [2], name=str(number)) for number in range(num_rows)]
    for length in range(2, 81):
        for branch in branches:
            branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 100, length - 1
        drafter.plan([Row(branch, length - 1, length) for branch in branches], 320)
        for branch in branches:
            branch.tokens.append(4)
    assert looks["0"] == looked
    assert num_rows == 1 or looks["1"] == list(range(2, 81))
    for branch in branches:
        drafter.ended(branch.generation)
    assert not drafter._num_fruitless, "what has ended is kept"


@pytest.mark.parametrize("num_drafting", [1, 2, 8])
def test_branches_without_a_draft_are_not_slowed_down_for_the_others(num_drafting: int) -> None:
    now_s = 0.0
    drafter = a_drafter(
        LyingSource(lambda branch: [4] * 20 if branch in branches[:num_drafting] else [], 0.0, 50), clock=lambda: now_s
    )
    branches = [a_branch([1], [2, 3], name=str(number)) for number in range(8)]
    plain_s, steps_s = 1.0, list[float]()
    for _ in range(300):
        for branch in branches:
            branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 100_000, len(branch.tokens) - 1
        drafter.plan([Row(branch, len(branch.tokens) - 1, len(branch.tokens)) for branch in branches], 320)
        steps_s.append(plain_s + 0.1 * sum(len(branch.draft) for branch in branches))
        now_s += steps_s[-1]
        for branch in branches:
            branch.tokens.extend([4] * (1 + len(branch.draft)))
        drafter.finished()
    mean_s = sum(steps_s[100:]) / 200
    if num_drafting < 8:  # tokens of all per second would be most with all 16 tokens of a draft
        assert mean_s < 1.05 * plain_s
    else:
        assert mean_s > 5 * plain_s, "all get more tokens than the step is longer"


def test_a_large_batch_whose_drafts_do_not_pay_seldom_looks_for_them() -> None:
    num_looks = 0

    def look(_branch: Branch) -> list[int]:
        nonlocal num_looks
        num_looks += 1
        return [1, 2]

    now_s = 0.0
    drafter = a_drafter(LyingSource(look, 0.0, 1), clock=lambda: now_s)
    branches = [a_branch([1], [2, 3], name=str(number)) for number in range(8)]
    for step in range(200):
        for branch in branches:
            branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 10_000, len(branch.tokens) - 1
        drafter.plan([Row(branch, len(branch.tokens) - 1, len(branch.tokens)) for branch in branches], 320)
        now_s += 1.0 + sum(len(branch.draft) for branch in branches)
        for branch in branches:
            branch.tokens.append(step % 40 + 5)
        drafter.finished()
    assert 8 * 200 / 16 <= num_looks < 8 * 200 / 8


@pytest.mark.parametrize("field", ["takes_logits", "adapter"])
def test_replies_that_never_draft_are_not_kept_and_leave_no_trace_of_a_clear(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, prompt, reply = RecentReplies(1 << 20), list(range(20)), list(range(20, 60))
    drafter = a_drafter(source, num_ids=100)
    apart, drawing = (a_branch(prompt, reply).generation for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(Generation if field == "takes_logits" else apart, field, "sql")
        drafter.clear("default", [apart])
        drafter.ended(apart)
    assert source.size_bytes == 0
    drafter.ended(drawing)  # of the same id, which nothing remembers
    assert source.find(a_branch(prompt, reply[:5]), 4) is not None


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (0, 16), (19, 20)], ids=["begun", "chunk", "all but its last token cached"]
)
def test_nothing_is_drafted_beside_a_prompt(start: int, end: int) -> None:
    source = LyingSource(lambda _branch: [1, 2], 0.0, 1)
    settings = SpeculationSettings(always=True)
    drafter = a_drafter(source, settings)
    branch, other = a_branch([1], [2, 3]), a_branch([1] * 20, [], name="other")
    branch.phase, branch.room, branch.num_computed, other.num_computed = Phase.RUNNING, 40, 2, start
    drafter.plan([Row(branch, 2, 3), Row(other, start, end)], 320)
    assert list(branch.draft) == []


@pytest.mark.parametrize(
    "reason", ["", "starved", "is_line", "siblings", "adapter", "none", "scored", "its first token"]
)
def test_what_is_drafted_for_is_a_decode_of_its_own_that_has_room(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LyingSource(lambda _branch: [1, 2], 0.0, 1)
    settings = SpeculationSettings(always=True)
    drafter = a_drafter(source, settings)
    branch = a_branch([1], [] if reason == "its first token" else [2, 3])
    branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 40, len(branch.tokens) - 1
    match reason:
        case "starved" | "is_line":
            setattr(branch, reason, True)
        case "siblings":
            branch.siblings = [a_branch([1], [2], name="sibling")]
        case "adapter":
            branch.generation.adapter = "sql"
        case "none":
            branch.generation.sampling = replace(branch.generation.sampling, speculation="none")
        case "scored":
            monkeypatch.setattr(Generation, "takes_logits", True)
    drafter.plan([Row(branch, branch.num_computed, len(branch.tokens))], 320)
    assert list(branch.draft) == ([] if reason else [1, 2])


def test_what_comes_of_a_tenant_s_drafts_changes_no_other_tenant_s() -> None:
    now_s, lies = 0.0, {"first": [1, 2, 3], "liar": [900], "other": [1, 2, 3]}
    drafter = a_drafter(LyingSource(lambda branch: lies[branch.owner], 0.0, 1000), num_ids=1000, clock=lambda: now_s)

    def drafted(branch: Branch) -> int:
        nonlocal now_s
        branch.num_computed = len(branch.tokens) - 1
        drafter.plan([Row(branch, len(branch.tokens) - 1, len(branch.tokens))], 320)
        num_drafted = len(branch.draft)
        branch.tokens.append(4)
        now_s += small_model(1 + num_drafted)
        drafter.finished()
        return num_drafted

    branches = {owner: a_branch([1], [2, 3], owner) for owner in lies}
    for branch in branches.values():
        branch.phase, branch.room = Phase.RUNNING, 1000
    assert [drafted(branches["first"]) for _ in range(2)][-1] > 0, "the first step is one without a draft"
    assert [drafted(branches["liar"]) for _ in range(300)][-20:] == [0] * 20
    assert drafted(branches["other"]) > 0


def test_the_more_requests_come_the_less_is_drafted_since_each_gives_up_a_step() -> None:
    now_s = 0.0
    drafter = a_drafter(LyingSource(lambda _branch: [4] * 16, 0.0, 50), clock=lambda: now_s)
    branches = [a_branch([1], [2, 3], name=str(number)) for number in range(8)]

    def step(wall_s: float) -> int:
        nonlocal now_s
        for branch in branches:
            branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 100_000, len(branch.tokens) - 1
        drafter.plan([Row(branch, len(branch.tokens) - 1, len(branch.tokens)) for branch in branches], 320, wall_s)
        num_drafted = sum(len(branch.draft) for branch in branches)
        assert drafter.has_drafted == (num_drafted > 0)
        now_s += 0.03 + 0.002 * num_drafted
        for branch in branches:
            branch.tokens.extend([4] * (1 + len(branch.draft)))
        drafter.finished()
        return num_drafted

    alone = [step(0.0) for _ in range(200)][-1]
    assert alone == 8 * 16
    drafter.came(0.0)
    assert step(0.0) == alone, "one request in ten seconds is no reason"
    drafted = []
    for number in range(200):
        drafter.came(0.1 * number)
        drafted.append(step(0.1 * number))
    assert max(drafted[100:]) < alone / 2
    assert max(step(100.0) for _ in range(32)) == alone, "it has been quiet for long"


def test_a_step_that_was_given_up_leaves_no_draft_and_teaches_nothing() -> None:
    drafter = a_drafter(LyingSource(lambda _branch: [4, 4], 0.0, 50), SpeculationSettings(always=True))
    branch = a_branch([1], [2, 3])
    branch.phase, branch.room, branch.num_computed = Phase.RUNNING, 40, 2
    drafter.plan([Row(branch, 2, 3)], 320)
    assert drafter.has_drafted
    drafter.given_up()
    assert not drafter.has_drafted
    assert list(branch.draft) == []
    assert drafter._counters.drafted_tokens == {}
