"""A model on several ranks: the tokens of one, a share of the memory on each, and an end for all when one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from answers import collect, draw_prompt, greedy, start_together
from tiny_adapters import linear_paths, merged, save_adapter
from tiny_models import VOCAB_SIZE, reference_model, reference_replies, save_model, save_wide

from radixkv import InvalidArgumentError, PrefixCache, RadixKVError
from radixkv.core.api import Copy
from radixkv.generation.client import GenerationClient
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.stores.settings import StoreSettings
from radixkv.worker.engine.engine import Engine
from radixkv.worker.errors import ModelError
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.parallel.ranks import Ranks
from radixkv.worker.parallel.runner import ParallelRunner
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.scheduling.limits import SchedulerLimits

NUM_BLOCKS, BLOCK_SIZE, HOST_BLOCKS = 24, 8, 48
FAMILIES = ("llama", "qwen3", "gemma3", "qwen3_moe", "deepseek_v3")
SHARES = [
    pytest.param(family, num_ranks, marks=() if (family, num_ranks) == ("llama", 2) else pytest.mark.thorough)
    for family in FAMILIES
    for num_ranks in (2, 4)
]


@contextmanager
def parallel(folder: str, num_ranks: int, **options: Any) -> Iterator[ParallelRunner]:
    num_threads = torch.get_num_threads()
    runner = ParallelRunner(folder, num_ranks=num_ranks, **{"device": "cpu", "dtype": "float32"} | options)
    try:
        yield runner
    finally:
        runner.close()
        torch.set_num_threads(num_threads)


@contextmanager
def engine_of(runner: ModelRunner, **options: Any) -> Iterator[Engine]:
    """An engine over a pool that is too small for what is asked, and that swaps."""
    runner.allocate_pool(NUM_BLOCKS, BLOCK_SIZE, HOST_BLOCKS)
    limits = SchedulerLimits(
        max_running=8, max_batch_tokens=48, chunk_tokens=24, preemption="swap", swap_blocks=HOST_BLOCKS
    )
    engine = Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), limits=limits, **options)
    try:
        yield engine
    finally:
        engine.close()


def row(token_ids: Sequence[int], start: int, *blocks: int, num_logits: int = 1) -> ForwardRow:
    return ForwardRow(list(token_ids), start, array("i", blocks), 0, num_logits)


@pytest.mark.parametrize(("family", "num_ranks"), SHARES)
def test_replies_are_those_of_one_rank_through_forks_copies_and_swaps(
    family: str, num_ranks: int, tmp_path: Path
) -> None:
    folder = save_model(family, tmp_path / "model")
    reference = reference_model(folder)
    prompts = [draw_prompt(VOCAB_SIZE, seed, 21) for seed in range(5)]
    with parallel(folder, num_ranks) as runner, engine_of(runner) as engine:
        asked = [GenerateParams(token_ids=prompt, sampling=greedy(40)) for prompt in prompts]
        replies = [collect(stream) for stream in start_together(engine, asked)]
        for prompt, reply in zip(prompts, replies, strict=True):
            assert reply.branches[0].tokens == reference_replies(reference, prompt, 40)[0]
        position = 21 + 13  # within a block: a fork copies part of it
        forked = collect(
            engine.fork(ForkParams(generation_id=replies[0].generation_id, position=position, sampling=greedy(9)))
        )
        history = (prompts[0] + replies[0].branches[0].tokens)[:position]
        assert forked.branches[0].tokens == reference_replies(reference, history, 9)[0]
        assert engine.stats().engine.num_saved_blocks, "nothing was swapped"


@pytest.mark.thorough
def test_each_rank_has_its_share_of_weights_and_kv(tmp_path: Path) -> None:
    folder = save_wide("llama", tmp_path / "model", num_key_value_heads=4, hidden_size=128, vocab_size=96)
    alone = ModelRunner(folder, num_blocks=None, device="cpu", dtype="float32", quantization="none")
    with parallel(folder, 2) as runner:
        assert runner.token_bytes * 2 == alone.token_bytes
        assert runner.weight_bytes * 2 < 1.05 * alone.weight_bytes
        assert runner.num_parameters == alone.num_parameters


@pytest.mark.thorough
def test_kv_in_fewer_bits_and_blocks_moved_by_hand_are_the_same_on_every_rank(tmp_path: Path) -> None:
    folder = save_wide("llama", tmp_path / "model")
    alone = ModelRunner(folder, num_blocks=4, block_size=16, device="cpu", dtype="float32", kv_dtype="int8")
    prompt = draw_prompt(96, 1, 16)
    with parallel(folder, 2, kv_dtype="int8") as runner:
        runner.allocate_pool(4, 16, 2)
        expected = alone.forward([row(prompt, 0, 1)]).clone()
        assert torch.allclose(runner.forward([row(prompt, 0, 1)]), expected, atol=1e-3)
        runner.carry_out([Copy(1, 2, 16)])
        runner.pool.save([2], [1])
        runner.pool.load([1], [3])
        same = runner.pool.difference(1, 3)
        assert same is not None
        assert same.largest == 0.0
        expected = alone.forward([row([5], 16, 1, 0)]).clone()
        assert torch.allclose(runner.forward([row([5], 16, 3, 0)]), expected, atol=1e-3)
        runner.forward([row(prompt[::-1], 0, 2)])
        other = runner.pool.difference(1, 2)
        assert other is not None
        assert other.largest > 0.0


@pytest.mark.thorough
def test_adapters_are_shared_out_as_the_layers_that_they_change(tmp_path: Path) -> None:
    folder = save_model("llama", tmp_path / "model")
    model = reference_model(folder)
    changed = save_adapter(tmp_path / "adapter", model, linear_paths(model), seed=3)
    prompt = draw_prompt(VOCAB_SIZE, 2, 19)
    with (
        parallel(folder, 2, adapters={"sql": tmp_path / "adapter"}) as runner,
        engine_of(runner, model_name="tiny", adapters=runner.adapter_names) as engine,
    ):
        for name, expected in (("sql", merged(model, changed)), ("", model)):
            params = GenerateParams(token_ids=prompt, sampling=greedy(12), adapter=name)
            assert collect(engine.generate(params)).branches[0].tokens == reference_replies(expected, prompt, 12)[0]


@pytest.mark.thorough
def test_replies_of_deterministic_ranks_are_those_of_a_request_alone(tmp_path: Path) -> None:
    folder = save_model("llama", tmp_path / "model")
    prompts = [draw_prompt(VOCAB_SIZE, seed, 15 + seed) for seed in range(4)]
    with parallel(folder, 2, deterministic=True) as runner:
        runner.allocate_pool(NUM_BLOCKS, BLOCK_SIZE)
        tables = [(3 * seed, 3 * seed + 1, 3 * seed + 2) for seed in range(4)]
        rows = [row(prompt, 0, *table) for prompt, table in zip(prompts, tables, strict=True)]
        together = runner.forward(rows).clone()
        for number, each in enumerate(rows):
            assert torch.equal(runner.forward([each])[0], together[number])


BAD = {
    "heads": ({"num_ranks": 3}, "llama", ModelError, "4 heads and 2 KV heads"),
    "architecture": ({"num_ranks": 2}, "gpt2", ModelError, "no plan that shares gpt2"),
    "rounded": ({"num_ranks": 2, "quantization": "int8"}, "llama", InvalidArgumentError, "quantization"),
    "rounded to 4 bits": ({"num_ranks": 2, "quantization": "int4"}, "llama", InvalidArgumentError, "quantization"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_shared_out_is_refused_and_leaves_no_process(bad: str, tmp_path: Path) -> None:
    options, family, error, message = BAD[bad]
    folder = save_model(family, tmp_path / "model")
    with pytest.raises(error, match=message), parallel(folder, **options):
        pass
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"tensor_parallel": 2, "model": "none/such"}, "none/such"),
        ({"tensor_parallel": 2, "store": StoreSettings((Path("blocks"), 1 << 30))}, "1 with a block store"),
    ],
)
def test_a_worker_refuses_before_it_starts_ranks(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RadixKVError, match=message), Worker(WorkerConfig(listen=None, show_progress=False, **config)):
        pass


def test_a_rank_that_ends_before_the_group_is_formed_is_noticed() -> None:
    ranks = Ranks(2, 1, {"device": "cpu"})
    try:
        os.kill(ranks._processes[0].pid, signal.SIGKILL)
        with pytest.raises(ModelError, match="rank"):
            ranks.await_ready()
    finally:
        ranks.close()


RANK_0 = """
import time
from radixkv.worker.parallel.ranks import Ranks
ranks = Ranks(2, 1, {"device": "cpu"})
print(ranks._folder, ranks._processes[0].pid, flush=True)
ranks.await_ready()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_rank_ends_with_rank_0_while_it_waits_for_the_group(number: signal.Signals) -> None:
    command = (sys.executable, "-P", "-c", RANK_0)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            folder, rank = process.stdout.readline().split()
            if number == signal.SIGKILL:
                assert process.stdout.readline() == "ready\n"
            os.killpg(process.pid, number)
            _, errors = process.communicate(timeout=300)
            wait_until_gone([int(rank)])
        finally:
            process.kill()
    assert errors.count("Traceback") <= (number == signal.SIGINT), "the rank has none of its own"
    assert number == signal.SIGINT or not Path(folder).exists()


