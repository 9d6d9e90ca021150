"""What a tenant may ask is its own, whichever door it comes through, and what it holds open is no more than its share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from guarded import tenant_row

from radixkv import LimitError, PrefixCache
from radixkv.client import Credentials
from radixkv.gateway.config import GatewayConfig, TenantLimits
from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, Prompt
from radixkv.generation.stream import GenerationStream, Started
from radixkv.net.limits import Limiter
from radixkv.net.tls import Security
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

DEADLINE_S = 300.0
MAX_STREAMS = 12


def ask(num_tokens: int = 2, namespace: str | None = None) -> GenerateParams:
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    return GenerateParams(token_ids=[1, 2, 3], sampling=sampling, namespace=namespace)


class CountingEngine(Engine):
    """Knows how many generations it was asked for; what is refused never gets so far."""

    num_asked = 0

    def generate(self, params: GenerateParams) -> GenerationStream:
        """See `Engine.generate`."""
        self.num_asked += 1
        return super().generate(params)


@dataclass
class Site:
    """A worker's two doors in one process, and the model behind them."""

    runner: HashRunner
    engine: CountingEngine
    worker: GenerationServer
    url: str
    stack: ExitStack

    def client(self, key: str) -> GenerationClient:
        credentials = Credentials(token=key)
        return self.stack.enter_context(GenerationClient(self.worker.address, credentials=credentials, retries=False))

    def over_http(self, key: str, num_tokens: int = 2) -> httpx.Response:
        body = {"model": "hash", "prompt": [1, 2, 3], "max_tokens": num_tokens}
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{self.url}/completions", json=body, headers=headers, timeout=DEADLINE_S)


@contextmanager
def site(folder: Path, limits: TenantLimits | None = None, max_streams: int = MAX_STREAMS) -> Iterator[Site]:
    """Tenants a, b, c and d; "single" may have one request at once, "few" 3 a minute, "frugal" 20 tokens a minute; a front."""
    rows = [tenant_row(name, name) for name in "abcd"]
    rows.append(tenant_row("single", "single", max_concurrent=1))
    rows.append(tenant_row("few", "few", requests_per_minute=3))
    rows.append(tenant_row("frugal", "frugal", tokens_per_minute=20))
    rows.append(tenant_row("front", "front", namespaces=["*"]))
    keys = folder / "keys.toml"
    keys.write_text("\n".join(rows))
    limits, limiter = limits or TenantLimits(), Limiter(clock=lambda: 0.0)  # a minute lasts as long as the test
    security = Security(keys_file=keys, limits=limits)
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, limits=limits, drain_s=1.0)
    runner = HashRunner(512, 4, max_model_len=200)
    engine = CountingEngine(runner, PrefixCache(512, 4), model_name="hash")
    with (
        engine,
        GenerationServer(engine, "127.0.0.1:0", security=security, limiter=limiter, max_streams=max_streams) as worker,
        GatewayServer(engine, config, limiter) as gateway,
        ExitStack() as stack,
    ):
        yield Site(runner, engine, worker, gateway.url, stack)
        runner.gate.open()


def streaming(client: GenerationClient, namespace: str | None = None) -> GenerationStream:
    """A generation that has begun and is held up by the closed gate."""
    stream = client.generate(ask(100, namespace))
    assert isinstance(next(stream), Started)
    return stream


def held_up(client: GenerationClient, namespace: str | None = None) -> list[GenerationStream]:
    """As many as the worker lets in."""
    streams = []
    while True:
        try:
            streams.append(streaming(client, namespace))
        except LimitError:
            return streams
        assert len(streams) <= MAX_STREAMS


