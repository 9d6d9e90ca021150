"""Chats of the terminal in files: what is read is what was written, by whomever, and nothing else is taken for a chat."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from radixkv import pack_tokens
from radixkv.chat.conversation import ChatError, Conversation, Turn
from radixkv.chat.kept import KeptChats
from radixkv.chat.saving import SavedChat, saved_names
from radixkv.client import Credentials
from radixkv.core.errors import InvalidArgumentError

MODEL = "a-model"


def answered(conversation: Conversation, message: Turn, text: str) -> Turn:
    history, _ = conversation.messages_for(message)
    return conversation.reply(
        message, message.history or history + pack_tokens([len(message.text)]), [len(text)], text, None
    )


def chat() -> Conversation:
    """Branch 1: hello, Hi!, weather?, sunny; 2: hello, Good day.; 3: hallo, Guten Tag! One stands on 2."""
    conversation = Conversation("be brief")
    first = conversation.say("hello")
    answered(conversation, first, "Hi!")
    answered(conversation, first, "Good day.")
    answered(conversation, conversation.edit(1, "hallo"), "Guten Tag!")
    conversation.switch(1)
    answered(conversation, conversation.say("weather?"), "sunny")
    conversation.switch(2)
    return conversation


def told(conversation: Conversation) -> list[tuple[Any, ...]]:
    turns = [(turn.role, turn.text, turn.history, turn.branch) for turn in conversation.turns()]
    return [*turns, *conversation.tree_lines(), conversation.num_branches, conversation.system_prompt]


def test_what_is_read_is_what_was_written_and_goes_on_with_the_next_number(tmp_path: Path) -> None:
    before = chat()
    assert not SavedChat(tmp_path, "mine", MODEL).write(before)
    after = SavedChat(tmp_path, "mine", MODEL).read()
    assert told(after) == told(before)
    answered(after, after.last_message(), "Good evening.")
    assert after.current.branch == 4
    assert saved_names(tmp_path) == ["mine"]


def test_a_chat_below_a_system_prompt_of_its_own_is_read_as_it_was_written(tmp_path: Path) -> None:
    before = Conversation("be brief")
    asked = Turn("user", "hello", Turn("system", "be kind", before.start))
    answered(before, asked, "Hi!")
    SavedChat(tmp_path, "mine", MODEL).write(before)
    after = SavedChat(tmp_path, "mine", MODEL).read()
    assert told(after) == told(before)
    _, messages = after.messages_for(after.edit(1, "hallo"))
    assert [message["content"] for message in messages] == ["be kind", "hallo"], "its own goes before the chat's"


def test_a_reply_whose_ids_are_unknown_is_sent_as_text_behind_the_last_known_one() -> None:
    conversation = chat()
    conversation.switch(1)
    sunny = conversation.current
    unknown = Turn("assistant", "Thanks!", Turn("user", "good", sunny))
    history, messages = conversation.messages_for(Turn("user", "and?", unknown))
    assert history == sunny.history
    assert [message["content"] for message in messages] == ["good", "Thanks!", "and?"]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://[", "http://a-server:8000"])
def test_a_gateway_that_cannot_be_called_or_would_be_sent_a_key_in_plaintext_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="gateway"):
        KeptChats(url, Credentials(token="secret"))


def test_a_gateway_that_does_not_answer_is_told_by_its_url() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ChatError, match=f"no gateway answers at {url}"):
            KeptChats(url).latest()


def test_branches_keep_their_numbers_whatever_comes() -> None:
    conversation = chat()
    ends = {turn.branch: turn.text for turn in conversation.branches()}
    assert ends == {1: "sunny", 2: "Good day.", 3: "Guten Tag!"}
    conversation.fork(0)
    answered(conversation, conversation.say("another"), "start")
    answered(conversation, conversation.say("and"), "on")
    conversation.switch(3)
    answered(conversation, conversation.last_message(), "Tag!")
    after = {turn.branch: turn.text for turn in conversation.branches()}
    assert after == {**ends, 4: "on", 5: "Tag!"}


def test_two_who_hold_one_name_lose_nothing(tmp_path: Path) -> None:
    first, second = SavedChat(tmp_path, "mine", MODEL), SavedChat(tmp_path, "mine", MODEL)
    first.write(chat())
    conversation = second.read()
    answered(conversation, conversation.last_message(), "second's")
    assert not second.write(conversation)
    mine = chat()
    answered(mine, mine.last_message(), "first's")
    assert first.write(mine)
    assert first.name == "mine-2"
    assert not first.write(mine), "it stays there"
    read = {name: SavedChat(tmp_path, name, MODEL).read() for name in ("mine", "mine-2")}
    assert "second's" in [turn.text for turn in read["mine"].turns()]
    assert "first's" in [turn.text for turn in read["mine-2"].turns()]


def test_a_new_chat_does_not_take_the_place_of_one_that_is_kept(tmp_path: Path) -> None:
    SavedChat(tmp_path, "mine", MODEL).write(chat())
    other = SavedChat(tmp_path, "mine", MODEL)
    assert other.write(Conversation())
    assert other.name == "mine-2"
    assert len(SavedChat(tmp_path, "mine", MODEL).read().turns()) == len(chat().turns())


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 101, "a\nb"])
def test_a_name_that_no_file_should_bear_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="name"):
        SavedChat(tmp_path, name, MODEL)


def test_another_models_chat_is_refused(tmp_path: Path) -> None:
    SavedChat(tmp_path, "mine", "other").write(chat())
    with pytest.raises(ChatError, match="other"):
        SavedChat(tmp_path, "mine", MODEL).read()


def test_there_is_none_of_that_name(tmp_path: Path) -> None:
    SavedChat(tmp_path, "mine", MODEL).write(chat())
    with pytest.raises(ChatError, match="saved: mine"):
        SavedChat(tmp_path, "yours", MODEL).read()


def damaged(spoil: Any) -> Any:
    def change(told: dict[str, Any]) -> Any:
        spoil(told)
        return told

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda _told: [],
        lambda _told: {},
        damaged(lambda told: told.update(version=99)),
        damaged(lambda told: told.update(current=10**6)),
        damaged(lambda told: told.update(num_branches=1)),
        damaged(lambda told: told["turns"][1].update(role="user")),
        damaged(lambda told: told["turns"][1].update(history="AAA=")),
        damaged(lambda told: told["turns"][1].update(history="%%")),
        damaged(lambda told: told["turns"][3].update(branch=None)),
        damaged(lambda told: told["turns"][0].update(parent=5)),
    ],
)
def test_a_file_that_is_no_chat_is_refused_and_left_as_it_is(change: Any, tmp_path: Path) -> None:
    saved = SavedChat(tmp_path, "mine", MODEL)
    saved.write(chat())
    path = tmp_path / "mine.json"
    text = json.dumps(change(json.loads(path.read_text(encoding="utf-8"))))
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ChatError, match="holds no chat"):
        SavedChat(tmp_path, "mine", MODEL).read()
    assert path.read_text(encoding="utf-8") == text


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    SavedChat(tmp_path, "mine", MODEL).write(chat())
    path = tmp_path / "mine.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ChatError, match="holds no chat"):
        SavedChat(tmp_path, "mine", MODEL).read()
