"""A model with a context large enough for agents' requests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.common.stacks import engine_in_process
from radixkv.generation.request import Generator
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model

__all__ = ["MODEL_NAME", "NUM_CONTEXT", "tiny_engine"]

MODEL_NAME = "agents"
NUM_CONTEXT = 131_072
_NUM_BLOCKS = 24_000


@contextmanager
def tiny_engine() -> Iterator[tuple[Generator, ChatText]]:
    """Run an engine in this process, of one small layer with random weights, the default model's tokenizer and template."""
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder:
        _save_tiny(folder)
        with engine_in_process(folder, _NUM_BLOCKS, "float32") as stack:
            yield stack.generator, ChatText(folder)


def _save_tiny(folder: str) -> None:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(resolve_model(None, progress=True))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=NUM_CONTEXT,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    model.eval().save_pretrained(folder)
