"""The index against a search of the text."""

from __future__ import annotations

import random
from array import array

import pytest

from radixkv.worker.speculation.ngrams import LENGTHS, Match, NgramIndex, index_bytes


def expected(text: array[int], end: int) -> Match | None:
    """Of the last 8 places at or before `end` of the longest n-gram that the text ends with, those with most before them."""
    for length in reversed(LENGTHS):
        tail = text[-length:]
        places: list[tuple[int, int]] = []
        for last in range(end, length - 1, -1):
            if len(tail) == length and text[last - length : last] == tail and len(places) < 8:
                common = length
                while common < min(last, 48) and text[last - common - 1] == text[-common - 1]:
                    common += 1
                places.append((last, common))
        if places:
            longest = max(common for _, common in places)
            return Match([last for last, common in places if common == longest], longest)
    return None


@pytest.mark.parametrize("seed", range(30))
def test_a_match_is_of_the_last_of_the_longest_ngrams(seed: int) -> None:
    rng = random.Random(seed)
    num_ids, text, index, num_lost = rng.choice([2, 5, 50]), array("I"), NgramIndex(), 0
    for _ in range(30):
        text.extend(rng.randrange(num_ids) for _ in range(rng.choice([1, 1, 1, 3, 10, 60, 200])))
        end = len(text) - 1
        index.extend(text, end)
        found, match = index.find(text, text[-48:]), expected(text, end)
        if found is not None:
            assert match is not None, "what is not there was found"
            assert max(found.ends) <= end
            for place in found.ends:
                assert text[place - found.length : place] == text[-found.length :]
        num_lost += found != match  # behind later n-grams of the same slot
    assert num_lost <= 2


def test_one_token_at_a_time_and_many_at_once_make_the_same_tables() -> None:
    text = array("I", random.Random(3).choices(range(40), k=700))
    slowly, at_once = NgramIndex(), NgramIndex()
    at_once.extend(text, 700)
    for end in range(1, 701):
        slowly.extend(text, end)
    for end in range(3, 700):
        assert slowly.find(text, text[max(0, end - 48) : end]) == at_once.find(text, text[max(0, end - 48) : end])
    assert slowly.size_bytes == at_once.size_bytes == index_bytes(700)


def test_an_empty_index_finds_nothing() -> None:
    index = NgramIndex()
    assert index.find(array("I"), array("I", [1, 2, 3])) is None
    index.extend(array("I", [1, 2]), 1)
    assert index.find(array("I", [1, 2]), array("I", [1, 2])) is None
