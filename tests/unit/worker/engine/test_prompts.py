"""What is put to the model: plain text alone and behind a history, and the longest that fits, exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_tokenizers import CHATML, byte_level, user
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import Prompt
from radixkv.worker.engine.prompts import PromptReader
from radixkv.worker.generations.encoding import ANYBODY, Asker
from radixkv.worker.generations.text import ChatText


def text_with_bos(folder: Path) -> ChatText:
    """One token per byte, and `<s>` before every prompt."""
    byte_level(folder, CHATML)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    bos = tokenizer.convert_tokens_to_ids("<s>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    tokenizer.save_pretrained(folder)
    return ChatText(str(folder))


def make_reader(
    text: ChatText | None, *, max_length: int = 100, num_blocks: int = 64, block_size: int = 4
) -> PromptReader:
    return PromptReader(
        text,
        vocab_size=300,
        eos_token_ids=frozenset([2]),
        max_length=max_length,
        num_blocks=num_blocks,
        block_size=block_size,
    )


def test_a_plain_text_begins_a_prompt_as_the_model_wants_it_and_never_a_second_time_behind_a_history(
    tmp_path: Path,
) -> None:
    text = text_with_bos(tmp_path)
    reader = make_reader(text)
    [bos] = text.encode("<s>", special=False)
    begun = reader.read(Prompt(text="ab"))
    assert unpack_tokens(begun) == [bos, *text.encode("ab", special=False)]
    whole = reader.read(Prompt(text="cd"), begun)
    assert whole == begun + pack_tokens(text.encode("cd", special=False))
    assert unpack_tokens(whole).count(bos) == 1
    assert reader.read(Prompt(text="cd"), [5]) == pack_tokens([5, *text.encode("cd", special=False)])


def test_a_chat_is_written_by_its_template_alone(tmp_path: Path) -> None:
    text = text_with_bos(tmp_path)
    [bos] = text.encode("<s>", special=False)
    prompt = make_reader(text).read(Prompt(messages=[user("hi")]))
    assert unpack_tokens(prompt).count(bos) == 0, "this template writes none"
    assert text.decode(unpack_tokens(prompt), skip_special_tokens=False).startswith("<|im_start|>system")
    after = make_reader(text).read(Prompt(messages=[user("!")]), prompt)
    assert unpack_tokens(after).count(bos) == 0


def test_a_history_and_a_prompt_are_as_long_as_may_be_and_no_longer() -> None:
    reader = make_reader(None, max_length=10)
    assert reader.read(Prompt(token_ids=[1] * 3), [2] * 10) == pack_tokens([2] * 10 + [1] * 3)
    with pytest.raises(InvalidArgumentError, match="at most 10 tokens") as refusal:
        reader.read(Prompt(token_ids=[1]), [2] * 11)
    assert refusal.value.argument == "history"
    assert reader.read(Prompt(), [2]) == pack_tokens([2])
    with pytest.raises(InvalidArgumentError, match="at least 1 token"):
        reader.read(Prompt())
    for token_id in (300, 1 << 31):
        with pytest.raises(InvalidArgumentError, match="below the vocabulary's size, 300"):
            reader.read(Prompt(token_ids=[299, token_id]))
    assert reader.read(Prompt(token_ids=[299])) == pack_tokens([299])


@pytest.mark.parametrize("num_forced", [0, 3])
def test_a_prompt_may_leave_room_for_one_token_and_is_cut_at_the_models_length(num_forced: int) -> None:
    reader = make_reader(None, max_length=20)
    sampling = SamplingParams(max_tokens=7, forced_token_ids=(1,) * num_forced)
    assert reader.bound_length(12, sampling) == 19
    assert reader.bound_length(13, sampling) == reader.bound_length(14, sampling) == 20
    assert reader.bound_length(19 - num_forced, sampling) == 20
    with pytest.raises(InvalidArgumentError, match="at most 19 tokens") as refusal:
        reader.bound_length(20 - num_forced, sampling)
    assert refusal.value.argument == "prompt"
    assert ("forced" in str(refusal.value)) is bool(num_forced)


def test_what_the_pool_can_never_hold_is_refused_but_for_the_last_token_which_is_never_run() -> None:
    reader = make_reader(None, num_blocks=3, block_size=4)
    assert reader.bound_length(6, SamplingParams(max_tokens=7)) == 13
    with pytest.raises(InvalidArgumentError, match="at most 13 tokens") as refusal:
        reader.bound_length(7, SamplingParams(max_tokens=7))
    assert refusal.value.argument == "prompt + max_tokens"


def test_without_a_tokenizer_everything_that_is_text_is_refused_by_name() -> None:
    reader = make_reader(None)
    assert not reader.has_chat_template
    for call, argument in (
        (lambda: reader.read(Prompt(text="a")), "prompt"),
        (lambda: reader.read(Prompt(messages=[user("a")])), "prompt"),
        (lambda: reader.decode([1]), "token_ids"),
        (lambda: reader.spell([1]), "token_ids"),
        (lambda: reader.reply_rules(SamplingParams(stop=("a",))), "stop"),
    ):
        with pytest.raises(InvalidArgumentError) as refusal:
            call()
        assert refusal.value.argument == argument


def test_ids_that_the_model_does_not_have_are_neither_read_nor_spelled(tmp_path: Path) -> None:
    reader = make_reader(byte_level(tmp_path, CHATML))
    assert reader.has_chat_template
    for read in (reader.decode, reader.spell):
        assert read([]) in ("", [])
        with pytest.raises(InvalidArgumentError, match="below the vocabulary's size"):
            read([1, 300])


def test_as_many_messages_as_tokens_may_be_read(tmp_path: Path) -> None:
    reader = make_reader(byte_level(tmp_path, CHATML), max_length=40)
    with pytest.raises(InvalidArgumentError, match="41 messages"):
        reader.read(Prompt(messages=[user("")] * 41))
    with pytest.raises(InvalidArgumentError, match="at least 1 message"):
        reader.read(Prompt(messages=[]))
    with pytest.raises(InvalidArgumentError) as too_long:
        reader.read(Prompt(messages=[user("")] * 40))
    assert "41" not in str(too_long.value)


def test_a_reply_ends_with_the_models_own_end_unless_that_is_ignored() -> None:
    reader = make_reader(None)
    for ignore_eos, expected in ((False, {2, 7}), (True, {7})):
        rules = reader.reply_rules(SamplingParams(stop_token_ids=(7,), ignore_eos=ignore_eos))
        assert rules.stop_token_ids == expected


def test_a_prediction_takes_the_turn_of_its_namespace_and_is_no_longer_than_a_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, turns = byte_level(tmp_path, CHATML), []
    encode = text.encode

    def encoded(given: str, *, special: bool, asker: Asker = ANYBODY) -> list[int]:
        turns.append(asker.namespace)
        return encode(given, special=special, asker=asker)

    monkeypatch.setattr(text, "encode", encoded)
    reader = make_reader(text, max_length=40)
    rules = reader.reply_rules(SamplingParams(prediction="ab" * 50_000), "theirs")
    assert rules.prediction.tolist() == encode("ab" * 20, special=False)
    assert turns == ["theirs"]
    assert not rules.sampling.prediction, "its text is not held while the request runs"
    assert not reader.reply_rules(SamplingParams(prediction="ab", speculation="none"), "theirs").prediction
