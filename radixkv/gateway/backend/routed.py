"""A generator over the workers of several cache services: each request goes to the worker that `routing` ranks first.

    prompt ── Tokenize, at any worker ──> ids ── Route, at all services ──> offers ── choose ──> ranking
                                                                                                    │
                              worker that accepts <── Generate, straight; the next where it refuses ┘

A worker that refuses or is lost is left out for a while; a generation that loses its worker is begun again by its reader, see
`resume`, and so at the next of a new ranking.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, Metric

from radixkv.client import Credentials
from radixkv.core.api import DEFAULT_NAMESPACE, CacheStats, PoolRoute, WorkerReport
from radixkv.core.errors import LimitError, RadixKVError, UnavailableError
from radixkv.core.namespaces import derived_namespace, shares_prefix
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, num_tokens, pack_tokens
from radixkv.gateway.backend.members import ANSWER_S, Members
from radixkv.generation.block_file import ImportedBlocks
from radixkv.generation.client import GenerationClient
from radixkv.generation.erasure import ErasedLevel, StoredPrefix
from radixkv.generation.request import ForkParams, GenerateParams, ModelInfo, Prompt, UnknownGenerationError
from radixkv.generation.stats import EngineStats, Percentiles, WorkerStats
from radixkv.generation.stream import Completed, GenerationStream, StreamItem, Usage
from radixkv.generation.verification import Verification
from radixkv.routing import Choice, OwnChoices, Refusals, choose
from radixkv.util.closing import Closing

__all__ = ["RoutedGenerator"]

_ACCEPT_S = 10.0
"""Time that a worker has to accept a request, before the next one is asked."""

_Result = TypeVar("_Result")


class _Counts:
    """Figures of the choices, by reason."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.refusals = 0


class _Routed(NamedTuple):
    """A request whose prompt is ids: these, and the namespace in which a cache has them."""

    params: GenerateParams
    tokens: bytes
    namespace: str


