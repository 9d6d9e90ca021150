"""Deterministic mode on a CUDA device: logits are the same to the bit, however a history is cut, shared and batched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from random_cuts import check_random_cuts
from tiny_models import VOCAB_SIZE, save_model

from radixkv.worker.model.model import ModelRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

LENGTH, BLOCK_SIZE = 80, 16


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "bfloat16"), ("gemma2", "float32"), ("qwen3_moe", "bfloat16"), ("gpt_oss", "float16")],
)
def test_any_cut_batch_and_prefix_give_the_same_logits(family: str, dtype: str, tmp_path: Path) -> None:
    folder = save_model(family, tmp_path)
    num_blocks = 5 * (LENGTH // BLOCK_SIZE + 1)
    runner = ModelRunner(
        folder, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=dtype, device="cuda", deterministic=True
    )
    check_random_cuts(runner, VOCAB_SIZE, LENGTH, (53, 31), 2, ("",))
