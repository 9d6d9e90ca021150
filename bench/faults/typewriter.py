"""A tiny random llama that reads and writes printable ASCII, a token per character: text and token ids determine each other.

So a client's text can be compared token by token, for any API.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["CHARACTERS", "EOS", "VOCAB_SIZE", "save_typewriter"]

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
EOS = len(CHARACTERS)
VOCAB_SIZE = EOS + 1
MAX_LENGTH = 4096
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def save_typewriter(folder: Path, seed: int = 0) -> str:
    """Write model and tokenizer into `folder` and return it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    names = bytes_to_unicode()
    letters = Tokenizer(models.BPE(vocab={names[ord(char)]: place for place, char in enumerate(CHARACTERS)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, eos_token="</s>", chat_template=_TEMPLATE, clean_up_tokenization_spaces=False
    )
    assert tokenizer.eos_token_id == EOS
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # wide enough that the text read affects the text written
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    return str(folder)
