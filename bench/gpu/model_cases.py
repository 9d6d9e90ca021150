"""Cases of bench.gpu.model: a model of random weights made on the device, and crowds of branches over a pool of random KV."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from radixkv.worker.model.model import ForwardRow, ModelRunner

__all__ = ["FULL", "TINY", "WARM_STEPS", "Crowd", "ModelSizes", "make_model", "time_ms"]

BLOCK_SIZE = 16
WARM_STEPS = 3


@dataclass(frozen=True)
class ModelSizes:
    """The model's shape, and its measurements. `steps`: timed per case; `context` and they stay within one split. `prompts`:
    lengths of at most `context`. `drafted`:
    tokens per branch.
    """

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_length: int
    batches: tuple[int, ...]
    context: int
    branches: int
    own: int
    prefixes: tuple[int, ...]
    prompts: tuple[int, ...]
    drafted: tuple[int, ...]
    steps: int
    profiled: tuple[int, ...]
    copy_bytes: int


FULL = ModelSizes(
    hidden=4096,
    ffn=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    max_length=40960,
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    context=960,
    branches=64,
    own=128,
    prefixes=(8192, 32768),
    prompts=(32, 224, 480, 960),
    drafted=(1, 3, 7, 15),
    steps=20,
    profiled=(1, 64, 256),
    copy_bytes=4 << 30,
)
TINY = ModelSizes(
    hidden=64,
    ffn=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=256,
    max_length=256,
    batches=(1, 2, 4),
    context=40,
    branches=4,
    own=8,
    prefixes=(64,),
    prompts=(5, 40),
    drafted=(1, 3),
    steps=3,
    profiled=(2,),
    copy_bytes=1 << 16,
)


def make_model(sizes: ModelSizes, device: torch.device, dtype: torch.dtype) -> Any:
    """A Llama of random weights, made on the device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=sizes.max_length,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)


class Crowd:
    """`count` branches of `own` tokens each on a prefix of whole blocks, with room for the steps to run."""

    def __init__(self, runner: ModelRunner, count: int, prefix: int, own: int, num_steps: int) -> None:
        self.runner = runner
        self.count, self.prefix, self.own = count, prefix, own
        order = torch.randperm(runner.pool.num_blocks, generator=torch.Generator().manual_seed(count)).tolist()
        shared, size = prefix // BLOCK_SIZE, -(-(own + num_steps) // BLOCK_SIZE)
        common = order[:shared]
        self._tables = [
            array("i", common + order[shared + size * index : shared + size * (index + 1)]) for index in range(count)
        ]

    @staticmethod
    def num_blocks(count: int, prefix: int, own: int, num_steps: int) -> int:
        """Number of blocks that it uses."""
        return prefix // BLOCK_SIZE + count * -(-(own + num_steps) // BLOCK_SIZE)

    @property
    def num_tokens(self) -> int:
        """Number of distinct tokens, before the first step."""
        return self.prefix + self.count * self.own

    def rows(self, step: int, prompt: int = 0, drafted: int = 0) -> list[ForwardRow]:
        """One more token for every branch; or of the last one so many tokens from its start, with the logits of the last.

        `drafted`: so many more of every branch, with the logits of all.
        """
        position = self.prefix + self.own + step
        vocab = self.runner.vocab_size
        rows = [
            ForwardRow([(7 * index + step + at) % vocab for at in range(1 + drafted)], position, table, 0, 1 + drafted)
            for index, table in enumerate(self._tables)
        ]
        if prompt:
            rows[-1] = rows[-1]._replace(token_ids=[(11 * at + step) % vocab for at in range(prompt)], start=0)
        return rows

    def forward(self, runner: ModelRunner, step: int, prompt: int = 0, drafted: int = 0) -> Tensor:
        """Logits of a runner over the same pool."""
        return runner.forward(self.rows(step, prompt, drafted))


def time_ms(step: Callable[[int], object], count: int, device: torch.device) -> tuple[float, float]:
    """Milliseconds per step of `count`, after warm-up steps: consecutively with one wait at the end, and on the host alone."""
    for number in range(WARM_STEPS):
        step(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    start_s = time.perf_counter()
    for number in range(WARM_STEPS, WARM_STEPS + count):
        step(number)
    launched_s = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start_s) * 1e3 / count, (launched_s - start_s) * 1e3 / count
