"""The end of a branch, token by token, and of two that have begun as one."""

from __future__ import annotations

from collections.abc import Sequence

from radixkv.generation.stream import FinishReason
from radixkv.worker.generations.stop_rules import StopRules, Taken


class ByteDecoder:
    """Token ids are bytes of UTF-8; half a character waits for its other half."""

    def __init__(self, held: bytes = b"") -> None:
        self.held = held

    def push(self, token_ids: Sequence[int]) -> str:
        self.held += bytes(token_ids)
        try:
            text = self.held.decode()
        except UnicodeDecodeError:
            return ""
        self.held = b""
        return text

    def flush(self) -> str:
        held, self.held = self.held, b""
        return held.decode(errors="replace")

    def copy(self) -> ByteDecoder:
        return ByteDecoder(self.held)


def told(rules: StopRules, token_ids: bytes) -> str:
    return "".join(rules.take(token_id, is_full=False).text for token_id in token_ids)


def test_two_copies_that_are_fed_different_tokens_read_what_they_would_alone() -> None:
    rules = StopRules((), ["xy"], ByteDecoder())
    begun = "a€".encode()[:-2]  # within a character
    assert told(rules, begun) == "a"
    twin = rules.copy()
    assert told(rules, "€b".encode()[1:]) == "€b"
    assert told(twin, "₫c".encode()[1:]) == "₫c", "the other has taken nothing of it"
    assert told(rules, b"x") == "", "it may become a stop string"
    later = rules.copy()
    assert rules.take(ord("y"), is_full=False) == Taken("", FinishReason.STOP, "xy")
    assert told(later, b"z") == "xz"
    assert later.end() == Taken("", FinishReason.STOP, None)
    assert told(twin, b"yx") == "y", "nobody else's x came before"


def test_what_is_held_back_is_told_at_the_end_whatever_ends_it() -> None:
    for is_full, last, reason, stop in (
        (False, 7, FinishReason.STOP, 7),
        (True, ord("."), FinishReason.LENGTH, None),
    ):
        rules = StopRules((7,), ["stop"], ByteDecoder())
        assert told(rules, b"go sto") == "go "
        text = "sto" if last == 7 else "sto."
        assert rules.take(last, is_full=is_full) == Taken(text, reason, stop)
    rules = StopRules((), ["stop"], ByteDecoder())
    assert told(rules, b"sto") == ""
    assert rules.end() == Taken("sto", FinishReason.STOP, None)


def test_a_stop_string_that_half_a_character_completes_at_the_end_is_found() -> None:
    for is_full in (False, True):
        rules = StopRules((7,), ["\N{REPLACEMENT CHARACTER}"], ByteDecoder())
        assert told(rules, b"a" + "€".encode()[:1]) == "a"
        taken = rules.take("€".encode()[1], is_full=True) if is_full else rules.take(7, is_full=False)
        assert taken == Taken("", FinishReason.STOP, "\N{REPLACEMENT CHARACTER}")


def test_a_reply_without_text_ends_by_its_tokens_alone() -> None:
    rules = StopRules((7,), (), None)
    assert rules.take(5, is_full=False) == Taken("")
    assert rules.copy().take(7, is_full=True) == Taken("", FinishReason.STOP, 7)
    assert rules.take(5, is_full=True) == Taken("", FinishReason.LENGTH)
