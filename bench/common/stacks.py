"""Systems under the end-to-end benchmarks: the engine in this process, or a separate service and worker.

torch is imported with the first stack, so that its threads are configured as in `radixkv worker`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from radixkv.worker.threads import configure_threads, run_on_passing_thread

if TYPE_CHECKING:
    from radixkv.client.reader import RemoteReader
    from radixkv.gateway.backend.routed import RoutedGenerator
    from radixkv.generation.client import GenerationClient
    from radixkv.generation.request import Generator
    from radixkv.generation.stream import Usage
    from radixkv.worker.engine.engine import Engine
    from radixkv.worker.model.model import ModelRunner

__all__ = [
    "BLOCK_SIZE",
    "Reply",
    "Stack",
    "engine_beside_service",
    "engine_in_process",
    "generate_greedy",
    "routed_workers",
    "running",
    "separate_processes",
    "separate_services",
]

BLOCK_SIZE = 16
STOP_S = 30.0


class Stack(NamedTuple):
    """A generator, and the number of blocks evicted by its cache so far."""

    generator: Generator
    num_evicted_blocks: Callable[[], int]


class Reply(NamedTuple):
    """Generated tokens, and their usage."""

    token_ids: list[int]
    usage: Usage


def generate_greedy(generator: Generator, prompt: list[int], num_tokens: int) -> Reply:
    """Generate exactly `num_tokens` greedy tokens; the end-of-reply token does not end them."""
    from radixkv.generation.params import SamplingParams
    from radixkv.generation.request import GenerateParams
    from radixkv.generation.stream import Delta

    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    stream = generator.generate(GenerateParams(token_ids=prompt, sampling=sampling))
    token_ids = [token_id for event in stream if isinstance(event, Delta) for token_id in event.token_ids]
    if stream.usage is None or len(token_ids) != num_tokens:
        raise AssertionError(f"{len(token_ids)} tokens in place of {num_tokens}, usage {stream.usage}")
    return Reply(token_ids, stream.usage)


@contextmanager
def engine_in_process(model: str, num_blocks: int, dtype: str) -> Iterator[Stack]:
    """Model, cache and engine in this process."""
    configure_threads()
    from radixkv.core.cache.prefix_cache import PrefixCache
    from radixkv.worker.engine.engine import Engine
    from radixkv.worker.generations.text import ChatText
    from radixkv.worker.model.model import ModelRunner

    runner = run_on_passing_thread(
        lambda: ModelRunner(model, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=dtype)
    )
    with Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), text=ChatText(model), model_name=model) as engine:
        yield Stack(engine, lambda: engine.call(lambda holder: holder.stats().num_evicted_blocks))


@contextmanager
def engine_beside_service(model: str, num_blocks: int, dtype: str) -> Iterator[tuple[Engine, ModelRunner]]:
    """`radixkv serve` in a separate process, and a worker's engine and model in this one."""
    configure_threads()
    from radixkv.worker.run import Worker, WorkerConfig

    with (
        tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder,
        running("serve", "--listen", f"unix:{folder}/service"),
    ):
        config = WorkerConfig(
            model=model,
            service=f"unix:{folder}/service",
            listen=None,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            dtype=dtype,
        )
        with Worker(config) as worker:
            yield worker.engine, worker.runner


@contextmanager
def separate_services(
    model: str, num_blocks: int, dtype: str, arguments: Sequence[str] = ()
) -> Iterator[tuple[GenerationClient, RemoteReader]]:
    """`radixkv serve` and `radixkv worker` in separate processes, over unix sockets: a client of each.

    `arguments`: further ones of `radixkv worker`.
    """
    from radixkv.client import connect
    from radixkv.generation.client import GenerationClient

    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder, ExitStack() as stack:
        service, worker = f"unix:{folder}/service", f"unix:{folder}/worker"
        stack.enter_context(running("serve", "--listen", service))
        pool = ("--num-blocks", str(num_blocks), "--block-size", str(BLOCK_SIZE))
        where = ("--service", service, "--listen", worker)
        stack.enter_context(running("worker", *where, "--model", model, "--dtype", dtype, *pool, *arguments))
        client = stack.enter_context(GenerationClient(worker))
        yield client, stack.enter_context(connect(service))


@contextmanager
def routed_workers(
    model: str, num_blocks: int, dtype: str, num_workers: int
) -> Iterator[tuple[RoutedGenerator, list[RemoteReader]]]:
    """A cache service and several workers, which share the cores, each with so many blocks: a gateway's choice among them, and
    a reader of each pool.
    """
    from radixkv.client import connect
    from radixkv.gateway.backend.routed import RoutedGenerator

    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder, ExitStack() as stack:
        service = f"unix:{folder}/service"
        stack.enter_context(running("serve", "--listen", service))
        shape = ("--num-blocks", str(num_blocks), "--block-size", str(BLOCK_SIZE), "--model", model, "--dtype", dtype)
        num_threads, names = max(1, len(os.sched_getaffinity(0)) // num_workers), []
        for number in range(num_workers):
            names.append(f"pool-{number}")
            where = ("--service", service, "--listen", f"unix:{folder}/worker-{number}", "--pool", names[-1])
            stack.enter_context(running("worker", *where, *shape, num_threads=num_threads))
        reader = stack.enter_context(connect(service))
        yield stack.enter_context(RoutedGenerator([service])), [reader.of_pool(name) for name in names]


@contextmanager
def separate_processes(model: str, num_blocks: int, dtype: str) -> Iterator[Stack]:
    """As `separate_services`, for one caller at a time."""
    with separate_services(model, num_blocks, dtype) as (client, reader):
        yield Stack(client, lambda: reader.stats().num_evicted_blocks)


@contextmanager
def running(*arguments: str, num_threads: int | None = None) -> Iterator[int]:
    """Run a `radixkv` command, ready for the duration of the block. Yields its process id. `num_threads`: of its kernels.

    Raises:
        RuntimeError: it ended before it was ready; its output is above.
    """
    command = [sys.executable, "-P", "-m", "radixkv", *arguments]
    environment = os.environ | ({"OMP_NUM_THREADS": str(num_threads)} if num_threads else {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"radixkv {arguments[0]} ended with exit code {process.wait()} before it was ready")
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
