"""An engine of the hash model over a block store in a folder, so that what one leaves the next one finds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from answers import Answers, collect
from waiting import wait_until

from radixkv import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.stores.disk import DiskLevel
from radixkv.stores.host import HostLevel, Row
from radixkv.stores.remote import RemoteLevel
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.secrets.sealing import SEAL_BYTES
from radixkv.stores.store import BlockStore
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import SpeculationSettings
from radixkv.worker.speculation.sources import DraftSource

__all__ = ["BLOCK", "LIMITS", "ask", "draw", "open_store", "serving"]

BLOCK = 4
LIMITS = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16)


def open_store(
    folder: Path,
    runner: HashRunner,
    *,
    num_rows: int = 24,
    num_kept: int = 0,
    size_bytes: int = 1 << 20,
    fingerprint: bytes = b"model of 16 byte",
    save_rate: float = 1e9,
    remote: str | None = None,
    has_disk: bool = True,
) -> BlockStore:
    """A store for a runner: a key file and a disk level in the folder, and a remote level at a URL. `num_rows`: for blocks on
    their way.
    """
    sealed_bytes = 8 * runner.pool.block_size + SEAL_BYTES
    disk = DiskLevel(folder / "blocks", size_bytes, fingerprint, sealed_bytes) if has_disk else None
    far = RemoteLevel(remote, fingerprint, sealed_bytes, folder / "store.key.pending") if remote else None
    host = HostLevel([Row(slot, runner.pool.host_row(slot)) for slot in range(num_rows + num_kept)], num_kept)
    keys = StoreKeys(folder / "store.key")
    return BlockStore(keys, fingerprint, host, adapters={}, disk=disk, remote=far, save_rate=save_rate)


@contextmanager
def serving(
    folder: Path,
    num_blocks: int = 64,
    limits: SchedulerLimits = LIMITS,
    *,
    is_killed: bool = False,
    source: DraftSource | None = None,
    readers_copy: bool = True,
    **store: Any,
) -> Iterator[Engine]:
    """An engine over a store in a folder; at the end all rows are free again. `is_killed`: it saves nothing at its end.

    With a `source` all that it drafts is run. `readers_copy`: what is loaded goes into the pool on a reader's thread.
    """
    runner = HashRunner(num_blocks, BLOCK)
    runner.pool.copies_at_once = readers_copy
    opened = open_store(folder, runner, **store)
    num_rows = opened.num_free_rows
    try:
        drafts: dict[str, Any] = (
            {"speculation": SpeculationSettings(always=True), "sources": [source]} if source else {}
        )
        with Engine(runner, PrefixCache(num_blocks, BLOCK), limits=limits, store=opened, **drafts) as engine:
            engine.runner = runner  # type: ignore[attr-defined]  # for the tests
            engine.store = opened  # type: ignore[attr-defined]
            yield engine
            if is_killed:
                engine._loop.stored._unsaved.clear()  # type: ignore[union-attr]
        assert opened.flush(300)
        wait_until(lambda: opened.num_free_rows == num_rows)  # readers give back those of a load that was cancelled
        opened.host.check()
    finally:
        opened.close()


def ask(engine: Engine, prompt: list[int], max_tokens: int = 6, **options: Any) -> Answers:
    """The reply to a prompt, which is the model's."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    answers = collect(engine.generate(GenerateParams(token_ids=prompt, sampling=sampling, **options)))
    assert answers.branches[0].tokens == generate(prompt, max_tokens)
    return answers


def draw(seed: int, length: int) -> list[int]:
    """A prompt at random."""
    rng = random.Random(seed)
    return [rng.randrange(1, 40) for _ in range(length)]
