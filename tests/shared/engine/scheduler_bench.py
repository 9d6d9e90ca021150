"""A scheduler over a real `PrefixCache`, without a model; every position run counts as sampled next."""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace
from typing import Any, cast

from radixkv import PrefixCache
from radixkv.core.api import Retention, StepOp
from radixkv.core.tokens import pack_tokens
from radixkv.worker.generations.branch import Branch
from radixkv.worker.generations.generation import Terms
from radixkv.worker.generations.pins import Pinning
from radixkv.worker.scheduling.batch import Row
from radixkv.worker.scheduling.length_estimate import OutputLengthEstimator
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.scheduling.scheduler import Scheduler

__all__ = ["BLOCK_SIZE", "Bench", "make_branch", "no_growth", "op_kinds"]

BLOCK_SIZE = 4


def no_growth() -> OutputLengthEstimator:
    """Reserves nothing, so that branches run into each other."""
    return OutputLengthEstimator(0.0, 0.0)


def make_branch(
    arrival: int,
    prompt: list[int],
    num_new: int,
    index: int = 0,
    *,
    priority: int = 0,
    due_s: float = math.inf,
    shares_prefix: bool = True,
    retention: tuple[Retention, ...] = (),
    namespace: str = "default",
    num_to_come: int = 0,
) -> Branch:
    generation = SimpleNamespace(
        num_unscored=0,
        pinning=Pinning(),
        arrival=arrival,
        namespace=namespace,
        num_to_come=num_to_come,
        prompt=pack_tokens(prompt),
        terms=Terms(priority, due_s, shares_prefix=shares_prefix, retention=retention),
    )
    return Branch(cast(Any, generation), index, array("I", prompt), len(prompt) + num_new)


class Bench:
    """A scheduler and a cache; `round` does what an engine does and returns the rows that ran."""

    def __init__(self, num_blocks: int, *, growth: OutputLengthEstimator | None = None, **limits: Any) -> None:
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE)
        self.now_s = 0.0
        self.scheduler = Scheduler(BLOCK_SIZE, SchedulerLimits(**limits), clock=lambda: self.now_s, growth=growth)
        self.finished: list[Branch] = []

    def say(self) -> list[StepOp]:
        ops = self.scheduler.plan_step()
        if ops:
            assert self.scheduler.apply(self.cache.step(ops)).failures == []
        self.scheduler.noticed(self.cache.take_notices())
        return ops

    def run(self) -> list[Row]:
        rows = self.scheduler.plan_batch()
        ends = [row.branch for row in rows if row.wants_logits]
        self.scheduler.ran(rows)
        for branch in ends:
            branch.tokens.append(1000 + len(branch.tokens))
            if len(branch.tokens) == branch.max_length:
                self.scheduler.finish(branch)
                self.finished.append(branch)
        return rows

    def round(self) -> list[Row]:
        self.say()
        return self.run()


def op_kinds(ops: list[StepOp]) -> list[type]:
    return [type(op) for op in ops]
