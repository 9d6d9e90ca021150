"""Requests, and a player that keeps an engine loaded with a multiple of its pool."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from radixkv.worker.engine.engine import Engine

__all__ = ["VOCAB_SIZE", "Load", "Player", "Requests"]

VOCAB_SIZE = 128
SHORT_STOPS = tuple(range(16, 26))
RUN_LENGTH = 96
JOIN_S = 300.0
NUM_GROUPS = 8


@dataclass(slots=True)
class Load:
    """Measurements under one load. Times in seconds; `max_empty`: most empty slots after a row that drew a token."""

    multiple: float
    seconds: float = 0.0
    num_finished: int = 0
    num_computed: int = 0
    num_useful: int = 0
    failures: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    max_empty: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_saved_blocks: int = 0

    @property
    def useful_per_s(self) -> float:
        """Prompt and reply tokens delivered for the first time, per second."""
        return self.num_useful / max(self.seconds, 1e-9)


class Request(NamedTuple):
    """`is_short`: the reply ends at random, after a dozen tokens on average; otherwise it has full length."""

    prompt: list[int]
    longest_reply: int
    is_short: bool

    @property
    def num_needed(self) -> int:
        """Most tokens that it may need."""
        return len(self.prompt) + self.longest_reply


class Requests:
    """Prompts and longest replies, drawn one by one; thread-safe."""

    def __init__(self, seed: int, longest_prompt: int, longest_reply: int) -> None:
        self._source = random.Random(seed)
        self._lock = threading.Lock()
        self._num_drawn = 0
        self._longest_reply = longest_reply
        self._longest_prompt = longest_prompt
        self._groups = [self._ids(longest_prompt // 2) for _ in range(NUM_GROUPS)]

    def _ids(self, length: int) -> list[int]:
        return self._source.choices(range(3, VOCAB_SIZE), k=length)

    def draw(self) -> Request:
        """Draw the next one."""
        with self._lock:
            is_short = self._num_drawn // RUN_LENGTH % 2 == 0
            self._num_drawn += 1
            own = self._ids(self._source.randint(1, self._longest_prompt // 2))
            longest = self._source.randint(self._longest_reply // 4, self._longest_reply)
            return Request([*self._source.choice(self._groups), *own], longest, is_short)


class Player:
    """Keeps an engine loaded for the time of a turn, then waits for all running requests."""

    def __init__(self, engine: Engine, load: Load, requests: Requests, num_slots: int) -> None:
        self._engine = engine
        self._load = load
        self._requests = requests
        self._target = load.multiple * num_slots
        self._outstanding = 0
        self._changed = threading.Condition()

    def play(self, turn_s: float) -> None:
        """Send requests to keep the target outstanding; measure until the end of the turn, then wait for all."""
        started_s = time.monotonic()
        threads: list[threading.Thread] = []
        useful_before = self._load.num_useful
        while (now_s := time.monotonic()) - started_s < turn_s:
            with self._changed:
                if self._outstanding >= self._target:
                    self._changed.wait(min(0.1, started_s + turn_s - now_s))
                    continue
                request = self._requests.draw()
                self._outstanding += request.num_needed
            thread = threading.Thread(target=self._ask, args=(request,), daemon=True)
            thread.start()
            threads = [other for other in threads if other.is_alive()] + [thread]
        self._load.seconds += time.monotonic() - started_s
        with self._changed:
            num_useful = self._load.num_useful
        deadline_s = time.monotonic() + JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                self._load.failures.append(f"a request has not come to its end {JOIN_S:.0f} s after the last was sent")
                break
        # Tokens delivered while the load falls do not count as throughput.
        self._load.num_useful = max(num_useful, useful_before)

    def _ask(self, request: Request) -> None:
        from radixkv.core.errors import RadixKVError
        from radixkv.generation.params import SamplingParams
        from radixkv.generation.request import GenerateParams
        from radixkv.generation.stream import Delta

        sampling = SamplingParams(
            max_tokens=request.longest_reply,
            temperature=1.0,
            ignore_eos=not request.is_short,
            stop_token_ids=SHORT_STOPS if request.is_short else (),
        )
        sent_s = time.monotonic()
        first_s = None
        error = ""
        try:
            for event in self._engine.generate(GenerateParams(token_ids=request.prompt, sampling=sampling)):
                if isinstance(event, Delta):
                    num_new = len(event.token_ids) + (0 if first_s else len(request.prompt))
                    first_s = first_s or time.monotonic()
                    with self._changed:
                        self._load.num_useful += num_new
        except RadixKVError as failure:
            error = f"{type(failure).__name__}: {failure}"
        with self._changed:
            self._outstanding -= request.num_needed
            if error or first_s is None:
                self._load.failures.append(error or "a stream ended without a token")
            else:
                self._load.waits_s.append(first_s - sent_s)
                self._load.num_finished += 1
            self._changed.notify_all()
