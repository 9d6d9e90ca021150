"""`radixkv chat` with models that think: thoughts are dimmed as they come, folded afterwards, and no part of the replies."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_stack import Stack, chat_stack
from talk import Talk
from thinking_families import GPT_OSS, KEEPER, QWEN3, R1, SMOLLM3, Family, save_family

from radixkv.chat.kept import KeptChats
from radixkv.chat.terminal import ChatOptions, Terminal
from radixkv.generation.params import SamplingParams

OPTIONS = ChatOptions(SamplingParams(temperature=0, max_tokens=200))
THOUGHTS, ANSWER = "The user greets.\n\nGreet back.", "Good day to you."
DIM, PLAIN = "\x1b[2m", "\x1b[22m"
MARKS = ("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>", "<|message|>")


class Screen(io.StringIO):
    """What a person sees who sits at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module", params=[QWEN3, R1, SMOLLM3, KEEPER, GPT_OSS], ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture(scope="module")
def stack(default_model: str, family: Family, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = save_family(default_model, tmp_path_factory.mktemp("families") / family.name, family)
    with chat_stack(model, num_blocks=1024, end=family.end) as stack:
        yield stack


def typed(stack: Stack, folder: Path, *lines: str, output: io.StringIO | None = None, page: bool = False) -> str:
    waiting, output = iter(lines), output or io.StringIO()

    def read_line(prompt: str, default: str = "") -> str:  # noqa: ARG001  as a terminal's
        line = next(waiting, None)
        if line is None:
            raise EOFError
        return line

    kept = KeptChats(stack.server.page_url) if page else None
    Terminal(stack.engine, OPTIONS, read_line, output, folder, kept).run()
    shown = output.getvalue()
    assert not any(mark in shown for mark in MARKS)
    return shown


def test_thoughts_stand_before_the_reply_and_are_dimmed_at_a_terminal(
    stack: Stack, family: Family, tmp_path: Path
) -> None:
    stack.dictate(family.written(THOUGHTS, ANSWER))
    assert f"bot thinks> {THOUGHTS}\nbot> {ANSWER}\n[prompt " in typed(stack, tmp_path, "Hello")
    stack.dictate(family.written(THOUGHTS, ANSWER))
    seen = typed(stack, tmp_path, "Hello", output=Screen())
    dimmed = [piece.partition(PLAIN) for piece in seen.split(DIM)[1:]]
    assert "".join(thought for thought, _, _ in dimmed) == f"bot thinks> {THOUGHTS}"
    assert [rest for _, _, rest in dimmed][-1].startswith(f"\nbot> {ANSWER}\n[prompt ")


def test_thoughts_are_folded_where_a_reply_is_shown_again_and_kept_with_it(
    stack: Stack, family: Family, tmp_path: Path
) -> None:
    stack.dictate(family.written(THOUGHTS, ANSWER))
    typed(stack, tmp_path, "Hello", "/save greeting")
    stack.dictate(family.written("", "Bye.") if family is not R1 else family.written("-", "Bye."))
    again = typed(stack, tmp_path, "/resume greeting", "/show", "/tree", "/branches", "And now?")
    assert again.count(f"(5 words of thoughts)\nbot> {ANSWER}\n") == 2
    assert f"↳ {ANSWER}  [1]" in again
    assert again.rstrip().rpartition("\n")[0].endswith("bot> Bye.")


def test_a_reply_is_forked_by_what_it_says_behind_its_thoughts(stack: Stack, family: Family, tmp_path: Path) -> None:
    stack.dictate(family.written(THOUGHTS, ANSWER))
    typed(stack, tmp_path, "Hello", "/save forked")
    stack.dictate(" old friend.")
    shown = typed(stack, tmp_path, "/resume forked", "/fork 1 Good day", "/fork 1 Greet back")
    assert f"bot thinks> {THOUGHTS}\nbot> Good day old friend.\n" in shown
    assert "! that reply does not say 'Greet back'" in shown


def test_drafts_and_a_reply_that_is_cut_within_its_thoughts(stack: Stack, family: Family, tmp_path: Path) -> None:
    written = family.written(THOUGHTS, ANSWER)
    stack.dictate(written[: written.index("greets") + len("greets")])  # and the end
    shown = typed(stack, tmp_path, "Hello", "/tree", "/show")
    assert "bot thinks> The user greets\n[prompt " in shown
    assert "↳ (ended within its thoughts)  [1]" in shown
    assert "(3 words of thoughts)\nbot> \n" in shown


def test_what_is_thought_is_kept_on_the_page_apart_from_the_text(stack: Stack, family: Family, tmp_path: Path) -> None:
    with Talk(stack.server.url) as talk:
        conversation_id = talk.begin(title="of the page")
        stack.dictate(family.written(THOUGHTS, ANSWER))
        talk.turn(conversation_id, "Hello", max_tokens=200)
        stack.dictate(family.written(THOUGHTS, "Good night."))
        shown = typed(stack, tmp_path, "/resume #1", "And now?", page=True)
        replies = [each for each in talk.messages(conversation_id) if each["role"] == "assistant"]
    assert f"(5 words of thoughts)\nbot> {ANSWER}" in shown
    assert [each["text"] for each in replies] == [ANSWER, "Good night."]
    assert [each["details"]["thinking"] for each in replies] == [THOUGHTS, THOUGHTS]
