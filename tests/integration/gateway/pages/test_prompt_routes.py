"""Match, explain and pins of a prompt over HTTP: what a tenant is told is of what it has cached itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import BLOCK_SIZE, GibberishRunner, chat_text, gateway, keys_file
from talk import Talk
from waiting import wait_until

from radixkv import PoolShape, connect
from radixkv.gateway.config import GatewayConfig
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.engine.engine import Engine

NUM_BLOCKS = 256
LONG = "One two three four five six seven eight nine ten eleven twelve. " * 4
FORMS: list[dict[str, Any]] = [
    {"prompt": LONG},
    {"prompt": [7, 8, 9] * 20},
    {"messages": [{"role": "user", "content": LONG}]},
    {"prompt": LONG, "cache_salt": "pepper"},
    {"messages": [{"role": "user", "content": LONG}], "cache_salt": "pepper"},
]


@pytest.fixture(scope="module")
def url(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys: Path = keys_file(tmp_path_factory.mktemp("keys") / "keys")
    text = chat_text(default_model)
    runner = GibberishRunner(text, text.encode("<|im_end|>", special=False)[-1], NUM_BLOCKS, 4096)
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        (address,) = service.addresses
        config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, service=address, keys_file=keys)
        with (
            connect(address, PoolShape(NUM_BLOCKS, BLOCK_SIZE)) as holder,
            Engine(runner, holder, text=text, model_name="gibberish") as engine,
            gateway(engine, config) as server,
        ):
            yield server.url
            runner.gate.open()


def ask(url: str, method: str, path: str, key: str = "red", **body: Any) -> httpx.Response:
    json = body or None
    return httpx.request(method, f"{url}/{path}", json=json, headers={"x-api-key": key}, timeout=300)


def say(url: str, form: dict[str, Any], key: str = "red") -> int:
    """Have a prompt cached; its length."""
    path = "chat/completions" if "messages" in form else "completions"
    answer = ask(url, "POST", path, key, max_tokens=1, temperature=0, **form)
    length = int(answer.raise_for_status().json()["usage"]["prompt_tokens"])
    wait_until_found(url, form, length, key)
    return length


def wait_until_found(url: str, form: dict[str, Any], num_tokens: int, key: str = "red") -> None:
    """A worker answers first, and tells the service in its next round."""
    wait_until(lambda: ask(url, "POST", "radixkv/match", key, **form).json()["num_cached_tokens"] >= num_tokens)


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_is_matched_explained_and_pinned_as_a_request_with_it_is(url: str, form: dict[str, Any]) -> None:
    mine = {**form, "cache_salt": f"{form.get('cache_salt', '')}{FORMS.index(form)}"}
    before = ask(url, "POST", "radixkv/explain", **mine).json()
    assert (before["num_cached_tokens"], before["cause"]) == (0, "empty")
    length = say(url, mine)
    here = {"num_cached_tokens": length, "num_host_tokens": 0, "num_disk_tokens": 0}
    matched = ask(url, "POST", "radixkv/match", **mine).json()
    (pool,) = matched.pop("pools")
    assert matched == {"num_prompt_tokens": length, **here, "unreachable": []}
    assert pool.pop("service") != "127.0.0.1", "it names the service without its address"
    assert pool == {"pool": "default", **here}
    assert ask(url, "POST", "radixkv/explain", **mine).json()["cause"] == "cached"
    pinned = ask(url, "POST", "radixkv/pins", ttl_s=60, **mine).json()
    assert (pinned["num_tokens"], pinned["ttl_s"]) == (length, 60)
    listed = ask(url, "GET", "radixkv/pins").json()["data"]
    assert [pin["num_tokens"] for pin in listed if pin["cache_namespace"] == pinned["cache_namespace"]] == [length]
    assert ask(url, "DELETE", "radixkv/pins", **mine).json() == {"num_tokens": length, "unreachable": []}
    assert ask(url, "DELETE", "radixkv/pins", **mine).status_code == 404


@pytest.mark.parametrize("form", FORMS)
def test_another_tenant_or_salt_is_told_of_nothing(url: str, form: dict[str, Any]) -> None:
    length = say(url, form)
    ask(url, "POST", "radixkv/pins", ttl_s=60, **form).raise_for_status()
    for key, other in (("blue", form), ("red", {**form, "cache_salt": "sugar"})):
        assert ask(url, "POST", "radixkv/match", key, **other).json()["num_cached_tokens"] == 0
        told = ask(url, "POST", "radixkv/explain", key, **other).json()
        assert (told["num_cached_tokens"], told["found_token_ids"], told["num_siblings"]) == (0, [], 0)
        assert ask(url, "POST", "radixkv/pins", key, ttl_s=60, **other).json()["num_tokens"] == 0
        assert ask(url, "DELETE", "radixkv/pins", key, **other).status_code == 404
    assert ask(url, "GET", "radixkv/pins", "blue").json()["data"] == []
    assert ask(url, "DELETE", "radixkv/pins", **form).json() == {"num_tokens": length, "unreachable": []}


def test_a_kept_branch_is_pinned_as_it_was_put_to_the_model(url: str) -> None:
    with Talk(url, "red") as talk:
        conversation = talk.begin()
        asked, reply = talk.turn(conversation, "Where does the river begin?", max_tokens=40)
        length = reply["details"]["prompt_tokens"]
        for message, least in ((asked, length), (reply["id"], length + reply["details"]["generated_tokens"] - 1)):
            form: dict[str, Any] = {"branch": {"conversation": conversation, "message": message}}
            wait_until_found(url, form, least)
            matched = ask(url, "POST", "radixkv/match", **form).json()
            pinned = ask(url, "POST", "radixkv/pins", ttl_s=60, **form).json()
            assert pinned["num_tokens"] == matched["num_cached_tokens"] >= least
            assert ask(url, "POST", "radixkv/pins", "blue", ttl_s=60, **form).status_code == 404
            assert ask(url, "DELETE", "radixkv/pins", **form).json() == {
                "num_tokens": pinned["num_tokens"],
                "unreachable": [],
            }


def test_an_explanation_shows_where_two_prompts_part(url: str) -> None:
    say(url, {"prompt": [*range(100, 140)], "cache_salt": "parting"})
    told = ask(url, "POST", "radixkv/explain", prompt=[*range(100, 120), 5, 6], cache_salt="parting").json()
    assert (told["num_cached_tokens"], told["num_prompt_tokens"], told["cause"]) == (20, 22, "parted")
    assert told["wanted_token_ids"] == [5, 6]
    assert told["found_token_ids"][0] == 120


def test_a_pin_over_the_budget_is_refused_and_changes_nothing(url: str) -> None:
    form = {"prompt": [3] * 600, "cache_salt": "big"}
    say(url, form)
    refused = ask(url, "POST", "radixkv/pins", ttl_s=7 * 86400, **form)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "pin_budget"
    assert "big" not in refused.text
    assert ask(url, "DELETE", "radixkv/pins", **form).status_code == 404


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ({"prompt": "x", "branch": {"conversation": "x", "message": "x"}}, "prompt"),
        ({"branch": {"conversation": "x", "message": "x"}}, "x"),
        ({"branch": {"conversation": "x", "message": "x"}, "cache_salt": "pepper"}, "cache_salt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [49152]}, "token_ids"),
        ({"prompt": "x", "namespace": "blue"}, "namespace"),
        ({"prompt": "x", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "x", "model": "no-such"}, "model"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "match"), ("POST", "explain"), ("POST", "pins"), ("DELETE", "pins")]
)
def test_what_is_no_prompt_is_refused_by_name(url: str, method: str, path: str, fields: Any, named: str) -> None:
    answer = httpx.request(method, f"{url}/radixkv/{path}", json=fields, headers={"x-api-key": "red"})
    assert answer.status_code in (400, 404)
    assert named in answer.text


@pytest.mark.parametrize("ttl_s", [0, -1, 604801, "5m"])
def test_a_time_out_of_its_bound_is_refused(url: str, ttl_s: Any) -> None:
    answer = ask(url, "POST", "radixkv/pins", prompt="x", ttl_s=ttl_s)
    assert answer.status_code == 400
    assert "ttl_s" in answer.text


def test_a_stored_response_is_found_up_to_the_end_of_its_reply_and_by_its_tenant_alone(url: str) -> None:
    made = ask(url, "POST", "responses", input=LONG, max_output_tokens=16, temperature=0).raise_for_status().json()
    found = ask(url, "POST", "radixkv/match", response=made["id"]).raise_for_status().json()
    usage = made["usage"]
    assert found["num_prompt_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert found["num_cached_tokens"] >= usage["input_tokens"]
    assert ask(url, "POST", "radixkv/match", "blue", response=made["id"]).status_code == 404
