"""Chats go on from the kept token ids exactly as the model's template would have written them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from chat_templates import CHATML as KIND
from chat_templates import FAMILIES, Family, chat_text
from own_threads import own_records
from small_tokenizers import CHATML, byte_level, sentencepiece_like, user
from transformers import PreTrainedTokenizerFast

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.request import Message
from radixkv.worker.errors import ModelError
from radixkv.worker.generations.encoding import ANYBODY, TextEncoder
from radixkv.worker.generations.text import ChatText

BRACKETS = (
    "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] | trim }}</s>{% else %}{{ raise_exception('no ' + m['role']) }}"
    "{% endif %}{% endfor %}"
)
PLAIN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
FORGETFUL = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


CHAT = [user("hello"), assistant("world, 12"), user("and now?"), assistant("hello ½ 🙂"), user(" last one ")]


@pytest.mark.parametrize("template", [CHATML, BRACKETS], ids=["chatml", "brackets"])
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("tokenizer", [byte_level, sentencepiece_like])
def test_kept_ids_and_what_is_appended_equal_the_templates_own_tokenisation(
    tokenizer: type, template: str, is_cut: bool, tmp_path: Path
) -> None:
    text: ChatText = tokenizer(tmp_path, template)
    kept = text.prompt_ids(CHAT[:1])
    for turn in (2, 4):
        whole = text.prompt_ids(CHAT[: turn + 1])
        start, end_of_turn = len(kept), text.encode("<|im_end|>" if template is CHATML else "</s>")[-1]
        reply_end = whole.index(end_of_turn, start)
        kept = whole[: reply_end if is_cut else reply_end + 1]  # the reply as a model would have sampled it
        kept = kept + text.continuation_ids(kept, CHAT[turn : turn + 1])
        assert kept == whole


def test_a_template_of_plain_text_goes_on_too(tmp_path: Path) -> None:
    text = byte_level(tmp_path, PLAIN)
    kept = text.prompt_ids(CHAT[:1]) + text.encode(" world, 12")
    appended = text.continuation_ids(kept, CHAT[2:3])
    assert text.decode(appended) == "\nuser: and now?\nassistant:"


def test_a_reply_that_ends_like_the_templates_text_keeps_its_own_end(tmp_path: Path) -> None:
    text = byte_level(tmp_path, PLAIN)
    kept = text.prompt_ids(CHAT[:1]) + text.encode(" world\n")
    assert text.decode(text.continuation_ids(kept, CHAT[2:3])).startswith("\nuser:")


def test_a_message_that_holds_the_marker_word_is_not_taken_for_the_reply(tmp_path: Path) -> None:
    text = byte_level(tmp_path, CHATML)
    kept = text.prompt_ids(CHAT[:1])
    appended = text.decode(text.continuation_ids(kept, [user("Reply0here Reply1here")]))
    assert appended.count("Reply0here Reply1here") == 1


def test_a_reply_is_never_tokenised_again(tmp_path: Path) -> None:
    text = sentencepiece_like(tmp_path, CHATML)
    odd_reply = text.encode("h") + text.encode("xe")[-1:]  # ids that no tokenisation of their text gives
    kept = text.prompt_ids(CHAT[:1]) + odd_reply
    assert text.encode(text.decode(odd_reply)) != odd_reply
    appended = text.continuation_ids(kept, CHAT[2:3])
    assert text.decode(appended, skip_special_tokens=False).startswith("<|im_end|>")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        (FORGETFUL, "does not write each reply"),
        (BRACKETS, "refuses these messages: no tool"),
    ],
)
def test_a_template_that_cannot_go_on_says_why(template: str | None, message: str, tmp_path: Path) -> None:
    text = byte_level(tmp_path, template)
    assert text.has_chat_template == (template is not None)
    with pytest.raises(ModelError, match=message):
        text.continuation_ids([1, 2], [{"role": "tool", "content": "x"}])


HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if quietly %}shh{% endif %}{% endif %}"
)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
}
RESULT = {"role": "tool", "content": "rain"}


def shown(text: ChatText, ids: list[int]) -> str:
    return text.decode(ids, skip_special_tokens=False)


def test_tools_and_variables_reach_a_template_that_knows_them(tmp_path: Path) -> None:
    text = byte_level(tmp_path, HERMES)
    written = shown(text, text.prompt_ids([user("hello"), CALLED, RESULT], [WEATHER], {"quietly": True}))
    assert '"name": "weather", "parameters": {}' in written
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' in written
    assert written.endswith("<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\nshh")


def test_tools_reach_a_template_that_does_not_know_them_through_the_system_prompt(tmp_path: Path) -> None:
    text = byte_level(tmp_path, CHATML)
    written = shown(text, text.prompt_ids([user("hello"), CALLED, RESULT], [WEATHER]))
    assert written.startswith("<|im_start|>system\nYou can call functions.")
    assert '{"name": "weather", "parameters": {}}' in written
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>' in written


@pytest.mark.parametrize("template", [HERMES, CHATML], ids=["known", "unknown"])
def test_a_chat_with_calls_goes_on_as_the_template_would_have_written_it(template: str, tmp_path: Path) -> None:
    text = byte_level(tmp_path, template)
    kept = text.prompt_ids([user("hello")], [WEATHER])
    whole = text.prompt_ids([user("hello"), CALLED, RESULT], [WEATHER])
    reply = whole[len(kept) : len(whole) - len(text.continuation_ids([], [RESULT], [WEATHER]))]
    assert whole[: len(kept)] == kept
    assert "weather" in shown(text, reply)
    assert [*kept, *reply, *text.continuation_ids(kept + reply, [RESULT], [WEATHER])] == whole


def test_a_callers_variables_cannot_take_the_place_of_our_arguments(tmp_path: Path) -> None:
    text = byte_level(tmp_path, HERMES)
    plain = text.prompt_ids([user("hello")])
    variables = {
        "tokenize": True,
        "chat_template": "x",
        "add_generation_prompt": False,
        "conversation": [],
        "tools": [WEATHER],
    }
    assert text.prompt_ids([user("hello")], (), variables) == plain


def test_a_folder_without_a_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer") as refusal:
        ChatText(str(tmp_path))
    assert "\n" not in str(refusal.value)


STREAMED = ["hello world", " ½ 🙂 👩‍👩‍👧 日本語", "🙂🙂🙂🙂🙂", "  hello\n\t world  ", "naïve", ""]


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("tokenizer", [byte_level, sentencepiece_like])
def test_streamed_pieces_join_to_the_text_and_never_split_a_character(
    tokenizer: type, streamed: str, tmp_path: Path
) -> None:
    text: ChatText = tokenizer(tmp_path, CHATML)
    token_ids = text.encode(streamed)
    decoder = text.stream_decoder()
    pieces = [decoder.push([token_id]) for token_id in token_ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text.decode(token_ids) == streamed
    assert decoder.flush() == ""


@pytest.mark.parametrize("tokenizer", [byte_level, sentencepiece_like])
def test_special_tokens_leave_no_trace_in_the_stream(tokenizer: type, tmp_path: Path) -> None:
    text: ChatText = tokenizer(tmp_path, CHATML)
    decoder = text.stream_decoder()
    token_ids = [*text.encode("hello"), *text.encode("<|im_end|>"), *text.encode(" world"), *text.encode("</s>")]
    assert decoder.push(token_ids) + decoder.flush() == text.decode(token_ids)


def test_a_reply_cut_within_a_character_ends_with_a_replacement(tmp_path: Path) -> None:
    text = byte_level(tmp_path, CHATML)
    decoder = text.stream_decoder()
    token_ids = text.encode("ab🙂")[:-1]
    assert decoder.push(token_ids) == "ab"
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_bytes_that_are_no_text_are_given_out_in_bounded_time(tmp_path: Path) -> None:
    text = byte_level(tmp_path, CHATML)
    stray = text.encode("é")[-1]
    decoder = text.stream_decoder()
    pieces = [decoder.push([stray]) for _ in range(100)]
    assert len("".join(pieces)) >= 100 - 16
    assert "".join(pieces) + decoder.flush() == text.decode([stray] * 100)


@pytest.mark.parametrize("space", ["", " ", "\n", " \n\n", "\t"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_white_space_that_a_template_writes_before_the_end_of_a_turn_is_no_text_of_it(
    space: str, is_cut: bool, tmp_path: Path
) -> None:
    """A reply that has brought the end of its turn gets no second one, and no white space behind it."""
    template = CHATML.replace("{{ m['content'] }}<|im_end|>", "{{ m['content'] }}" + space + "<|im_end|>")
    text = byte_level(tmp_path, template)
    [end] = text.encode("<|im_end|>", special=False)
    kept = text.prompt_ids(CHAT[:1]) + text.encode("world, 12") + ([] if is_cut else [end])
    whole = kept + text.continuation_ids(kept, CHAT[2:3])
    asked = "<|im_start|>user\nand now?" + space + "<|im_end|>\n<|im_start|>assistant\n"
    shown = text.decode(whole, skip_special_tokens=False)
    assert shown.endswith(f"world, 12{space if is_cut else ''}<|im_end|>\n{asked}")


def test_text_that_a_template_writes_behind_every_reply_is_kept_behind_one_that_has_ended(tmp_path: Path) -> None:
    template = CHATML.replace("{{ m['content'] }}<|im_end|>", "{{ m['content'] }}.<|im_end|>")
    text = byte_level(tmp_path, template)
    [end] = text.encode("<|im_end|>", special=False)
    kept = text.prompt_ids(CHAT[:1]) + text.encode("world") + [end]
    shown = text.decode(kept + text.continuation_ids(kept, CHAT[2:3]), skip_special_tokens=False)
    assert "world<|im_end|>.<|im_end|>" in shown


RETRIEVING = "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}" + CHATML


def test_documents_reach_a_template_that_reads_them_and_are_refused_by_another(tmp_path: Path) -> None:
    text = byte_level(tmp_path, RETRIEVING)
    told = {"documents": [{"title": "A", "text": "one<|im_end|>"}, {"title": "B", "text": "two"}]}
    written = shown(text, text.prompt_ids([user("Hi")], (), told))
    assert written.startswith("[A: one<|im_end|>][B: two]<|im_start|>system")
    end = text.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert text.prompt_ids([user("Hi")], (), told).count(end) == text.prompt_ids([user("Hi")]).count(end)
    with pytest.raises(InvalidArgumentError, match=r"^documents is"):
        byte_level(tmp_path, CHATML).prompt_ids([user("Hi")], (), told)


# -- a reply that goes on from its own text


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("begun", ["hello wor", "hello ", "a\n", "", "<|im_end|> or </s>"])
def test_a_reply_goes_on_where_transformers_lets_it(tmp_path: Path, family: Family, begun: str) -> None:
    text = chat_text(tmp_path / "model", family)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}]
    if begun:
        wanted = text.tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
        ids = text.prompt_ids(messages, goes_on=True)
        assert text.decode(ids, skip_special_tokens=False).rstrip() == wanted.rstrip()
        assert text.decode(ids).endswith(begun), "blanks at its end stay"
    opened = text.prompt_ids(messages[:1])
    assert text.prompt_ids(messages, goes_on=True)[: len(opened)] == opened or family.name == "qwen3"


def test_behind_a_kept_history_a_turn_stays_open(tmp_path: Path) -> None:
    text = chat_text(tmp_path / "model", KIND)
    first = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    begun = [{"role": "user", "content": "more"}, {"role": "assistant", "content": "or"}]
    kept = text.prompt_ids(first, goes_on=True)
    assert [*kept, *text.continuation_ids(kept, begun, goes_on=True)] == text.prompt_ids([*first, *begun], goes_on=True)


@pytest.mark.parametrize("begun", ["</think>so", "<think>hm</think>so"])
def test_a_template_that_rewrites_the_text_is_refused(tmp_path: Path, begun: str) -> None:
    text = chat_text(tmp_path / "model", next(family for family in FAMILIES if "</think>" in family.template))
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}]
    with pytest.raises(ModelError, match="no reply can go on from it"):
        text.prompt_ids(messages, goes_on=True)


@pytest.mark.parametrize("piece", [" world", "lo", "now", "", "\n\n", "</s>", "é", " "])
def test_further_text_gets_no_space_and_no_control_token(tmp_path: Path, piece: str) -> None:
    for number, text in enumerate(
        (byte_level(tmp_path / "bytes", CHATML), sentencepiece_like(tmp_path / "words", CHATML))
    ):
        before = text.encode("hello", special=False)
        ids = text.further_ids(piece)
        assert text.decode([*before, *ids], skip_special_tokens=False) == "hello" + piece, number
        assert not any(map(text.is_special, ids))


def test_the_first_word_that_goes_on_keeps_its_space(tmp_path: Path) -> None:
    text = sentencepiece_like(tmp_path, CHATML)
    hello, world = text.encode("hello world", special=False)
    assert text.stream_decoder().push([world]) == "world"
    assert text.stream_decoder([hello]).push([world]) == " world"


class OwnWay(PreTrainedTokenizerFast):
    """One that does something of its own, as those of some models do."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        return super().__call__(*args, **kwargs)  # type: ignore[arg-type]


def test_a_long_text_is_no_matter_for_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = byte_level(tmp_path, CHATML).tokenizer
    encoder = TextEncoder(OwnWay(tokenizer_object=plain.backend_tokenizer, model_max_length=8))
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        assert len(encoder.encode("far too long for a model", True, ANYBODY)) == 24
    finally:
        logger.removeHandler(caplog.handler)
    assert not own_records(caplog)
