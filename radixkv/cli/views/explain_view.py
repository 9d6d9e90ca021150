"""Output of `radixkv explain`: a bar of the prompt, the position where it diverges, and possible remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from radixkv.cli.amounts import count, duration
from radixkv.core.tokens import unpack_tokens

if TYPE_CHECKING:
    from radixkv.core.explanation import EvictionReason, Explanation, MissCause
    from radixkv.generation.thinking import ThinkingMarks

__all__ = ["as_dict", "lines"]

_BAR_WIDTH = 60
_NUM_SHOWN_IDS = 8
_MAX_CHARACTERS = 48
_INDENT = " " * 2

_CAUSES: dict[MissCause, str] = {
    "cached": "all of it is cached",
    "empty": "nothing is cached in this namespace",
    "ended": "what is cached ends there",
    "parted": "others go on there with another token",
    "evicted": "what comes next was cached, and had to go",
}
_REASONS: dict[EvictionReason, str] = {
    "pressure": "room was needed for others; a larger pool or a pin would have kept it",
    "evict": "a call of evict took it",
    "clear": "its namespace was cleared",
    "release": "the sequence that computed it was released without keep",
    "quota": "its namespace was over its quota; a larger one or a pin would have kept it",
}


def lines(
    explanation: Explanation, to_text: Callable[[bytes], str] | None, marks: ThinkingMarks | None = None
) -> Iterator[str]:
    """The explanation as text.

    Args:
        explanation: of a prompt.
        to_text: the text of packed tokens; None: ids are shown.
        marks: marks around the model's thoughts, if any.
    """
    num_tokens, num_prompt_tokens = explanation.num_tokens, explanation.num_prompt_tokens
    evicted, elsewhere = explanation.evicted, explanation.elsewhere
    num_evicted = evicted.num_tokens if evicted is not None else 0
    yield f"{_INDENT}{num_tokens:,} of {num_prompt_tokens:,} tokens are cached: {_CAUSES[explanation.cause]}"
    yield _INDENT + _bar(num_tokens, num_evicted, num_prompt_tokens)
    if explanation.wanted:
        yield f"{_INDENT}at token {num_tokens:,}"
        yield f"{_INDENT}  wanted   {_shown(explanation.wanted, to_text)}"
    if explanation.found:
        which = (
            "" if explanation.num_siblings == 1 else f", the nearest of {explanation.num_siblings:,} that go on there"
        )
        yield f"{_INDENT}  found    {_shown(explanation.found, to_text)}{which}"
        if to_text is not None and marks is not None and _opens_thoughts(to_text(explanation.found), marks):
            yield f"{_INDENT}  thoughts stand before the cached reply; the chat template leaves them out of earlier turns"
    if evicted is not None:
        yield f"{_INDENT}  evicted  {count(num_evicted, 'token')}, {duration(evicted.ago_s)} ago: {_REASONS[evicted.reason]}"
    if elsewhere is not None:
        yield f"{_INDENT}in namespace {elsewhere.namespace} {count(elsewhere.num_tokens, 'token')} of it are cached"


def _opens_thoughts(text: str, marks: ThinkingMarks) -> bool:
    """Whether a text starts with the opening mark, or with most of it: the prompt may share its start."""
    most = len(marks.opens) // 2
    return any(text.lstrip().startswith(marks.opens[start:]) for start in range(most + 1))


def as_dict(explanation: Explanation) -> dict[str, Any]:
    """The explanation for JSON: its fields, with tokens as lists of ids."""
    evicted, elsewhere = explanation.evicted, explanation.elsewhere
    return explanation._asdict() | {
        "wanted": unpack_tokens(explanation.wanted),
        "found": unpack_tokens(explanation.found),
        "evicted": None if evicted is None else evicted._asdict(),
        "elsewhere": None if elsewhere is None else elsewhere._asdict(),
    }


def _bar(num_cached: int, num_evicted: int, num_in_all: int) -> str:
    """A bar of cached, evicted and new tokens, each as wide as its share, and at least one column."""
    parts = [
        ("━", "cached", num_cached),
        ("░", "evicted", num_evicted),
        ("·", "new", num_in_all - num_cached - num_evicted),
    ]
    present = [(mark, name, number) for mark, name, number in parts if number]
    bar = "".join(mark * max(1, round(_BAR_WIDTH * number / num_in_all)) for mark, _, number in present)
    return bar + "   " + "   ".join(f"{mark} {name} {number:,}" for mark, name, number in present)


def _shown(tokens: bytes, to_text: Callable[[bytes], str] | None) -> str:
    ids = unpack_tokens(tokens)
    shown = "[" + " ".join(map(str, ids[:_NUM_SHOWN_IDS])) + (" …]" if len(ids) > _NUM_SHOWN_IDS else "]")
    if to_text is None:
        return shown
    text = to_text(tokens)
    return f"{shown}  {text[:_MAX_CHARACTERS] + ('…' if len(text) > _MAX_CHARACTERS else '')!r}"
