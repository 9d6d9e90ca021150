"""The chat's tree of turns: nothing said is lost, and every turn keeps the ids of its own past."""

from __future__ import annotations

from itertools import pairwise

import pytest

from radixkv import pack_tokens, unpack_tokens
from radixkv.chat.conversation import ChatError, Conversation, Turn


def answered(conversation: Conversation, message: Turn, text: str) -> Turn:
    history, _ = conversation.messages_for(message)
    prompt = history + pack_tokens([len(message.text), 0])
    return conversation.reply(message, prompt, [len(text)], text, None)


def chat() -> Conversation:
    """hello → Hi! / Good day.; behind Hi!: weather? → sunny."""
    conversation = Conversation()
    first = conversation.say("hello")
    answered(conversation, first, "Hi!")
    answered(conversation, first, "Good day.")
    conversation.switch(1)
    answered(conversation, conversation.say("weather?"), "sunny")
    return conversation


def test_a_regenerated_reply_is_a_sibling_and_the_newest_is_stood_on() -> None:
    conversation = Conversation()
    message = conversation.say("hello")
    answered(conversation, message, "Hi!")
    second = answered(conversation, conversation.last_message(), "Good day.")
    assert conversation.current is second
    assert [turn.text for turn in conversation.branches()] == ["Hi!", "Good day."]


def test_every_turn_continues_the_ids_of_the_turn_before() -> None:
    conversation = chat()
    path = conversation.current.path()
    assert [turn.text for turn in path] == ["hello", "Hi!", "weather?", "sunny"]
    for before, after in pairwise(path):
        assert after.history.startswith(before.history)
    assert unpack_tokens(path[-1].history) == [5, 0, 3, 8, 0, 5]


def test_only_the_first_message_carries_the_system_prompt() -> None:
    conversation = Conversation("be brief")
    first = conversation.say("hello")
    assert [message["role"] for message in conversation.messages_for(first)[1]] == ["system", "user"]
    answered(conversation, first, "Hi!")
    history, messages = conversation.messages_for(conversation.say("and?"))
    assert history
    assert [message["role"] for message in messages] == ["user"]


def test_an_edit_opens_a_branch_beside_the_old_message() -> None:
    conversation = chat()
    edited = conversation.edit(1, "hallo")
    answered(conversation, edited, "Guten Tag!")
    assert [turn.text for turn in conversation.branches()] == ["sunny", "Good day.", "Guten Tag!"]
    assert [turn.text for turn in conversation.current.path()] == ["hallo", "Guten Tag!"]


def test_a_fork_stands_behind_the_chosen_reply_without_losing_anything() -> None:
    conversation = chat()
    conversation.fork(1)
    assert conversation.current.text == "Hi!"
    answered(conversation, conversation.say("a joke?"), "no")
    assert [turn.text for turn in conversation.branches()] == ["sunny", "Good day.", "no"]
    conversation.fork(0)
    assert conversation.current is conversation.start


def test_a_message_that_got_no_reply_leaves_no_trace() -> None:
    conversation = chat()
    before = conversation.tree_lines()
    conversation.withdraw(conversation.say("lost"))
    assert conversation.tree_lines() == before


def test_the_tree_is_drawn_with_its_branches_numbered_and_the_current_turn_marked() -> None:
    assert chat().tree_lines() == [
        "(start)",
        "you hello",
        "├─  ↳ Hi!",
        "│  you weather?",
        "│   ↳ sunny  [1] *",
        "└─  ↳ Good day.  [2]",
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda conversation: conversation.switch(3), "branches 1 to 2, not 3"),
        (lambda conversation: conversation.edit(9, "x"), "messages 1 to 2, not 9"),
        (lambda conversation: conversation.fork(7), "messages 1 to 2, not 7"),
    ],
)
def test_a_number_out_of_range_is_answered_with_the_range(call, message) -> None:  # type: ignore[no-untyped-def]
    conversation = chat()
    before = conversation.tree_lines()
    with pytest.raises(ChatError, match=message):
        call(conversation)
    assert conversation.tree_lines() == before


def test_an_empty_chat_has_nothing_to_regenerate_or_switch_to() -> None:
    conversation = Conversation()
    with pytest.raises(ChatError, match="write something first"):
        conversation.last_message()
    with pytest.raises(ChatError, match="no branches yet"):
        conversation.switch(1)
