"""The chat in the terminal, line by line: what each command does, says and refuses, with replies that are dictated."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_stack import GibberishRunner, Watched, gibberish_engine

from radixkv import PrefixCache
from radixkv.chat import terminal
from radixkv.chat.conversation import ChatError
from radixkv.chat.terminal import ChatOptions, Terminal, run_chat
from radixkv.generation.params import SamplingParams
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine

OPTIONS = ChatOptions(SamplingParams(temperature=0, max_tokens=40), namespace="of the chat")


class Chat:
    """Types lines; `asked` has the prompts of the reader and what stood in them."""

    def __init__(self, engine: Watched, runner: GibberishRunner, folder: Path) -> None:
        self.engine, self.runner, self.folder = engine, runner, folder
        self.asked: list[tuple[str, str]] = []

    def type(self, *lines: str | type[BaseException]) -> str:
        """What is shown; the runner says "Yes." and then "No.", again and again."""
        waiting, output = iter(lines), io.StringIO()

        def read_line(prompt: str, default: str = "") -> str:
            self.asked.append((prompt, default))
            line = next(waiting, EOFError)
            if isinstance(line, str):
                return line
            raise line

        self.runner.dictate(*["Yes.", "No."] * 10)
        self.asked.clear()
        Terminal(self.engine, OPTIONS, read_line, output, self.folder).run()
        assert next(waiting, None) is None, "it has left before the last line"
        return output.getvalue()


@pytest.fixture(scope="module")
def parts(default_model: str) -> Iterator[tuple[Watched, GibberishRunner]]:
    with gibberish_engine(default_model) as (engine, runner, _):
        yield engine, runner


@pytest.fixture
def chat(parts: tuple[Watched, GibberishRunner], tmp_path: Path) -> Chat:
    return Chat(*parts, tmp_path)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("/quit",), ""),
        ((), "\n"),
        ((KeyboardInterrupt, "/q"), "(/quit or Ctrl-D leaves)\n"),
        (("", "  ", "/quit "), ""),
        (("/nothing", "/quit"), "! /nothing is no command; there are /regenerate, /edit, "),
        (("/s", "/quit"), "! /s is no command"),
        (("/sh", "/show", "/quit"), ""),
        (("/branches", "/quit"), "There are no branches yet.\n"),
        (("/resume", "/quit"), "No chat is kept yet; /save NAME keeps this one.\n"),
        (("/save", "/quit"), "! name it: /save NAME\n"),
        (("/resume #1", "/quit"), "! no chat page is known here; radixkv chat --gateway URL names one\n"),
        (("/regenerate", "/quit"), "! "),
        (("/edit x", "/quit"), "! N must be a number of at least 1, not 'x'\n"),
        (("/edit 0", "/quit"), "! N must be a number of at least 1, not '0'\n"),
        (("/switch", "/quit"), "! K must be a number of at least 1, not ''\n"),
        (("/fork", "/quit"), "You stand at the start; your next message opens a branch here.\n"),
        (("/help", "/quit"), "/regenerate"),
    ],
)
def test_before_a_message_there_is_little_to_do(chat: Chat, lines: tuple[Any, ...], said: str) -> None:
    shown = chat.type(*lines)
    start = "A branching chat. /help lists the commands, /quit leaves.\n"
    assert shown.startswith(start)
    rest = shown.removeprefix(start)
    assert said in rest if said else rest == ""
    assert all(prompt == "you> " for prompt, _ in chat.asked)


def test_a_message_is_answered_and_its_cost_told(chat: Chat) -> None:
    shown = chat.type("  Hello  ", "Again")
    assert shown.count("bot> Yes.\n[prompt ") == 1
    assert shown.count("bot> No.\n[prompt ") == 1
    first, second = chat.engine.requests[-2:]
    assert {first.namespace, second.namespace} == {"of the chat"}
    assert chat.engine.shown(-2).endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert second.history, "the turns before are sent as the tokens that they were"


@pytest.mark.parametrize("number", ["2", "64"])
def test_drafts_are_siblings_of_the_reply(chat: Chat, number: str) -> None:
    shown = chat.type("Hello", f"/regenerate {number}", "/branches")
    assert f"({number} drafts; each is shown when it is done)" in shown
    assert all(f"\nbot {draft}> " in shown for draft in range(1, int(number) + 1))
    assert f"bot {int(number) + 1}> " not in shown
    assert shown.count("[prompt ") == 2
    assert chat.engine.samplings[-1].n == int(number)
    assert f"  {int(number) + 1}  " in shown.rpartition("[prompt ")[2]


@pytest.mark.parametrize("number", ["0", "65", "two"])
def test_a_number_of_drafts_past_its_bound_is_refused(chat: Chat, number: str) -> None:
    num_before = len(chat.engine.requests)
    shown = chat.type("Hello", f"/regenerate {number}")
    assert f"! K must be a number from 1 to 64, not {number!r}" in shown
    assert len(chat.engine.requests) == num_before + 1


def test_a_reply_is_made_anew_from_the_same_tokens(chat: Chat) -> None:
    shown = chat.type("Hello", "/regenerate", "/show", "/switch 1", "/tree")
    assert shown.count("bot> Yes.") == 2, "when it came, and where it was switched to"
    assert shown.count("you> Hello\nbot> No.\n") == 1
    assert chat.engine.prompts[-1] == chat.engine.prompts[-2]
    assert "! there is no branch 3" not in shown
    refused = chat.type("Hello", "/switch 2")
    assert "! " in refused.rpartition("[prompt ")[2]


def test_an_edited_message_opens_a_branch(chat: Chat) -> None:
    shown = chat.type("Hello", "/edit 1 Hallo", "/show")
    assert shown.endswith("you> Hallo\nbot> No.\n\n")
    assert chat.engine.shown().endswith("user\nHallo<|im_end|>\n<|im_start|>assistant\n")


def test_an_edit_without_a_text_asks_for_it_with_the_old_one_in_place(chat: Chat) -> None:
    shown = chat.type("Hello", "/edit 1", " Hallo ", "/edit 1", " ", "/show")
    assert ("edit 1> ", "Hello") in chat.asked
    assert "! an edited message needs a text; nothing was changed" in shown
    assert shown.endswith("you> Hallo\nbot> No.\n\n")
    assert "! there is no message 2" in chat.type("Hello", "/edit 2 x") or "! " in shown


def test_a_fork_stands_behind_a_reply_and_the_next_message_goes_on_from_there(chat: Chat) -> None:
    shown = chat.type("One\n  two", "Three", "/fork 1", "Four", "/show", "/fork 0", "Five", "/show")
    assert "You stand behind “Yes.”; your next message opens a branch here." in shown
    assert "you> One\n  two\nbot> Yes.\nyou> Four\nbot> Yes.\n" in shown
    assert "You stand at the start;" in shown
    assert shown.endswith("you> Five\nbot> No.\n\n")


def test_a_fork_inside_a_reply_goes_on_from_its_very_tokens(chat: Chat) -> None:
    chat.type("Hello", "/fork 1 Ye")
    first, second = chat.engine.requests[-2:]
    told, prompt = bytes(second.token_ids or b""), chat.engine.prompts[-2]
    assert len(told) // 4 == len(prompt) + 1, "one token spells Yes"
    assert second.namespace == "of the chat"
    assert second.sampling == first.sampling
    shown = chat.type("Hello", "/fork 1 nowhere in it", "/fork 9 Yes")
    assert "! that reply does not say 'nowhere in it'" in shown
    assert shown.count("! ") == 2


def test_a_chat_is_kept_under_its_name_and_taken_up(chat: Chat) -> None:
    shown = chat.type("Hello", "/save greeting", "And?", "/resume greeting")
    assert "Kept as 'greeting', and again after every reply." in shown
    taken_up = chat.type("/resume", "/resume greeting", "More")
    assert "\ngreeting\n" in taken_up
    assert "you> Hello\nbot> Yes.\nyou> And?\nbot> No.\n" in taken_up
    assert chat.type("/resume greeting").count("you> ") == 3, "what came after it was taken up is kept as well"
    assert "! this chat is not kept and would be lost: /save NAME first" in chat.type("Hello", "/resume greeting")
    assert "! " in chat.type("/resume nobody's")
    other = chat.type("Another", "/save greeting")
    assert "Another chat is kept there; this one is kept as 'greeting-2'." in other


def test_ctrl_c_keeps_what_was_said_so_far(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    views: list[Any] = []

    class View(terminal.ReplyView):
        def show(self, thought: str, said: str) -> None:
            super().show(thought, said)
            views.append(said)
            if "".join(views).startswith("Yes"):
                views.clear()
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(terminal, "ReplyView", View)
        shown = chat.type("Hello", "/show")
    assert "bot> Yes (stopped)\n" in shown
    assert shown.endswith("you> Hello\nbot> Yes\n\n")
    assert "[prompt " not in shown, "what it would have cost is not known"


def test_a_message_that_could_not_be_answered_leaves_no_trace(chat: Chat) -> None:
    shown = chat.type("Hello", "word " * 6000, "/show")
    assert "! " in shown
    assert shown.endswith("you> Hello\nbot> Yes.\n\n")


def test_a_script_reads_plain_lines_until_they_end(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat.runner.dictate("Yes.")
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n/show\n"))
    run_chat(chat.engine, OPTIONS)
    assert capsys.readouterr().out.endswith("you> Hello\nbot> Yes.\n\n")


def test_a_model_without_a_chat_template_cannot_chat() -> None:
    complaint = "no chat template; choose an instruct model with --model"
    with Engine(HashRunner(16, 4), PrefixCache(16, 4)) as engine, pytest.raises(ChatError, match=complaint):
        run_chat(engine, OPTIONS)