def until_served(serve: Callable[[], object]) -> None:
    """What has ended is noticed a moment later than its caller is told."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            serve()
        except LimitError:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        else:
            return


def test_a_tenant_of_one_request_at_once_has_one_over_both_doors(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        client = here.client("single")
        here.runner.gate.close()
        stream = streaming(client)
        with pytest.raises(LimitError, match="limit of 1 requests at once") as refused:
            client.generate(ask())
        assert refused.value.retry_after_s == 1.0
        answer = here.over_http("single")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert here.engine.num_asked == 1
        here.runner.gate.open()
        assert list(stream)
        until_served(lambda: list(client.generate(ask())))
        assert here.over_http("single").status_code == 200


def test_every_method_that_costs_something_draws_from_the_requests_of_a_minute(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        client = here.client("few")
        stream = client.generate(ask())
        list(stream)
        list(client.fork(ForkParams(generation_id=stream.generation_id, sampling=ask().sampling)))
        assert client.tokenize(Prompt(token_ids=[1, 2]))
        calls: list[Callable[[], object]] = [
            lambda: client.generate(ask()),
            lambda: client.fork(ForkParams(generation_id=stream.generation_id)),
            lambda: client.tokenize(Prompt(token_ids=[1])),
            lambda: client.detokenize([1]),
            lambda: client.spell([1]),
        ]
        for call in calls:
            with pytest.raises(LimitError, match="limit of 3 requests per minute"):
                call()
        assert here.over_http("few").status_code == 429
        assert client.model().name == "hash"


def test_tokens_of_one_door_are_charged_at_the_other_and_cached_ones_are_not(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        client = here.client("frugal")
        list(client.generate(ask(6)))  # 9 tokens
        list(client.generate(ask(6)))  # at most 9 more, of which 3 may be found cached
        answer = here.over_http("frugal", 6)
        assert answer.status_code == 200
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) in (2, 3, 4, 5)
        with pytest.raises(LimitError, match="limit of 20 tokens per minute"):
            client.generate(ask())


def test_a_request_beyond_a_limit_is_refused_before_its_prompt_is_looked_at(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        client = here.client("few")
        for _ in range(3):
            client.tokenize(Prompt(token_ids=[1]))
        with pytest.raises(LimitError):
            client.generate(GenerateParams(token_ids=[10**6]))  # no token of this model


def test_limits_for_all_hold_over_grpc_too(tmp_path: Path) -> None:
    with site(tmp_path, TenantLimits(requests_per_minute=1)) as here:
        assert here.over_http("a").status_code == 200
        with pytest.raises(LimitError, match="1 requests per minute"):
            here.client("a").generate(ask())
        list(here.client("b").generate(ask()))


def test_a_tenants_streams_leave_places_for_others_however_many_hostile_ones_there_are(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        here.runner.gate.close()
        held = [held_up(here.client(name)) for name in "abc"]
        assert [len(streams) for streams in held] == [6, 3, 2]
        with pytest.raises(LimitError, match="6 generations stream already for this caller, its share of 12"):
            here.client("a").generate(ask())
        assert here.engine.num_asked == 11  # what was refused was never begun
        here.runner.gate.open()
        assert list(here.client("d").generate(ask()))


def test_a_gateway_that_names_all_namespaces_has_a_share_for_each(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        here.runner.gate.close()
        front = here.client("front")
        held = [held_up(front, name) for name in ("a", "b", "c")]
        assert [len(streams) for streams in held] == [6, 3, 2]
        with pytest.raises(LimitError):
            front.generate(ask(2, "a"))
        assert isinstance(streaming(front, "d"), GenerationStream)


def test_two_hundred_and_fifty_six_streams_of_one_tenant_leave_another_served(tmp_path: Path) -> None:
    with site(tmp_path, max_streams=256) as here:
        here.runner.gate.close()
        client = here.client("a")
        held = [streaming(client) for _ in range(128)]
        for _ in range(128):
            with pytest.raises(LimitError, match="its share of 256"):
                client.generate(ask())
        here.runner.gate.open()
        assert list(here.client("b").generate(ask()))
        for stream in held:
            stream.close()
