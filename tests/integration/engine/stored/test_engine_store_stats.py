"""What a block store holds, finds, loses and saves is counted, and told over gRPC, at /metrics and with each request."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from answers import collect
from resp_servers import RedisServer, needs_redis
from stored_engine import BLOCK, LIMITS, ask, draw, open_store, serving
from waiting import wait_until

from radixkv import PrefixCache
from radixkv.core.api import StepOp, StepResult
from radixkv.core.errors import InvalidArgumentError, LeaseError
from radixkv.generation.client import GenerationClient
from radixkv.generation.erasure import StoredPrefix
from radixkv.generation.metrics import worker_metrics
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stats import WorkerStats
from radixkv.generation.stream import Delta
from radixkv.stores import store as store_module
from radixkv.stores.breaker import BreakerState
from radixkv.stores.costs import PrefillCost, PrefillMeter
from radixkv.stores.disk import DiskLevel
from radixkv.stores.disk.slots import SlotFile
from radixkv.stores.remote import RemoteLevel
from radixkv.stores.secrets.sealing import SEAL_BYTES
from radixkv.stores.stats import LevelStats
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer
from radixkv.worker.storing.stored_blocks import StoredBlocks

SEALED = 8 * BLOCK + SEAL_BYTES


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """URL at which no server listens; a store's start waits a moment to be told of erasures."""
    monkeypatch.setattr(store_module, "_FIRST_ERASURES_S", 0.2)
    return "redis://127.0.0.1:1"


