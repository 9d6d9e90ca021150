"""`sharing`, of the tenant and of the request: how far each API reuses what other requests computed, and what is told of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import BLOCK_SIZE, GibberishRunner, chat_text, gateway
from guarded import tenant_row
from talk import Talk

from radixkv import PoolShape, connect
from radixkv.client import Credentials
from radixkv.core.errors import InvalidArgumentError, PermissionDeniedError
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Completed, GenerationStream, Started
from radixkv.net import tenants
from radixkv.net.tenants import KeyRing
from radixkv.net.tls import Security
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

NUM_BLOCKS = 512
LONG = "One two three four five six seven eight nine ten eleven twelve. " * 4
MESSAGES = [{"role": "user", "content": LONG}]


@dataclass
class Site:
    """A gateway and a worker over one pool, and the keys file of both."""

    url: str
    engine: Engine
    keys: Path
    client: GenerationClient

    def allow(self, sharing: str) -> None:
        """Change the sharing of the tenant "red" in the keys file."""
        rows = [tenant_row("red", "red", sharing=sharing), tenant_row("blue", "blue"), tenant_row("front", "front")]
        new = self.keys.with_suffix(".new")
        new.write_text("\n".join(rows))
        os.utime(new, (time.time() - 60,) * 2)
        new.replace(self.keys)

    def ask(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/{path}", json=body, headers={"x-api-key": "red"}, timeout=300)

    def talk(self) -> Talk:
        return Talk(self.url, "red")


@pytest.fixture(scope="module")
def opened(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(tenant_row("red", "red"))
    text = chat_text(default_model)
    runner = GibberishRunner(text, text.encode("<|im_end|>", special=False)[-1], NUM_BLOCKS, 4096)
    with ExitStack() as stack:
        service = stack.enter_context(ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))))
        (address,) = service.addresses
        config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, service=address, keys_file=keys)
        holder = stack.enter_context(connect(address, PoolShape(NUM_BLOCKS, BLOCK_SIZE)))
        engine = stack.enter_context(Engine(runner, holder, text=text, model_name="gibberish"))
        server = stack.enter_context(gateway(engine, config))
        worker = stack.enter_context(GenerationServer(engine, "127.0.0.1:0", security=Security(keys_file=keys)))
        client = GenerationClient(worker.address, credentials=Credentials(token="red"), retries=False)
        yield Site(server.url, engine, keys, stack.enter_context(client))
        runner.gate.open()


@pytest.fixture
def site(opened: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(tenants, "RECHECK_S", 0.0)
    opened.allow("on")
    opened.engine.call(lambda holder: holder.clear("red"))
    return opened


def chat(site: Site, **fields: Any) -> httpx.Response:
    return site.ask("chat/completions", messages=MESSAGES, max_tokens=4, temperature=0, **fields)


def completion(site: Site, **fields: Any) -> httpx.Response:
    return site.ask("completions", prompt=LONG, max_tokens=4, temperature=0, **fields)


def message(site: Site, **fields: Any) -> httpx.Response:
    return site.ask("messages", messages=MESSAGES, max_tokens=4, temperature=0, **fields)


def response(site: Site, **fields: Any) -> httpx.Response:
    return site.ask("responses", **{"input": LONG, "max_output_tokens": 4, "temperature": 0, **fields})


def found_of(answer: httpx.Response) -> int:
    """Tokens of its prompt found in the cache."""
    usage = answer.raise_for_status().json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens", usage.get("cache_read_input_tokens")))


Ask = Callable[..., httpx.Response]
APIS = [chat, completion, message, response]


@pytest.mark.parametrize("ask", APIS)
def test_a_request_may_share_less_than_its_tenant(site: Site, ask: Ask) -> None:
    assert found_of(ask(site)) == 0
    assert found_of(shared := ask(site)) > 32
    assert shared.headers["x-radixkv-sharing"] == "on"
    for sharing in ("off", "own"):
        assert [found_of(alone := ask(site, sharing=sharing)) for _ in range(2)] == [0, 0]
        assert alone.headers["x-radixkv-sharing"] == sharing


@pytest.mark.parametrize("ask", APIS)
def test_a_request_that_wants_more_than_its_tenant_allows_is_refused_by_name(site: Site, ask: Ask) -> None:
    assert found_of(ask(site)) == 0
    for allowed, refused in (("own", ["on"]), ("off", ["on", "own"])):
        site.allow(allowed)
        for sharing in refused:
            answer = ask(site, sharing=sharing)
            assert answer.status_code == 403
            assert f"sharing is '{sharing}'; its tenant allows" in answer.text
        assert found_of(ask(site)) == 0, "without a wish of its own it shares what its tenant may"
    assert ask(site, sharing="most").status_code == 400
    site.allow("on")
    assert found_of(ask(site)) > 32, "the file counts from the next request on"


@pytest.mark.parametrize("ask", [chat, completion, message])
def test_a_conversation_of_ones_own_is_named_by_its_salt(site: Site, ask: Ask) -> None:
    site.allow("own")
    assert [found_of(ask(site)) for _ in range(2)] == [0, 0]
    assert found_of(ask(site, cache_salt="talk 1")) == 0
    assert found_of(ask(site, cache_salt="talk 1")) > 32
    assert found_of(ask(site, cache_salt="talk 2")) == 0
    assert found_of(ask(site, cache_salt="talk 1", sharing="off")) == 0


def test_responses_that_go_on_from_one_another_are_one_conversation(site: Site) -> None:
    site.allow("own")
    first = response(site)
    assert found_of(response(site)) == 0, "the same words in another conversation"
    before = first.json()["usage"]["total_tokens"]
    ids = [first.json()["id"]]
    for _ in range(2):
        again = response(site, input="Go on", previous_response_id=ids[-1])
        assert found_of(again) >= before - 1
        before = again.json()["usage"]["total_tokens"]
        ids.append(again.json()["id"])
    edited = response(site, input="Go back", previous_response_id=ids[0])
    assert found_of(edited) >= first.json()["usage"]["total_tokens"] - 1
    site.allow("on")
    assert found_of(response(site, input="Go on", previous_response_id=ids[0])) == 0, "left to its conversation alone"
    assert response(site, input="Go on", previous_response_id=ids[0], cache_salt="x").status_code == 400


def test_a_list_of_items_is_a_conversation(site: Site) -> None:
    site.allow("own")
    ids = [site.ask("conversations").json()["id"] for _ in range(2)]
    first = response(site, conversation=ids[0])
    assert found_of(response(site, conversation=ids[0], input="Go on")) >= first.json()["usage"]["total_tokens"] - 1
    assert found_of(response(site, conversation=ids[1])) == 0


def test_a_reply_is_forked_within_its_own_conversation(site: Site) -> None:
    site.allow("own")
    first = response(site)
    path = f"radixkv/generations/{first.headers['x-radixkv-generation-id']}/fork"
    assert found_of(site.ask(path, max_tokens=4)) >= first.json()["usage"]["input_tokens"] - 1
    assert site.ask(path, max_tokens=4, sharing="on").status_code == 403


def test_kept_conversations_share_with_themselves_alone(site: Site) -> None:
    site.allow("own")
    found = []
    with site.talk() as talk:
        for _ in range(2):
            conversation_id = talk.begin()
            _, first = talk.turn(conversation_id, LONG)
            _, second = talk.turn(conversation_id, "And now?", parent=first["id"])
            found.append([reply["details"]["cached_tokens"] for reply in (first, second)])
    assert [first for first, _ in found] == [0, 0]
    assert all(second > 32 for _, second in found)


def test_explain_and_match_tell_what_a_request_would_find(site: Site) -> None:
    num_prompt = completion(site).json()["usage"]["prompt_tokens"]
    told = site.ask("radixkv/explain", prompt=LONG).json()
    assert (told["sharing"], told["num_cached_tokens"]) == ("on", num_prompt)
    for form in ({"sharing": "off"}, {"sharing": "own"}):
        told = site.ask("radixkv/explain", prompt=LONG, **form).json()
        assert (told["sharing"], told["cause"], told["num_cached_tokens"]) == (form["sharing"], "unshared", 0)
        assert site.ask("radixkv/match", prompt=LONG, **form).json()["num_cached_tokens"] == 0
    site.allow("own")
    completion(site, cache_salt="talk")
    told = site.ask("radixkv/explain", prompt=LONG, cache_salt="talk").json()
    assert (told["sharing"], told["num_cached_tokens"]) == ("own", num_prompt)
    assert site.ask("radixkv/explain", prompt=LONG, sharing="on").status_code == 403
    assert httpx.get(f"{site.url}/radixkv/me", headers={"x-api-key": "red"}).json()["sharing"] == "own"


def generate(site: Site, **fields: Any) -> tuple[str, int, str]:
    """The generation's id, tokens of its prompt found in the cache, and the sharing that is told."""
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    return _read(site.client.generate(GenerateParams(token_ids=range(100, 180), sampling=sampling, **fields)))


