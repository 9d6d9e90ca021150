"""A tiny random llama that reads and writes bytes: token ids are byte values, so that it can write any text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

__all__ = ["EOS", "VOCAB_SIZE", "save_byte_model"]

EOS = 256
VOCAB_SIZE = 260
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def save_byte_model(folder: Path, seed: int = 0, *, max_length: int = 1024, num_layers: int = 2) -> str:
    """Write model and tokenizer into `folder` and return it. `max_length`: its window, in tokens."""
    alphabet = {char: byte for byte, char in bytes_to_unicode().items()}
    bytes_only: Any = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="</s>", chat_template=_TEMPLATE)
    assert tokenizer.eos_token_id == EOS
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=max_length,
        eos_token_id=EOS,
    )
    model: Any = tf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
    model.save_pretrained(folder)
    return str(folder)
