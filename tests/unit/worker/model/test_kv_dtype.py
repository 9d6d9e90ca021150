"""`--kv-dtype`: from the flag to the tensors, what it gains, what is told of it, and what is refused."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tiny_models import VOCAB_SIZE, save_model

from radixkv.cli.model_flags import add_model_flags, describe, worker_config
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.worker.memory import DeviceMemory
from radixkv.worker.model.kv_dtype import choose_kv_format
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.pool_size import PoolWish, plan_pool
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.scheduling.limits import SchedulerLimits

KV_MEMORY = "256KiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    return save_model("llama", tmp_path_factory.mktemp("llama"))


def config_of(*arguments: str) -> WorkerConfig:
    parser = argparse.ArgumentParser()
    add_model_flags(parser)
    return worker_config(parser.parse_args(["--dtype", "float32", "--device", "cpu", *arguments]), None, None)


def test_the_flag_decides_what_the_pool_stores_how_much_it_holds_and_what_is_told(folder: str) -> None:
    held: dict[str, int] = {}
    for kv_dtype in ("auto", "float32", "int8"):
        config = config_of("--model", folder, "--kv-memory", KV_MEMORY, "--kv-dtype", kv_dtype)
        with Worker(config) as worker:
            held[kv_dtype] = worker.plan.num_blocks
            assert worker.runner.pool.size_bytes == worker.plan.num_blocks * worker.plan.block_bytes <= 256 << 10
            first_line = describe(worker).splitlines()[0]
        if kv_dtype == "int8":
            assert worker.runner.pool.caches[0].k.dtype == torch.int8
            assert ", KV in int8: 256 tokens of context" in first_line
        else:
            assert "KV in" not in first_line
    assert held["float32"] == held["auto"] == 64
    assert held["int8"] == (256 << 10) // (16 * 2 * 2 * 2 * (8 + 2))  # layers, K and V, kv heads, a row and its scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_names_are_formats_or_what_the_model_computes_in(dtype: torch.dtype) -> None:
    own = str(dtype).removeprefix("torch.")
    assert choose_kv_format("auto", dtype) is None
    for kv_format in KVFormat:
        assert choose_kv_format(kv_format.value, dtype) is kv_format
    for name in ("float32", "bfloat16", "float16", "FP8", ""):
        if name == own:
            assert choose_kv_format(name, dtype) is None
            continue
        with pytest.raises(
            InvalidArgumentError, match=f"^kv_dtype is '{name}'; it must be auto, fp8, int8, int4, or {own}"
        ):
            choose_kv_format(name, dtype)


def test_heads_of_an_odd_size_are_refused_to_int4_alone(tmp_path: Path) -> None:
    config = tf.GPT2Config(vocab_size=VOCAB_SIZE, n_embd=36, n_layer=2, n_head=4, n_positions=64)
    tf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    arguments: dict[str, Any] = {"num_blocks": 2, "dtype": "float32", "device": "cpu"}
    with pytest.raises(InvalidArgumentError, match=r"^kv_dtype is 'int4'; .* the model's heads: head_dim is 9; .*even"):
        ModelRunner(str(tmp_path), kv_dtype="int4", **arguments)
    assert ModelRunner(str(tmp_path), kv_dtype="fp8", **arguments).token_bytes == 2 * 4 * 2 * (9 + 2)


@pytest.mark.parametrize("kv_format", KVFormat)
def test_latents_are_stored_in_the_format(tmp_path: Path, kv_format: KVFormat) -> None:
    runner = ModelRunner(
        save_model("deepseek_v3", tmp_path), num_blocks=2, dtype="float32", device="cpu", kv_dtype=kv_format.value
    )
    assert runner.kv_dtype == kv_format.value
    assert all(cache.is_latent and cache.format is kv_format for cache in runner.pool.caches)
    layers = runner.pool.layers
    parts = [(layer.value_dim, layer.key_dim - layer.value_dim) for layer in layers]
    assert runner.token_bytes == sum(kv_format.row_bytes(width) for widths in parts for width in widths)
    assert runner.pool.size_bytes == runner.token_bytes * 2 * runner.pool.block_size


def test_what_gathering_takes_on_a_cpu_is_planned_in_fp32_whatever_is_stored(folder: str) -> None:
    limits = SchedulerLimits(max_running=4, max_batch_tokens=64, chunk_tokens=32)
    plans = [
        plan_pool(
            ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu", kv_dtype=kv_dtype),
            PoolWish(),
            limits,
            lambda _: DeviceMemory(2**40, 2**39),
        )
        for kv_dtype in ("auto", "int4")
    ]
    assert plans[0].workspace_bytes == plans[1].workspace_bytes
    assert plans[0].block_bytes > plans[1].block_bytes
