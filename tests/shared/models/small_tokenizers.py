"""Tokenizers of a few words, of the two families, with a chat template of the test's own."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from radixkv.generation.request import Message
from radixkv.worker.generations.text import ChatText

__all__ = ["CHATML", "SPECIAL", "byte_level", "saved", "sentencepiece_like", "user"]

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level(folder: Path, template: str | None) -> ChatText:
    """One token per byte, but for the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return saved(tokenizer, folder, template)


def sentencepiece_like(folder: Path, template: str | None) -> ChatText:
    """Words with a marker for the space before them, which the first word of a text gets and loses again."""
    words = [f"▁{word}" for word in ("hello", "world", "and", "now", "[INST]", "[/INST]", "Reply0here")]
    pieces = sorted({char for word in words for char in word} | set("abcdefghijklmnopqrstuvwxyz.?!0123456789"))
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for piece in pieces:
        vocab[piece] = len(vocab)
    merges: list[tuple[str, str]] = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return saved(tokenizer, folder, template)


def saved(tokenizer: Tokenizer, folder: Path, template: str | None) -> ChatText:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", additional_special_tokens=SPECIAL, chat_template=template
    )
    fast.save_pretrained(folder)
    return ChatText(str(folder))


def user(text: str) -> Message:
    return {"role": "user", "content": text}
