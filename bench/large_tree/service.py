"""A service in a separate process and its holder, who fills its pool with branches and sends it a steady load."""

from __future__ import annotations

import random
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.tree.workload import random_tokens
from radixkv import AcquireOp, AcquireResult, InsertOp, PoolShape, ReleaseOp, connect
from radixkv.core.api import StepOp
from radixkv.core.tokens import TOKEN_BYTES

__all__ = ["BATCH", "BRANCH_TOKENS", "FULL", "PREFIX_TOKENS", "QUICK", "TIMEOUT_S", "Service", "Sizes"]

BLOCK_SIZE = 16
NUM_PREFIXES = 100
PREFIX_TOKENS, BRANCH_TOKENS = 1024, 100
BLOCKS_PER_PREFIX = PREFIX_TOKENS // BLOCK_SIZE
BLOCKS_PER_BRANCH = -(-BRANCH_TOKENS // BLOCK_SIZE)
BATCH = 8
FILL_BATCH, FILL_WINDOW = 64, 4
TIMEOUT_S = 120.0


class Sizes(NamedTuple):
    """Size of the tree, and number of Steps sent to each service."""

    num_branches: int
    num_steps: int


FULL = Sizes(100_000, 2_000)
QUICK = Sizes(1_000, 50)


class Service:
    """A service in a separate process and its one holder; its pool fits `num_branches`, cached if it `keeps` them."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        address: str,
        num_branches: int,
        seed: int,
        keeps: bool,
        num_spare_blocks: int = 0,
    ) -> None:
        self.address = address
        self.num_branches = num_branches
        self._process = process
        self._source = random.Random(seed)
        self._keeps = keeps
        self._prefixes = [random_tokens(self._source, PREFIX_TOKENS) for _ in range(NUM_PREFIXES if keeps else 1)]
        self._branches = [self._source.getrandbits(64) for _ in range(num_branches)]
        self._num_spare_blocks = num_spare_blocks
        num_blocks = NUM_PREFIXES * BLOCKS_PER_PREFIX + num_branches * BLOCKS_PER_BRANCH + num_spare_blocks
        self.holder = connect(address, PoolShape(num_blocks, BLOCK_SIZE), timeout_s=TIMEOUT_S, patience_s=TIMEOUT_S)
        self._running: deque[list[int]] = deque()
        self._next_id = 1

    @property
    def num_tokens(self) -> int:
        """Tokens held once it is filled."""
        return len(self._prefixes) * PREFIX_TOKENS + self.num_branches * BRANCH_TOKENS

    @property
    def rss_mib(self) -> float:
        """Resident memory of its process."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise OSError("no VmRSS in its status")

    def fill(self) -> float:
        """Publish the prefixes, and all branches if it keeps them. Returns the seconds taken."""
        start_s = time.monotonic()
        outstanding: deque[Any] = deque()
        num_kept = self.num_branches if self._keeps else 0
        num_histories = len(self._prefixes) + num_kept
        for first in range(0, num_histories, FILL_BATCH):
            ops: list[StepOp] = []
            for index in range(first, min(first + FILL_BATCH, num_histories)):
                number = index - len(self._prefixes)
                history = self.branch(number) if number >= 0 else self._prefixes[index]
                seq_id = self._new_id()
                num_tokens = len(history) // TOKEN_BYTES
                ops += [AcquireOp(history, seq_id=seq_id), InsertOp(seq_id, num_tokens, b""), ReleaseOp(seq_id)]
            outstanding.append(self.holder.submit(ops))
            if len(outstanding) > FILL_WINDOW:
                _require_good(outstanding.popleft().result(TIMEOUT_S))
        for future in outstanding:
            _require_good(future.result(TIMEOUT_S))
        elapsed_s = time.monotonic() - start_s
        stats = self.holder.stats()
        if (stats.num_free_blocks > self._num_spare_blocks) is self._keeps or stats.num_evicted_blocks:
            raise AssertionError(f"the pool is not just filled: {stats}")
        return elapsed_s

    def step(self) -> int:
        """Send one Step of steady load. Returns its round trip in nanoseconds."""
        prompts = [self._prompt(self._source.randrange(len(self._prefixes))) for _ in range(BATCH)]
        opened = [self._new_id() for _ in prompts]
        ops: list[StepOp] = [AcquireOp(prompt, seq_id=seq_id) for prompt, seq_id in zip(prompts, opened, strict=True)]
        if self._running:
            num_tokens = PREFIX_TOKENS + BRANCH_TOKENS
            ops = [InsertOp(seq_id, num_tokens, b"") for seq_id in self._running[-1]] + ops
        if len(self._running) > 1:
            ops = [ReleaseOp(seq_id, self._keeps) for seq_id in self._running.popleft()] + ops
        self._running.append(opened)
        start_ns = time.perf_counter_ns()
        results = self.holder.step(ops)
        elapsed_ns = time.perf_counter_ns() - start_ns
        _require_good(results)
        for result in results[-BATCH:]:
            if not isinstance(result, AcquireResult) or result.num_cached_tokens < PREFIX_TOKENS:
                raise AssertionError(f"a prompt whose prefix is cached was answered {result}")
        return elapsed_ns

    def branch(self, number: int) -> bytes:
        """One of the branches that fill it."""
        prefix = self._prefixes[number % len(self._prefixes)]
        return prefix + random_tokens(random.Random(self._branches[number]), BRANCH_TOKENS)

    def _prompt(self, number: int) -> bytes:
        return self._prefixes[number % len(self._prefixes)] + random_tokens(self._source, BRANCH_TOKENS)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def _require_good(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result
