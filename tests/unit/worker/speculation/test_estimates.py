"""What is learned of drafts and steps, and what is drafted by it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from radixkv.worker.speculation.estimates import Acceptance, StepTime
from radixkv.worker.speculation.sources import Agreement, Draft, Source


def a_draft(
    tokens: Sequence[int], source: Source = Source.OWN, length: int = 6, agreement: Agreement = Agreement.ONE
) -> Draft:
    return Draft(source, length, tokens, [agreement] * len(tokens))


def test_chances_fall_along_a_draft_and_follow_what_came() -> None:
    acceptance = Acceptance()
    draft = a_draft([1, 2, 3, 4])
    before = acceptance.chances(draft)
    assert before == sorted(before, reverse=True)
    for _ in range(50):
        acceptance.learn(draft, [1, 2, 9])
    after = acceptance.chances(draft)
    assert after[1] > 0.8
    assert after[2] < 0.15


def test_a_draft_that_is_not_run_is_judged_by_its_first_token() -> None:
    acceptance = Acceptance()
    draft = a_draft([1, 2, 3], Source.RECENT, 16)
    for _ in range(100):
        acceptance.learn(draft, [7])
    assert acceptance.chances(draft)[0] < 0.1
    for _ in range(400):
        acceptance.learn(draft, [1])
    assert acceptance.chances(draft)[0] > 0.8


def test_the_time_of_steps_is_learned_from_a_clock_that_ticks_once_in_many_of_them() -> None:
    time, now_s, rng = StepTime(), 0.0, random.Random(1)
    for _ in range(1000):
        num_positions, before_s = rng.choice([1, 5, 9, 17]), now_s
        now_s += 0.0004 + 0.0002 * num_positions
        time.learn(num_positions, 300.0, now_s // 0.01 * 0.01 - before_s // 0.01 * 0.01)
    few_s, many_s = (time.expected_s(size, size, 300.0)[0] for size in (1, 17))
    assert 0.0002 < few_s < 0.003
    assert many_s > 1.3 * few_s


@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_the_time_of_a_step_is_learned_whatever_its_scale(scale: float) -> None:
    rng = random.Random(1)
    time = StepTime()

    def real_s(num_positions: int, context: float) -> float:
        return scale * (
            10 + 0.3 * num_positions + 1.5 * max(0, num_positions - 4) + 0.2 * num_positions * context / 1024
        )

    for _ in range(400):
        num_positions, context = rng.choice([1, 1, 2, 3, 5, 9, 17]), rng.choice([300.0, 800.0])
        noise = rng.choice([1.0, 1.02, 0.98, 3.0 if rng.random() < 0.1 else 1.0])
        time.learn(num_positions, context, noise * real_s(num_positions, context))
    for num_positions in (1, 2, 4, 8, 16):
        told = time.expected_s(num_positions, num_positions, 500.0)[0]
        assert told == pytest.approx(real_s(num_positions, 500.0), rel=0.12)


def test_expected_times_rise_and_are_positive_before_anything_is_known() -> None:
    told = StepTime().expected_s(1, 40, 100.0)
    assert told[0] > 0
    assert told == sorted(told)


def test_what_one_kind_of_draft_teaches_changes_that_kind_most_and_no_other_source() -> None:
    acceptance = Acceptance()
    taught = a_draft([1, 2, 3], length=8)
    for _ in range(60):
        acceptance.learn(taught, [9])
    chances = [acceptance.chances(a_draft([1], length=length))[0] for length in (8, 15, 16, 7)]
    chances.append(acceptance.chances(a_draft([1], length=8, agreement=Agreement.ALL))[0])
    assert chances[0] == chances[1] < min(chances[2:]), "lengths from 8 to 15 are of a kind"
    assert max(chances) < 0.2, "before it has trials of its own, a kind is as its source"
    assert acceptance.chances(a_draft([1], Source.RECENT, 8))[0] == 0.5


def test_a_depth_that_was_never_tried_is_expected_to_be_as_the_one_before_it() -> None:
    """Otherwise drafts of a text that is repeated as a whole stay as short as they were at first."""
    acceptance, draft = Acceptance(), a_draft(range(16), Source.RECENT, 48)
    for _ in range(100):
        acceptance.learn(draft, draft.tokens[:3])  # three are drawn, none of the others was run
    assert acceptance.chances(draft)[15] > 0.8
    for _ in range(20):
        acceptance.learn(draft, [*draft.tokens[:5], 99])
    assert acceptance.chances(draft)[-1] < 0.1


def test_tokens_past_one_that_is_hardly_drawn_are_not_judged() -> None:
    acceptance, draft = Acceptance(), a_draft(range(16))
    for _ in range(200):
        acceptance.learn(draft, [99])
    chances = acceptance.chances(draft)
    assert len(chances) < 4
    assert chances[-1] < 0.01 <= min([1.0, *chances[:-1]])


def test_tokens_are_judged_by_how_far_places_agree_on_them() -> None:
    acceptance = Acceptance()
    draft = Draft(Source.RECENT, 8, [1, 2], [Agreement.ALL_OF_MANY, Agreement.MOST])
    for _ in range(50):
        acceptance.learn(draft, [1, 9])
    sure, split = (acceptance.chances(a_draft([1], Source.RECENT, 8, one))[0] for one in set(draft.agreements))
    assert sure > 0.9
    assert acceptance.chances(draft)[1] < 0.1
    assert split > 0.4, "at another depth"
