"""Stop strings against the plain rule that looks at the whole text each time, and what a character costs."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from radixkv.worker.generations.stop_strings import StopStrings


class PlainRule:
    """What `StopStrings` does, said as simply as can be."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        text = self.held + text
        found = [(text.find(stop), rank, stop) for rank, stop in enumerate(self.stops) if stop in text]
        if found:
            at, _, stop = min(found)
            self.held = ""
            return text[:at], stop
        beginnings = {stop[:length] for stop in self.stops for length in range(1, len(stop))}
        num_held = max((len(one) for one in beginnings if text.endswith(one)), default=0)
        self.held = text[len(text) - num_held :]
        return text[: len(text) - num_held], None

    def flush(self) -> str:
        held, self.held = self.held, ""
        return held


TEXTS = st.text("ab", min_size=1, max_size=6) | st.text("ab\N{EURO SIGN}\U0001f600", min_size=1, max_size=3)


@given(
    stops=st.lists(TEXTS, max_size=6), pieces=st.lists(st.text("ab\N{EURO SIGN}\U0001f600", max_size=9), max_size=12)
)
def test_however_it_is_cut_up_the_same_is_shown_and_found_as_by_the_plain_rule(
    stops: list[str], pieces: list[str]
) -> None:
    finder, plain = StopStrings(stops), PlainRule(stops)
    for piece in pieces:
        assert finder.push(piece) == plain.push(piece)
    assert finder.flush() == plain.flush()
    for piece in pieces:  # nothing is left of what was before
        assert finder.push(piece) == plain.push(piece)


@given(stops=st.lists(TEXTS, min_size=1, max_size=4), before=st.text("ab", max_size=9), after=st.text("ab", max_size=9))
def test_copies_go_their_own_ways(stops: list[str], before: str, after: str) -> None:
    finder, plain = StopStrings(stops), PlainRule(stops)
    finder.push(before)
    plain.push(before)
    twin = finder.copy()
    assert finder.push(after) == plain.push(after)
    assert (twin.push(""), twin.push(after)[1]) == (("", None), plain_after(stops, before, after))


def plain_after(stops: list[str], before: str, after: str) -> str | None:
    plain = PlainRule(stops)
    plain.push(before)
    return plain.push(after)[1]


def test_a_character_costs_the_same_however_many_and_long_the_stop_strings_are() -> None:
    """The longest and most that may be given, that all begin alike, on texts that nearly complete them again and again."""
    many = [f"{'a' * (1000 + rank % 20)}{chr(200 + rank)}" for rank in range(64)]
    rng = random.Random(3)
    text = "".join("a" * rng.randrange(990, 1040) + rng.choice("bcd") for _ in range(100))
    began_s = time.thread_time()
    finder = StopStrings(many)
    shown = "".join(finder.push(char)[0] for char in text)
    assert shown + finder.flush() == text
    assert time.thread_time() - began_s < 3.0  # 100,000 characters; 10 ms for each by the plain rule


def test_what_is_held_is_told_in_time_that_does_not_grow_with_it() -> None:
    held = StopStrings(["a" * 1024])
    held.push("a" * 1023)
    assert held.push("b") == ("a" * 1023 + "b", None)
    assert held.push("a" * 1024) == ("", "a" * 1024)
