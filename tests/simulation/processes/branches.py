"""What a simulated worker is asked for, and the branches that it generates for it.

QUEUED ──acquire──> ASKED ──> RUNNING ──release──> LEAVING ──> DONE, or QUEUED again if it was preempted
   ▲                 │ Pending
   └────notice── WAITING
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..clock import ViolationError
from ..model import POISON, continue_history, kv_after, next_token, seed_of
from ..network import End

__all__ = ["Branch", "Job", "Memory", "Request", "State"]


@dataclass(frozen=True)
class Request:
    """What a client wants: `num_tokens` after the prompt, and drafts that go on otherwise after `fork_at` tokens.

    A draft is the history up to there, one token of its own, and what follows that, to the same length. One that does not share
    has KV like nobody else's: whoever read it, or whatever it read of others, would answer otherwise.
    """

    number: int
    namespace: str
    prompt: tuple[int, ...]
    num_tokens: int
    fork_at: int = 0
    draft_tokens: tuple[int, ...] = ()
    shares: bool = True

    @property
    def domain(self) -> str:
        """Whose KV it is."""
        return self.namespace if self.shares else f"{self.namespace}, request {self.number} alone"

    @property
    def length(self) -> int:
        """Of the whole history, and of that of each draft."""
        return len(self.prompt) + self.num_tokens

    def expected(self) -> list[tuple[int, ...]]:
        """The histories to be answered, by the definition of the model."""
        prompt = list(self.prompt)
        histories = [prompt + continue_history(self.domain, prompt, self.num_tokens)]
        for token in self.draft_tokens:
            draft = [*histories[0][: self.fork_at], token]
            histories.append(draft + continue_history(self.domain, draft, self.length - len(draft)))
        return [tuple(history) for history in histories]


class State(Enum):
    """Where a branch is; see the picture above."""

    QUEUED = "queued"
    ASKED = "asked"
    WAITING = "waiting"
    RUNNING = "running"
    LEAVING = "leaving"
    DONE = "done"


@dataclass(eq=False)
class Branch:
    """One history that grows, the request's own (`number` 0) or one of its drafts.

    `kv`: what its positions must hold, from the definition. `num_reported`: tokens that the cache was told of. Positions in
    [num_stored, room) are the worker's to write; `num_asked`: the room that it has asked for. `is_cleared`: its namespace was
    cleared since it was opened; others are to read nothing of it.
    """

    request: Request
    number: int
    tokens: list[int]
    state: State = State.QUEUED
    seq_id: int = 0
    kv: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    num_reported: int = 0
    num_stored: int = 0
    num_computed: int = 0
    room: int = 0
    num_asked: int = 0
    is_cleared: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first."""
        return self.request.number, self.number

    @property
    def is_complete(self) -> bool:
        return len(self.tokens) >= self.request.length

    def expected_kv(self) -> list[int]:
        """The KV of all its tokens by definition. O(new tokens)."""
        kv = self.kv
        while len(kv) < len(self.tokens):
            kv.append(kv_after(kv[-1] if kv else seed_of(self.request.domain), self.tokens[len(kv)]))
        return kv

    def forget_place(self) -> None:
        """It has no sequence any more: all is to be computed again."""
        self.table = []
        self.num_reported = self.num_stored = self.num_computed = self.room = self.num_asked = self.seq_id = 0
        self.is_cleared = False


@dataclass(eq=False)
class Job:
    """A request at a worker: its branches, the first one the request's own, and the end that takes its answer."""

    request: Request
    branches: list[Branch]
    end: End
    is_forked: bool = False
    is_forking: bool = False
    is_cancelled: bool = False

    @property
    def is_over(self) -> bool:
        return all(branch.state is State.DONE for branch in self.branches)


class Memory:
    """The slots of a pool, written and read through block tables.

    `domains`: whose KV each slot holds; `cleared`: slots whose namespace was cleared since; `num_reads`: positions read so far.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = [POISON] * (num_blocks * block_size)
        self.domains = [""] * len(self.slots)
        self.cleared: set[int] = set()
        self.num_reads = 0

    def copied(self) -> Memory:
        """Another one that holds the same."""
        memory = Memory(0, self.block_size)
        memory.slots, memory.domains, memory.cleared = list(self.slots), list(self.domains), set(self.cleared)
        return memory

    def copy(self, src: int, dst: int, num_tokens: int) -> None:
        """Carry out a block op."""
        size = self.block_size
        for offset in range(num_tokens):
            slot = src * size + offset
            self._write(dst * size + offset, self.slots[slot], self.domains[slot], is_cleared=slot in self.cleared)

    def _write(self, slot: int, kv: int, domain: str, *, is_cleared: bool) -> None:
        self.slots[slot], self.domains[slot] = kv, domain
        (self.cleared.add if is_cleared else self.cleared.discard)(slot)

    def read(self, branch: Branch, end: int) -> list[int]:
        """What a kernel reads of positions below `end`; it must be right."""
        size, slots, table = self.block_size, self.slots, branch.table
        found = [slots[table[position // size] * size + position % size] for position in range(end)]
        self.num_reads += end
        expected = branch.expected_kv()[:end]
        if found != expected:
            self._tell(branch.request.domain, branch.tokens, table, found, expected)
        return found

    def compute(self, branch: Branch, end: int) -> None:
        """Run the model over positions up to `end`: read what is before them, write what is not stored."""
        size, slots, table, domain = self.block_size, self.slots, branch.table, branch.request.domain
        self.read(branch, branch.num_computed)
        for position in range(max(branch.num_computed, branch.num_stored), end):
            last = position - 1
            before = slots[table[last // size] * size + last % size] if position else seed_of(domain)
            slot, kv = table[position // size] * size + position % size, kv_after(before, branch.tokens[position])
            self._write(slot, kv, domain, is_cleared=branch.is_cleared)
        branch.num_computed = end

    def sample(self, branch: Branch) -> int:
        """The next token, from the KV of all before it."""
        return next_token(self.read(branch, branch.num_computed))

    def _tell(
        self, domain: str, tokens: Sequence[int], table: Sequence[int], found: list[int], expected: list[int]
    ) -> None:
        size = self.block_size
        position = next(index for index, kv in enumerate(expected) if found[index] != kv)
        what = "nothing" if found[position] == POISON else "other KV"
        raise ViolationError(
            f"position {position} of {tokens} in {domain!r}, table {list(table)}: "
            f"block {table[position // size]} offset {position % size} holds {what}"
        )
