"""A pool is as large as the memory gives and the load can use, or it is said what is missing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from own_threads import own_records
from tiny_models import save_model

from radixkv.cli.model_flags import describe
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.planner import PlanError
from radixkv.worker import pool_size, run
from radixkv.worker.memory import DeviceMemory
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.pool_size import CPU_MOST_BYTES, PoolWish, plan_pool
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.scheduling.limits import LimitsWish, SchedulerLimits

MIB = 2**20
MODEL_LEN = 256  # of the tiny models
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    return save_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def long_runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """Its sequences are so long that memory, not their number, bounds the pool."""
    folder = tmp_path_factory.mktemp("long")
    save_model("llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2**24}))
    return ModelRunner(str(folder), num_blocks=None, dtype="float32", device="cpu")


@pytest.fixture
def runner(folder: str) -> ModelRunner:
    return ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu")


def having(total_bytes: int, free_bytes: int) -> Callable[[torch.device], DeviceMemory]:
    return lambda _: DeviceMemory(total_bytes, free_bytes)


def limits(**changes: Any) -> SchedulerLimits:
    return SchedulerLimits(**{"max_running": 4, "max_batch_tokens": 64, "chunk_tokens": 32, **changes})


def test_a_cpu_pool_that_nobody_sized_takes_a_quarter_of_what_is_available(long_runner: ModelRunner) -> None:
    plan = plan_pool(long_runner, PoolWish(), limits(), having(8000 * MIB, 7600 * MIB))
    assert plan.num_blocks * plan.block_bytes <= 1900 * MIB < (plan.num_blocks + 1) * plan.block_bytes
    assert "a quarter" in str(plan)


def test_a_cpu_pool_takes_no_more_than_2_gib_unless_told(long_runner: ModelRunner) -> None:
    memory = having(2**40, 2**39)
    plan = plan_pool(long_runner, PoolWish(), limits(), memory)
    assert plan.num_blocks == CPU_MOST_BYTES // plan.block_bytes
    told = plan_pool(long_runner, PoolWish(kv_bytes=4 << 30), limits(), memory)
    assert told.num_blocks == (4 << 30) // plan.block_bytes


def test_memory_that_is_short_is_shared_out_as_the_utilisation_says(long_runner: ModelRunner) -> None:
    total, free = 10_000 * MIB, 8500 * MIB  # 6000 MiB are to stay free
    plan = plan_pool(long_runner, PoolWish(utilisation=0.4), limits(), having(total, free))
    assert plan.activation_bytes is not None
    assert plan.workspace_bytes is not None
    left = free - 6000 * MIB - plan.activation_bytes - plan.workspace_bytes
    assert plan.num_blocks * plan.block_bytes <= left < (plan.num_blocks + 1) * plan.block_bytes


def test_a_pool_is_no_larger_than_its_sequences_can_use(runner: ModelRunner) -> None:
    plan = plan_pool(runner, PoolWish(), limits(max_running=3), having(2**40, 2**39))
    assert plan.num_blocks == 3 * MODEL_LEN // BLOCK_SIZE
    assert plan.num_full_sequences == 3
    assert "3 sequences of 256 tokens" in str(plan)


def test_a_worker_on_a_gpu_makes_room_for_the_sequences_of_a_gpu(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "choose_device", lambda _: torch.device("cuda:0"))
    for limits, num_sequences in ((LimitsWish(max_batch_tokens=64), 256), (LimitsWish(5, 64), 5)):
        with Worker(WorkerConfig(model=folder, listen=None, device="cpu", dtype="float32", limits=limits)) as worker:
            assert worker.plan.num_full_sequences == num_sequences


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """One of two layers has a window of 8 tokens, and sequences are long."""
    folder = tmp_path_factory.mktemp("windowed")
    save_model("gemma3", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2**20}))
    return ModelRunner(str(folder), num_blocks=None, dtype="float32", device="cpu")


def test_with_fewer_windows_the_same_memory_holds_more_blocks(windowed: ModelRunner) -> None:
    memory, budget = having(2**40, 2**39), 8 * MIB
    whole = plan_pool(windowed, PoolWish(kv_bytes=budget), limits(), memory)
    plan = plan_pool(windowed, PoolWish(kv_bytes=budget, window_share=0.25), limits(), memory)
    assert whole.num_window_blocks is None
    assert whole.kv_bytes == whole.num_blocks * whole.block_bytes
    assert plan.num_window_blocks == -(-plan.num_blocks // 4)
    assert plan.num_blocks == pytest.approx(whole.num_blocks / (0.5 + 0.5 / 4), rel=0.01)
    assert budget - 2 * plan.block_bytes < plan.kv_bytes <= budget
    assert f"a sliding window in {plan.num_window_blocks:,} blocks at a time" in str(plan)
    windowed.allocate_pool(plan.num_blocks, plan.block_size, 0, plan.num_window_blocks)
    assert windowed.pool.size_bytes == plan.kv_bytes


def test_a_small_pool_has_windows_in_all_of_its_blocks(windowed: ModelRunner) -> None:
    small, large = (PoolWish(num_blocks=number, window_share=0.001) for number in (50, 400))
    assert plan_pool(windowed, small, limits()).num_window_blocks is None
    assert plan_pool(windowed, large, limits()).num_window_blocks == 50, "so that eight branches run at once"


@pytest.mark.parametrize(
    ("wish", "changes"),
    [({"has_store": True}, {}), ({"has_lines": True}, {}), ({}, {"preemption": "swap"})],
    ids=["store", "lines", "swap"],
)
def test_what_moves_whole_blocks_needs_windows_in_all(
    windowed: ModelRunner, wish: dict[str, Any], changes: dict[str, Any]
) -> None:
    asked = PoolWish(num_blocks=4000, **wish)
    assert plan_pool(windowed, asked, limits(**changes)).num_window_blocks is None
    with pytest.raises(PlanError, match=r"--window-share 0\.5 .* leave one of them out"):
        plan_pool(windowed, replace(asked, window_share=0.5), limits(**changes))


def test_fewer_windows_of_a_model_without_any_are_refused(runner: ModelRunner) -> None:
    with pytest.raises(PlanError, match=r"--window-share 0\.5: no layer of this model has a sliding window"):
        plan_pool(runner, PoolWish(num_blocks=400, window_share=0.5), limits())


def test_a_larger_batch_takes_more_activations(runner: ModelRunner) -> None:
    large, small = (
        plan_pool(runner, PoolWish(), limits(max_batch_tokens=n, max_running=1), having(2**40, 2**39)).activation_bytes
        for n in (65_536, 64)
    )
    assert large is not None
    assert small is not None
    # 65,536 positions: residual of 32, gate, up and product of 48 elements, in fp32
    assert large > small
    assert large > 65_536 * (32 + 2 * 48) * 4


def test_where_contexts_are_split_over_the_chip_the_longest_ones_are_measured(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu")
    seen = []

    def forward(rows: list[ForwardRow]) -> None:
        seen.append([(len(row.token_ids), row.start + len(row.token_ids)) for row in rows])

    monkeypatch.setattr(runner, "forward", forward)
    monkeypatch.setattr(pool_size, "splits_contexts", lambda _: True)
    monkeypatch.setattr(pool_size, "peak_of", lambda run, _: run() or 0)
    monkeypatch.setattr(pool_size, "STEP_SIZES", (1, 48))
    plan_pool(runner, PoolWish(), limits(), having(8000 * MIB, 7600 * MIB))
    assert seen == [[(1, MODEL_LEN)] * 4, [(48, MODEL_LEN)], [(64, MODEL_LEN)], [(64, 64)]]


def test_measuring_leaves_no_pool_behind_and_runs_what_follows(runner: ModelRunner) -> None:
    plan = plan_pool(runner, PoolWish(), limits(), having(2**40, 2**39))
    assert not hasattr(runner, "pool")
    runner.allocate_pool(plan.num_blocks, plan.block_size)
    assert runner.pool.size_bytes == plan.num_blocks * plan.block_bytes


@pytest.mark.parametrize(
    ("wish", "memory", "message"),
    [
        (
            PoolWish(),
            having(2**30, 2**20),
            r"1,023 MiB are in use.* are missing for a forward and one block of KV: raise it to 1 or more",
        ),
        (
            PoolWish(kv_bytes=500 * MIB),
            having(400 * MIB, 300 * MIB),
            r"--kv-memory 500 MiB is more than the .* free on cpu",
        ),
        (PoolWish(kv_bytes=100), having(2**40, 2**39), r"100 B are left for KV and one block takes"),
        (
            PoolWish(num_blocks=15, needs_full_length=True),
            having(2**40, 2**39),
            r"--max-model-len 256 needs 16 blocks of 16 tokens and 15 fit: lower it to 240 or raise --kv-memory",
        ),
        (PoolWish(num_blocks=15, kv_bytes=100), having(2**40, 2**39), "both set the pool's size"),
        (PoolWish(host_bytes=1 << 20), having(2**40, 2**39), "a block store or --preemption swap only"),
    ],
)
def test_what_does_not_fit_or_go_together_says_what_would(
    runner: ModelRunner, wish: PoolWish, memory: Callable[[torch.device], DeviceMemory], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan_pool(runner, wish, limits(), memory)


@pytest.mark.parametrize(
    ("wish", "argument"),
    [
        (PoolWish(utilisation=0.0), "utilisation"),
        (PoolWish(utilisation=1.01), "utilisation"),
        (PoolWish(num_blocks=0), "num_blocks"),
        (PoolWish(block_size=0), "block_size"),
        (PoolWish(kv_bytes=0), "kv_memory"),
        (PoolWish(window_share=0.0), "window_share"),
        (PoolWish(window_share=1.5), "window_share"),
        (PoolWish(host_bytes=-1), "host_cache"),
    ],
)
def test_a_wish_outside_its_bound_is_named_before_a_model_is_loaded(wish: PoolWish, argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match=argument):
        wish.check(SchedulerLimits())


def test_host_memory_is_whole_blocks_and_without_a_store_no_more_than_can_be_swapped(runner: ModelRunner) -> None:
    swap = limits(preemption="swap")
    block_bytes = runner.token_bytes * BLOCK_SIZE
    exact = plan_pool(runner, PoolWish(num_blocks=8, host_bytes=5 * block_bytes + 1), swap)
    assert exact.num_host_blocks == 5
    assert "host memory" in str(exact)
    assert plan_pool(runner, PoolWish(num_blocks=8), swap).num_host_blocks == 4 * MODEL_LEN // BLOCK_SIZE
    for wish in (PoolWish(num_blocks=8), PoolWish(num_blocks=8, has_store=True)):
        assert plan_pool(runner, wish, limits()).num_host_blocks == 0, "on a CPU the page cache is this level"
    large = PoolWish(num_blocks=8, host_bytes=1000 * block_bytes, has_store=True)
    assert plan_pool(runner, large, limits()).num_host_blocks == 1000
    with pytest.raises(PlanError, match=r"--host-cache 1 B is less than the .* of a block: raise it"):
        plan_pool(runner, PoolWish(num_blocks=8, host_bytes=1, has_store=True), limits())
    with pytest.raises(PlanError, match=r"--host-cache 1\.00 PiB is more than"):
        plan_pool(runner, PoolWish(num_blocks=8, host_bytes=2**50), swap)


# -- a whole worker ---------------------------------------------------------------------------------------------------


def config(folder: str, **changes: Any) -> WorkerConfig:
    return WorkerConfig(
        **{"model": folder, "listen": None, "dtype": "float32", "device": "cpu", "limits": limits(), **changes}
    )


def cached_tokens(worker: Worker, namespace: str = "default") -> int:
    """Of a prompt of 40 tokens that was sent before."""
    for _ in range(2):
        params = GenerateParams(token_ids=range(1, 41), namespace=namespace, sampling=SamplingParams(max_tokens=1))
        *_, completed = worker.engine.generate(params)
    found: int = completed.usage.num_cached_tokens
    return found


def test_a_worker_sizes_its_pool_says_so_in_a_line_and_generates(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "radixkv.worker.run"), Worker(config(folder)) as worker:
        assert worker.runner.pool.num_blocks == worker.plan.num_blocks == 4 * MODEL_LEN // BLOCK_SIZE
        assert cached_tokens(worker) == 39
    (line,) = [record.getMessage() for record in own_records(caplog) if "KV" in record.getMessage()]
    assert "64 blocks of 16 tokens, 1,024 tokens" in line
    assert "weights" in line
    assert "activations" in line


def test_half_of_the_blocks_at_most_is_set_aside_for_lines(runner: ModelRunner, folder: str) -> None:
    for num_blocks, lines in ((64, (2, 16)), (70, (2, 16)), (20, (1, 10)), (2, (1, 1))):
        plan = plan_pool(runner, PoolWish(num_blocks, BLOCK_SIZE, has_lines=True), limits())
        assert (plan.num_lines, plan.line_blocks) == lines
        assert plan.num_blocks == num_blocks - lines[0] * lines[1]
    with pytest.raises(PlanError, match="two blocks at least"):
        plan_pool(runner, PoolWish(1, BLOCK_SIZE, has_lines=True), limits())
    with Worker(config(folder, num_blocks=64, layout="arena")) as worker:
        assert "lines 128 KiB: 2 of 256 tokens" in str(worker.plan)
        assert "32 blocks of 16 tokens, 2 lines\n" in describe(worker)
        assert cached_tokens(worker) == 39
        assert worker.engine.stats().engine.num_lines == 1
    for layout in ("paged", "auto"):
        with Worker(config(folder, num_blocks=64, layout=layout)) as worker:
            assert worker.plan.num_blocks == 64
            assert cached_tokens(worker) == 39
            assert worker.engine.stats().engine.num_lines == 0
    with pytest.raises(InvalidArgumentError, match="layout is 'tree'; it must be paged, arena, auto"):
        Worker(config(folder, layout="tree")).__enter__()


def test_a_shorter_longest_sequence_bounds_requests_and_the_pool(folder: str) -> None:
    with Worker(config(folder, max_model_len=100)) as worker:
        assert worker.plan.num_blocks == 4 * 7
        assert worker.engine.model().max_length == 100
        with pytest.raises(InvalidArgumentError):
            worker.engine.generate(GenerateParams(token_ids=[5] * 101))


def test_the_longest_sequence_is_that_of_the_pool_where_the_model_allows_more(folder: str) -> None:
    with Worker(config(folder, num_blocks=3)) as worker:
        longest = worker.engine.model().max_length
        one = SamplingParams(max_tokens=1)
        ended = [*worker.engine.generate(GenerateParams(token_ids=[5] * (longest - 1), sampling=one))][-1]
        assert ended.usage.num_prompt_tokens == longest - 1
        with pytest.raises(InvalidArgumentError, match=f"at most {longest} tokens"):
            worker.engine.generate(GenerateParams(token_ids=[5] * longest, sampling=one))
        cut = GenerateParams(token_ids=[5] * 100, sampling=one, truncate_prompt_tokens=-1)
        assert [*worker.engine.generate(cut)][-1].usage.num_prompt_tokens == longest - 1
        assert f"{longest} tokens of context" in describe(worker)


@pytest.mark.parametrize("max_model_len", [0, 257])
def test_a_longest_sequence_beyond_the_model_is_refused(folder: str, max_model_len: int) -> None:
    with (
        pytest.raises(InvalidArgumentError, match=r"max_model_len is .* from 1 to 256"),
        Worker(config(folder, max_model_len=max_model_len)),
    ):
        pass


def test_prefixes_are_not_shared_where_that_was_forbidden(folder: str) -> None:
    with Worker(config(folder, share_prefixes=False)) as worker:
        assert cached_tokens(worker) == 0
    with Worker(config(folder, unshared_namespaces=frozenset({"alone"}))) as worker:
        assert cached_tokens(worker, "alone") == 0
        assert cached_tokens(worker, "together") == 39
