"""Blocks that readers copy into the pool themselves, while the branch that waits for them may lose its sequence."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from answers import collect
from stored_engine import BLOCK, ask, draw, serving
from waiting import wait_until

from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.stores.costs import PrefillCost, PrefillMeter
from radixkv.stores.disk import DiskLevel
from radixkv.testing.hash_model import HashPool, generate
from radixkv.worker.engine.engine import Engine

PROMPT = draw(60, 30)
SAMPLING = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
READER = "radixkv-store-read"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One in which the prompt's blocks are stored."""
    with serving(tmp_path) as engine:
        ask(engine, PROMPT)
    return tmp_path


@pytest.fixture(autouse=True)
def copied_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Threads that have copied blocks into the pool; a block is said to take two seconds of computing."""
    load, threads = HashPool.load, list[str]()

    def noted(pool: HashPool, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        threads.extend(threading.current_thread().name for _ in block_ids)
        load(pool, slots, block_ids)

    monkeypatch.setattr(HashPool, "load", noted)
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(2 / BLOCK, 0.0))
    return threads


class HeldReads:
    """Reads of the disk level, of which the first `count` wait until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.go = threading.Event()
        self.numbers = itertools.count()
        self.num_begun = 0
        read = DiskLevel.read

        def held(level: DiskLevel, *arguments: Any) -> bool:
            self.num_begun += 1
            if next(self.numbers) < count:
                self.go.wait(300)
            return read(level, *arguments)

        monkeypatch.setattr(DiskLevel, "read", held)


def begin_again(engine: Engine) -> None:
    """What a preemption does to all running branches. On the engine's thread."""
    scheduler: Any = engine._loop._scheduler
    scheduler.restart(list(scheduler._running_set))


@pytest.mark.parametrize("readers_copy", [True, False])
def test_a_load_is_copied_by_its_readers_where_the_pool_allows(
    folder: Path, copied_by: list[str], readers_copy: bool
) -> None:
    with serving(folder, readers_copy=readers_copy) as engine:
        assert ask(engine, PROMPT).usage.num_loaded_tokens == 28
    assert len(copied_by) == 7
    assert all(name.startswith(READER) == readers_copy for name in copied_by)


def test_a_branch_that_begins_again_does_not_wait_for_what_it_no_longer_wants(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch, 1)
    with serving(folder) as engine, engine.generate(GenerateParams(token_ids=PROMPT, sampling=SAMPLING)) as stream:
        wait_until(lambda: reads.num_begun)
        engine.call(lambda _holder: begin_again(engine))
        try:
            wait_until(lambda: not engine.stats().engine.num_running_branches, 60)
        finally:
            reads.go.set()
        assert collect(stream).branches[0].tokens == generate(PROMPT, 6)


def end_before_the_step(engine: Engine, after: Callable[[], None]) -> None:
    """The branch is preempted as a Step is planned; `after` is called when it is submitted, with the release."""
    loop: Any = engine._loop
    plan_step, submit = loop._scheduler.plan_step, loop._submit

    def plan() -> Any:
        loop._scheduler.plan_step = plan_step
        begin_again(engine)
        return plan_step()

    def submitted(ops: Any) -> None:
        loop._submit = submit
        submit(ops)
        after()

    loop._submit = submitted
    loop._scheduler.plan_step = plan


def end_by_time(engine: Engine, after: Callable[[], None]) -> None:
    """The branch has waited for too long, and computes; `after` is called after the first forward."""
    loop: Any = engine._loop
    runner: Any = engine.runner  # type: ignore[attr-defined]
    forward = runner.forward

    def computed(*given: Any) -> Any:
        runner.forward = forward
        logits = forward(*given)
        after()
        return logits

    runner.forward = computed
    [one] = loop.stored._loading
    loop.stored._loading[:] = [one._replace(idle_s=0.0)]


@pytest.mark.parametrize("end", [end_before_the_step, end_by_time])
def test_a_reader_copies_nothing_for_a_branch_that_no_longer_waits(
    folder: Path,
    copied_by: list[str],
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Engine, Callable[[], None]], None],
) -> None:
    reads = HeldReads(monkeypatch, 1)
    with serving(folder) as engine, engine.generate(GenerateParams(token_ids=PROMPT, sampling=SAMPLING)) as stream:
        wait_until(lambda: reads.num_begun)
        stored: Any = engine._loop.stored
        [one] = stored._loading
        copied: list[str] = []

        def read_on() -> None:
            reads.go.set()
            wait_until(lambda: one.load.is_over)
            copied.extend(name for name in copied_by if name.startswith(READER))

        end(engine, read_on)
        engine.wake()
        assert collect(stream).branches[0].tokens == generate(PROMPT, 6)
    assert reads.go.is_set()
    assert not copied
