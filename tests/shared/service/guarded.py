"""A cache service and a worker that want credentials, with content of two tenants in them, and raw calls of any method."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from radixkv import PoolShape, PrefixCache, connect
from radixkv.client import Credentials, RemoteHolder
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.net.tls import Security
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.v1 import generation_pb2 as generation
from radixkv.v1 import kv_events_pb2, prefix_cache_pb2, types_pb2, workers_pb2
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

ROLES = ("client", "reader", "holder", "admin")
MINE, THEIRS = "mine-namespace", "theirs-namespace"
MY_TOKENS = [0x0A0B0C00 + i for i in range(48)]
THEIR_TOKENS = [0x1D2E3F00 + i for i in range(48)]
"""Every id is in itself a mark of whose it is, as packed bytes and as a varint alike."""

FILES = (generation, kv_events_pb2, prefix_cache_pb2, types_pb2, workers_pb2)
KV_EVENT_METHODS = (
    "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents",
    "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents",
    "/trtllm.TrtllmService/SubscribeKvEvents",
    "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenant_row(name: str, key: str, **fields: Any) -> str:
    """A tenant of a keys file."""
    lines = [f"{field} = {value!r}".replace("True", "true") for field, value in fields.items()]
    return "\n".join(["[[tenant]]", f'name = "{name}"', f'keys = ["{digest(key)}"]', *lines, ""])


def write_keys(path: Path) -> None:
    """A tenant for each role, all of namespace `MINE`, one of the other namespace, and one whose namespace is the one that is
    meant where a request names none; the key of each is its name.
    """
    rows = [tenant_row(role, role, namespace=MINE, roles=[role]) for role in ROLES]
    rows.append(tenant_row("feeder", "feeder", roles=["holder", "reader"], namespaces=["*"]))
    rows.append(tenant_row("front", "front", roles=["client", "reader"], namespaces=["*"]))
    rows.append(tenant_row("narrow", "narrow", roles=["holder"], pools=["theirs"]))
    rows.append(tenant_row("other", "other", namespace=THEIRS))
    rows.append(tenant_row("plain", "plain", namespace="default", roles=[*ROLES[:3]]))
    path.write_text("\n".join(rows))


@dataclass(frozen=True)
class Method:
    """One RPC: where it is served, and what its messages are."""

    name: str
    request: type[Message]
    response: type[Message]
    sends_stream: bool
    gets_stream: bool


def methods() -> dict[str, Method]:
    """Every method of every service of our protos, and the subscriptions that routers know by other names."""
    found = {}
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for call in service.methods:
                name = f"/{service.full_name}/{call.name}"
                request, response = call.input_type._concrete_class, call.output_type._concrete_class
                found[name] = Method(name, request, response, call.client_streaming, call.server_streaming)
    for name in KV_EVENT_METHODS:
        request, response = kv_events_pb2.SubscribeKvEventsRequest, kv_events_pb2.KvEventBatch
        found[name] = Method(name, request, response, False, True)
    return found


@dataclass
class Site:
    """Both servers, and the generations that were run on the worker."""

    service: ServiceThread
    worker: GenerationServer
    generations: dict[str, str]
    keys: Path
    holder: RemoteHolder

    def fill(self) -> None:
        """Leave content of both tenants in the cache, whatever was dropped of it before."""
        for namespace, tokens in ((MINE, MY_TOKENS), (THEIRS, THEIR_TOKENS)):
            seq = self.holder.acquire(tokens, namespace=namespace)
            self.holder.insert(seq.seq_id, num_computed=len(tokens))
            self.holder.release(seq.seq_id)

    def call(
        self,
        method: Method,
        requests: Iterable[Message],
        key: str | None,
        metadata: Iterable[tuple[str, str]] = (),
        most_answers: int = 1000,
    ) -> tuple[grpc.StatusCode, list[Any], str]:
        """How a call ended, what was answered, and what was said of an error."""
        address = self.worker.address if ".Generation/" in method.name else self.service.addresses[0]
        sent = [*metadata, *([("authorization", f"Bearer {key}")] if key is not None else [])]
        with grpc.insecure_channel(address) as channel:
            make = getattr(channel, _ARITIES[method.sends_stream, method.gets_stream])
            call = make(method.name, method.request.SerializeToString, method.response.FromString)
            requests = list(requests)
            argument = iter(requests) if method.sends_stream else requests[0]
            answers: list[Any] = []
            try:
                if not method.gets_stream:
                    return grpc.StatusCode.OK, [call(argument, metadata=sent, timeout=300)], ""
                stream = call(argument, metadata=sent, timeout=300)
                for answer in stream:
                    answers.append(answer)
                    if len(answers) == most_answers:
                        stream.cancel()
                        break
            except grpc.RpcError as error:
                return error.code(), answers, error.details() or ""
        return grpc.StatusCode.OK, answers, ""


_ARITIES = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}


@contextmanager
def guarded_site(folder: Path, lease_ttl_s: float = 10.0) -> Iterator[Site]:
    """Both servers with `write_keys`, and a pool "filled" with content of both namespaces."""
    keys = folder / "keys.toml"
    write_keys(keys)
    security = Security(keys_file=keys)
    config = ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=lease_ttl_s, security=security)
    feeder = Credentials(token="feeder")
    runner = HashRunner(64, 4, max_model_len=100)
    with (
        ServiceThread(config) as service,
        connect(service.addresses[0], PoolShape(64, name="filled"), credentials=feeder) as holder,
        Engine(runner, PrefixCache(64, 4), model_name="hash") as engine,
        GenerationServer(engine, "127.0.0.1:0", security=security) as worker,
    ):
        generations = {
            namespace: _generate(worker.address, key) for namespace, key in ((MINE, "client"), (THEIRS, "other"))
        }
        yield Site(service, worker, generations, keys, holder)


def _generate(address: str, key: str) -> str:
    sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with GenerationClient(address, credentials=Credentials(token=key)) as client:
        stream = client.generate(GenerateParams(token_ids=[1, 2, 3, 4, 5], sampling=sampling))
        list(stream)
        return stream.generation_id
