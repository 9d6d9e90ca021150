"""Rounds driven by hand over a hash model: deterministic, without a thread."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from radixkv import PrefixCache, pack_tokens
from radixkv.core.api import Notice, StepOp, StepResult
from radixkv.core.errors import StaleIncarnationError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import PrefixPin
from radixkv.generation.stream import BranchFinished, Delta, StreamItem
from radixkv.testing.hash_model import EOS, VOCAB_SIZE, HashRunner
from radixkv.worker.engine.loop import EngineLoop, Origin
from radixkv.worker.generations.beam_search import generation_type
from radixkv.worker.generations.generation import Generation, Terms
from radixkv.worker.generations.reply import ReplyRules
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.scheduling.scheduler import Scheduler

__all__ = ["Desk", "LateCache", "advance", "greedy", "take"]


class LateCache(PrefixCache):
    """Applies a Step when it is submitted; answers it, and tells what it brought about, when told to.

    After `lose`, every answer is an error.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.waiting: deque[tuple[Future[list[StepResult]], list[StepResult], list[Notice]]] = deque()
        self.told: list[Notice] = []
        self.is_lost = False

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        if self.is_lost:
            raise StaleIncarnationError("that incarnation has ended")
        future: Future[list[StepResult]] = Future()
        self.waiting.append((future, self.step(ops), super().take_notices()))
        return future

    def take_notices(self) -> list[Notice]:
        told, self.told = self.told, []
        return told

    def answer(self) -> bool:
        """Complete the oldest answer, if there is one."""
        if self.waiting:
            future, results, notices = self.waiting.popleft()
            future.set_result(results)
            self.told += notices
            return True
        return False

    def lose(self) -> None:
        self.is_lost = True
        while self.waiting:
            self.waiting.popleft()[0].set_exception(StaleIncarnationError("that incarnation has ended"))


class Desk:
    """An `EngineLoop` over a hash model, and the requests put to it."""

    def __init__(self, cache: PrefixCache, runner: HashRunner, limits: SchedulerLimits, **options: Any) -> None:
        self.runner = runner
        self.max_wait_s = limits.max_wait_s
        self._clock = options.get("clock", lambda: 0.0)
        arena = options.get("arena")
        self.scheduler = Scheduler(
            runner.pool.block_size,
            limits,
            clock=lambda: 0.0,
            has_lines=arena is not None,
            windows=runner.pool.windows,
        )
        self.loop = EngineLoop(
            runner,
            cache,
            self.scheduler,
            reattach=options.get("reattach"),
            clock=self._clock,
            wake=lambda: None,
            num_remembered=16,
            overlaps=options.get("overlaps", False),
            arena=arena,
            speculation=options.get("speculation"),
            sources=options.get("sources"),
        )
        self.generations: list[Generation] = []

    def put(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        origin: Origin | None = None,
        *,
        namespace: str = "default",
        pins: tuple[PrefixPin, ...] = (),
        priority: int = 0,
        **rules: Any,
    ) -> Generation:
        """`rules`: further ones of `ReplyRules`."""
        items: SimpleQueue[StreamItem] = SimpleQueue()
        number = len(self.generations)
        generation = generation_type(sampling)(
            str(number),
            prompt=pack_tokens(prompt),
            arrival=number,
            namespace=namespace,
            rules=ReplyRules(
                sampling,
                vocab_size=VOCAB_SIZE,
                stop_token_ids={*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS,))},
                **rules,
            ),
            items=items,
            submitted_s=self._clock(),
            terms=Terms(priority, self.max_wait_s, pins=pins),
        )
        self.generations.append(generation)
        self.loop.add(generation, len(prompt) + sampling.max_tokens, origin)
        return generation


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, n=n, ignore_eos=True)


def take(generation: Generation) -> dict[int, list[int]]:
    """The tokens of an ended stream by branch; raises what ended it."""
    tokens: dict[int, list[int]] = {branch: [] for branch in range(generation.sampling.n)}
    while (item := generation.items.get(timeout=300)) is not None:
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Delta):
            tokens[item.branch] += item.token_ids
        else:
            assert isinstance(item, BranchFinished) or item.usage.num_generated_tokens
    return tokens


def advance(desk: Desk, cache: Callable[[], LateCache], rng: random.Random) -> None:
    """A round; then perhaps an answer, and for certain one where the engine would sleep until a message comes."""
    if not desk.loop.run():
        assert cache().answer() or not desk.loop.generations, "it sleeps and nothing will wake it"
    elif rng.random() < 0.4 or len(cache().waiting) > 2:
        cache().answer()
