"""What a worker takes under load beyond its weights and its pool is what it set aside for that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.worker.memory import peak_of
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.scheduling.limits import SchedulerLimits

NUM_REQUESTS, PROMPT_TOKENS, MAX_TOKENS = 16, 300, 8
MIB = 2**20


@pytest.mark.slow
@pytest.mark.usefixtures("default_model")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel tells no peak")
def test_a_loaded_worker_stays_within_what_it_planned() -> None:
    config = WorkerConfig(
        listen=None, device="cpu", kv_bytes=256 * MIB, limits=SchedulerLimits(max_running=NUM_REQUESTS)
    )
    with Worker(config) as worker:
        assert worker.plan.num_blocks * worker.plan.block_bytes <= 256 * MIB
        assert worker.plan.activation_bytes is not None
        assert worker.plan.workspace_bytes is not None
        planned = worker.plan.activation_bytes + worker.plan.workspace_bytes
        draw = random.Random(0)
        sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, top_p=0.9, ignore_eos=True)
        requests = [
            GenerateParams(token_ids=[draw.randrange(100, 40_000) for _ in range(PROMPT_TOKENS)], sampling=sampling)
            for _ in range(NUM_REQUESTS)
        ]

        def serve() -> None:
            for stream in [worker.engine.generate(request) for request in requests]:
                list(stream)

        taken = peak_of(serve, torch.device("cpu"))
        assert worker.engine.stats().engine.num_finished == NUM_REQUESTS
    assert taken is not None
    assert taken < planned * 1.25 + 16 * MIB  # the allocator's own, and the bookkeeping of requests
