"""`radixkv chat` as a person uses it over days: kept, taken up again, forked inside a reply."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_stack import Stack, chat_stack, keys_file
from talk import Talk

from radixkv.chat.kept import KeptChats
from radixkv.chat.terminal import ChatOptions, Terminal
from radixkv.client import Credentials
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.params import SamplingParams

pytestmark = pytest.mark.thorough

OPTIONS = ChatOptions(SamplingParams(temperature=0, max_tokens=24))


def chat(state: Path, model: str, *lines: str, gateway: str | None = None) -> str:
    """What a chat prints that is typed these lines."""
    command = [sys.executable, "-m", "radixkv", "chat", "--model", model, "--num-blocks", "64"]
    command += ["--gateway", gateway] if gateway else []
    finished = subprocess.run(
        [*command, "--temperature", "0", "--max-tokens", "12"],
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, "RADIXKV_STATE": str(state), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(
        default_model, GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, system_prompt="Be brief.")
    ) as stack:
        yield stack


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url) as talk:
        yield talk
        for conversation in talk.call("GET", "", limit=200)["conversations"]:
            talk.call("DELETE", f"/{conversation['id']}")


def test_a_chat_is_kept_taken_up_and_forked_inside_a_reply_and_a_conversation_of_the_page_beside_it(
    stack: Stack, talk: Talk, default_model: str, tmp_path: Path
) -> None:
    conversation_id = talk.begin(title="of the page")
    stack.dictate("A hill.")
    talk.turn(conversation_id, "What is that?")
    first = chat(tmp_path, default_model, "Name three colours.", "/save my colours", "And three animals.")
    assert "Kept as 'my colours'" in first
    replies = re.findall(r"bot> (.*)", first)
    assert len(replies) == 2
    word = replies[0].split()[2]
    second = chat(
        tmp_path,
        default_model,
        "/resume",
        "/resume my colours",
        f"/fork 1 {word}",
        "/branches",
        "/fork 1 there is no such text",
        "/resume nothing",
        "/resume #1",
        "Is it high?",
        gateway=stack.server.page_url,
    )
    listed, _, rest = second.partition("you> Name three colours.")
    assert "my colours" in listed
    assert "#1  of the page" in listed
    rest, _, of_the_page = rest.partition("you> What is that?")
    assert "bot> A hill." in of_the_page
    assert len(talk.messages(conversation_id)) == 4
    assert replies[0] in rest
    assert replies[1] in rest, "what came after the chat was kept is kept as well"
    (reused,) = re.findall(r"prompt (\d+) tokens", rest)
    forked = re.findall(r"bot> (.*)", rest)[2]
    assert forked.startswith(replies[0][: replies[0].index(word) + len(word)])
    assert int(reused) > 10
    assert re.search(r"^  +1  2 turns", rest, re.MULTILINE), "the branch kept its number"
    assert re.search(r"^\* +2  1 turns", rest, re.MULTILINE)
    assert "! that reply does not say" in rest
    assert "! no chat is saved as 'nothing'; saved: my colours" in rest


def typed(stack: Stack, folder: Path, *lines: str, credentials: Credentials | None = None) -> str:
    """What a terminal beside the gateway prints that is typed these lines."""
    waiting, output = iter(lines), io.StringIO()

    def read_line(prompt: str, default: str = "") -> str:  # noqa: ARG001  as a terminal's
        line = next(waiting, None)
        if line is None:
            raise EOFError
        return line

    kept = KeptChats(stack.server.page_url, credentials)
    Terminal(stack.engine, OPTIONS, read_line, output, folder, kept).run()
    return output.getvalue()


def test_a_conversation_of_the_page_is_opened_with_its_branches_and_goes_on_there_too(
    stack: Stack, talk: Talk, tmp_path: Path
) -> None:
    talk.begin(title="another")
    conversation_id = talk.begin(title="rivers", messages=[{"role": "system", "text": "You are a river."}])
    (system,) = talk.messages(conversation_id)
    asked, reply = talk.turn(conversation_id, "Where do you end?", system["id"])
    stack.dictate("In the sea.")
    _, further = talk.turn(conversation_id, "And then?", reply["id"])
    other = {"parent": asked, "role": "assistant", "text": "In a lake."}
    talk.call("POST", f"/{conversation_id}/messages", other)
    talk.call("POST", f"/{conversation_id}/messages", {"parent": reply["id"], "role": "user", "text": "Unanswered"})
    before = talk.messages(conversation_id)

    stack.dictate("Not in a river.")
    with talk.following(conversation_id) as follower:
        shown = typed(stack, tmp_path, "/resume", "/resume #1", "/tree", "/switch 2", "Is that true?", "/branches")
        follower.wait(lambda: len(follower.messages) == len(before) + 2)
        told = list(follower.messages.values())
    assert re.search(r"#1  rivers  \(7 messages, on the chat page\)\n#2  another", shown)
    assert "sys You are a river." in shown
    assert "Unanswered" not in shown
    assert "↳ In the sea.  [1]" in shown
    assert "↳ In a lake.  [2]" in shown
    assert re.search(r"^  +1  3 turns.*In the sea", shown, re.M)
    assert re.search(r"^\* +2  3 turns.*Not in a river", shown, re.M), "it went on with branch 2"
    assert stack.engine.shown().endswith(
        "<|im_start|>system\nYou are a river.<|im_end|>\n<|im_start|>user\nWhere do you end?<|im_end|>\n"
        "<|im_start|>assistant\nIn a lake.<|im_end|>\n<|im_start|>user\nIs that true?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert told[: len(before)] == before, "nothing is overwritten"
    question, answer = told[len(before) :]
    assert (question["role"], question["text"]) == ("user", "Is that true?")
    assert next(each["text"] for each in before if each["id"] == question["parent"]) == "In a lake."
    assert (answer["parent"], answer["text"], answer["details"]) == (
        question["id"],
        "Not in a river.",
        {"model": "gibberish"},
    )
    assert further["text"] == "In the sea."


def test_a_reply_of_the_page_is_forked_inside_and_kept_in_a_file(stack: Stack, talk: Talk, tmp_path: Path) -> None:
    conversation_id = talk.begin()
    stack.dictate("The Rhine ends in the North Sea.")
    talk.turn(conversation_id, "Where?")
    stack.dictate(" in Basel.")
    shown = typed(stack, tmp_path, "/resume #1", "/fork 1 The Rhine ends", "/save mine", "/branches")
    assert "bot> The Rhine ends in Basel." in shown
    assert "<|im_start|>system\nBe brief.<|im_end|>" not in stack.engine.shown(), "the prompt is the terminal's own"
    replies = [each["text"] for each in talk.messages(conversation_id) if each["role"] == "assistant"]
    assert replies == ["The Rhine ends in the North Sea.", "The Rhine ends in Basel."]
    again = typed(stack, tmp_path, "/resume mine", "/switch 1", "And the Rhône?")
    assert "bot> The Rhine ends in the North Sea." in again
    assert len(talk.messages(conversation_id)) == 3, "a chat in a file is the file's alone"


def test_what_the_page_cannot_show_here_or_has_deleted_changes_nothing(
    stack: Stack, talk: Talk, tmp_path: Path
) -> None:
    twice = talk.begin(title="twice", messages=[{"role": "user", "text": "a"}, {"role": "user", "text": "b"}])
    talk.call(
        "POST", f"/{twice}/messages", {"parent": talk.messages(twice)[-1]["id"], "role": "assistant", "text": "c"}
    )
    assert "! messages of one role follow each other" in typed(stack, tmp_path, "/resume #1")
    assert "! K must be a number from 1 to 1" in typed(stack, tmp_path, "/resume #2")
    talk.call("DELETE", f"/{twice}")
    assert "! no conversation is kept on the chat page" in typed(stack, tmp_path, "/resume #1")
    kept = talk.begin()
    talk.turn(kept, "Hello")
    typed_after = iter(("/resume #1", "delete", "And now?", "/tree"))
    output = io.StringIO()

    def read_line(prompt: str, default: str = "") -> str:  # noqa: ARG001  as a terminal's
        line = next(typed_after, "/quit")
        if line == "delete":
            talk.call("DELETE", f"/{kept}")
            line = "/show"
        return line

    Terminal(stack.engine, OPTIONS, read_line, output, tmp_path, KeptChats(stack.server.page_url)).run()
    shown = output.getvalue()
    assert re.search(r"! the gateway at \S+ rejects that: .*conversation", shown)
    assert "you And now?" in shown, "the reply stays in the terminal"


def test_a_key_opens_its_own_conversations_alone(default_model: str, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys.toml")
    with chat_stack(default_model, GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, keys_file=keys)) as stack:
        with Talk(stack.server.url, "red") as red:
            red.begin(title="of red")
        assert "#1  of red" in typed(stack, tmp_path, "/resume", credentials=Credentials(token="red"))
        assert "of red" not in typed(stack, tmp_path, "/resume", credentials=Credentials(token="blue"))
        assert re.search("! the gateway at .* --token-file FILE", typed(stack, tmp_path, "/resume"), re.S)
