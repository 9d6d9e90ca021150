"""Administration through a gateway over two services with a worker each: every call reaches both, and what one of them could
not be told is told before it is routed to again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import BLOCK_SIZE
from many_hosts import LENGTH, POOLS, Host, prompt, serving, two_hosts
from tree_follower import follower
from waiting import wait_until

from radixkv import connect
from radixkv.gateway.server import GatewayServer


class Client:
    """A tenant at the gateway."""

    def __init__(self, server: GatewayServer, key: str) -> None:
        self._url, self._headers = server.url, {"x-api-key": key}

    def ask(self, method: str, path: str, status: int = 200, body: Any = None) -> Any:
        answer = httpx.request(method, f"{self._url}/radixkv/{path}", json=body, headers=self._headers, timeout=300)
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        return self.ask("POST", path, status, body)

    def cached(self, first: int) -> int:
        """Have a prompt computed by whichever worker the gateway chooses; how much of it was cached."""
        body = {"prompt": prompt(first), "max_tokens": 1, "temperature": 0}
        answer = httpx.post(f"{self._url}/completions", json=body, headers=self._headers, timeout=300)
        return int(answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def hosts(default_model: str) -> Iterator[tuple[Host, Host]]:
    with two_hosts(default_model) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def server(hosts: tuple[Host, Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    with serving(hosts, tmp_path_factory.mktemp("gateway")) as server:
        yield server


@pytest.fixture
def red(server: GatewayServer) -> Client:
    return Client(server, "red")


@pytest.fixture
def chief(server: GatewayServer) -> Client:
    return Client(server, "chief")


@pytest.fixture(autouse=True)
def _emptied(hosts: tuple[Host, Host]) -> Iterator[None]:
    yield
    for host in hosts:
        with connect(host.address, pool_name=host.pool) as reader:
            for namespace in ("red", "blue", "chief"):
                reader.clear(namespace)


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_operator_is_told_which_worker_was_chosen_and_why(
    hosts: tuple[Host, Host], server: GatewayServer, is_stream: bool
) -> None:
    hosts[1].compute(3, "chief")
    body = {"prompt": prompt(3), "max_tokens": 1, "stream": is_stream}
    answers = {
        key: httpx.post(f"{server.url}/completions", json=body, headers={"x-api-key": key}, timeout=60)
        for key in ("red", "chief")
    }
    assert "x-radixkv-route" not in answers["red"].raise_for_status().headers
    told = answers["chief"].raise_for_status().headers["x-radixkv-route"]
    assert re.fullmatch(
        rf"worker={hosts[1].server.address}; reason=matched; found={LENGTH}; "
        r"cost=\d+\.\d{3}s; backlog=\d+\.\d{3}s; waiting=0\.000s",
        told,
    ), told


def named(answer: dict[str, Any], figure: str) -> dict[str, Any]:
    """One figure of each pool."""
    return {each["pool"]: each[figure] for each in answer["pools"]}


def test_a_prompt_is_matched_explained_and_retained_in_whichever_pool_holds_it(
    hosts: tuple[Host, Host], red: Client
) -> None:
    for number, host in enumerate(hosts):
        host.compute(number, "red")
        (other,) = [each for each in hosts if each is not host]
        found = red.post("match", prompt=prompt(number))
        assert found["num_cached_tokens"] == LENGTH
        assert named(found, "num_cached_tokens") == {host.pool: LENGTH, other.pool: 0}
        assert found["unreachable"] == []
        told = red.post("explain", prompt=[*prompt(number)[:20], 7])
        assert (told["num_cached_tokens"], told["cause"]) == (20, "parted")
        assert named(told, "num_cached_tokens") == {host.pool: 20, other.pool: 0}
        ranges = [{"start": 0, "end": LENGTH, "priority": 90}]
        assert red.post("retention", prompt=prompt(number), retention=ranges)["num_tokens"] == LENGTH
        assert {node.priority for node in host.holder.dump("red")} == {90}
        for host_ in hosts:
            host_.holder.clear("red")


def test_a_pin_stands_where_most_of_the_prompt_is_held_and_is_listed_and_ended_from_there(
    hosts: tuple[Host, Host], server: GatewayServer, red: Client
) -> None:
    left, right = hosts
    right.compute(1, "red")
    left.compute(1, "red", length=20)
    left.compute(2, "red")
    for number, host in ((1, right), (2, left)):
        pinned = red.post("pins", prompt=prompt(number), ttl_s=60)
        assert (pinned["pool"], pinned["num_tokens"], pinned["unreachable"]) == (host.pool, LENGTH, [])
    assert red.post("pins", prompt=[9] * 20)["num_tokens"] == 0, "what nobody holds is not pinned"
    assert {pin["pool"] for pin in red.ask("GET", "pins")["data"]} == {left.pool, right.pool}
    assert Client(server, "blue").ask("GET", "pins")["data"] == []
    for number, host in ((1, right), (2, left)):
        assert red.ask("DELETE", "pins", body={"prompt": prompt(number)})["num_tokens"] == LENGTH
        assert host.holder.pins("red") == []
        red.ask("DELETE", "pins", 404, {"prompt": prompt(number)})


def test_quotas_usage_and_bills_are_of_all_pools(hosts: tuple[Host, Host], red: Client, chief: Client) -> None:
    for number, host in enumerate(hosts):
        host.compute(number, "red")
    chief.post("quotas", namespace="red", blocks=64, sequences=4)
    told = {each["pool"]: each["usages"][0] for each in red.ask("GET", "usage")["pools"]}
    assert {use["namespace"] for use in told.values()} == {"red"}
    assert {pool: (use["block_quota"], use["sequence_quota"]) for pool, use in told.items()} == dict.fromkeys(
        POOLS, (64, 4)
    )
    assert all(use["num_blocks"] >= LENGTH // BLOCK_SIZE for use in told.values())
    everybodys = chief.ask("GET", "usage?of_all=true")
    assert {each["pool"] for each in everybodys["pools"]} == set(POOLS)
    assert {each["service"] for each in everybodys["pools"]} == {host.address for host in hosts}
    held = sum(each["held_block_s"] for each in told.values()) * BLOCK_SIZE
    (bill,) = red.ask("GET", "billing")["data"]
    assert bill["held_token_s"] >= held > 0
    chief.post("quotas", namespace="red")
    red.post("quotas", 403, namespace="red", blocks=1)
    red.ask("GET", "usage?of_all=true", 403)
    chief.post("quotas", 400, namespace="red", blocks=-1)


def test_blocks_are_evicted_of_one_pool_or_of_each(hosts: tuple[Host, Host], red: Client, chief: Client) -> None:
    for host in hosts:
        host.compute(1, "red")
    keys = {each["pool"]: each["key"] for each in chief.ask("GET", "cache/pools")["pools"]}
    assert chief.post(f"cache/evict?pool={keys['right']}", num_blocks=1)["num_blocks"] == 1
    evicted = chief.post("cache/evict", num_blocks=1)
    assert (evicted["num_blocks"], named(evicted, "num_blocks")) == (2, {"left": 1, "right": 1})
    red.post("cache/evict", 403, num_blocks=1)


def test_the_tree_of_every_pool_is_shown_and_changed(hosts: tuple[Host, Host], server: GatewayServer) -> None:
    red, blue = Client(server, "red"), Client(server, "blue")
    for number, host in enumerate(hosts):
        host.compute(number, "red")
    wait_until(lambda: len(red.ask("GET", "cache/pools")["pools"]) == 2)
    for number, host in enumerate(hosts):
        (key,) = [each["key"] for each in red.ask("GET", "cache/pools")["pools"] if each["pool"] == host.pool]
        with follower(server.address, "red", f"?pool={key}") as eye:
            eye.wait_until(lambda: bool(eye.nodes) and eye.status.get("state") == "live")
            assert (eye.hello["pool"], eye.hello["key"], eye.hello["service"]) == (host.pool, key, "")
            root, node = sorted(eye.nodes, key=lambda each: eye.nodes[each][3])  # whole blocks, and the tail below them
            blue.ask("GET", f"cache/nodes/{node}", 404)
            assert red.post(f"cache/nodes/{node}/pin", ttl_s=60)["num_tokens"] == LENGTH
            assert len(host.holder.pins("red")) == 1
            (pin,) = red.ask("GET", f"cache/nodes/{node}")["pins"]
            assert red.post(f"cache/nodes/{node}/unpin", num_tokens=pin["num_tokens"])["was_pinned"]
            assert red.post(f"cache/nodes/{root}/evict")["num_blocks"] == -(-LENGTH // BLOCK_SIZE)
            assert host.holds(number, "red") == 0
    red.ask("GET", "cache/events?pool=nonsense", 404)


def test_a_clear_reaches_all_pools_and_its_salts_but_no_other_tenant(
    hosts: tuple[Host, Host], red: Client, chief: Client
) -> None:
    for host in hosts:
        host.compute(1, "red")
        host.compute(1, "blue")
        host.compute(2, "red", cache_salt="pepper")
    assert red.post("match", prompt=prompt(2), cache_salt="pepper")["num_cached_tokens"] == LENGTH
    cleared = red.post("clear", cache_salt="pepper")
    assert set(named(cleared, "num_blocks")) == set(POOLS)
    assert cleared["pending"] == []
    assert red.post("match", prompt=prompt(2), cache_salt="pepper")["num_cached_tokens"] == 0
    assert [host.holds(1, "red") for host in hosts] == [LENGTH, LENGTH]
    red.post("clear", 403, namespace="blue")
    red.post("clear")
    assert [(host.holds(1, "red"), host.holds(1, "blue")) for host in hosts] == [(0, LENGTH)] * 2
    chief.post("clear", namespace="blue")
    assert [host.holds(1, "blue") for host in hosts] == [0, 0]


def test_a_service_that_is_gone_is_named_and_told_of_a_clear_before_it_is_routed_to_again(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    here, gone = hosts
    with serving(hosts, tmp_path) as server:
        red, chief = Client(server, "red"), Client(server, "chief")
        gone.compute(1, "red")
        here.compute(2, "red")
        gone.compute(3, "blue")
        assert red.cached(1) == LENGTH - 1
        gone.service.stop()
        found = red.post("match", prompt=prompt(2))
        assert (found["num_cached_tokens"], len(found["unreachable"])) == (LENGTH, 1)
        assert gone.address not in str(found), "only an operator knows addresses"
        assert chief.post("match", prompt=prompt(2))["unreachable"] == [gone.address]
        assert red.post("pins", prompt=prompt(2))["pool"] == here.pool
        red.post("pins", 503, prompt=prompt(1))
        assert gone.address in chief.post("quotas", 503, namespace="blue", blocks=None)["error"]["message"]
        cleared = red.post("clear")
        assert list(named(cleared, "num_blocks")) == [here.pool]
        assert [each["pool"] for each in cleared["pending"]] == [gone.pool]
        here.compute(4, "red")
        assert red.cached(4) == LENGTH - 1, "the other pool serves the namespace"
    with serving(hosts, tmp_path) as server:  # the gateway, again
        red, blue = Client(server, "red"), Client(server, "blue")
        here.stop_worker()
        gone.start_service()
        assert red.cached(1) == 0, "it was told before it was routed to"
        assert blue.cached(3) == LENGTH - 1, "nothing else was cleared"
        assert {each["pool"] for each in red.post("clear")["pending"]} <= {here.pool}, "it has no worker now"
        here.start_worker()
        wait_until(lambda: red.post("clear")["pending"] == [])
        assert red.cached(5) == 0
        assert red.cached(5) == LENGTH - 1
