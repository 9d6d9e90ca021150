"""A cache service, a holder who fills a pool of it, and a gateway that shows its tree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from chat_stack import BLOCK_SIZE, GibberishRunner, chat_text, gateway

from radixkv import PoolShape, connect
from radixkv.client import RemoteHolder
from radixkv.core.tokens import TokensLike
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.request import Generator
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText

__all__ = ["TreeStack", "busy_stack", "operators_file", "store", "tree_stack"]


class TreeStack(NamedTuple):
    """`url`: of the page."""

    service: ServiceThread
    holder: RemoteHolder
    server: GatewayServer
    text: ChatText

    @property
    def url(self) -> str:
        return f"http://{self.server.address}/tree"

    def store(self, *texts: str, namespace: str = "default") -> None:
        """Leave the histories of these texts cached."""
        for text in texts:
            store(self.holder, self.text.encode(text, special=False), namespace)


def store(holder: RemoteHolder, tokens: TokensLike, namespace: str = "default") -> None:
    """Leave `tokens` cached, with nobody standing on them."""
    seq = holder.acquire(tokens, namespace=namespace)
    holder.insert(seq.seq_id, len(tokens))
    holder.release(seq.seq_id)


@contextmanager
def tree_stack(
    generator: Generator,
    text: ChatText,
    *,
    num_blocks: int = 256,
    block_size: int = 4,
    keys_file: Path | None = None,
) -> Iterator[TreeStack]:
    """All of it, on the machine's clock; `generator` spells the tokens."""
    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
        connect(service.addresses[0], PoolShape(num_blocks, block_size)) as holder,
        gateway(
            generator,
            GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, service=service.addresses[0], keys_file=keys_file),
        ) as server,
    ):
        yield TreeStack(service, holder, server, text)
        holder.check()


@contextmanager
def busy_stack(
    model: str, num_blocks: int = 512, keys_file: Path | None = None
) -> Iterator[tuple[GatewayServer, Engine, GibberishRunner]]:
    """A worker that holds a pool of a service, and the gateway before it."""
    text = chat_text(model)
    runner = GibberishRunner(text, text.encode("<|im_end|>", special=False)[-1], num_blocks, 4096)
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        (address,) = service.addresses
        config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, service=address, keys_file=keys_file)
        with (
            connect(address, PoolShape(num_blocks, BLOCK_SIZE)) as holder,
            Engine(runner, holder, text=text, model_name="gibberish") as engine,
            gateway(engine, config) as server,
        ):
            yield server, engine, runner
            runner.gate.open()


def operators_file(path: Path, tenants: Sequence[str], operators: Sequence[str]) -> Path:
    """Tenants and operators, whose keys are their names."""
    rows = []
    for name in (*tenants, *operators):
        rows += ["[[tenant]]", f'name = "{name}"', f'keys = ["{hashlib.sha256(name.encode()).hexdigest()}"]']
        rows += ["operator = true"] if name in operators else []
    path.write_text("\n".join(rows))
    return path
