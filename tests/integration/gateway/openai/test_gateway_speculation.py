"""`prediction` and `speculation` of a request and of a tenant, and the usage that tells of guesses."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import gateway, gibberish_engine
from waiting import wait_until

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.net.tenants import KeyRing
from radixkv.worker.speculation.settings import SpeculationSettings

TENANTS = """
[[tenant]]
name = "all"
keys = ["{all}"]
[[tenant]]
name = "new"
keys = ["{new}"]
[[tenant]]
name = "another"
keys = ["{another}"]
[[tenant]]
name = "own"
speculation = "own"
keys = ["{own}"]
[[tenant]]
name = "none"
speculation = "none"
keys = ["{none}"]
"""


@pytest.fixture(scope="module")
def server(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(
        TENANTS.format(
            **{name: hashlib.sha256(name.encode()).hexdigest() for name in ("all", "new", "another", "own", "none")}
        )
    )
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, keys_file=keys)
    with (
        gibberish_engine(default_model, speculation=SpeculationSettings(always=True)) as (engine, _, _),
        gateway(engine, config) as server,
    ):
        yield server


def ask(server: GatewayServer, key: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 60, "seed": 4, **fields}
    return httpx.post(f"{server.url}/chat/completions", json=body, headers={"x-api-key": key}, timeout=300)


def guesses(answer: httpx.Response) -> tuple[int, int]:
    details = answer.json()["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def test_a_reply_that_comes_again_is_guessed_where_the_tenant_lets_it_and_stays_the_same(server: GatewayServer) -> None:
    texts, accepted = set(), {}
    for key in ("all", "own", "none"):
        answers = [ask(server, key) for _ in range(2)]
        texts |= {answer.json()["choices"][0]["message"]["content"] for answer in answers}
        accepted[key] = guesses(answers[1])
    assert len(texts) == 1
    assert accepted["all"][0] > accepted["own"][0]
    assert accepted["none"] == (0, 0)


def test_what_one_tenant_has_had_said_is_guessed_for_no_other(server: GatewayServer) -> None:
    first, again, others = (ask(server, key, seed=5) for key in ("new", "new", "another"))
    assert others.json()["choices"] == first.json()["choices"] == again.json()["choices"]
    assert guesses(others) == guesses(first) != guesses(again)


def test_metrics_and_usage_count_the_same(server: GatewayServer) -> None:
    def counters() -> Counter[str]:
        """Of all labels."""
        found = Counter[str]()
        for line in httpx.get(f"http://{server.address}/metrics", timeout=300).text.splitlines():
            if line.startswith("radixkv:"):
                found[line.partition("_total")[0].removeprefix("radixkv:")] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
        return found

    before = counters()
    answers = [ask(server, key, seed=seed) for key in ("all", "own", "none") for seed in (6, 6, 7)]
    num_tokens = sum(answer.json()["usage"]["completion_tokens"] for answer in answers)
    num_accepted, num_rejected = map(sum, zip(*map(guesses, answers), strict=True))
    expected = {
        "accepted_draft_tokens": num_accepted,
        "accepted_draft_tokens_by_depth": num_accepted,
        "draft_tokens": num_accepted + num_rejected,
        "draft_tokens_by_depth": num_accepted + num_rejected,
        "generation_tokens": num_tokens,
    }

    def told(*names: str) -> dict[str, int]:
        now = counters()
        return {name: now[name] - before[name] for name in names}

    wait_until(lambda: told(*expected) == expected)  # they are at most a second old
    assert num_accepted > 0
    num_at_ends = (
        told("decode_draws")["decode_draws"] + num_accepted - num_tokens
    )  # guesses that came true and ended their reply
    assert 0 <= num_at_ends <= len(answers)


def test_a_request_may_do_without(server: GatewayServer) -> None:
    first, second = ask(server, "all"), ask(server, "all", speculation=False)
    assert guesses(second) == (0, 0)
    assert second.json()["choices"][0]["message"] == first.json()["choices"][0]["message"]


@pytest.mark.parametrize(
    "content", ["", "hello", "x" * 100_000, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]]
)
def test_a_prediction_changes_no_token(server: GatewayServer, content: Any) -> None:
    plain = ask(server, "none").json()["choices"]
    answer = ask(server, "own", prediction={"type": "content", "content": content})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain


@pytest.mark.parametrize(
    "prediction",
    [
        {"type": "content", "content": "x" * ((1 << 20) + 1)},
        {"type": "text", "content": "a"},
        {"type": "content"},
        "text",
        3,
    ],
)
def test_another_one_is_rejected_by_its_name(server: GatewayServer, prediction: Any) -> None:
    answer = ask(server, "all", prediction=prediction)
    assert answer.status_code == 400
    assert "prediction" in answer.json()["error"]["message"]


def test_a_keys_file_with_another_word_is_rejected(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[tenant]]\nname = "a"\nspeculation = "some"\n')
    with pytest.raises(InvalidArgumentError, match="speculation"):
        KeyRing(keys)
