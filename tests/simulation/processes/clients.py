"""Who asks workers for answers, and who asks the service about its pools, over a network that fails them."""

from __future__ import annotations

from typing import Any

from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import pack_tokens
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import types_pb2 as types

from ..clock import Process, Simulator, ViolationError
from ..model import VOCAB_SIZE
from ..network import End, Network
from .branches import Request
from .reader_calls import ReaderCall

__all__ = ["NAMESPACES", "TOGETHER_S", "Client", "Histories", "Reader"]

TOGETHER_S = 0.03
NAMESPACES = ("default", "default", "default", "other")


class Histories:
    """The prompts of a run: few stems, and what grows from them.

    Args:
        longest: how many tokens a history may come to, answer and all.
    """

    def __init__(self, simulator: Simulator, longest: int) -> None:
        self.longest = longest
        self._rng = simulator.rng
        self._known: list[tuple[int, ...]] = [self._draw(self._rng.randint(1, longest - 2)) for _ in range(2)]

    def prompt(self, stem: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """One that was there before, or a branch off one, or off this one."""
        rng = self._rng
        if stem is None:
            stem = rng.choice(self._known)
        if rng.random() < 0.4:
            stem = stem[: rng.randint(1, len(stem))]
        prompt = (stem + self._draw(rng.randint(0, 4)))[: self.longest - 2]
        self.add(prompt)
        return prompt

    def add(self, history: tuple[int, ...]) -> None:
        """Let later prompts grow from this one, too."""
        self._known.append(history[: self.longest - 2])
        del self._known[:-12]

    def _draw(self, length: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(VOCAB_SIZE) for _ in range(length))


class Client:
    """Sends requests, again and elsewhere until they are answered, and compares the answers with the definition.

    `num_open`: requests that are neither answered nor cancelled.
    """

    def __init__(self, simulator: Simulator, network: Network, histories: Histories, worker_names: list[str]) -> None:
        self.process = Process("client")
        self.process.start()
        self.open_requests: dict[int, Request] = {}
        self.worker_names = worker_names
        self._simulator = simulator
        self._network = network
        self._histories = histories
        self._attempts: dict[int, End] = {}
        self._num_requests = 0

    @property
    def num_open(self) -> int:
        return len(self.open_requests)

    def ask_together(self, number: int) -> None:
        """Send so many new requests at once or nearly so, whose prompts have a stem in common."""
        stem, namespace = self._histories.prompt(), self._simulator.rng.choice(NAMESPACES)
        for _ in range(number):
            self._simulator.after(
                self._simulator.rng.random() * TOGETHER_S, self.process, None, self.ask, stem, namespace
            )

    def ask(self, stem: tuple[int, ...], namespace: str) -> None:
        """Send a new request."""
        rng = self._simulator.rng
        prompt = stem if rng.random() < 0.4 else self._histories.prompt(stem)
        num_tokens = rng.randint(1, min(6, self._histories.longest - len(prompt)))
        drafts: tuple[int, ...] = ()
        fork_at = 0
        if rng.random() < 0.3:
            fork_at = rng.randint(1, len(prompt) + num_tokens - 1)
            drafts = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 3)))
        self._num_requests += 1
        request = Request(self._num_requests, namespace, prompt, num_tokens, fork_at, drafts, shares=rng.random() < 0.9)
        self.open_requests[request.number] = request
        self._simulator.note("client: asks", request)
        self._try(request)
        if rng.random() < 0.1:
            self._simulator.after(rng.random() * 0.3, self.process, None, self._cancel, request)

    def _try(self, request: Request) -> None:
        """Send a request to some worker."""
        if request.number not in self.open_requests:
            return
        rng = self._simulator.rng
        name = rng.choice(self.worker_names)
        attempt: list[End] = []

        def answered(histories: Any) -> None:
            if request.number in self.open_requests:
                self._answered(request, histories)
            attempt[0].cancel()

        def failed(_error: RadixKVError) -> None:
            self._simulator.after(rng.uniform(0.01, 0.05), self.process, None, self._try, request)

        def lose_patience() -> None:
            if attempt[0].is_open:
                attempt[0].cancel()
                self._simulator.count("sent elsewhere")
                self._try(request)

        attempt.append(self._network.connect(self.process, name, answered, failed))
        self._attempts[request.number] = attempt[0]
        attempt[0].send(request)
        patience_s = rng.choice((0.6, 2.0, 4.0))
        self._simulator.after(patience_s, self.process, None, lose_patience)

    def _answered(self, request: Request, histories: list[tuple[int, ...]]) -> None:
        expected = request.expected()
        if histories != expected:
            raise ViolationError(f"request {request.number} was answered {histories}, expected {expected}")
        del self.open_requests[request.number]
        self._histories.add(expected[-1])
        self._simulator.count("answered" if request.shares else "answered alone")
        self._simulator.note("client: is answered", request.number)

    def _cancel(self, request: Request) -> None:
        """Want it no more; whoever works at it hears of it by the end of the connection."""
        if self.open_requests.pop(request.number, None) is None:
            return
        self._simulator.count("cancelled")
        self._attempts[request.number].cancel()


