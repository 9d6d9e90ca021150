"""Hosts of a deployment in one process, each a cache service with a worker beside it, and a gateway over them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from chat_stack import BLOCK_SIZE, GibberishRunner, Watched, chat_text, gateway
from waiting import wait_until

from radixkv import PoolShape, connect
from radixkv.client import RemoteHolder
from radixkv.core.api import WorkerLoad
from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

__all__ = ["LENGTH", "POOLS", "Host", "prompt", "serving", "two_hosts"]

NUM_BLOCKS = 256
LENGTH = 40
"""Of a prompt, in tokens."""

POOLS = ("left", "right")


class Host:
    """A cache service at one address, and a worker beside it; either may end and begin again."""

    def __init__(self, model: str, pool: str) -> None:
        self.model, self.pool = model, pool
        self.listen = "127.0.0.1:0"  # of its worker
        self.service = ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=300.0)).start()
        (self.address,) = self.service.addresses
        self.start_worker()

    def start_worker(self) -> None:
        text = chat_text(self.model)
        self.runner = GibberishRunner(text, text.encode("<|im_end|>", special=False)[-1], NUM_BLOCKS, 4096)
        self.stack = ExitStack()
        self.engine: Engine | None = None
        shape = PoolShape(NUM_BLOCKS, BLOCK_SIZE, self.pool)
        self.holder: RemoteHolder = self.stack.enter_context(
            connect(self.address, shape, patience_s=300.0, wait_s=300.0, load=self._load)
        )
        self.engine = Engine(self.runner, self.holder, text=text, model_name="gibberish")
        self.stack.callback(self.engine.close)
        self.watched = Watched(self.engine)
        self.server = self.stack.enter_context(GenerationServer(self.watched, self.listen))
        self.holder.announce(self.server.address, hashlib.sha256(self.model.encode()).hexdigest()[:32])

    def _load(self) -> WorkerLoad:
        return self.engine.load() if self.engine is not None else WorkerLoad(0, 0.0, 0, is_accepting=False)

    def stop_worker(self) -> None:
        self.runner.gate.open()
        self.stack.close()

    def start_service(self) -> None:
        self.service = ServiceThread(ServiceConfig(addresses=(self.address,), lease_ttl_s=300.0)).start()

    def compute(self, first: int, namespace: str, length: int = LENGTH, **more: Any) -> None:
        """Have this worker compute the beginning of a prompt, whoever is the better one."""
        sampling = SamplingParams(max_tokens=1, temperature=0)
        params = GenerateParams(token_ids=prompt(first)[:length], sampling=sampling, namespace=namespace, **more)
        assert self.engine is not None
        list(self.engine.generate(params))
        wait_until(lambda: not self.holder.stats().num_sequences)

    def holds(self, first: int, namespace: str) -> int:
        with connect(self.address, pool_name=self.pool) as reader:
            return reader.match(prompt(first), namespace=namespace).num_tokens

    def close(self) -> None:
        self.stop_worker()
        self.service.stop()


def prompt(first: int) -> list[int]:
    """Token ids that begin like no other prompt's."""
    return [1000 + first * 100 + step for step in range(LENGTH)]


@contextmanager
def two_hosts(model: str) -> Iterator[tuple[Host, Host]]:
    """Two of them, in the order of their addresses."""
    both = Host(model, POOLS[0]), Host(model, POOLS[1])
    try:
        first, second = sorted(both, key=lambda host: host.address)
        yield first, second
    finally:
        for host in both:
            host.close()


@contextmanager
def serving(
    hosts: Sequence[Host], folder: Path, keys: Sequence[str] = ("red", "blue", "chief")
) -> Iterator[GatewayServer]:
    """A gateway over them with state in a folder, and these tenants, the last an operator; without any everybody is one."""
    addresses = [host.address for host in hosts]
    rows = []
    for name in keys:
        rows += ["[[tenant]]", f'name = "{name}"', f'keys = ["{hashlib.sha256(name.encode()).hexdigest()}"]']
    keys_file = folder / "keys" if keys else None
    if keys_file is not None:
        keys_file.write_text("\n".join([*rows, "operator = true"]))
    config = GatewayConfig(
        listen="127.0.0.1:0",
        drain_s=1.0,
        service=addresses[0],
        keys_file=keys_file,
        state_file=folder / "state",
        worker_wait_s=300.0,
    )
    with RoutedGenerator(addresses, answer_s=60.0) as generator:
        wait_until(lambda: {route.worker.generation_address for route in generator.members.known()} >= served(hosts))
        with gateway(generator, config) as server:
            yield server


def served(hosts: Sequence[Host]) -> set[str]:
    return {host.server.address for host in hosts if host.service._thread is not None}
