"""A block store below the engine's pool: what was computed once is found after a restart, and a fault costs a computation."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers import collect, start_together
from drafts import LyingSource
from resp_servers import RedisServer, needs_redis
from stored_engine import BLOCK, LIMITS, ask, draw, open_store, serving
from waiting import wait_until

from radixkv import PoolShape, PrefixCache, connect
from radixkv.client import RemoteReader
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.core.namespaces import derived_namespace
from radixkv.core.tree.journal import JournalEntry
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.verification import BlockVerdict
from radixkv.service import ServiceConfig, ServiceThread, reading
from radixkv.stores.costs import LoadCost, LoadMeter, PrefillCost, PrefillMeter
from radixkv.stores.disk import DiskLevel
from radixkv.stores.loading import Load
from radixkv.stores.remote import level
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.store import BlockStore
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.scheduling.limits import SchedulerLimits


@pytest.fixture(autouse=True)
def slow_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model computes faster than a busy machine reads: a block is said to take two seconds.

    What a remote level is to delete goes with its next look at the tombstones, which is soon.
    """
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(2 / BLOCK, 0.0))
    monkeypatch.setattr(level, "TOMBSTONES_S", 0.1)


def test_after_a_restart_a_prompt_is_found_to_its_last_whole_block(tmp_path: Path) -> None:
    prompt = draw(1, 50)
    with serving(tmp_path) as engine:
        assert ask(engine, prompt).usage.num_cached_tokens == 0
    with serving(tmp_path) as engine:
        usage = ask(engine, prompt).usage
        assert usage.num_cached_tokens == 48
        assert usage.num_computed_tokens == 2 + 5
        assert ask(engine, prompt).usage.num_cached_tokens == 49