class RoutedGenerator(Closing):
    """A `Generator` over many workers. Thread-safe; `close` it at the end.

    Args:
        services: addresses of the workers' cache services; see `Members`.
        credentials: for services and workers.
        answer_s: how long the services are waited for at each request.
        clock: seconds, monotonic.
        rng: decides between equal workers.

    Calls raise the workers' errors, and `UnavailableError` where no worker takes the request.
    """

    def __init__(
        self,
        services: Sequence[str] | Callable[[], Sequence[str]],
        *,
        credentials: Credentials | None = None,
        answer_s: float = ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._members = Members(services, credentials=credentials, clock=clock)
        self._credentials = credentials
        self._answer_s = answer_s
        self._rng = rng or random.Random()
        self._lock = threading.Lock()  # of all below
        self._own = OwnChoices(clock)
        self._refusals = Refusals(clock)
        self._clients: dict[str, GenerationClient] = {}
        self._counts = _Counts()
        self._fingerprint = ""

    # -- generations

    def generate(self, params: GenerateParams) -> GenerationStream:
        """Continue or score a prompt at the best worker that accepts it; see `Engine.generate`."""
        kind = self._fingerprint
        routed = self._as_ids(params)
        length = num_tokens(routed.tokens)
        shares = shares_prefix(params.sharing or "on", salted=bool(params.cache_salt))
        ranking = self.rank(routed.tokens if shares else b"", routed.namespace, length)
        if routed.params is not params and self._fingerprint != kind:
            return self.generate(params)  # the ids may be of a model whose workers have gone meanwhile
        refusal: RadixKVError | None = None
        for choice in ranking:
            worker = choice.worker
            with self._lock:
                if not self._refusals.admit(worker):
                    continue
                self._own.chose(worker, length - choice.num_found_tokens)
            try:
                stream = self._client(worker).generate(routed.params)
            except (UnavailableError, LimitError) as error:
                self._refused(worker, error)
                with self._lock:
                    self._own.withdraw(worker)
                refusal = error
                continue
            with self._lock:
                self._refusals.served(worker)
                self._counts.requests[choice.reason] += 1
            return self._watched(stream, choice)
        raise refusal or UnavailableError("no worker takes new requests now")

    def fork(self, params: ForkParams) -> GenerationStream:
        """Continue a generation from a token position, at the worker that its id names; see `Engine.fork`."""
        worker = self._worker_of(params.generation_id)
        try:
            return self._client(worker).fork(params)
        except UnavailableError as error:
            self._refused(worker, error)
            raise

    @property
    def members(self) -> Members:
        """The services and their workers."""
        return self._members

    def workers(self) -> list[WorkerReport]:
        """The latest reports of the known workers. O(workers)."""
        return [route.worker for route in self._members.known()]

    def rank(self, tokens: bytes, namespace: str = DEFAULT_NAMESPACE, length: int | None = None) -> list[Choice]:
        """The workers for a prompt, the best first; last, those whose service is gone.

        Args:
            length: of the prompt in tokens, if not of `tokens`.
        """
        offers = self._of_one_kind(self._members.ask(tokens, namespace, self._answer_s))
        with self._lock:
            own = {
                offer.worker.generation_address: self._own.since(
                    offer.worker.generation_address, offer.worker.load_age_s
                )
                for offer in offers
            }
            ranking = choose(offers, num_tokens(tokens) if length is None else length, own, self._rng)
        stalled = self._members.stalled()
        return sorted(ranking, key=lambda choice: choice.worker in stalled)

    def _as_ids(self, params: GenerateParams) -> _Routed:
        """The request with its prompt as ids, made by any worker."""
        owner = DEFAULT_NAMESPACE if params.namespace is None else params.namespace
        namespace = derived_namespace(owner, salt=params.cache_salt, adapter=params.adapter)
        if params.token_ids is not None:
            return _Routed(params, _last(pack_tokens(params.token_ids), params.truncate_prompt_tokens), namespace)
        tokens = self.tokenize(params, params.history, owner)
        prompt: dict[str, Any] = {"text": None, "tools": (), "template_arguments": {}}
        if params.goes_on_from_text:  # its first tokens are decoded with those before them
            prompt |= {"history": tokens, "messages": [{"role": "assistant", "content": ""}]}
        else:
            prompt |= {"history": b"", "messages": None, "token_ids": tokens, "continue_final_message": False}
        return _Routed(replace(params, **prompt), _last(tokens, params.truncate_prompt_tokens), namespace)

    def _watched(self, stream: GenerationStream, choice: Choice) -> GenerationStream:
        """The stream, of whose end the choice's figures are taken."""

        def receive() -> StreamItem:
            try:
                event = next(stream)
            except StopIteration:
                return None
            except RadixKVError as error:
                if isinstance(error, UnavailableError):
                    self._refused(choice.worker, error)
                return error
            if isinstance(event, Completed):
                self._found(choice, event.usage)
            return event

        return GenerationStream(stream.generation_id, receive, stream.close, str(choice))

    def _found(self, choice: Choice, usage: Usage) -> None:
        with self._lock:
            self._counts.predicted[choice.reason] += min(choice.num_found_tokens, usage.num_prompt_tokens - 1)
            self._counts.found[choice.reason] += usage.num_cached_tokens

    # -- calls that any worker answers

    def model(self) -> ModelInfo:
        """Facts of the model served."""
        return self._any(GenerationClient.model)

    def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes:
        """Packed token ids of `history` with the prompt appended; see `GenerationClient.tokenize`."""
        if history and prompt.goes_on_from_text and prompt.messages and not prompt.messages[-1]["content"]:
            return pack_tokens(history)
        return self._any(lambda client: client.tokenize(prompt, history, namespace))

    def detokenize(self, token_ids: TokensLike) -> str:
        """Text of token ids, special tokens left out."""
        return self._any(lambda client: client.detokenize(token_ids))

    def spell(self, token_ids: TokensLike) -> list[bytes]:
        """Bytes of each token by itself; special tokens by name."""
        return self._any(lambda client: client.spell(token_ids))

    # -- calls to the worker that holds most of a history, or to all

    def verify_block(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Verification:
        """Recompute the last block of a cached branch and compare; see `Engine.verify_block`."""
        return self._holding(tokens, namespace).verify_block(tokens, namespace)

    def find_stored(
        self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE, num_cached_tokens: int = 0
    ) -> StoredPrefix:
        """Tokens of a prompt on the disk level of the worker's block store; see `Engine.find_stored`."""
        return self._holding(tokens, namespace).find_stored(tokens, namespace, num_cached_tokens)

    def export(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Iterator[bytes]:
        """The KV of a history as one file, in pieces; see `Engine.export`."""
        return self._holding(tokens, namespace).export(tokens, namespace)

    def import_(self, file: bytes | Iterable[bytes], namespace: str = DEFAULT_NAMESPACE) -> ImportedBlocks:
        """Store an exported file's blocks in the block store of one worker; see `Engine.import_`."""
        return self._holding(b"", namespace).import_(file, namespace)

    def erase(self, namespace: str = DEFAULT_NAMESPACE) -> list[ErasedLevel]:
        """Destroy a namespace's keys in the block store of every worker; see `Engine.erase`.

        Raises:
            UnavailableError: a worker cannot be reached: it may still have them.
        """
        return [level for worker in self._workers() for level in self._client(worker).erase(namespace)]

    def stats(self) -> WorkerStats:
        """Gauges and counters of all workers together: sums, and of latencies the largest. Of those that answer."""
        told: list[WorkerStats] = []
        for worker in self._workers():
            try:
                told.append(self._client(worker).stats())
            except UnavailableError:
                continue
        if not told:
            raise UnavailableError("no worker can be reached")
        caches = [stats.cache for stats in told if stats.cache is not None]
        return WorkerStats(
            EngineStats._make(map(_together, zip(*(stats.engine for stats in told), strict=True))),
            CacheStats._make(map(_together, zip(*caches, strict=True))) if caches else None,
        )

    def collect(self) -> Iterator[Metric]:
        """Metrics of the choices, for Prometheus: predicted against found tokens show when predictions are wrong."""
        with self._lock:
            counts = self._counts
            told = (
                ("routed_requests", "Requests accepted by the worker chosen", dict(counts.requests)),
                ("routed_predicted_tokens", "Prompt tokens expected in that worker's cache", dict(counts.predicted)),
                ("routed_found_tokens", "Prompt tokens of the same requests found there", dict(counts.found)),
            )
            num_refusals = counts.refusals
        for name, text, by_reason in told:
            metric = CounterMetricFamily(f"radixkv:{name}", f"{text}, by reason of the choice", labels=["reason"])
            for reason, number in by_reason.items():
                metric.add_metric([reason], number)
            yield metric
        yield CounterMetricFamily("radixkv:routed_refusals", "Workers that refused or were lost", value=num_refusals)

    def close(self) -> None:
        """Close the connections; open streams end with `UnavailableError`."""
        self._members.close()
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    # -- workers

    def _of_one_kind(self, offers: Sequence[PoolRoute]) -> list[PoolRoute]:
        """The offers of workers of one fingerprint: that of before while one of them accepts, otherwise the most frequent."""
        kinds: Counter[str] = Counter(
            offer.worker.fingerprint for offer in offers if offer.worker.load is None or offer.worker.load.is_accepting
        )
        with self._lock:
            if kinds and self._fingerprint not in kinds:
                self._fingerprint = kinds.most_common(1)[0][0]
            return [offer for offer in offers if offer.worker.fingerprint == self._fingerprint]

    def _workers(self) -> list[str]:
        """Addresses of the workers that are known, in random order; last, those whose service is gone."""
        workers = [route.worker.generation_address for route in self._of_one_kind(self._members.known())]
        with self._lock:
            self._rng.shuffle(workers)
        return sorted(workers, key=self._members.stalled().__contains__)

    def _worker_of(self, generation_id: str) -> str:
        for route in self._members.known():
            if generation_id.startswith(worker_prefix(route.worker.generation_address)):
                return route.worker.generation_address
        raise UnknownGenerationError(generation_id)

    def _holding(self, tokens: TokensLike, namespace: str) -> GenerationClient:
        ranking = sorted(self.rank(pack_tokens(tokens), namespace), key=lambda choice: -choice.num_found_tokens)
        if not ranking:
            raise UnavailableError("no worker takes new requests now")
        return self._client(ranking[0].worker)

    def _any(self, ask: Callable[[GenerationClient], _Result]) -> _Result:
        """The answer of the first worker that gives one."""
        refusal: RadixKVError | None = None
        for worker in self._workers():
            with self._lock:
                if not self._refusals.admit(worker):
                    continue
            try:
                answer = ask(self._client(worker))
            except (UnavailableError, LimitError) as error:
                self._refused(worker, error)
                refusal = error
                continue
            with self._lock:
                self._refusals.served(worker)
            return answer
        raise refusal or UnavailableError(
            "no service that answers has a worker to ask: attach one with radixkv worker --service ADDRESS"
        )

    def _refused(self, worker: str, error: RadixKVError) -> None:
        """Leave the worker out for a while; not for a limit, which may be one tenant's own."""
        with self._lock:
            self._counts.refusals += 1
            if not isinstance(error, LimitError):
                self._refusals.refused(worker)

    def _client(self, worker: str) -> GenerationClient:
        """The client of a worker; a new one replaces those of workers that are gone, which close with their last stream."""
        with self._lock:
            if worker not in self._clients:
                known = {route.worker.generation_address for route in self._members.known()}
                self._clients = {each: client for each, client in self._clients.items() if each in known}
                self._clients[worker] = GenerationClient(
                    worker,
                    retries=False,
                    credentials=self._credentials,
                    id_prefix=worker_prefix(worker),
                    accept_s=_ACCEPT_S,
                )
            return self._clients[worker]


def worker_prefix(worker: str) -> str:
    """The prefix of a worker's generation ids: stands for its address without showing it."""
    return f"{blake2b(worker.encode(), digest_size=6).hexdigest()}-"


def _last(tokens: bytes, limit: int) -> bytes:
    return tokens[-limit * TOKEN_BYTES :] if limit > 0 else tokens


def _together(values: tuple[Any, ...]) -> Any:
    """One figure for those of several workers."""
    match values[0]:
        case Percentiles():
            return Percentiles(*(max(each) for each in zip(*values, strict=True)))
        case str():
            return values[0]
        case tuple():
            return tuple(map(sum, zip_longest(*values, fillvalue=0)))
        case Mapping():
            return dict(sum(map(Counter, values), Counter()))
        case _:
            return sum(values)
