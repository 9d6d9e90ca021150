"""A worker's disk level as its cache service knows it: by hints, which `match` and its siblings show to a router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from stored_engine import BLOCK, LIMITS, ask, draw, open_store, serving
from waiting import wait_until

from radixkv import MatchResult, PoolShape, connect, pack_tokens
from radixkv.client import RemoteReader
from radixkv.core.namespaces import derived_namespace
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.stores.costs import PrefillCost, PrefillMeter
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine

NUM_BLOCKS = 64


@pytest.fixture(autouse=True)
def slow_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model computes faster than a busy machine reads: a block is said to take two seconds."""
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(2 / BLOCK, 0.0))


def match(engine: Engine, prompt: list[int], namespace: str = "default") -> MatchResult:
    return engine.call(lambda holder: holder.match(prompt, namespace=namespace))


def hinted(engine: Engine) -> dict[str, int]:
    """Blocks on disk of each owner, as the cache knows it."""
    return {
        use.namespace: use.num_disk_blocks for use in engine.call(lambda holder: holder.usage()) if use.num_disk_blocks
    }


def is_told(engine: Any) -> bool:
    """Whether the cache knows as many blocks as are stored."""
    num_stored = engine.store.disk.stats().num_blocks
    return (
        num_stored > 0
        and sum(hinted(engine).values()) == num_stored
        and not engine.stats().engine.num_store_unsaved_blocks
    )


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_worker_that_comes_back_tells_what_lies_on_its_disk(tmp_path: Path, is_killed: bool) -> None:
    prompts = {("default", ""): draw(1, 50), ("tenant", ""): draw(2, 30), ("tenant", "salt"): draw(3, 40)}
    with serving(tmp_path) as engine:
        for (namespace, salt), prompt in prompts.items():
            ask(engine, prompt, namespace=namespace, cache_salt=salt)
        wait_until(lambda: is_told(engine))
        assert hinted(engine).keys() == {"default", "tenant"}
        if is_killed:
            disk = engine.store.disk  # type: ignore[attr-defined]
            disk.close = lambda: (disk._table.index.close(), disk._folder.unlock())  # commits nothing
    with serving(tmp_path) as engine:
        wait_until(lambda: is_told(engine))
        for (owner, salt), prompt in prompts.items():
            for other, other_salt in prompts:
                namespace, is_own = derived_namespace(other, salt=other_salt), (owner, salt) == (other, other_salt)
                assert match(engine, prompt, namespace) == (0, 0, 0, len(prompt) // BLOCK * BLOCK * is_own)
        assert match(engine, draw(1, 50)[:11]) == (0, 0, 0, 8), "whole blocks only"
        assert ask(engine, draw(2, 30), namespace="tenant").usage.num_loaded_tokens == 28
        assert match(engine, draw(2, 30), "tenant") == (30, 30, 0, 0)


def test_a_worker_without_a_disk_tells_what_lies_in_its_host_memory(tmp_path: Path) -> None:
    prompt, other = draw(6, 50), draw(7, 30)

    def in_host(namespace: str = "default") -> int:
        return match(engine, prompt, namespace).num_host_tokens

    with serving(tmp_path, has_disk=False, num_kept=20) as engine:
        ask(engine, prompt)
        wait_until(lambda: not engine.stats().engine.num_store_unsaved_blocks)
        engine.call(lambda holder: holder.evict(NUM_BLOCKS))
        wait_until(lambda: in_host() == 48)
        assert in_host("tenant") == 0
        assert ask(engine, prompt).usage.num_loaded_tokens == 48
        engine.call(lambda holder: holder.evict(NUM_BLOCKS))
        for _ in range(3):
            ask(engine, other)
            ask(engine, draw(8, 50))
            engine.call(lambda holder: holder.evict(NUM_BLOCKS))
        wait_until(lambda: in_host() == 0)  # others have taken its place
        wait_until(lambda: match(engine, draw(8, 50)).num_host_tokens == 48)
        engine.call(lambda holder: holder.clear())
        wait_until(lambda: match(engine, draw(8, 50)).num_host_tokens == 0)


def test_nothing_on_disk_shows_which_prompt_it_is(tmp_path: Path) -> None:
    prompt = draw(3, 40)
    with serving(tmp_path) as engine:
        ask(engine, prompt, namespace="secret tenant")
        wait_until(lambda: is_told(engine))
    hashes = chained_hashes(namespace_hash("secret tenant"), pack_tokens(prompt), 4 * BLOCK)
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"secret tenant" not in content
    assert not any(each.to_bytes(8, order) in content for each in hashes for order in ("little", "big"))


@pytest.mark.parametrize("way", ["erase", "clear"])
def test_what_is_erased_is_not_told_any_more_and_leaves_no_name(tmp_path: Path, way: str) -> None:
    prompt = draw(4, 40)
    with serving(tmp_path) as engine:
        ask(engine, prompt, namespace="gone")
        ask(engine, prompt, namespace="kept")
        wait_until(lambda: is_told(engine))
        wait_until(lambda: len(engine.store.disk.labels()) == 2)  # type: ignore[attr-defined]
        engine.call(lambda holder: holder.evict(NUM_BLOCKS))
        assert match(engine, prompt, "gone").num_disk_tokens == 40
        if way == "clear":
            engine.call(lambda holder: holder.clear("gone"))
            assert match(engine, prompt, "gone") == (0, 0, 0, 0)
        engine.erase("gone")
        wait_until(lambda: hinted(engine).keys() == {"kept"})
        wait_until(lambda: len(engine.store.disk.labels()) == 1)  # type: ignore[attr-defined]
        ask(engine, prompt, namespace="gone")
        wait_until(lambda: hinted(engine).keys() == {"gone", "kept"})
        wait_until(lambda: is_told(engine))
    with serving(tmp_path) as engine:
        wait_until(lambda: hinted(engine).keys() == {"gone", "kept"})


def test_a_block_that_the_disk_evicts_or_that_does_not_open_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path, size_bytes=40_000) as engine:
        for seed in range(20, 40):
            ask(engine, draw(seed, 20))
            assert engine.store.flush(10)  # type: ignore[attr-defined]
        disk = engine.store.disk  # type: ignore[attr-defined]
        wait_until(lambda: disk.stats().num_evicted > 0 and is_told(engine))
        disk.forget(next(iter(disk._table.tree.entries)))
        wait_until(lambda: is_told(engine))


