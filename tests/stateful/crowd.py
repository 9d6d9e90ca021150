"""A crowd of requests that share one cache, run as the plainest scheduler would.

queued ──acquire──> running ──all computed──> done
   ▲  └─Pending──> waiting                      a waiting request asks again at its notice;
   └───notice─────────┘ └── preempted ──┘       a preempted one gives up its sequence and queues again
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from radixkv.core.api import AcquireResult, CacheHolder, Pending
from radixkv.core.errors import OutOfBlocksError
from radixkv.core.tokens import pack_tokens

__all__ = ["Crowd", "Request"]


@dataclass(slots=True, order=True)
class Request:
    """A prompt, an array of uint32, and how many tokens are decoded after it (all of them token 1). Sorted by `order`."""

    order: int
    tokens: array[int] = field(compare=False)
    num_to_decode: int = field(default=0, compare=False)
    seq_id: int = field(default=0, compare=False)
    num_computed: int = field(default=0, compare=False)

    @property
    def is_done(self) -> bool:
        return not self.num_to_decode and self.num_computed == len(self.tokens)


class Crowd:
    """Requests in the order in which they came; the first one that finds no blocks holds up those behind it.

    Attributes:
        num_computed_tokens: tokens run by anyone, those run again included.
        is_fenced: an empty Step before notices are taken, so that over a stream all have arrived.
    """

    def __init__(
        self, holder: CacheHolder, requests: Sequence[Request], chunk: int, *, is_fenced: bool = False
    ) -> None:
        self.holder = holder
        self.chunk = chunk
        self.is_fenced = is_fenced
        self.queued = sorted(requests)
        self.running: list[Request] = []
        self.waiting: dict[tuple[int, int], list[Request]] = {}
        self.num_done = 0
        self.num_computed_tokens = 0
        self._is_blocked = False

    def run_round(self) -> None:
        """Wake who was told, admit, run a chunk of everyone."""
        self.wake()
        self.admit()
        for request in list(self.running):
            if request in self.running:
                self._run(request)

    def wake(self) -> None:
        """Queue those whose notice has come; everyone who still waits, waits for somebody who runs."""
        if self.is_fenced:
            self.holder.step([])
        for _, seq_id, num_tokens in self.holder.take_notices():
            for request in self.waiting.pop((seq_id, num_tokens)):
                insort(self.queued, request)
        running = {request.seq_id for request in self.running}
        assert {seq_id for seq_id, _ in self.waiting} <= running, "somebody waits for a sequence that is not there"

    def admit(self) -> list[Request]:
        """Acquire for those who are queued, in order; those who were opened."""
        opened: list[Request] = []
        if self._is_blocked and self.running:
            return opened
        self._is_blocked = False
        while self.queued:
            request = self.queued[0]
            try:
                answer = self.holder.acquire_or_wait(pack_tokens(request.tokens), reserve=min(request.num_to_decode, 1))
            except OutOfBlocksError:
                assert self.running, "what fits the pool alone finds no blocks though nobody holds any"
                break
            del self.queued[0]
            if isinstance(answer, Pending):
                self.waiting.setdefault((answer.seq_id, answer.num_tokens), []).append(request)
            else:
                self._open(request, answer)
                opened.append(request)
        return opened

    def _open(self, request: Request, answer: AcquireResult) -> None:
        request.seq_id = answer.seq_id
        request.num_computed = answer.num_stored_tokens
        insort(self.running, request)

    def _run(self, request: Request) -> None:
        end = min(request.num_computed + self.chunk, len(request.tokens))
        self.num_computed_tokens += end - request.num_computed
        request.num_computed = end
        self.holder.insert(request.seq_id, end)
        if request.is_done:
            self.end(request)
            self.num_done += 1
            self._is_blocked = False
        elif end == len(request.tokens):
            self._decode(request)

    def _decode(self, request: Request) -> None:
        """Room for one more token, taken from the request that came last where there is none: it may be this one."""
        while True:
            try:
                self.holder.extend(request.seq_id, len(request.tokens) + 1)
                break
            except OutOfBlocksError:
                victim = self.running[-1]
                self.end(victim)
                insort(self.queued, victim)
                self._is_blocked = True
                if victim is request:
                    return
        request.tokens.append(1)
        request.num_to_decode -= 1
        self.holder.insert(request.seq_id, request.num_computed, [1])

    def end(self, request: Request, *, keep: bool = True) -> None:
        """Give up a request's sequence."""
        self.holder.release(request.seq_id, keep)
        self.running.remove(request)
