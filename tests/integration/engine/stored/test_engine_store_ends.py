"""A block store at its worst moments: the worker stops, a level hangs, forgets or is erased while blocks are under way."""

from __future__ import annotations

import itertools
import math
import shutil
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from resp_servers import RedisServer, needs_redis
from stored_engine import BLOCK, ask, draw, open_store, serving
from waiting import wait_until

from radixkv import PrefixCache, pack_tokens
from radixkv.core.api import ClearOp
from radixkv.core.namespaces import derived_namespace
from radixkv.core.tree.journal import Dropped
from radixkv.stores import costs, saving
from radixkv.stores import store as stores
from radixkv.stores.costs import PrefillCost, PrefillMeter
from radixkv.stores.disk import DiskLevel
from radixkv.stores.disk.slots import SlotFile
from radixkv.stores.remote import RemoteLevel
from radixkv.stores.remote.erasure import Erasures
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.secrets.sealing import Sealer
from radixkv.stores.store import BlockStore, Row
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine


@pytest.fixture(autouse=True)
def slow_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model computes faster than a busy machine reads: a block is said to take two seconds."""
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(2 / BLOCK, 0.0))


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@needs_redis
def test_a_stopping_worker_puts_all_its_blocks_into_the_remote_level(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RemoteLevel.write_many

    def write_slowly(level: RemoteLevel, blocks: Sequence[Any], *rest: Any) -> int:
        time.sleep(0.3)
        return write(level, blocks, *rest)

    monkeypatch.setattr(RemoteLevel, "write_many", write_slowly)
    with serving(tmp_path, remote=redis_server.url, has_disk=False, num_rows=80, save_rate=1.0) as engine:
        ask(engine, draw(1, 200), 1)
    assert b":50\r\n" in redis_server.command("DBSIZE")


@needs_redis
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_the_remote_level_has_lost_is_put_again_once_it_is_computed_again(
    tmp_path: Path, redis_server: RedisServer, is_damaged: bool
) -> None:
    prompt = draw(2, 60)
    with serving(tmp_path, num_blocks=24, remote=redis_server.url, has_disk=False) as engine:

        def num_written() -> int:
            return int(engine.store.remote.stats().num_written)  # type: ignore[attr-defined]

        ask(engine, prompt, 1)
        ask(engine, draw(3, 90), 1)  # in its place
        wait_until(lambda: num_written() >= 15 + 22)
        if is_damaged:
            for key in redis_server.command("KEYS", "radixkv:*:*").split()[2::2]:
                redis_server.command("SETRANGE", key, "50", "damage")
        else:
            redis_server.command("FLUSHALL")
        ask(engine, prompt, 1)
        wait_until(lambda: num_written() >= 15 + 22 + 12)
        assert (engine.store.remote.stats().faults.get("seal", 0) > 0) == is_damaged  # type: ignore[attr-defined]


def test_reads_that_hang_hold_up_neither_requests_nor_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [draw(seed, 60) for seed in range(10, 14)]
    with serving(tmp_path) as engine:
        for prompt in prompts:
            ask(engine, prompt, 1)
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(0.001, 0.0))
    read, may_read = DiskLevel.read, threading.Event()

    def hang(*given: Any) -> bool:
        may_read.wait(600)
        return read(*given)

    monkeypatch.setattr(DiskLevel, "read", hang)
    runner = HashRunner(64, BLOCK)
    store = open_store(tmp_path, runner)
    try:
        with Engine(runner, PrefixCache(64, BLOCK), store=store) as engine:
            for number in range(60):
                assert ask(engine, prompts[number % 4], 1, namespace=None).usage.num_loaded_tokens == 0
                engine.call(lambda holder: holder.clear("default"))
            stored: Any = engine._loop.stored
            assert len(stored._loading) <= 40, "loads that never end pile up"
        begin_s = time.monotonic()
        closing = threading.Thread(target=store.close, kwargs={"timeout_s": 0.5}, daemon=True)
        closing.start()
        closing.join(300)
        assert not closing.is_alive(), f"closing hangs since {time.monotonic() - begin_s:.0f} s"
        assert not [each for each in threading.enumerate() if "store-read" in each.name and not each.daemon]
    finally:
        may_read.set()


def test_a_level_from_which_nothing_comes_in_time_is_not_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = draw(14, 60)
    with serving(tmp_path) as engine:
        ask(engine, prompt, 1)
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(0.002, 0.0))
    monkeypatch.setattr(costs, "FIRST_REST_S", 60.0)  # else this machine may be late enough for another probe
    monkeypatch.setattr(costs, "LOAD_AGE_S", 3600.0)
    read, num_reads, may_read = DiskLevel.read, itertools.count(), threading.Event()

    def read_late(*given: Any) -> bool:
        next(num_reads)
        may_read.wait(300)
        return read(*given)

    monkeypatch.setattr(DiskLevel, "read", read_late)
    with serving(tmp_path) as engine:
        stored: Any = engine._loop.stored
        for number in range(8):
            may_read.clear()
            ask(engine, prompt, 1)
            engine.call(lambda holder: holder.clear())
            time.sleep(0 if number else 0.5)
            may_read.set()
            wait_until(lambda: not stored._loading)
            engine.wake()
        assert stored._meters[False].cost().first_s >= 0.02
        assert next(num_reads) <= 2  # by two readers, when the first is late


def test_a_disk_that_nobody_has_read_for_a_while_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "LOAD_AGE_S", -1.0)
    prompts = [draw(seed, 60) for seed in (15, 16)]
    with serving(tmp_path) as engine:
        for prompt in prompts:
            ask(engine, prompt, 1)
    with serving(tmp_path) as engine:
        assert [ask(engine, prompt, 1).usage.num_loaded_tokens for prompt in prompts] == [59, 59]


@needs_redis
def test_a_remote_level_that_is_slower_than_computing_is_asked_for_one_block_a_minute(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [draw(seed, 60) for seed in range(20, 24)]
    with serving(tmp_path, remote=redis_server.url, has_disk=False) as engine:
        for prompt in prompts:
            ask(engine, prompt, 1)
    loads: list[int] = []
    load = BlockStore.load

    def note(store: BlockStore, names: Sequence[bytes], *given: Any, **more: Any) -> Any:
        loads.append(len(names))
        return load(store, names, *given, **more)

    monkeypatch.setattr(BlockStore, "load", note)
    with serving(tmp_path, remote=redis_server.url, has_disk=False) as engine:
        meter = engine._loop.stored._meters[True]  # type: ignore[union-attr]
        meter.loaded(20, 5.0, 100.0)
        monkeypatch.setattr(meter, "loaded", lambda *_times: None)  # or else it is seen to be quicker by now
        for prompt in prompts[:2]:
            ask(engine, prompt, 1)
        assert loads == []
        monkeypatch.setattr(meter, "_tried_s", -math.inf)
        for prompt in prompts[2:]:
            ask(engine, prompt, 1)
        assert loads == [1]


def test_saves_for_which_a_row_was_taken_meanwhile_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = BlockStore.take_rows

    def take_less(store: BlockStore, count: int) -> list[Row]:
        return take(store, max(1, count - 1))  # a load was quicker

    monkeypatch.setattr(BlockStore, "take_rows", take_less)
    with serving(tmp_path) as engine:
        ask(engine, draw(4, 80), 1)
    with serving(tmp_path) as engine:
        assert engine.store.disk.stats().num_blocks == 20  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", ["seal", "open_into"])
def test_want_of_memory_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    real, num_calls = getattr(Sealer, call), itertools.count()

    def fail_now_and_then(*given: Any) -> Any:
        if next(num_calls) % 3 == 1:
            raise MemoryError
        return real(*given)

    with serving(tmp_path) as engine:
        ask(engine, draw(7, 60), 1)
    monkeypatch.setattr(Sealer, call, fail_now_and_then)
    with serving(tmp_path) as engine:  # at whose end all rows are there
        for seed in (7, 8):
            ask(engine, draw(seed, 60), 1)
    assert next(num_calls) > 3


def test_want_of_memory_ends_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise MemoryError

    prompt = draw(7, 60)
    with monkeypatch.context() as patch, serving(tmp_path) as engine:
        patch.setattr(saving, "bytearray", fail, raising=False)
        ask(engine, prompt, 1)
        wait_until(lambda: engine.store.disk.stats().num_written == 15)  # type: ignore[attr-defined]


def test_what_was_erased_while_a_worker_was_away_is_deleted_at_its_start(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        for namespace in ("one", "two"):
            ask(engine, draw(15, 40), 1, namespace=namespace)
    StoreKeys(tmp_path / "store.key").erase("one")
    with serving(tmp_path) as engine:
        assert engine.store.disk.stats().num_blocks == 10  # type: ignore[attr-defined]


def test_a_cleared_salt_is_not_saved_afterwards(tmp_path: Path) -> None:
    prompt = draw(6, 40)
    with serving(tmp_path, save_rate=1.0) as engine:
        ask(engine, prompt, 1, namespace="team")
        ask(engine, prompt, 1, namespace="team", cache_salt="salt")
        engine.noted([ClearOp(derived_namespace("team", salt="salt"))])
    with serving(tmp_path) as engine:
        assert ask(engine, prompt, 1, namespace="team", cache_salt="salt").usage.num_cached_tokens == 0
        assert ask(engine, prompt, 1, namespace="team").usage.num_cached_tokens == 39


def hold(monkeypatch: pytest.MonkeyPatch, owner: type, call: str) -> threading.Event:
    """A call waits until the event is set."""
    real, may_go = getattr(owner, call), threading.Event()

    def wait(*given: Any, **more: Any) -> Any:
        may_go.wait(600)
        return real(*given, **more)

    monkeypatch.setattr(owner, call, wait)
    return may_go


def test_a_write_that_hangs_holds_up_the_end_for_seconds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_STALL_S", 1.0)
    runner = HashRunner(64, BLOCK)
    store = open_store(tmp_path, runner)
    may_go = hold(monkeypatch, SlotFile, "sync")
    try:
        with Engine(runner, PrefixCache(64, BLOCK), store=store) as engine:
            ask(engine, draw(16, 200), 1)
            begin_s = time.monotonic()
        assert time.monotonic() - begin_s < 300
        closing = threading.Thread(target=store.close, args=(1.0,), daemon=True)
        closing.start()
        closing.join(300)
        assert not closing.is_alive(), f"closing hangs since {time.monotonic() - begin_s:.0f} s"
    finally:
        may_go.set()


def test_a_dropped_branch_that_is_being_saved_is_dropped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = draw(17, 40)
    may_go = hold(monkeypatch, SlotFile, "write")
    with serving(tmp_path) as engine:
        store: BlockStore = engine.store  # type: ignore[attr-defined]
        ask(engine, prompt, 1)
        wait_until(lambda: store.num_in_flight == 10)
        engine.noted([Dropped(pack_tokens(prompt[:1]), "default", array("i"))])
        engine.call(lambda holder: holder.stats())
        may_go.set()
    with serving(tmp_path) as engine:
        assert ask(engine, prompt, 1).usage.num_cached_tokens == 0


def test_many_clearings_of_a_namespace_are_one_erasure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    erase, erased = StoreKeys.erase, list[str]()

    def count(keys: StoreKeys, namespace: str) -> Any:
        erased.append(namespace)
        return erase(keys, namespace)

    monkeypatch.setattr(StoreKeys, "erase", count)
    with serving(tmp_path) as engine:
        store: BlockStore = engine.store  # type: ignore[attr-defined]
        may_go = threading.Event()
        store._chores.submit(may_go.wait)
        for namespace in ("one", "two") * 50:
            engine.noted([ClearOp(namespace)])
        assert store.is_clearing("one")
        may_go.set()
        wait_until(lambda: not store.is_clearing("one") and not store.is_clearing("two"))
        assert erased == ["one", "two"]
        engine.noted([ClearOp("one")])
        wait_until(lambda: not store.is_clearing("one"))
        assert erased == ["one", "two"], "nothing was stored in it since"


@needs_redis
def test_a_worker_that_was_away_erases_before_it_serves(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, keys = draw(18, 40), []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    StoreKeys(tmp_path / "a" / "store.key")
    shutil.copy(tmp_path / "a" / "store.key", tmp_path / "b" / "store.key")
    with serving(tmp_path / "b", remote=redis_server.url) as engine:
        ask(engine, prompt, 1)
        keys.append(engine.store.keys.of("default"))  # type: ignore[attr-defined]
    with serving(tmp_path / "a", remote=redis_server.url) as engine:
        assert ("remote", True) in [tuple(level) for level in engine.erase()]
    refresh = Erasures.refresh

    def refresh_late(erasures: Erasures, is_first: bool) -> None:
        time.sleep(0.5)
        refresh(erasures, is_first)

    monkeypatch.setattr(Erasures, "refresh", refresh_late)
    with serving(tmp_path / "b", remote=redis_server.url) as engine:
        assert engine.store.keys.of("default") not in keys  # type: ignore[attr-defined]
        assert ask(engine, prompt, 1).usage.num_cached_tokens == 0


@needs_redis
def test_a_worker_waits_for_a_remote_level_that_is_away_for_a_bounded_time(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stores, "_FIRST_ERASURES_S", 0.5)
    prompt = draw(19, 40)
    with serving(tmp_path) as engine:
        ask(engine, prompt, 1)
    redis_server.stop()
    with serving(tmp_path, remote=redis_server.url) as engine:
        assert ask(engine, prompt, 1).usage.num_cached_tokens == 39
    assert "erasures since the last start are unknown" in caplog.text