@pytest.fixture(autouse=True)
def slow_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model computes faster than a busy machine reads: a block is said to take two seconds."""
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(2 / BLOCK, 0.0))


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def client_of(engine: Engine) -> Iterator[GenerationClient]:
    with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        yield client


def settled(engine: Engine) -> WorkerStats:
    """Stats once all that was computed is saved."""
    wait_until(lambda: engine.stats().engine.num_store_unsaved_blocks == 0)
    return engine.stats()


def disk_of(stats: WorkerStats) -> LevelStats:
    level = stats.levels[0]
    assert level.level == "disk"
    return level


def remote_of(engine: Engine) -> LevelStats:
    level = engine.stats().levels[-1]
    assert level.level == "remote"
    return level


def test_blocks_saved_and_loaded_are_counted_with_their_bytes(tmp_path: Path) -> None:
    prompt = draw(1, 50)
    with serving(tmp_path) as engine:
        assert str(engine.store).endswith("(0 held)")  # type: ignore[attr-defined]
        ask(engine, prompt)  # 55 positions
        level = disk_of(settled(engine))
        assert (level.num_written, level.num_blocks, level.written_bytes) == (13, 13, 13 * SEALED)
        assert level.used_bytes == 13 * level.size_bytes // (level.size_bytes // 512)
        assert level.write_s > 0
        assert (level.num_hits, level.read_s, level.misses, level.unwritten, level.faults) == (0, 0.0, {}, {}, {})
    with serving(tmp_path) as engine:
        assert str(engine.store).endswith("(13 held)")  # type: ignore[attr-defined]
        usage = ask(engine, prompt).usage
        assert (usage.num_cached_tokens, usage.num_loaded_tokens) == (48, 48)
        usage = ask(engine, prompt).usage  # in the pool by now
        assert (usage.num_cached_tokens, usage.num_loaded_tokens) == (49, 0)
        stats = settled(engine)
        level = disk_of(stats)
        assert (level.num_hits, level.read_bytes, level.num_written, level.num_blocks) == (12, 12 * SEALED, 0, 13)
        assert level.read_s > 0
        told = stats.engine
        assert (told.num_prompt_tokens, told.num_cached_tokens, told.num_loaded_tokens) == (100, 49, 48)
        assert (told.num_store_loaded_blocks, told.num_saves_left_out) == (12, 0)


def test_a_prompt_that_is_partly_in_the_pool_tells_both_parts(tmp_path: Path) -> None:
    prompt = draw(2, 60)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    with serving(tmp_path) as engine:
        ask(engine, prompt[:21], 1)  # 20 loaded, and one computed
        usage = ask(engine, prompt).usage
        assert (usage.num_cached_tokens, usage.num_loaded_tokens) == (
            21 + 35,
            35,
        )  # but for the rest of the sixth block
        assert usage.num_computed_tokens == 3 + 1 + 5
        told = engine.stats().engine
        assert (told.num_cached_tokens, told.num_loaded_tokens) == (21, 20 + 35)


def test_every_computed_block_is_saved_or_counted_as_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, may_write = DiskLevel.write, threading.Event()

    def write_late(level: DiskLevel, *arguments: Any) -> int:
        may_write.wait(300)
        return write(level, *arguments)

    monkeypatch.setattr(DiskLevel, "write", write_late)
    with serving(tmp_path, num_blocks=24, num_rows=12) as engine:
        for seed in range(10):
            ask(engine, draw(seed, 60))  # 65 positions each, 16 whole blocks
        waiting = engine.stats().engine
        assert waiting.num_store_unsaved_blocks > 0
        assert waiting.num_saves_left_out > 0
        assert waiting.num_store_unsaved_blocks + waiting.num_saves_left_out >= 160
        may_write.set()
        stats = settled(engine)
        assert disk_of(stats).num_written + stats.engine.num_saves_left_out == 160


def test_blocks_that_are_overwritten_before_they_are_saved_are_saved_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredBlocks, "save_some", lambda *_: None)
    with serving(tmp_path, num_blocks=24, num_rows=64) as engine:
        for seed in range(3):
            ask(engine, draw(seed, 60))  # 16 whole blocks each
        assert engine.stats().engine.num_saves_left_out == 0
    with serving(tmp_path) as engine:
        assert disk_of(engine.stats()).num_blocks == 48


def test_a_disk_that_fails_is_seen_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, fails = SlotFile.write, True

    def write_badly(slots: SlotFile, *arguments: Any) -> None:
        if fails:
            raise OSError(errno.EIO, "bad sector")
        write(slots, *arguments)

    monkeypatch.setattr(SlotFile, "write", write_badly)
    with serving(tmp_path) as engine:
        ask(engine, draw(1, 80))  # 21 whole blocks
        level = disk_of(settled(engine))
        assert level.breaker is not BreakerState.CLOSED
        assert (level.num_written, level.num_blocks) == (0, 0)
        assert level.faults["EIO"] >= 1
        assert set(level.unwritten) <= {"fault", "resting"}
        assert sum(level.unwritten.values()) == 21
        fails = False

        def goes_on() -> bool:
            ask(engine, draw(disk_of(engine.stats()).unwritten["fault"] + len(seen), 20))
            seen.append(1)
            return disk_of(settled(engine)).breaker is BreakerState.CLOSED

        seen: list[int] = []
        wait_until(goes_on)
        assert disk_of(engine.stats()).num_written > 0


def test_damaged_blocks_are_faults(tmp_path: Path) -> None:
    prompt = draw(6, 60)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    [slots] = (tmp_path / "blocks").rglob("*slots*")
    slots.write_bytes(bytes(byte ^ 0xFF for byte in slots.read_bytes()))
    with serving(tmp_path) as engine:
        assert ask(engine, prompt).usage.num_loaded_tokens == 0
        stats = settled(engine)
        assert disk_of(stats).faults == {"seal": 15}
        assert (stats.engine.num_store_loaded_blocks, stats.engine.num_loaded_tokens) == (0, 0)


@needs_redis
def test_blocks_of_a_remote_level_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [draw(seed, 60) for seed in range(8)]  # 65 positions with the replies, 16 whole blocks
    write, may_write = RemoteLevel.write_many, threading.Event()

    def write_late(level: RemoteLevel, *arguments: Any) -> int:
        may_write.wait(300)
        return write(level, *arguments)

    monkeypatch.setattr(RemoteLevel, "write_many", write_late)
    with redis_server(tmp_path) as server:
        with serving(tmp_path, 200, remote=server.url) as engine:
            wait_until(lambda: engine.store.remote.is_usable)  # type: ignore[attr-defined]
            for prompt in prompts:
                ask(engine, prompt)
            assert disk_of(settled(engine)).num_written == 128
            assert remote_of(engine).unwritten["queue"] > 0
            may_write.set()
            wait_until(lambda: sum(remote_of(engine).unwritten.values()) + remote_of(engine).num_written == 128)
            remote = remote_of(engine)
            assert remote.unwritten.keys() == {"queue"}
            assert remote.written_bytes == remote.num_written * SEALED
            assert remote.write_s > 0
        with serving(tmp_path, remote=server.url, has_disk=False) as engine:
            wait_until(lambda: engine.store.remote.is_usable)  # type: ignore[attr-defined]
            usage = ask(engine, prompts[-1]).usage  # the last ones waited
            assert (usage.num_cached_tokens, usage.num_loaded_tokens) == (59, 59)
            ask(engine, draw(9, 20))
            remote = remote_of(engine)
            assert (remote.num_hits, remote.read_bytes, remote.misses) == (15, 15 * SEALED, {"absent": 5})
            assert remote.read_s > 0
            assert (remote.num_blocks, remote.faults, remote.breaker) == (0, {}, BreakerState.CLOSED)


class LosableCache(PrefixCache):
    """A cache whose lease can be lost."""

    is_lost = False

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        if self.is_lost:
            raise LeaseError("the lease is lost")
        return super().submit(ops)


def test_blocks_that_come_back_to_a_branch_that_had_computed_them_are_not_found_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = draw(1, 24)
    with serving(tmp_path) as engine:
        ask(engine, prompt, 40)
    runner, cache, read = HashRunner(64, BLOCK), LosableCache(64, BLOCK), DiskLevel.read
    monkeypatch.setattr(DiskLevel, "read", lambda *arguments: cache.is_lost and read(*arguments))
    with (
        closing(open_store(tmp_path, runner)) as store,
        Engine(runner, cache, limits=LIMITS, store=store, reattach=lambda: PrefixCache(64, BLOCK)) as engine,
    ):
        runner.gate.close_after(8)
        sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        stream = engine.generate(GenerateParams(token_ids=prompt, sampling=sampling))
        wait_until(lambda: not runner.gate.is_open)
        cache.is_lost = True
        runner.gate.open()
        answers = collect(stream)
        assert answers.branches[0].tokens == generate(prompt, 40)
        assert (answers.usage.num_cached_tokens, answers.usage.num_loaded_tokens) == (0, 0)
        told = engine.stats().engine
        assert told.num_store_loaded_blocks >= 6
        assert told.num_loaded_tokens == 0


def test_over_grpc_stats_and_usage_are_those_of_the_engine(tmp_path: Path, nobody: str) -> None:
    prompt = draw(3, 50)
    with serving(tmp_path, remote=nobody) as engine:
        ask(engine, prompt)
        wait_until(lambda: engine.stats().levels[1].unwritten == {"unavailable": 13})
    with serving(tmp_path, remote=nobody) as engine, client_of(engine) as client:
        params = GenerateParams(token_ids=prompt, sampling=SamplingParams(temperature=0, max_tokens=6))
        events = list(client.generate(params))
        assert next(event for event in events if isinstance(event, Delta)).num_cached_tokens == 48
        assert (events[-1].usage.num_cached_tokens, events[-1].usage.num_loaded_tokens) == (48, 48)  # type: ignore[union-attr]
        told, known = client.stats(), engine.stats()
        assert [level.level for level in told.levels] == ["disk", "remote"]
        assert disk_of(told) == disk_of(known)
        assert told.engine == known.engine
        assert told.levels[1].faults.keys() == known.levels[1].faults.keys() == {"refused"}
        assert (told.levels[1].size_bytes, told.levels[1].num_hits) == (0, 0)


def test_what_the_disk_holds_after_the_cached_tokens_is_found(tmp_path: Path) -> None:
    prompt = draw(3, 50)
    with serving(tmp_path) as engine:
        ask(engine, prompt, namespace="one")
    with serving(tmp_path) as engine, client_of(engine) as client:
        for find in (engine.find_stored, client.find_stored):
            found = [find(prompt, "one", cached).num_tokens for cached in (0, 1, 4, 47, 48, 50)]
            assert found == [48, 44, 44, 0, 0, 0]
            assert find([*prompt[:21], 39, *prompt[22:]], "one").num_tokens == 20
            assert find(prompt, "two").num_tokens == find(prompt).num_tokens == find([], "one").num_tokens == 0
            assert find(prompt, "one").way == "load"
            with pytest.raises(InvalidArgumentError, match="num_cached_tokens"):
                find(prompt, "one", -1)
        assert disk_of(engine.stats()).num_hits == 0
        assert ask(engine, prompt, namespace="one").usage.num_loaded_tokens == 48
        known = client.find_stored(prompt, "one")
        assert known == engine.find_stored(prompt, "one")
        engine.store.begin_clear("one")  # type: ignore[attr-defined]
        assert engine.find_stored(prompt, "one") == StoredPrefix()
        assert (known.load_s or 0) > 0 < (known.compute_s or 0)


def test_without_a_block_store_there_are_no_levels() -> None:
    with Engine(HashRunner(20, BLOCK), PrefixCache(20, BLOCK)) as engine, client_of(engine) as client:
        assert client.stats().levels == engine.stats().levels == ()
        assert client.find_stored([1, 2, 3, 4, 5]) == StoredPrefix()
        names = {metric.name for metric in worker_metrics(client.stats())}
        assert "radixkv:store_loaded_tokens" in names
        assert "radixkv:store_breaker" not in names


def test_metrics_are_the_stats_of_each_level(tmp_path: Path, nobody: str) -> None:
    prompt = draw(4, 50)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    with serving(tmp_path, remote=nobody) as engine:
        ask(engine, prompt + draw(5, 20))
        wait_until(lambda: bool(engine.stats().levels[1].unwritten))
        stats = settled(engine)
    disk, remote = stats.levels
    samples = {
        (sample.name.removeprefix("radixkv:store_"), *sample.labels.values()): sample.value
        for metric in worker_metrics(stats)
        for sample in metric.samples
        if "store_" in sample.name
    }
    assert samples["loaded_tokens_total",] == 48
    assert samples["loaded_blocks_total",] == 12
    assert samples["saves_left_out_total",] == samples["unsaved_blocks",] == 0
    for name, field in (
        ("size_bytes", "size_bytes"),
        ("used_bytes", "used_bytes"),
        ("blocks", "num_blocks"),
        ("hit_blocks_total", "num_hits"),
        ("written_blocks_total", "num_written"),
        ("evicted_blocks_total", "num_evicted"),
        ("read_bytes_total", "read_bytes"),
        ("written_bytes_total", "written_bytes"),
        ("read_seconds_total", "read_s"),
        ("write_seconds_total", "write_s"),
    ):
        for level in (disk, remote):
            assert samples[name, level.level] == getattr(level, field), name
    assert disk.num_hits == 12
    for name, field in (("missed_blocks", "misses"), ("unwritten_blocks", "unwritten"), ("faults", "faults")):
        for cause, number in getattr(remote, field).items():
            assert samples[f"{name}_total", "remote", cause] == number
    assert remote.misses["unavailable"] == 5  # whole blocks behind those on disk
    assert {state: samples["breaker", "remote", state] for state in BreakerState} == {
        state: state is remote.breaker for state in BreakerState
    }
    assert samples["breaker", "disk", "closed"] == 1
    assert remote.breaker is not BreakerState.CLOSED