class Reader:
    """Asks the service whatever anyone may ask."""

    def __init__(self, simulator: Simulator, network: Network, histories: Histories, pool_names: list[str]) -> None:
        self.process = Process("reader")
        self.process.start()
        self._simulator = simulator
        self._network = network
        self._histories = histories
        self._pool_names = pool_names
        self._num_calls = 0

    def ask(self) -> None:
        """Make some call."""
        rng = self._simulator.rng
        call = rng.choice(_CALLS)
        pool = rng.choice(["", *self._pool_names])
        namespace = rng.choice(NAMESPACES)
        tokens = pack_tokens(self._histories.prompt())
        self._num_calls += 1
        self.call(call, _request(call, rng.randint(0, 4), pool, namespace, tokens, f"{self._num_calls}"))

    def clear_soon(self) -> None:
        """Clear some namespace of every pool, at a few moments from now on."""
        rng = self._simulator.rng
        for _ in range(_NUM_CLEARS):
            self._num_calls += 1
            request = _request("Clear", 0, "", rng.choice(NAMESPACES), b"", f"{self._num_calls}")
            self._simulator.after(rng.random() * _CLEARS_S, None, None, self.call, "Clear", request)

    def call(self, method: str, request: Any) -> None:
        """Make this call once; its answer is looked at, if it comes."""
        end = self._network.connect(self.process, "service", lambda answer: _look_at(method, answer), _ignore)
        end.send(ReaderCall(method, request))


_NUM_CLEARS, _CLEARS_S = 3, 0.1
_CALLS = (
    "Match",
    "Pin",
    "Pin",
    "Unpin",
    "Evict",
    "EvictBranch",
    "Clear",
    "Retain",
    "SetQuota",
    "Check",
    "Dump",
    "Events",
)


def _request(method: str, number: int, pool: str, namespace: str, tokens: bytes, request_id: str) -> Any:
    match method:
        case "Pin":
            return readers.PinRequest(pool=pool, namespace=namespace, tokens=tokens, ttl_s=0.05 + number / 10)
        case "Evict":
            return readers.EvictRequest(pool=pool, num_blocks=number, request_id=request_id)
        case "EvictBranch":
            return readers.EvictBranchRequest(pool=pool, namespace=namespace, tokens=tokens[:4], request_id=request_id)
        case "Clear":
            return readers.ClearRequest(pool=pool, namespace=namespace, request_id=request_id)
        case "Retain":
            retention = types.Retention(priority=number * 25, duration_s=0.1 * number + 0.1)
            return readers.RetainRequest(pool=pool, namespace=namespace, tokens=tokens, retention=[retention])
        case "SetQuota":
            blocks = number if number else None
            return readers.SetQuotaRequest(pool=pool, namespace="other", blocks=blocks)
        case "Check":
            return readers.CheckRequest(pool=pool)
        case "Dump":
            return readers.DumpRequest(pool=pool)
        case "Events":
            return readers.EventsRequest(pool=pool)
        case _:
            kind = getattr(readers, f"{method}Request")
            return kind(pool=pool, namespace=namespace, tokens=tokens)


def _look_at(method: str, answer: Any) -> None:
    if method == "Check" and not isinstance(answer, str):
        for pool in answer.pools:
            if pool.violation:
                raise ViolationError(f"check of pool {pool.pool}: {pool.violation}")


def _ignore(_error: RadixKVError) -> None:
    """A call that was lost is not made again."""
