"""What cannot fit is refused before it is read to its end; what can has the ids it has without a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chat_templates import CHATML, chat_text
from small_tokenizers import byte_level, sentencepiece_like

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import unpack_tokens
from radixkv.generation.request import Prompt
from radixkv.worker.engine.prompts import PromptReader
from radixkv.worker.generations.encoding import SHORT_CHARACTERS
from radixkv.worker.generations.text import Asker, ChatText

MAX_TOKENS = 100


@pytest.fixture
def text(tmp_path: Path) -> ChatText:
    return chat_text(tmp_path, CHATML)


@pytest.fixture
def reader(text: ChatText) -> PromptReader:
    return PromptReader(
        text, vocab_size=400, eos_token_ids=frozenset(), max_length=MAX_TOKENS, num_blocks=64, block_size=16
    )


@pytest.fixture
def encoded(text: ChatText, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what the tokenizer is given."""
    lengths: list[int] = []
    encode = text._encoder._encode

    def noted(said: str, special: bool) -> list[int]:
        lengths.append(len(said))
        return encode(said, special)

    monkeypatch.setattr(text._encoder, "_encode", noted)
    return lengths


PROMPTS: list[Callable[[str], Prompt]] = [
    lambda said: Prompt(text=said),
    lambda said: Prompt(messages=[{"role": "user", "content": said}]),
    lambda said: Prompt(messages=[{"role": "user", "content": "", "name": said}]),
    lambda said: Prompt(messages=[{"role": "user", "content": ""}], template_arguments={"x": [said]}),
]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("history", [b"", b"\1\0\0\0"])
@pytest.mark.parametrize("said", ["7", " ", "hello ", "<|im_end|>"])
def test_a_text_that_the_longest_tokens_could_not_spell_is_not_encoded(
    reader: PromptReader, encoded: list[int], prompt: Callable[[str], Prompt], history: bytes, said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match="characters, which are at least") as refusal:
        reader.read(prompt(said * 1_000_000), history)
    assert refusal.value.argument == "prompt"
    assert "tokens" in refusal.value.bound
    assert encoded == []


@pytest.mark.parametrize("prompt", PROMPTS[:2])
@pytest.mark.parametrize("history", [b"", b"\1\0\0\0"])
def test_a_text_many_times_too_long_is_refused_by_its_beginning(
    reader: PromptReader, encoded: list[int], prompt: Callable[[str], Prompt], history: bytes
) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 100 tokens") as refusal:
        reader.read(prompt("7" * 1000), history)
    assert refusal.value.argument == "prompt"
    assert max(encoded) < 500


def test_a_text_a_little_too_long_is_counted(reader: PromptReader) -> None:
    assert len(unpack_tokens(reader.read(Prompt(text="7" * 150)))) == 150


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
@pytest.mark.parametrize("said", ["", "hello world ", "½🙂 日本", "<|im_end|>", "\n\n \t", "now"])
def test_a_bound_changes_no_ids(make: Callable[[Path, str | None], ChatText], said: str, tmp_path: Path) -> None:
    text = make(tmp_path, CHATML.template)
    for times in (1, 7, 40):
        long = said * times
        ids = text.tokenizer(long)["input_ids"]
        assert text.encode(long) == ids
        if len(ids) <= MAX_TOKENS:
            assert text.encode(long, asker=Asker("a", MAX_TOKENS)) == ids


def test_more_messages_than_tokens_are_not_rendered(reader: PromptReader, encoded: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 100 tokens"):
        reader.read(Prompt(messages=[{"role": "user", "content": ""}] * (MAX_TOKENS + 1)))
    assert encoded == []


def test_a_short_text_does_not_wait_for_a_long_one(text: ChatText, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, goes_on, began = text._encoder._encode, threading.Event(), threading.Event()

    def slow(said: str, special: bool) -> list[int]:
        if len(said) > SHORT_CHARACTERS:
            began.set()
            assert goes_on.wait(300)
        return encode(said, special)

    monkeypatch.setattr(text._encoder, "_encode", slow)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(text.encode, "7" * 10_000)
        assert began.wait(300)
        assert len(text.encode("hello")) > 0
        goes_on.set()
        assert len(long.result(300)) == 10_000


def test_a_word_that_stands_for_a_reply_cannot_be_said_before(text: ChatText) -> None:
    """What was looked for behind all that callers said is looked for once."""
    asked = "".join(f"Reply{n}here" for n in range(10_000))
    begun_s = time.thread_time()
    ids = text.continuation_ids([7], [{"role": "user", "content": asked}])
    assert time.thread_time() - begun_s < 3.0  # a quadratic look takes half a minute
    shown = text.decode(ids, skip_special_tokens=False)
    assert shown == f"<|im_end|>\n<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    assert all(
        text.continuation_ids([7], [{"role": "user", "content": "or"}]) == again
        for again in [text.continuation_ids([7], [{"role": "user", "content": "or"}]) for _ in range(20)]
    )
