"""Billing: each request has a cost by the worker's price list, and the sums of a namespace outlive the gateway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import BLOCK_SIZE, GibberishRunner, chat_text, gateway
from guarded import tenant_row
from talk import Talk

from radixkv import PoolShape, connect
from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.prices import Prices, read_prices
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.engine.engine import Engine

LONG = "One two three four five six seven eight nine ten eleven twelve. " * 4
MESSAGES = [{"role": "user", "content": LONG}]
PRICES = Prices(currency="EUR", computed=2.0, found=0.5, generated=8.0, held=3600.0)


class Site:
    """A worker with a price list, its cache service, and gateways before them, one after another, over one state file."""

    def __init__(self, folder: Path, model: str, stack: ExitStack) -> None:
        self.keys, self.state_file = folder / "keys", folder / "state"
        self.keys.write_text(tenant_row("red", "red") + "\n" + tenant_row("boss", "boss", operator=True))
        text = chat_text(model)
        runner = GibberishRunner(text, text.encode("<|im_end|>", special=False)[-1], 256, 4096)
        service = stack.enter_context(ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))))
        (self.address,) = service.addresses
        holder = stack.enter_context(connect(self.address, PoolShape(256, BLOCK_SIZE)))
        self.engine = stack.enter_context(Engine(runner, holder, text=text, model_name="gibberish", prices=PRICES))
        stack.callback(runner.gate.open)
        self.url = ""

    def gateway(self) -> Any:
        config = GatewayConfig(
            listen="127.0.0.1:0",
            drain_s=1.0,
            service=self.address,
            keys_file=self.keys,
            state_file=self.state_file,
        )
        return gateway(self.engine, config)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        headers = {"x-api-key": "red"}
        answer = httpx.post(f"{self.url}/{path}", json={"temperature": 0, **body}, headers=headers, timeout=300)
        told: dict[str, Any] = answer.raise_for_status().json()
        return told

    def bills(self, key: str = "red", **query: Any) -> httpx.Response:
        return httpx.get(f"{self.url}/radixkv/billing", params=query, headers={"x-api-key": key}, timeout=300)


@pytest.fixture
def site(default_model: str, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, default_model, stack)


def cost_of(num_prompt: int, num_found: int, num_generated: int) -> float:
    return (2.0 * (num_prompt - num_found) + 0.5 * num_found + 8.0 * num_generated) / 1e6


def test_every_api_tells_its_cost_and_the_sums_outlive_the_gateway(site: Site) -> None:
    with site.gateway() as server:
        site.url = server.url
        usages = []
        for _ in range(2):
            usages.append(site.ask("chat/completions", messages=MESSAGES, max_tokens=4)["usage"])
        usages.append(site.ask("completions", prompt=[LONG, LONG], max_tokens=4)["usage"])
        for usage in usages:
            found = usage["prompt_tokens_details"]["cached_tokens"]
            assert usage["cost"] == pytest.approx(cost_of(usage["prompt_tokens"], found, usage["completion_tokens"]))
        assert usages[1]["cost"] < usages[0]["cost"], "what is found costs less"
        usage = site.ask("responses", input=LONG, max_output_tokens=4)["usage"]
        num_found = usage["input_tokens_details"]["cached_tokens"]
        assert usage["cost"] == pytest.approx(cost_of(usage["input_tokens"], num_found, usage["output_tokens"]))
        told = site.ask("messages", messages=MESSAGES, max_tokens=4)["usage"]
        num_prompt = told["input_tokens"] + told["cache_read_input_tokens"]
        assert told["cost"] == pytest.approx(
            cost_of(num_prompt, told["cache_read_input_tokens"], told["output_tokens"])
        )
        with Talk(server.url, "red") as talk:
            details = talk.turn(talk.begin(), "Hello")[1]["details"]
        tokens = details["prompt_tokens"], details["cached_tokens"], details["generated_tokens"]
        assert details["cost"] == pytest.approx(cost_of(*tokens))
        spent = sum(each["cost"] for each in [*usages, usage, told, details])
        first = site.bills().json()
        assert first["prices"] == {"currency": "EUR", "computed": 2.0, "found": 0.5, "generated": 8.0, "held": 3600.0}
        (bill,) = first["data"]
        assert bill["num_requests"] == 7
        assert bill["held_token_s"] > 0
        assert bill["cost"] == pytest.approx(spent + bill["held_token_s"] / 1e6)
        refused = site.bills(of_all=True)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "of_all")
        assert [each["namespace"] for each in site.bills("boss", of_all=True).json()["data"]] == ["red"]
        assert site.bills("boss").json()["data"] == []
    with site.gateway() as server:
        site.url = server.url
        time.sleep(0.05)
        (again,) = site.bills().json()["data"]
        counted = ("num_requests", "num_computed_tokens", "num_found_tokens", "num_generated_tokens")
        assert all(again[name] == bill[name] for name in counted)
        assert again["held_token_s"] > bill["held_token_s"]
        assert again["cost"] == pytest.approx(spent + again["held_token_s"] / 1e6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("currency = 'EUR'\ncomputed = -1", r"computed in price list .* is -1; it must be a number of at least 0"),
        ("currency = 'EUR'\nfound = nan", r"found in price list .* is nan"),
        ("currency = 'EUR'\nfound = true", r"found in price list .* is True"),
        ("computed = 1", r"currency in price list .* a text of 1 to 16 characters"),
        ("currency = 'EUR'\ncached = 1", r"price list .* is \['cached'\]; it must be of the keys currency, computed"),
        ("currency =", "a TOML file that can be read"),
    ],
)
def test_a_price_list_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prices").write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        read_prices(tmp_path / "prices")