def test_a_reply_is_found_as_the_next_turns_history(tmp_path: Path) -> None:
    prompt = draw(2, 21)
    with serving(tmp_path) as engine:
        reply = ask(engine, prompt, 20).branches[0].tokens
    with serving(tmp_path) as engine:
        history = prompt + reply
        assert ask(engine, [*history, 7, 7]).usage.num_cached_tokens == (len(history) - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("lies", [0.0, 0.3, 1.0])
def test_so_are_replies_whose_blocks_drafts_have_filled(tmp_path: Path, lies: float) -> None:
    prompt = draw(2, 21)
    source = LyingSource(lambda branch: generate(list(branch.tokens), 20), lies, 40)
    with serving(tmp_path, source=source) as engine:
        reply = ask(engine, prompt, 40).branches[0].tokens
    with serving(tmp_path) as engine:
        history = prompt + reply
        assert ask(engine, [*history, 7, 7]).usage.num_cached_tokens == (len(history) - 1) // BLOCK * BLOCK


def test_a_prompt_of_whole_blocks_runs_its_last_token_alone(tmp_path: Path) -> None:
    prompt = draw(3, 48)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    with serving(tmp_path) as engine:
        assert ask(engine, prompt, 1).usage.num_computed_tokens == 1


def test_what_the_host_level_keeps_is_loaded_without_another_level(tmp_path: Path) -> None:
    prompt = draw(5, 50)
    with serving(tmp_path, has_disk=False, num_kept=100) as engine:
        ask(engine, prompt)
        engine.call(lambda holder: holder.clear())
        ask(engine, draw(6, 200), 1)
        usage = ask(engine, prompt).usage
        assert (usage.num_cached_tokens, usage.num_computed_tokens) == (48, 2 + 5)
        host = engine.stats().levels[0]
        assert (host.level, host.num_hits, len(engine.stats().levels)) == ("host", 12, 1)
        assert [tuple(level) for level in engine.erase()] == [("host", True)]
        engine.call(lambda holder: holder.clear())
        assert ask(engine, prompt).usage.num_cached_tokens == 0


def test_what_was_read_from_disk_is_read_from_host_memory_the_next_time(tmp_path: Path) -> None:
    prompt = draw(7, 50)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    with serving(tmp_path, num_kept=40) as engine:
        for number in range(3):
            assert ask(engine, prompt).usage.num_cached_tokens == 48
            engine.call(lambda holder: holder.clear())
            host, disk = engine.stats().levels
            assert (host.level, host.num_hits, disk.level, disk.num_hits) == ("host", 12 * number, "disk", 12)


def test_swapped_branches_and_saved_blocks_share_one_memory(tmp_path: Path) -> None:
    limits = replace(LIMITS, preemption="swap")
    with serving(tmp_path, 24, limits, num_kept=16) as engine:
        sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        for attempt in range(5):  # on a slow disk saves may have all rows, and then nothing is swapped
            prompts = [draw(20 + 4 * attempt + number, 20) for number in range(4)]
            streams = start_together(
                engine, [GenerateParams(token_ids=prompt, sampling=sampling) for prompt in prompts]
            )
            for prompt, stream in zip(prompts, streams, strict=True):
                assert collect(stream).branches[0].tokens == generate(prompt, 30)
            if engine.stats().engine.num_loaded_blocks:
                break
        assert engine.stats().engine.num_loaded_blocks > 0
        assert engine.store.host.num_parkable == 16  # type: ignore[attr-defined]


def test_blocks_are_saved_without_a_stop_once_the_engine_is_idle(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        ask(engine, draw(4, 80))
        wait_until(lambda: engine.store.disk.stats().num_blocks >= 20)  # type: ignore[attr-defined]


def test_what_a_small_pool_evicts_comes_back(tmp_path: Path) -> None:
    prompts, found = [draw(seed, 60) for seed in range(10, 20)], list[int]()
    with serving(tmp_path, num_blocks=24, num_rows=200) as engine:
        for prompt in prompts + prompts:
            assert engine.store.flush(10)  # type: ignore[attr-defined]  # what is not durable yet is not found
            usage = ask(engine, prompt).usage
            found.append(usage.num_cached_tokens)
    assert min(found[len(prompts) :]) >= 56


@pytest.mark.parametrize("num_blocks", [3, 6])
def test_a_block_that_another_history_had_to_itself_gives_its_name_to_no_other(tmp_path: Path, num_blocks: int) -> None:
    """The pool is so full that the block of which a part is shared is taken, and what follows it in both is stored."""
    end = draw(45, 4 * num_blocks - 4)
    with serving(tmp_path, num_blocks=num_blocks) as engine:
        for num_asked, differing in enumerate((1, 2, 3), 1):
            ask(engine, [3, 3, 3, differing, *end], 1)
            wait_until(lambda num=num_asked * num_blocks: engine.store.disk.stats().num_blocks == num)  # type: ignore


def test_another_namespace_model_or_request_without_sharing_finds_nothing(tmp_path: Path) -> None:
    prompt = draw(5, 40)
    with serving(tmp_path) as engine:
        ask(engine, prompt, namespace="one")
        ask(engine, prompt[::-1], namespace="one", sharing="off")
    with serving(tmp_path) as engine:
        assert ask(engine, prompt, namespace="two").usage.num_cached_tokens == 0
        assert ask(engine, prompt, namespace="one", sharing="off").usage.num_cached_tokens == 0
        assert ask(engine, prompt[::-1], namespace="one").usage.num_cached_tokens == 0
        assert ask(engine, prompt, namespace="one").usage.num_cached_tokens == 39
    with serving(tmp_path, fingerprint=b"other of 16 byte") as engine:
        assert ask(engine, prompt, namespace="one").usage.num_cached_tokens == 0


def test_damaged_blocks_are_computed_and_saved_again(tmp_path: Path) -> None:
    prompt = draw(6, 60)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    [slots] = (tmp_path / "blocks").rglob("*slots*")
    content = bytearray(slots.read_bytes())
    for at in range(len(content)):
        content[at] ^= 0xFF
    slots.write_bytes(content)
    with serving(tmp_path) as engine:
        assert ask(engine, prompt).usage.num_cached_tokens == 0
    with serving(tmp_path) as engine:
        assert ask(engine, prompt).usage.num_cached_tokens == 59


def hold_reads(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Reads of the disk level wait until the event is set."""
    read, may_read = DiskLevel.read, threading.Event()

    def read_late(level: DiskLevel, *arguments: Any) -> bool:
        may_read.wait(300)
        return read(level, *arguments)

    monkeypatch.setattr(DiskLevel, "read", read_late)
    return may_read


def test_reads_that_take_too_long_are_computed_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, other = draw(7, 60), draw(8, 60)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    may_read = hold_reads(monkeypatch)
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(1e-4, 0.0))
    with serving(tmp_path) as engine:
        ask(engine, other)  # tells how long computing takes
        assert ask(engine, prompt).usage.num_cached_tokens == 0
        may_read.set()


def test_a_load_that_comes_late_does_not_land_in_blocks_of_another_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, other = draw(42, 60), draw(43, 60)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    may_read = hold_reads(monkeypatch)
    with serving(tmp_path, num_blocks=18) as engine:
        sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        with engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)):
            wait_until(lambda: engine.stats().engine.num_running_branches == 1)
        stream = engine.generate(GenerateParams(token_ids=other, sampling=SamplingParams(temperature=0, max_tokens=9)))
        first = next(iter(stream))
        may_read.set()
        assert first is not None
        assert collect(stream).branches[0].tokens == generate(other, 9, 0)
        ask(engine, other)


def test_a_level_as_slow_as_computing_is_read_from_the_back_while_the_front_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = draw(40, 120)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    read, forward = DiskLevel.read, HashRunner.forward

    def read_slowly(level: DiskLevel, *arguments: Any) -> bool:
        time.sleep(0.04)  # by two readers
        return read(level, *arguments)

    def compute_slowly(runner: HashRunner, rows: Any, *drawn: Any) -> Any:
        time.sleep(0.005 * sum(len(row.token_ids) for row in rows))
        return forward(runner, rows, *drawn)

    monkeypatch.setattr(DiskLevel, "read", read_slowly)
    monkeypatch.setattr(HashRunner, "forward", compute_slowly)
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(0.005, 0.0))
    monkeypatch.setattr(LoadMeter, "cost", lambda _meter: LoadCost(0.02, 0.02))
    for _ in range(5):  # this machine may be late with the one or the other
        with serving(tmp_path) as engine:
            usage = ask(engine, prompt, 1).usage
        if 20 <= usage.num_cached_tokens <= 100:
            break
    assert 20 <= usage.num_cached_tokens <= 100
    assert usage.num_computed_tokens + usage.num_cached_tokens == len(prompt)


def test_a_block_counts_as_soon_as_it_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits longer with each block, so a slow level's first ones must not wait for those read with them."""
    prompt = draw(43, 60)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    loads, landed = [], []
    read, init = DiskLevel.read, Load.__init__

    def noted(load: Load, *arguments: Any, **options: Any) -> None:
        init(load, *arguments, **options)
        loads.append(load)

    def reading(level: DiskLevel, *arguments: Any) -> bool:
        landed.append(sum(load.num_landed for load in loads))
        return read(level, *arguments)

    monkeypatch.setattr(Load, "__init__", noted)
    monkeypatch.setattr(DiskLevel, "read", reading)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
        assert engine.load().loaded_tokens_per_s > 0
    assert landed[7] >= 6, "neither of two readers has read eight"


@needs_redis
def test_a_second_worker_loads_from_the_remote_level_and_a_dead_server_costs_nothing_but_misses(tmp_path: Path) -> None:
    prompt = draw(41, 60)
    (tmp_path / "a").mkdir()
    server = RedisServer(tmp_path)
    try:
        with serving(tmp_path / "a", remote=server.url) as engine:
            ask(engine, prompt)
            wait_until(lambda: engine.store.remote.stats().num_written >= 14)  # type: ignore[attr-defined]
        for name, expected in (("b", 59), ("c", 0)):  # c has a key file of its own
            (tmp_path / name).mkdir()
            if name == "b":
                shutil.copy(tmp_path / "a" / "store.key", tmp_path / "b" / "store.key")
            with serving(tmp_path / name, remote=server.url, has_disk=False) as engine:
                wait_until(lambda: engine.store.remote.is_usable)  # type: ignore[attr-defined]  # called here
                assert ask(engine, prompt).usage.num_cached_tokens == expected
    finally:
        server.stop()
    with serving(tmp_path / "b", remote=server.url, has_disk=False) as engine:
        assert ask(engine, prompt).usage.num_cached_tokens == 0


@needs_redis
def test_an_erasure_reaches_another_worker_and_a_forged_tombstone_does_not(tmp_path: Path) -> None:
    prompt = draw(44, 60)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    StoreKeys(tmp_path / "a" / "store.key")
    shutil.copy(tmp_path / "a" / "store.key", tmp_path / "b" / "store.key")
    server = RedisServer(tmp_path)
    try:
        with serving(tmp_path / "b", remote=server.url) as engine:
            ask(engine, prompt, namespace="one")
            ask(engine, prompt, namespace="two")
            point = engine.store.keys.of("two").point  # type: ignore[attr-defined]
        with serving(tmp_path / "a", remote=server.url) as engine:
            wait_until(lambda: engine.store.remote.is_usable)  # type: ignore[attr-defined]
            engine.store.remote.erase(b"n" * 16, point)  # type: ignore[attr-defined]
            assert [tuple(level) for level in engine.erase("one")] == [("disk", True), ("remote", True)]
        with serving(tmp_path / "b", remote=server.url) as engine:
            wait_until(lambda: engine.store.remote.is_usable)  # type: ignore[attr-defined]
            assert ask(engine, prompt, namespace="one").usage.num_cached_tokens == 0
            assert ask(engine, prompt, namespace="two").usage.num_cached_tokens == 59
    finally:
        server.stop()


def test_a_cancelled_request_leaves_nothing_behind(tmp_path: Path) -> None:
    prompt = draw(9, 100)
    with serving(tmp_path) as engine:
        ask(engine, prompt)
    with serving(tmp_path, num_rows=9) as engine:
        for _ in range(20):
            sampling = SamplingParams(temperature=0, max_tokens=50)
            engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)).close()
        ask(engine, prompt)


def test_a_block_that_a_verification_overwrites_is_not_saved_under_its_old_name(tmp_path: Path) -> None:
    prompts = [draw(seed, 80) for seed in (30, 31, 32)]
    limits = SchedulerLimits(max_batch_tokens=128, chunk_tokens=128)
    with serving(
        tmp_path, 60, limits, save_rate=1.0
    ) as engine:  # a full pool, of which a dozen blocks are saved so far
        for prompt in prompts:
            ask(engine, prompt, 1)
        assert engine.verify_block(prompts[2]).verdict is BlockVerdict.AGREES
    with serving(tmp_path) as engine:
        for prompt in prompts:
            assert ask(engine, prompt, 4).usage.num_cached_tokens == 79, "it is saved first"


SEEDS = [
    *range(6),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(6, 12)),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 400)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_requests_over_small_pools_and_restarts_get_the_tokens_of_the_model_alone(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    read, delays = DiskLevel.read, random.Random(seed)

    def read_at_times_slowly(level: DiskLevel, *arguments: Any) -> bool:
        if delays.random() < 0.2:
            time.sleep(delays.uniform(0, 0.01))
        return read(level, *arguments)

    monkeypatch.setattr(DiskLevel, "read", read_at_times_slowly)
    bases = [draw(100 * seed + number, 40) for number in range(3)]
    num_found = 0
    for _ in range(4):
        limits = SchedulerLimits(
            max_running=rng.choice([1, 3, 64]),
            max_batch_tokens=rng.choice([8, 64]),
            chunk_tokens=rng.choice([3, 8, 64]),
            preemption=rng.choice(["recompute", "swap"]),
        )
        size_bytes = rng.choice([30, 200, 1000]) * 512
        with serving(
            tmp_path,
            rng.choice([20, 40, 90]),
            limits,
            num_rows=rng.choice([9, 24]),
            num_kept=rng.choice([0, 3, 20, 100]),
            is_killed=rng.random() < 0.3,
            save_rate=rng.choice([10, 1e9]),
            size_bytes=size_bytes,
            readers_copy=rng.random() < 0.8,
        ) as engine:
            streams = []
            for _ in range(15):
                prompt = rng.choice(bases)[: rng.randint(1, 40)] + draw(rng.randrange(50), rng.randrange(12))
                if rng.random() < 0.3:  # what follows in whole blocks is that of another history
                    prompt[rng.randrange(len(prompt))] = 0
                sampling = SamplingParams(
                    temperature=0, max_tokens=rng.randint(1, 12), n=rng.choice([1, 1, 3]), ignore_eos=True
                )
                params = GenerateParams(
                    token_ids=prompt, sampling=sampling, sharing=None if rng.random() < 0.9 else "off"
                )
                stream = engine.generate(params)
                if rng.random() < 0.05:
                    engine.erase()
                if rng.random() < 0.15:
                    stream.close()
                else:
                    streams.append((prompt, sampling, stream))
                if rng.random() < 0.5 and streams:
                    num_found += _check(*streams.pop(rng.randrange(len(streams))))
            for one in streams:
                num_found += _check(*one)
            engine.call(lambda holder: holder.check())
    assert num_found


def _check(prompt: list[int], sampling: SamplingParams, stream: Any) -> int:
    answers = collect(stream)
    expected = generate(prompt, sampling.max_tokens)
    assert [branch.tokens for branch in answers.branches] == [expected] * sampling.n
    return answers.usage.num_cached_tokens


# -- what is dropped on purpose stays away ---------------------------------------------------------------------------------


@contextmanager
def serving_apart(
    folder: Path, num_blocks: int = 64, **options: Any
) -> Iterator[tuple[Engine, RemoteReader, BlockStore]]:
    """As `serving`, with the pool's tree in a cache service, and a reader of it."""
    runner = HashRunner(num_blocks, BLOCK)
    store = open_store(folder, runner, **options)
    noted: list[Callable[..., Any]] = []

    def note(entries: Sequence[JournalEntry]) -> Any:
        return noted[0](entries)

    try:
        with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
            [address] = service.addresses
            shape = PoolShape(num_blocks, BLOCK)
            with (
                connect(address, shape, on_journal=note) as holder,
                Engine(runner, holder, limits=LIMITS, store=store) as engine,
                connect(address) as reader,
            ):
                noted.append(engine.noted)
                yield engine, reader, store
    finally:
        store.close()


def test_a_cleared_namespace_does_not_come_back_and_others_stay(tmp_path: Path) -> None:
    prompt = draw(20, 40)
    with serving_apart(tmp_path) as (engine, reader, store):
        for namespace in ("one", "two"):
            ask(engine, prompt, namespace=namespace)
        wait_until(lambda: store.disk is not None and store.disk.stats().num_blocks == 2 * 11)
        before = store.keys.of("one")
        reader.clear("one")
        assert store.keys.of("one") != before, "the keys are destroyed before the answer"
        wait_until(lambda: not store.is_clearing("one"))
    with serving_apart(tmp_path) as (engine, _, _):
        assert ask(engine, prompt, namespace="one").usage.num_cached_tokens == 0
        assert ask(engine, prompt, namespace="two").usage.num_cached_tokens == 39


def test_a_clearing_says_so_where_it_cannot_erase_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ERASED_WITHIN_S", 0.05)
    erase, may_erase = StoreKeys.erase, threading.Event()

    def erase_late(keys: StoreKeys, namespace: str) -> Any:
        may_erase.wait(300)
        return erase(keys, namespace)

    monkeypatch.setattr(StoreKeys, "erase", erase_late)
    with serving_apart(tmp_path) as (engine, reader, store):
        ask(engine, draw(20, 40), 1)
        before = store.keys.of("default")
        with pytest.raises(UnavailableError, match="pool 'default' is cleared, but its worker has not confirmed"):
            reader.clear()
        assert ask(engine, draw(20, 40), 1).usage.num_cached_tokens == 0
        may_erase.set()
        monkeypatch.setattr(reading, "ERASED_WITHIN_S", 300.0)
        assert reader.clear() >= 0
        assert store.keys.of("default") != before


def test_an_erasure_with_its_clearing_destroys_one_generation_of_keys(tmp_path: Path) -> None:
    prompt = draw(20, 40)
    with serving_apart(tmp_path) as (engine, reader, store):
        ask(engine, prompt, 1)
        engine.erase()
        after = store.keys.of("default")
        for _ in range(3):
            reader.clear()
        assert store.keys.of("default") == after
        wait_until(lambda: not store.is_clearing("default"))
        ask(engine, prompt, 1)
        wait_until(lambda: store.disk is not None and store.disk.stats().num_blocks == 10)
        reader.clear()
        assert store.keys.of("default") != after


@pytest.mark.parametrize("position", [20, 22])
def test_a_dropped_branch_does_not_come_back(tmp_path: Path, position: int) -> None:
    base = draw(21, 20)
    kept, dropped = base + draw(22, 20), base + draw(23, 20)
    with serving_apart(tmp_path) as (engine, reader, store):
        for prompt in (kept, dropped):
            ask(engine, prompt, 1)
        wait_until(lambda: store.disk is not None and store.disk.stats().num_blocks == 15)
        reader.evict_branch(dropped[: position + 1])
        wait_until(lambda: store.disk is not None and store.disk.stats().num_blocks <= 10)
    with serving_apart(tmp_path) as (engine, _, _):
        assert ask(engine, kept, 1).usage.num_cached_tokens >= 20
        assert ask(engine, dropped, 1).usage.num_cached_tokens <= position


@pytest.mark.parametrize("num_tokens", [4, 8, 22, 40])
def test_of_a_branch_that_the_pool_has_not_what_is_stored_goes_and_no_other(tmp_path: Path, num_tokens: int) -> None:
    base = draw(21, 20)
    kept, dropped = base + draw(22, 20), base[:-1] + draw(23, 21)
    with serving_apart(tmp_path) as (engine, reader, store):
        for prompt in (kept, dropped):
            ask(engine, prompt, 1)
        wait_until(lambda: store.disk is not None and store.disk.stats().num_blocks == 16)
        while reader.evict(64):
            pass
        assert reader.match(kept).num_device_tokens == 0
        reader.evict_branch(dropped[:num_tokens])
        wait_until(lambda: store.disk is not None and store.disk.stats().num_blocks < 16)
    with serving_apart(tmp_path) as (engine, _, _):
        assert ask(engine, kept, 1).usage.num_cached_tokens == (num_tokens - 4 if num_tokens < 20 else 39)
        assert ask(engine, dropped, 1).usage.num_cached_tokens <= max(num_tokens - 1, 19)


@needs_redis
def test_a_dropped_branch_and_a_cleared_salt_leave_the_remote_level_and_others_stay(tmp_path: Path) -> None:
    base, server = draw(21, 20), RedisServer(tmp_path)
    kept, dropped = base + draw(22, 20), base + draw(23, 20)

    def num_stored() -> int:
        return int(server.command("DBSIZE").split()[0][1:]) - 1  # the tombstones

    def num_cached(engine: Engine, prompt: list[int], **options: Any) -> int:
        return ask(engine, prompt, 1, **options).usage.num_cached_tokens

    try:
        server.command("SADD", "radixkv:erased", "of another key file")
        with serving_apart(tmp_path, remote=server.url, has_disk=False) as (engine, reader, store):
            for prompt in (kept, dropped):
                ask(engine, prompt, 1)
            ask(engine, base, 1, cache_salt="salt")
            wait_until(lambda: num_stored() == 15 + 5)
            reader.evict_branch(dropped[:21])
            wait_until(lambda: num_stored() <= 10 + 5)
            reader.clear(derived_namespace("default", salt="salt"))
            wait_until(lambda: num_stored() <= 10)
            assert num_cached(engine, dropped) == 20
            wait_until(lambda: num_stored() >= 10)  # what is computed again is put again
            reader.evict_branch(dropped[:21])
            wait_until(lambda: num_stored() < 10)
        with serving_apart(tmp_path, remote=server.url, has_disk=False) as (engine, _, store):
            assert store.remote is not None
            assert store.remote.await_tombstones(10)
            assert num_cached(engine, kept) >= 20
            assert num_cached(engine, dropped) <= 20
            assert num_cached(engine, base, cache_salt="salt") == 0
    finally:
        server.stop()


def test_an_erased_namespace_is_gone_with_its_derived_ones_and_new_blocks_are_kept(tmp_path: Path) -> None:
    prompt = draw(24, 40)
    with serving(tmp_path) as engine:
        ask(engine, prompt, namespace="team")
        ask(engine, prompt, namespace="team", cache_salt="salt")
    with serving(tmp_path) as engine:
        assert ask(engine, prompt, namespace="team").usage.num_cached_tokens == 39
        assert [tuple(level) for level in engine.erase("team")] == [("disk", True)]
    with serving(tmp_path) as engine:
        assert ask(engine, prompt, namespace="team").usage.num_cached_tokens == 0
        assert ask(engine, prompt, namespace="team", cache_salt="salt").usage.num_cached_tokens == 0
    with serving(tmp_path) as engine:
        assert ask(engine, prompt, namespace="team").usage.num_cached_tokens == 39


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_reply_that_runs_over_an_erasure_is_not_stored(tmp_path: Path, is_cached: bool) -> None:
    prompt = draw(25, 40)
    with serving(tmp_path) as engine:
        runner: HashRunner = engine.runner  # type: ignore[attr-defined]
        if is_cached:
            ask(engine, prompt, 1)
        runner.gate.close_after(1 if is_cached else 8)
        sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        stream = engine.generate(GenerateParams(token_ids=prompt, sampling=sampling))
        wait_until(lambda: not runner.gate.is_open)
        engine.erase()
        runner.gate.open()
        collect(stream)
    with serving(tmp_path) as engine:
        assert engine.store.disk.stats().num_blocks == 0  # type: ignore[attr-defined]


def test_erasing_a_derived_namespace_is_rejected_and_without_a_store_there_is_nothing_to_erase(tmp_path: Path) -> None:
    with serving(tmp_path) as engine, pytest.raises(InvalidArgumentError, match="namespace"):
        engine.erase("team#adapter=sql")
    with Engine(HashRunner(8, BLOCK), PrefixCache(8, BLOCK)) as engine:
        assert engine.erase("team") == []


def test_a_copy_of_a_part_of_a_block_is_replaced_by_the_stored_block(tmp_path: Path) -> None:
    base = draw(26, 10)
    first, second = base + draw(27, 30), base + draw(28, 31)
    with serving(tmp_path) as engine:
        for prompt in (first, second):
            ask(engine, prompt)
    with serving(tmp_path) as engine:
        ask(engine, first)
        assert ask(engine, second, 1).usage.num_cached_tokens == 40
        ask(engine, first)
