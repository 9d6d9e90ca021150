"""A block store below real tensors: blocks in host memory, and blocks rounded at rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Completed, Delta
from radixkv.stores.errors import StoreError
from radixkv.stores.settings import StoreSettings
from radixkv.worker.run import Worker, WorkerConfig

BLOCK_SIZE = 8
PROMPT = [(7 * at) % 97 for at in range(50)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = tf.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    folder = tmp_path_factory.mktemp("llama")
    tf.LlamaForCausalLM(shape).save_pretrained(folder)
    return folder


@pytest.fixture
def config(model: Path, tmp_path: Path) -> Callable[..., WorkerConfig]:
    """A worker's settings; `disk`: whether it has a disk level."""

    def make(*, disk: bool = True, kv_dtype: str = "auto", **changes: Any) -> WorkerConfig:
        folder = (tmp_path / "blocks", 8 << 20) if disk else None
        store = StoreSettings(folder, key_file=tmp_path / "key", kv_dtype=kv_dtype)
        common = WorkerConfig(
            model=str(model), listen=None, dtype="float32", device="cpu", block_size=BLOCK_SIZE, num_blocks=64
        )
        return replace(common, store=store, **changes)

    return make


def ask(worker: Worker) -> tuple[list[int], int]:
    """The reply, and how many tokens of the prompt were found."""
    sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    tokens: list[int] = []
    num_found = 0
    for event in worker.engine.generate(GenerateParams(token_ids=PROMPT, sampling=sampling)):
        if isinstance(event, Delta):
            tokens += event.token_ids
        elif isinstance(event, Completed):
            num_found = event.usage.num_cached_tokens
    return tokens, num_found


def test_host_memory_alone_is_a_level(config: Callable[..., WorkerConfig]) -> None:
    with Worker(config(disk=False, host_bytes=1 << 20)) as worker:
        assert worker.store.startswith("host memory")
        cold = ask(worker)
        while worker.engine.stats().engine.num_store_unsaved_blocks:
            pass
        worker.engine.call(lambda holder: holder.clear())
        assert ask(worker) == (cold[0], 48)
        [level] = worker.engine.stats().levels
        assert (level.level, level.num_hits) == ("host", 6)
        assert level.size_bytes <= 1 << 20


@pytest.mark.parametrize(("kv_dtype", "share"), [("int8", 0.29), ("int4", 0.26)])
def test_blocks_rounded_at_rest_are_found_by_workers_that_round_alike(
    config: Callable[..., WorkerConfig], kv_dtype: str, share: float
) -> None:
    with Worker(config(kv_dtype=kv_dtype)) as worker:
        cold = ask(worker)[0]
    with Worker(config(kv_dtype=kv_dtype)) as worker:
        warm, num_found = ask(worker)
        assert (len(warm), num_found) == (len(cold), 48)
        [level] = worker.engine.stats().levels
        assert level.read_bytes <= level.num_hits * (share * worker.plan.block_bytes + 40)
    with Worker(config()) as worker:
        assert ask(worker) == (cold, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deterministic": True}, "--deterministic does not: leave one of them out"),
        ({"kv_dtype": "int8"}, "a pool that has it in int8 already"),
    ],
)
def test_rounding_that_contradicts_another_setting_is_refused(
    config: Callable[..., WorkerConfig], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StoreError, match=message), Worker(replace(config(kv_dtype="int8"), **changes)):
        pass