def test_an_imported_block_is_told(tmp_path: Path) -> None:
    prompt = draw(5, 41)
    with serving(tmp_path / "a") as engine:
        ask(engine, prompt)
        file = b"".join(engine.export(prompt))
    with serving(tmp_path / "b") as engine:
        engine.import_(file, "tenant")
        wait_until(lambda: match(engine, prompt, "tenant") == (0, 0, 0, 40))


# -- over gRPC


@contextmanager
def attached(folder: Path, stack: ExitStack, address: str) -> Iterator[Engine]:
    """A worker of a service, over a store in a folder."""
    runner = HashRunner(NUM_BLOCKS, BLOCK)
    store = open_store(folder, runner)
    stack.callback(store.close)

    def attach() -> Any:
        return stack.enter_context(connect(address, PoolShape(NUM_BLOCKS, BLOCK), wait_s=300, patience_s=300))

    with Engine(runner, attach(), limits=LIMITS, store=store, reattach=attach) as engine:
        engine.store = store  # type: ignore[attr-defined]
        yield engine


def test_a_restarted_service_and_a_new_life_of_the_pool_are_told_again(tmp_path: Path) -> None:
    config, prompt = ServiceConfig(addresses=(f"unix:{tmp_path}/s",)), draw(6, 50)
    service = ServiceThread(config).start()
    with ExitStack() as stack, attached(tmp_path, stack, config.addresses[0]) as engine:
        ask(engine, prompt)
        wait_until(lambda: is_told(engine))
        service.stop()
        with ServiceThread(config):
            wait_until(lambda: is_told(engine))
            engine.call(lambda holder: holder.evict(NUM_BLOCKS))
            router = stack.enter_context(RemoteReader(config.addresses[0]))
            assert router.match_all(prompt) == {"default": (0, 0, 0, 48)}
            engine.call(lambda holder: holder.close())  # type: ignore[attr-defined]  # the lease ends
            ask(engine, draw(7, 20))
            wait_until(lambda: is_told(engine))
            assert router.match_all(prompt) == {"default": (0, 0, 0, 48)}
