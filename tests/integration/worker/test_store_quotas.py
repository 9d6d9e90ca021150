"""A quota of the pool holds in the block store too: other namespaces take no block there of one within its part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from byte_model import save_byte_model
from free_ports import free_port
from waiting import wait_until

from radixkv import PoolShape, connect
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Completed
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.service.quotas import Quota
from radixkv.stores.settings import StoreSettings
from radixkv.stores.store import BlockStore
from radixkv.worker.run import Worker, WorkerConfig, _Lease

NUM_BLOCKS, BLOCK_SIZE = 64, 8
OWN = [1 + number % 90 for number in range(12 * BLOCK_SIZE + 1)]


@pytest.fixture
def service() -> Iterator[ServiceThread]:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",), quotas=(Quota("red", percent=40),))) as service:
        yield service


@pytest.fixture
def start(service: ServiceThread, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts a worker with room for 60 blocks on disk, or in host memory."""
    model = save_byte_model(tmp_path / "model")
    with ExitStack() as stack:

        def start(level: str) -> Worker:
            config = WorkerConfig(
                model=model,
                listen=None,
                service=service.addresses[0],
                num_blocks=NUM_BLOCKS,
                block_size=BLOCK_SIZE,
                dtype="float32",
                device="cpu",
            )
            with Worker(config) as worker:
                block_bytes = worker.plan.block_bytes
            disk = (tmp_path / "blocks", 60 * (block_bytes + 1000)) if level == "disk" else None
            store = StoreSettings(disk, key_file=tmp_path / "key")
            host_bytes = 60 * block_bytes if level == "host" else None
            config = WorkerConfig(**{**vars_of(config), "store": store, "host_bytes": host_bytes})
            return stack.enter_context(Worker(config))

        yield start


def vars_of(config: WorkerConfig) -> dict[str, object]:
    return {
        name: getattr(config, name)
        for name in ("model", "listen", "service", "num_blocks", "block_size", "dtype", "device")
    }


def parts_of(store: BlockStore) -> set[bytes]:
    """Ids of the namespaces that have a part of every level."""
    trees = [store.host._tree] + ([store.disk._table.tree] if store.disk is not None else [])
    return set.intersection(*(set(tree._shares) for tree in trees))


def ask(worker: Worker, prompt: list[int], namespace: str) -> int:
    """Tokens of the prompt that were found."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    params = GenerateParams(token_ids=prompt, namespace=namespace, sampling=sampling)
    (completed,) = [event for event in worker.engine.generate(params) if isinstance(event, Completed)]
    return completed.usage.num_cached_tokens


def saved(worker: Worker) -> None:
    wait_until(lambda: not worker.engine.stats().engine.num_store_unsaved_blocks)


def flood(worker: Worker, first: int) -> None:
    for number in range(first, first + 20):
        ask(worker, [number * 97 % 89 + 1, number % 83 + 1, *[3 + number % 7] * 8 * BLOCK_SIZE], "blue")
        saved(worker)


@pytest.mark.parametrize("level", ["disk", "host"])
def test_a_quota_holds_in_the_store_as_it_is_now(
    start: Callable[..., Worker], service: ServiceThread, level: str
) -> None:
    worker = start(level)
    store = worker.engine._store
    assert store is not None
    with connect(service.addresses[0], pool_name="default") as reader:

        def left() -> int:
            """Whole blocks of the own prompt that are found in the store."""
            worker.engine.call(lambda holder: holder.evict(NUM_BLOCKS))
            return ask(worker, OWN, "red") // BLOCK_SIZE

        wait_until(lambda: store._parts.get("red"))
        assert store._parts == {"red": pytest.approx(25 / 64)}
        ask(worker, OWN, "red")
        saved(worker)
        flood(worker, 100)
        assert left() == 12
        reader.set_quota("red")
        wait_until(lambda: not store._parts)
        flood(worker, 200)
        flood(worker, 300)
        assert left() < 12
        reader.set_quota("blue", blocks=16)
        wait_until(lambda: store._parts == {"blue": 0.25})
        worker.engine.erase("blue")
        wait_until(lambda: store.keys.of("blue").id in parts_of(store))


def test_quotas_of_a_restarted_service_hold_in_the_store_at_once() -> None:
    address, parts = f"127.0.0.1:{free_port()}", list[object]()
    lease = _Lease(WorkerConfig(service=address), PoolShape(NUM_BLOCKS, BLOCK_SIZE))
    lease.share = parts.append
    for percent in (25, 50, None):
        quotas = () if percent is None else (Quota("red", percent=percent),)
        with ServiceThread(ServiceConfig(addresses=(address,), quotas=quotas)):
            if not parts:
                lease.attach()
            wait_until(lambda percent=percent: parts[-1:] == [{"red": percent / 100} if percent else {}])
            if percent is None:
                lease.close()
