"""A stream of requests through one pool, step by step, under three ways to allocate its memory.

The same rules as `/fragmentation` plays in a browser, with prefixes shared by the real `PrefixCache`:

    Reserve   one contiguous span for each request, at the first fit: its prompt and the longest reply, or a fixed length
    Paged     a block table for each request, a block at a time
    Sharing   the real cache: blocks in a radix tree, least recently used branches evicted

A step computes up to `round_tokens` tokens of prompts and one of every running request whose prompt is done. Requests run in
order of arrival; if a running one finds no room, the one started last returns its slots and computes them again later.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from radixkv import OutOfBlocksError, PrefixCache
from radixkv.core.api import Pending
from radixkv.simulate import Shape

__all__ = ["MAX_RUNNING", "Outcome", "Paged", "Request", "Reserve", "Sharing", "replay", "requests_of"]

MAX_RUNNING = 256


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request. `arrival`: the step. `history`: for each position, packed, the request that introduced the token."""

    index: int
    arrival: int
    prompt: int
    generated: int
    history: bytes


def requests_of(shapes: Sequence[Shape], step_s: float) -> list[Request]:
    """Requests by their shapes, for steps of `step_s`: two histories are equal as far as the origins of their tokens are."""
    requests: list[Request] = []
    for index, shape in enumerate(shapes):
        length = shape.prompt_tokens + shape.generated_tokens
        shared = b"" if shape.parent is None else requests[shape.parent].history[: 4 * shape.shared_tokens]
        own = array("I", [index]) * (length - len(shared) // 4)
        arrival = int((shape.arrival_s - shapes[0].arrival_s) / step_s)
        requests.append(Request(index, arrival, shape.prompt_tokens, shape.generated_tokens, shared + own.tobytes()))
    return requests


class Memory(Protocol):
    """A way to allocate a pool. `known`: tokens of a request that exist before it generates."""

    def start(self, request: Request, known: int) -> int | Literal["wait"] | None:
        """Tokens found; None without room, "wait" if another request is computing tokens that could be shared."""

    def grow(self, request: Request, computed: int) -> bool:
        """Whether there is room for so many tokens."""

    def finish(self, request: Request) -> None: ...

    def held(self) -> int:
        """Slots not available to others."""


class Reserve:
    """Contiguous spans, first fit: of `length`, or of the prompt and `reply`."""

    def __init__(self, num_slots: int, reply: int, length: int | None = None) -> None:
        self._num_slots = num_slots
        self._reply = reply
        self._length = length
        self._spans: list[tuple[int, int]] = []  # start and length, sorted
        self._by_request: dict[int, tuple[int, int]] = {}

    def start(self, request: Request, known: int) -> int | None:  # noqa: ARG002  # a span is for all of it
        length = self._length or request.prompt + self._reply
        start = 0
        for at, taken in self._spans:
            if at - start >= length:
                break
            start = at + taken
        if self._num_slots - start < length:
            return None
        self._by_request[request.index] = (start, length)
        insort(self._spans, (start, length))
        return 0

    def grow(self, request: Request, computed: int) -> bool:  # noqa: ARG002  # the span is reserved
        return True

    def finish(self, request: Request) -> None:
        self._spans.remove(self._by_request.pop(request.index))

    def held(self) -> int:
        return sum(length for _, length in self._spans)


class Paged:
    """Blocks, one at a time, nothing shared."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._num_blocks = self._num_free = num_slots // block_size
        self._block_size = block_size
        self._tables: dict[int, int] = {}

    def start(self, request: Request, known: int) -> int | None:
        num_needed = -(-known // self._block_size)
        if num_needed > self._num_free:
            return None
        self._num_free -= num_needed
        self._tables[request.index] = num_needed
        return 0

    def grow(self, request: Request, computed: int) -> bool:
        if computed <= self._tables[request.index] * self._block_size:
            return True
        if not self._num_free:
            return False
        self._num_free -= 1
        self._tables[request.index] += 1
        return True

    def finish(self, request: Request) -> None:
        self._num_free += self._tables.pop(request.index)

    def held(self) -> int:
        return (self._num_blocks - self._num_free) * self._block_size


@dataclass(slots=True)
class _Open:
    """A sequence of the cache. `room`, `known`: tokens that it has room for, and tokens passed to the cache."""

    seq_id: int
    room: int
    known: int


class Sharing:
    """The real cache."""

    def __init__(self, num_slots: int, block_size: int, eviction: str = "lru") -> None:
        self.cache = PrefixCache(num_slots // block_size, block_size, eviction=eviction)
        self._block_size = block_size
        self._open: dict[int, _Open] = {}

    def start(self, request: Request, known: int) -> int | Literal["wait"] | None:
        self.cache.take_notices()
        try:
            opened = self.cache.acquire_or_wait(request.history[: 4 * known])
        except OutOfBlocksError:
            return None
        if isinstance(opened, Pending):
            return "wait"
        self._open[request.index] = _Open(opened.seq_id, known, known)
        return opened.num_stored_tokens

    def grow(self, request: Request, computed: int) -> bool:
        own = self._open[request.index]
        if computed > own.room:
            try:
                self.cache.extend(own.seq_id, computed)
            except OutOfBlocksError:
                return False
            own.room = computed
        new = request.history[4 * own.known : 4 * computed]
        own.known = max(own.known, computed)
        self.cache.insert(own.seq_id, computed, new)
        return True

    def finish(self, request: Request) -> None:
        self.cache.release(self._open.pop(request.index).seq_id)

    def held(self) -> int:
        stats = self.cache.stats()
        return (stats.num_blocks - stats.num_free_blocks - stats.num_evictable_blocks) * self._block_size


class Outcome(NamedTuple):
    """Sums over steps: tokens of running requests, slots held, running requests. `found`: of each prompt; None if refused."""

    tokens: int
    held: int
    running: int
    num_busy_steps: int
    num_steps: int
    num_preempted: int
    num_computed: int
    found: list[int | None]

    @property
    def tokens_per_slot(self) -> float:
        return self.tokens / max(1, self.held)

    @property
    def mean_running(self) -> float:
        return self.running / max(1, self.num_busy_steps)


@dataclass(slots=True)
class _Running:
    request: Request
    known: int
    computed: int
    target: int


@dataclass(slots=True)
class _Replay:
    memory: Memory
    round_tokens: int
    waiting: list[tuple[Request, int]] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    found: dict[int, int] = field(default_factory=dict)
    num_preempted: int = 0
    num_computed: int = 0

    def admit(self) -> None:
        num_ahead = sum(max(0, each.known - each.computed) for each in self.running)
        place = 0
        while place < len(self.waiting) and num_ahead < self.round_tokens and len(self.running) < MAX_RUNNING:
            request, known = self.waiting[place]
            num_found = self.memory.start(request, known)
            if num_found == "wait":
                place += 1
                continue
            if num_found is None:
                if self.running:
                    break
                del self.waiting[place]  # too large even alone
                continue
            computed = min(num_found, known - 1)
            self.found.setdefault(request.index, computed)
            del self.waiting[place]
            target = request.prompt + max(0, request.generated - 1)
            self.running.append(_Running(request, known, computed, target))
            num_ahead += known - computed

    def compute(self) -> None:
        left, place = self.round_tokens, 0
        while place < len(self.running):
            own = self.running[place]
            place += 1
            is_prompt = own.computed < own.known
            count = min(left, own.known - own.computed) if is_prompt else int(own.computed < own.target)
            left -= count * is_prompt
            if not count:
                continue
            while not self.memory.grow(own.request, own.computed + count):
                if self.preempt() is own:
                    return
            own.computed += count
            self.num_computed += count

    def preempt(self) -> _Running:
        own = self.running.pop()
        self.memory.finish(own.request)
        self.waiting.insert(0, (own.request, max(own.known, own.computed + 1)))
        self.num_preempted += 1
        return own

    def finish_done(self) -> None:
        for own in self.running:
            if own.computed >= own.target:
                self.memory.finish(own.request)
        self.running = [own for own in self.running if own.computed < own.target]


def replay(memory: Memory, requests: Sequence[Request], round_tokens: int) -> Outcome:
    """Replay all requests, each from the step of its arrival. O(steps x running)."""
    state = _Replay(memory, round_tokens)
    num_come = num_steps = num_busy = tokens = held = running = 0
    while num_come < len(requests) or state.waiting or state.running:
        state.finish_done()
        while num_come < len(requests) and requests[num_come].arrival <= num_steps:
            state.waiting.append((requests[num_come], requests[num_come].prompt))
            num_come += 1
        state.admit()
        state.compute()
        num_steps += 1
        tokens += sum(each.computed for each in state.running)
        held += memory.held()
        running += len(state.running)
        num_busy += bool(state.running)
    found = [state.found.get(request.index) for request in requests]
    return Outcome(tokens, held, running, num_busy, num_steps, state.num_preempted, state.num_computed, found)
