"""What is learned of drafts and steps, and what is drafted by it."""

from __future__ import annotations

import random

import pytest

from radixkv.worker.speculation.estimates import Acceptance, Outcome, StepTime
from radixkv.worker.speculation.sources import Draft, Source


def test_chances_fall_along_a_draft_and_follow_what_came() -> None:
    acceptance = Acceptance()
    draft = Draft(Source.OWN, 6, [1, 2, 3, 4])
    before = acceptance.chances(draft, Outcome.CAME)
    assert before == sorted(before, reverse=True)
    for _ in range(50):
        assert acceptance.learn(draft, Outcome.CAME, [1, 2, 9]) is Outcome.CAME
    after = acceptance.chances(draft, Outcome.CAME)
    assert after[1] > 0.8
    assert after[2] < 0.15


def test_a_draft_that_is_not_run_is_judged_by_its_first_token() -> None:
    acceptance = Acceptance()
    draft = Draft(Source.RECENT, 16, [1, 2, 3])
    for _ in range(100):
        assert acceptance.learn(draft, Outcome.MISSED, [7]) is Outcome.MISSED
    assert acceptance.chances(draft, Outcome.MISSED)[0] < 0.1
    for _ in range(400):
        acceptance.learn(draft, Outcome.MISSED, [1])
    assert acceptance.chances(draft, Outcome.MISSED)[0] > 0.8


def test_long_drafts_that_come_true_are_told_apart() -> None:
    acceptance = Acceptance()
    draft = Draft(Source.OWN, 6, [1, 2, 3, 4, 5])
    assert acceptance.learn(draft, Outcome.CAME, [1, 2, 3, 4, 9]) is Outcome.CAME_LONG


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


@pytest.mark.parametrize("num_came", range(7))
def test_what_became_of_a_draft_is_by_how_much_of_it_came(num_came: int) -> None:
    draft = Draft(Source.OWN, 6, [1, 2, 3, 4, 5, 6])
    became = Acceptance().learn(draft, Outcome.CAME, [*draft.tokens[:num_came], 9, 9])
    assert became is (Outcome.MISSED if not num_came else Outcome.CAME if num_came <= 3 else Outcome.CAME_LONG)


def test_what_one_kind_of_draft_teaches_changes_that_kind_most_and_no_other_source() -> None:
    acceptance = Acceptance()
    taught = Draft(Source.OWN, 8, [1, 2, 3])
    for _ in range(60):
        acceptance.learn(taught, Outcome.CAME, [9])
    chances = [
        acceptance.chances(taught._replace(length=length), last)[0]
        for length, last in (
            (6, Outcome.CAME),
            (11, Outcome.CAME),
            (12, Outcome.CAME),
            (5, Outcome.CAME),
            (8, Outcome.MISSED),
        )
    ]
    assert chances[0] == chances[1] < min(chances[2:]), "lengths from 6 to 11 are of a kind"
    assert max(chances) < 0.2, "before it has trials of its own, a kind is as its source"
    assert acceptance.chances(taught._replace(source=Source.RECENT), Outcome.CAME)[0] == 0.5


def test_a_depth_that_was_never_tried_is_expected_to_be_as_the_one_before_it() -> None:
    """Otherwise drafts of a text that is repeated as a whole stay as short as they were at first."""
    acceptance, draft = Acceptance(), Draft(Source.RECENT, 48, list(range(16)))
    for _ in range(100):
        acceptance.learn(draft, Outcome.CAME, draft.tokens[:3])  # three are drawn, none of the others was run
    assert acceptance.chances(draft, Outcome.CAME)[15] > 0.8
    for _ in range(20):
        acceptance.learn(draft, Outcome.CAME, [*draft.tokens[:5], 99])
    assert acceptance.chances(draft, Outcome.CAME)[15] < 0.1
