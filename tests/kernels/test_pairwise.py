"""The sample of a product keeps each pair of values, and little more."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from pairwise import pairwise_sample


def cases_of(*sizes: int) -> list[dict[str, int]]:
    return [dict(zip("abcdef", values, strict=False)) for values in product(*map(range, sizes))]


@pytest.mark.parametrize(("sizes", "most"), [((6, 3, 2, 2, 6), 40), ((7, 5, 6), 46), ((2, 2, 2), 6), ((4, 1, 3), 12)])
def test_every_pair_is_in_a_case_and_there_are_few_cases(sizes: tuple[int, ...], most: int) -> None:
    cases = cases_of(*sizes)
    kept = pairwise_sample(cases)
    assert len(kept) <= most
    for names in combinations("abcdef"[: len(sizes)], 2):
        assert len({tuple(cases[index][name] for name in names) for index in kept}) == len(
            {tuple(case[name] for name in names) for case in cases}
        )


@pytest.mark.parametrize("sizes", [(), (5,), (4, 6)])
def test_of_one_or_two_parameters_nothing_is_left_out(sizes: tuple[int, ...]) -> None:
    cases = cases_of(*sizes)
    kept = pairwise_sample(cases)
    assert kept == list(range(len(cases))) if sizes else kept == []


def test_values_that_are_given_together_are_one_parameter() -> None:
    cases = [
        {"a": row, "b": row, "c": level, "d": threads} for row, level, threads in product(range(4), range(3), range(2))
    ]
    kept = pairwise_sample(cases)
    assert len(kept) == 12
    assert {cases[index]["a"] for index in kept} == {0, 1, 2, 3}