WORKER = (sys.executable, "-P", "-m", "radixkv", "worker", "--tensor-parallel", "2", "--num-blocks", "64")


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    children: list[str] = []
    for thread in os.listdir(f"/proc/{process.pid}/task"):
        with suppress(FileNotFoundError):  # it has ended meanwhile
            children += Path(f"/proc/{process.pid}/task/{thread}/children").read_text().split()
    named = {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in children}
    return sorted({child for child, command in named.items() if "worker.parallel.rank" in command})


def wait_until_gone(pids: Sequence[int]) -> None:
    until_s = time.monotonic() + 300
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until_s, "a rank outlives its worker"
        time.sleep(0.05)


@contextmanager
def worker_process(folder: str, address: str, listen: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker over two ranks that serves."""
    command = (*WORKER, "--service", address, "--model", folder, "--dtype", "float32", "--listen", f"unix:{listen}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until_s = time.monotonic() + 300
            while not listen.exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until_s, "the worker does not come up"
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["a rank that computes", "an idle rank", "rank 0"])
def test_a_killed_rank_ends_the_worker_and_every_rank(killed: str, tmp_path: Path) -> None:
    folder, listen = save_model("llama", tmp_path / "model"), tmp_path / "worker"
    with (
        ServiceThread(ServiceConfig(addresses=(f"unix:{tmp_path}/service",))) as service,
        worker_process(folder, service.addresses[0], listen) as process,
        GenerationClient(f"unix:{listen}") as client,
    ):
        ranks = ranks_of(process)
        assert len(ranks) == 1
        stream = client.generate(GenerateParams(token_ids=[5, 6, 7], sampling=greedy(200)))
        if killed == "a rank that computes":
            next(iter(stream))
            os.kill(ranks[0], signal.SIGKILL)
            with pytest.raises(RadixKVError, match="rank 1 of the model has ended"):
                collect(stream)
        else:
            assert len(collect(stream).branches[0].tokens) == 200
            os.kill(process.pid if killed == "rank 0" else ranks[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=300)
        wait_until_gone(ranks)
    assert process.returncode == (-9 if killed == "rank 0" else 1)
    assert killed == "rank 0" or "rank 1 of the model has ended" in output


@pytest.mark.thorough
def test_a_stopped_worker_lets_its_replies_end_with_the_help_of_all_ranks(tmp_path: Path) -> None:
    folder, listen = save_model("llama", tmp_path / "model"), tmp_path / "worker"
    with (
        ServiceThread(ServiceConfig(addresses=(f"unix:{tmp_path}/service",))) as service,
        worker_process(folder, service.addresses[0], listen) as process,
        GenerationClient(f"unix:{listen}") as client,
    ):
        ranks = ranks_of(process)
        stream = client.generate(GenerateParams(token_ids=[5, 6, 7], sampling=greedy(200)))
        next(iter(stream))
        for pid in (*ranks, process.pid):  # as a terminal's Ctrl-C, which reaches all
            os.kill(pid, signal.SIGINT)
        assert len(collect(stream).branches[0].tokens) == 200
        process.communicate(timeout=300)
        wait_until_gone(ranks)
    assert process.returncode == 0
