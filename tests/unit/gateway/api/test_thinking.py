"""What a model thinks and says, told apart however its text is cut; the marks that templates show; what wishes mean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.cli.views.explain_view import lines
from radixkv.core.explanation import Explanation
from radixkv.core.tokens import pack_tokens
from radixkv.gateway.turns.replies import Reply
from radixkv.gateway.turns.thinking_wish import ThinkingWish, thinking_arguments
from radixkv.generation.params import SampledToken
from radixkv.generation.request import ModelInfo
from radixkv.generation.stream import BranchFinished, Delta, FinishReason
from radixkv.generation.thinking import ThinkingMarks, find_marks
from radixkv.generation.thought_splitter import splitter_of
from radixkv.generation.wire import MODEL

THINK = ThinkingMarks("<think>", "</think>", (9,))
HARMONY = ThinkingMarks("<|channel|>analysis<|message|>", "<|end|>", (9,))


def split(marks: ThinkingMarks, pieces: Sequence[str], *, opened: bool = False) -> tuple[str, str]:
    splitter = splitter_of(marks)
    if opened:
        splitter.open()
    told = [*map(splitter.push, pieces), splitter.flush()]
    return "".join(thought for thought, _ in told), "".join(said for _, said in told)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>\nHm.\n</think>\n\nFour.", "Hm.", "Four."),
        ("\n<think>Hm.</think>Four.\n", "Hm.", "Four.\n"),
        ("<think>\n\n</think>\n\nFour.", "", "Four."),
        ("Four. <think>no</think>", "", "Four. <think>no</think>"),
        ("<think>a</think>```\n<think>b</think>\n```", "a", "```\n<think>b</think>\n```"),
        ("<think>cut </thi", "cut </thi", ""),
        ("<thin", "", "<thin"),
        ("<think>a < b <think> c</think>d", "a < b <think> c", "d"),
        (" \n", "", " \n"),
    ],
)
def test_thoughts_stand_at_the_beginning_between_their_marks(text: str, thought: str, said: str) -> None:
    assert split(THINK, [text]) == (thought, said)
    assert split(THINK, list(text)) == (thought, said)


@pytest.mark.parametrize(
    ("tail", "opened"),
    [("<think>", True), ("<think>\n", True), ("<think> Hm.", False), ("</think>", False), ("", False)],
)
def test_a_prompt_that_ends_with_the_opening_mark_has_opened_the_thoughts(tail: str, opened: bool) -> None:
    assert THINK.has_opened(tail) is opened
    assert not HARMONY.has_opened(HARMONY.opens)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("Hm.\n</think>\n\nFour.", "Hm.", "Four."),
        ("<think>\nHm.\n</think>\n\nFour.", "Hm.", "Four."),
        ("never ends", "never ends", ""),
        ("</think>Four.", "", "Four."),
    ],
)
def test_a_prompt_that_has_opened_the_thoughts_needs_no_mark(text: str, thought: str, said: str) -> None:
    assert split(THINK, [text], opened=True) == (thought, said)
    assert split(THINK, list(text), opened=True) == (thought, said)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Four.", "Hm.", "Four."),
        ("<|channel|>final<|message|>Four.", "", "Four."),
        ("Four.", "", "Four."),
        ("<|channel|>analysis<|message|>cut", "cut", ""),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
            '<|constrain|>json<|message|>{"a": 1}',
            "Hm.",
            '<tool_call>{"name": "add", "arguments": {"a": 1}',
        ),
        (
            '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|end|>',
            "",
            '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        ),
        ("<|channel|>analysis", "", ""),
        ("<|channel|>" + "x" * 600, "", "<|channel|>" + "x" * 600),
    ],
)
def test_the_channels_of_harmony_tell_what_is_thought(text: str, thought: str, said: str) -> None:
    assert split(HARMONY, [text]) == (thought, said)
    assert split(HARMONY, list(text)) == (thought, said)


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", "<", "think", ">", "a", " ", "</", "<|end|>"]), max_size=12
)
HARMONY_PIECES = st.lists(
    st.sampled_from(
        [
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|start|>",
            "assistant",
            "analysis",
            "final",
            " to=functions.f",
            "a",
            "<|",
        ]
    ),
    max_size=14,
)


@given(
    st.one_of(PIECES.map(lambda pieces: (THINK, pieces)), HARMONY_PIECES.map(lambda pieces: (HARMONY, pieces))),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_where_the_text_is_cut_changes_nothing(told: tuple[ThinkingMarks, list[str]], opened: bool, random) -> None:  # type: ignore[no-untyped-def]
    marks, text = told[0], "".join(told[1])
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(marks, pieces, opened=opened) == split(marks, [text], opened=opened)


@pytest.mark.parametrize("num_at_once", [1, 2, 7])
def test_tokens_are_counted_as_thoughts_up_to_the_closing_one(num_at_once: int) -> None:
    tokens = [(8, "<think>"), (1, "Hm"), (1, "."), (9, "</think>"), (2, "Fo"), (2, "ur"), (2, ".")]
    reply = Reply(0, (), (), marks=THINK)
    for start in range(0, len(tokens), num_at_once):
        some = tokens[start : start + num_at_once]
        logprobs = tuple(SampledToken(token_id, -1.0, ()) for token_id, _ in some)
        reply.push(Delta(0, tuple(token_id for token_id, _ in some), "".join(text for _, text in some), logprobs))
    reply.finish(BranchFinished(0, FinishReason.STOP))
    assert (reply.thinking, reply.text, reply.num_thinking_tokens) == ("Hm.", "Four.", 4)
    assert [token.token_id for token in reply.logprobs] == [2, 2, 2]


@pytest.mark.parametrize(
    ("template", "added", "marks"),
    [
        ("{{ m.content.split('</think>')[-1] }}", ["<think>", "</think>"], ("<think>", "</think>")),
        ("{{ '<think>\n' }} .. {{ '</think>' }}", [], ("<think>", "</think>")),
        ("{{ m.content }}", ["[THINK]", "[/THINK]"], ("[THINK]", "[/THINK]")),
        ("{{ '<seed:think>' + m.reasoning_content + '</seed:think>' }}", [], ("<seed:think>", "</seed:think>")),
        ("{{ '◁think▷' }}{{ '◁/think▷' }}", [], ("◁think▷", "◁/think▷")),
        ("", ["<|START_THINKING|>", "<|END_THINKING|>"], ("<|START_THINKING|>", "<|END_THINKING|>")),
        ("{{ '<|start|>assistant<|channel|>' }} analysis", [], (HARMONY.opens, HARMONY.closes)),
        ("{{ '<|im_start|>' + m.content }}", ["<|im_start|>", "</tool_call>"], None),
        ("{{ m.content.split('</think>')[-1] }}", ["<bos>"], None),
    ],
)
def test_a_template_and_its_tokenizer_show_the_marks(
    template: str, added: list[str], marks: tuple[str, str] | None
) -> None:
    found = find_marks(template, added)
    assert (found and (found.opens, found.closes)) == marks


@pytest.mark.parametrize(
    ("reads", "wish", "said", "left_out"),
    [
        (("enable_thinking",), ThinkingWish(False), {"enable_thinking": False}, []),
        (("enable_thinking",), ThinkingWish(None, "none"), {"enable_thinking": False}, []),
        (("enable_thinking",), ThinkingWish(None, "high"), {}, ["effort"]),
        (("thinking",), ThinkingWish(True), {"thinking": True}, []),
        (("reasoning_effort",), ThinkingWish(True, "low"), {"reasoning_effort": "low"}, []),
        (("reasoning_effort",), ThinkingWish(None, "none"), {}, ["effort"]),
        (("thinking_budget",), ThinkingWish(True, None, 512), {"thinking_budget": 512}, []),
        ((), ThinkingWish(True, None, 512), {}, ["budget_tokens"]),
        ((), ThinkingWish(False), {}, ["is_on"]),
        ((), ThinkingWish(), {}, []),
    ],
)
def test_a_wish_is_told_to_a_template_that_reads_it(
    reads: tuple[str, ...], wish: ThinkingWish, said: dict[str, object], left_out: list[str]
) -> None:
    info = ModelInfo("m", 100, 100, 16, (2,), True, thinking=THINK, template_variables=reads)
    assert thinking_arguments(info, wish) == (said, left_out)
    assert thinking_arguments(info, wish, {"enable_thinking": True})[0] == {**said, "enable_thinking": True}


def test_a_model_that_never_thinks_needs_not_be_told_not_to() -> None:
    info = ModelInfo("m", 100, 100, 16, (2,), True)
    assert thinking_arguments(info, ThinkingWish(False, None, None)) == ({}, [])
    assert thinking_arguments(info, ThinkingWish(True, None, 512)) == ({}, ["is_on"])


def test_a_call_within_thoughts_is_thought_and_one_behind_them_is_a_call() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    reply = Reply(0, ("add",), (), marks=THINK)
    reply.push(Delta(0, (8, 1, 9, 2), f"<think>{call}</think>\n\n{call}"))
    reply.finish(BranchFinished(0, FinishReason.STOP))
    assert (reply.thinking, reply.text, len(reply.calls)) == (call, "", 1)


def test_a_frontend_learns_the_marks_over_the_wire() -> None:
    info = ModelInfo("m", 100, 100, 16, (2,), True, thinking=THINK, template_variables=("enable_thinking",))
    assert MODEL.read(MODEL.to_proto(info)) == info
    assert MODEL.read(MODEL.to_proto(info._replace(thinking=None))).thinking is None


@pytest.mark.parametrize(
    ("marks", "found", "is_told"),
    [
        (THINK, "<think>\nHm.", True),
        (HARMONY, "analysis<|message|>Hm.", True),
        (THINK, "Four.", False),
        (None, "<think>", False),
    ],
)
def test_explain_tells_that_thoughts_stand_before_the_cached_reply(
    marks: ThinkingMarks | None, found: str, is_told: bool
) -> None:
    told = Explanation(8, 4, "parted", pack_tokens([1]), pack_tokens([2]), 1, None, None)
    shown = "\n".join(lines(told, lambda tokens: found if tokens == told.found else "Four.", marks))
    assert ("thoughts stand before the cached reply" in shown) == is_told
