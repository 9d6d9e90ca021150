"""radixkv as deployed by a user: cache service and worker in separate processes, called through `Generate` streams."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from bench.common.stacks import BLOCK_SIZE, routed_workers, separate_services
from bench.serving.plan import Outcome, ReadyCall, Workload
from bench.serving.system import KV_TOKENS, Counts
from radixkv.client.reader import RemoteReader
from radixkv.core.errors import RadixKVError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, Generator
from radixkv.generation.stream import Delta

__all__ = ["RadixKV"]

POLL_S = 0.1


class RadixKV:
    """One service, and one worker or several among which a gateway's code chooses; every session has a separate namespace."""

    def __init__(self, model: str, kv_token_bytes: int, num_workers: int = 1) -> None:
        self.kv_token_bytes = kv_token_bytes
        self._stack = ExitStack()
        num_blocks = KV_TOKENS // BLOCK_SIZE
        self._generator: Generator
        if num_workers == 1:
            self._generator, reader = self._stack.enter_context(separate_services(model, num_blocks, "auto"))
            self._readers = [reader]
        else:
            several = routed_workers(model, num_blocks, "auto", num_workers)
            self._generator, self._readers = self._stack.enter_context(several)
        self._numbers = itertools.count(1)

    def __enter__(self) -> RadixKV:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def describe(self) -> dict[str, Any]:
        return {"dtype": "auto", "quantization": "auto", "block_size": BLOCK_SIZE, "kv_tokens": KV_TOKENS}

    @contextmanager
    def session(self, workload: Workload) -> Iterator[_Session]:  # noqa: ARG002  # the same for all
        namespace = f"run-{next(self._numbers)}"
        with _Watch(self._readers) as watch:
            yield _Session(self._generator, namespace, watch)
        for reader in self._readers:
            with suppress(RadixKVError):
                reader.clear(namespace)


class _Session:
    def __init__(self, generator: Generator, namespace: str, watch: _Watch) -> None:
        self._generator = generator
        self._namespace = namespace
        self._watch = watch
        self._lock = threading.Lock()
        self._num_computed = 0

    def ask(self, call: ReadyCall) -> Outcome:
        sampling = SamplingParams(
            max_tokens=call.num_tokens,
            temperature=0.0 if call.seed is None else 1.0,
            seed=call.seed,
            n=call.n,
            ignore_eos=True,
        )
        params = GenerateParams(token_ids=call.prompt, sampling=sampling, namespace=self._namespace)
        replies: list[list[int]] = [[] for _ in range(call.n)]
        start_s = time.monotonic()
        first_s = 0.0
        stream = self._generator.generate(params)
        for event in stream:
            if isinstance(event, Delta):
                first_s = first_s or time.monotonic()
                replies[event.branch].extend(event.token_ids)
        end_s = time.monotonic()
        assert stream.usage is not None, "a stream that ended without an error tells its usage"
        num_computed = stream.usage.num_computed_tokens
        with self._lock:
            self._num_computed += num_computed
        return Outcome(call.prompt, replies, start_s, first_s, end_s, num_computed)

    def counts(self) -> Counts:
        return Counts(self._num_computed, self._watch.peak_blocks * BLOCK_SIZE)


class _Watch:
    """Most blocks that were not free, of all pools, sampled every `POLL_S` seconds."""

    def __init__(self, readers: Sequence[RemoteReader]) -> None:
        self._readers = readers
        self._ended = threading.Event()
        self.peak_blocks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        with suppress(RadixKVError):
            all_stats = [reader.stats() for reader in self._readers]
            self.peak_blocks = max(self.peak_blocks, sum(one.num_blocks - one.num_free_blocks for one in all_stats))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
