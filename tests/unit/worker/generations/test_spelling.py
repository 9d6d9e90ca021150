"""The bytes of single tokens: joined, they are the bytes of the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_tokenizers import byte_level, sentencepiece_like

TEXT = "hello world ½ 🙂 x\n"


@pytest.mark.parametrize("tokenizer", [byte_level, sentencepiece_like])
def test_spellings_join_to_the_bytes_of_the_text(tokenizer: type, tmp_path: Path) -> None:
    text = tokenizer(tmp_path, None)
    ids = text.encode(TEXT, special=False)
    spelled = text.spell(ids)
    assert len(spelled) == len(ids)
    assert b"".join(spelled).decode().removeprefix(" ") == TEXT  # the other tokenizer puts a space in front
    assert any(not _is_text(piece) for piece in spelled), "some token is a piece of a character"


@pytest.mark.parametrize("tokenizer", [byte_level, sentencepiece_like])
def test_special_tokens_are_spelled_by_name_and_unused_ids_by_nothing(tokenizer: type, tmp_path: Path) -> None:
    text = tokenizer(tmp_path, None)
    (special,) = text.encode("<|im_end|>", special=False)
    assert text.spell([special, 100_000]) == [b"<|im_end|>", b""]


def test_the_default_models_tokens_join_too(default_model: str) -> None:
    from radixkv.worker.generations.text import ChatText

    text = ChatText(default_model)
    assert b"".join(text.spell(text.encode(TEXT * 3, special=False))).decode() == TEXT * 3


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
