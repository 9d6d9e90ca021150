"""Llamas of given shapes with random weights in Q4_0, as GGUF files: for sizes without available weights.

As with llama.cpp's own tool, the matrix of the logits, tied to the embeddings or not, is in Q6_K.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from tokenizers import pre_tokenizers

__all__ = ["SHAPES", "Shape", "write_made"]

Q4_0, Q6_K = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q6_K
_SPREAD = 0.02
"""Standard deviation of the weights."""

_NUM_CONTEXT = 8192


class Shape(NamedTuple):
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    is_tied: bool


SHAPES = {
    "tiny": Shape(4096, 512, 1536, 4, 8, 2, True),
    "1.2B": Shape(128_256, 2048, 8192, 16, 32, 8, True),
    "8B": Shape(128_256, 4096, 14_336, 32, 32, 8, False),
}
"""The last two are those of Llama 3.2 and 3.1."""


def write_made(shape: Shape, path: Path, seed: int = 0) -> None:
    """Write the model to `path`; memory holds at most its largest matrix."""
    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_context_length(_NUM_CONTEXT)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_dimension_count(shape.hidden_size // shape.num_heads)
    writer.add_rope_freq_base(5e5)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer, shape.vocab_size)
    head = (shape.vocab_size, shape.hidden_size)
    stored = {kind: _random_blocks(head, kind, seed) for kind in (Q4_0, Q6_K)}
    norm = np.ones(shape.hidden_size, np.float32)

    def add(name: str, num_rows: int, num_inputs: int, kind: gguf.GGMLQuantizationType = Q4_0) -> None:
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        row_bytes = num_inputs // size * num_bytes
        writer.add_tensor(name, stored[kind][: num_rows * row_bytes].reshape(num_rows, row_bytes), raw_dtype=kind)

    add("token_embd.weight", *head, Q6_K if shape.is_tied else Q4_0)
    writer.add_tensor("output_norm.weight", norm)
    if not shape.is_tied:
        add("output.weight", *head, Q6_K)
    kv_size = shape.hidden_size // shape.num_heads * shape.num_kv_heads
    for layer in range(shape.num_layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
        for name, num_rows in (("q", shape.hidden_size), ("k", kv_size), ("v", kv_size), ("output", shape.hidden_size)):
            add(f"blk.{layer}.attn_{name}.weight", num_rows, shape.hidden_size)
        for name in ("gate", "up"):
            add(f"blk.{layer}.ffn_{name}.weight", shape.intermediate_size, shape.hidden_size)
        add(f"blk.{layer}.ffn_down.weight", shape.hidden_size, shape.intermediate_size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def _random_blocks(shape: tuple[int, int], kind: gguf.GGMLQuantizationType, seed: int) -> np.ndarray:
    """Random codes of a matrix, as bytes."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(seed).integers(0, 256, (shape[0] * shape[1] // size, num_bytes), dtype=np.uint8)
    if kind == Q4_0:
        blocks[:, :2] = np.array([_SPREAD / 4.6], np.float16).view(np.uint8)  # 4.6: for 0 to 15
    else:
        blocks[:, -18:-2] = 1
        blocks[:, -2:] = np.array([_SPREAD / 18.5], np.float16).view(np.uint8)  # 18.5: for 0 to 63
    return blocks.reshape(-1)


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", *alphabet, "ab"]
    tokens += [f"<|{number}|>" for number in range(vocab_size - len(tokens))]
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (vocab_size - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