def _read(stream: GenerationStream) -> tuple[str, int, str]:
    first, *_, last = stream
    assert isinstance(first, Started)
    assert isinstance(last, Completed)
    assert first.sharing is not None
    return first.generation_id, last.usage.num_cached_tokens, first.sharing


def test_over_grpc_the_tenants_sharing_binds_too(site: Site) -> None:
    assert generate(site)[1:] == (0, "on")
    assert generate(site)[1:] == (79, "on")
    assert generate(site, sharing="off")[1:] == (0, "off")
    site.allow("own")
    assert [generate(site)[1:] for _ in range(2)] == [(0, "own")] * 2
    assert [generate(site, cache_salt="talk")[1] for _ in range(2)] == [0, 79]
    with pytest.raises(PermissionDeniedError, match="'on'; its tenant allows 'own' or 'off'"):
        generate(site, sharing="on")
    with pytest.raises(InvalidArgumentError, match="sharing is 'some'"):
        generate(site, sharing="some")


def test_a_fork_over_grpc_shares_no_more_than_its_tenant_may_by_then(site: Site) -> None:
    generation_id, *_ = generate(site)
    params = ForkParams(generation_id=generation_id, sampling=SamplingParams(max_tokens=2, temperature=0))
    assert _read(site.client.fork(params))[1:] == (83, "on")
    site.allow("own")
    assert _read(site.client.fork(params))[1:] == (0, "off")


@pytest.mark.parametrize("sharing", ["most", 1, ""])
def test_a_keys_file_with_another_sharing_is_refused_by_name(tmp_path: Path, sharing: Any) -> None:
    path = tmp_path / "keys"
    path.write_text(tenant_row("red", "red", sharing=sharing))
    with pytest.raises(InvalidArgumentError, match=r"\[\[tenant\]\] sharing is .*one of on, own, off"):
        KeyRing(path)
