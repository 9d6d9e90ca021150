"""Who says what in token ids that a chat template has written, whatever the template."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixkv.gateway.pages.cache_view.turns import Turn, read_turns


def read(tokens: Sequence[str], above: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Tokens are told as their text; those in double brackets are special."""
    names = sorted({*tokens, *above})
    ids = {name: token_id for token_id, name in enumerate(names)}
    spellings = {token_id: name.encode() for name, token_id in ids.items()}
    special = {token_id for name, token_id in ids.items() if name.startswith("<<")}
    found = read_turns([ids[name] for name in tokens], spellings, special, [ids[name] for name in above])
    return [tuple(turn) for turn in found]


@pytest.mark.parametrize(
    "tokens",
    [
        ["<<im_start>>", "user", "\n", "Hello", " you", "<<im_end>>", "\n", "<<im_start>>", "ass", "istant", "\n", "Hi"],
        ["<<bos>>", "<<head>>", "user", "<<end_head>>", "\n\n", "Hello", " you", "<<eot>>", "<<head>>", "assistant",
         "<<end_head>>", "\n\n", "Hi"],
    ],
    ids=["role on a line", "role between marks"],
)  # fmt: skip
def test_turns_are_told_without_the_template_wherever_an_edge_begins(tokens: list[str]) -> None:
    whole = [("user", "Hello you"), ("assistant", "Hi")]
    assert read(tokens) == whole
    for place in range(1, len(tokens)):
        above, below = read(tokens[:place]), read(tokens[place:], tokens[:place])
        said = [(role, text) for role, text in above + below if text]
        parts = [("user", "Hello"), ("user", "you"), ("assistant", "Hi")]
        assert said in (whole, parts), place
        assert all(role in ("user", "assistant") for role, _ in below)


def test_a_reply_that_is_about_to_begin_is_a_role_alone() -> None:
    assert read(["Hi", "<<end>>", "\n", "<<start>>", "assistant", "\n"]) == [("", "Hi"), ("assistant", "")]


def test_without_roles_the_text_is_told_without_marks() -> None:
    assert read(["<<s>>", "<<INST>>", " Hello", "<</INST>>", " Hi"]) == [("", "Hello"), ("", "Hi")]


@pytest.mark.parametrize("text", ["user friendly", "users\n", "usher"])
def test_what_only_looks_like_a_role_is_text(text: str) -> None:
    assert read(["<<s>>", text]) == [("", text.strip())]


def test_the_name_of_a_role_that_somebody_writes_is_text() -> None:
    assert read(["<<start>>", "user", "\n", "Who is the ", "user", "\n", "?"]) == [("user", "Who is the user\n?")]


def test_characters_that_an_edge_cuts_are_left_out() -> None:
    whole = "é".encode()
    assert read_turns([0, 1], {0: whole[1:], 1: b"t"}, ()) == [Turn("", "t")]
    assert read_turns([1, 0], {0: whole[:1], 1: b"t"}, ()) == [Turn("", "t")]
