"""Small parts of the gateway: keys, limits, messages, options, errors, configuration."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from radixkv.core.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    LimitError,
    OutOfBlocksError,
    PermissionDeniedError,
    QuotaError,
    RadixKVError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownSequenceError,
)
from radixkv.core.tokens import pack_tokens
from radixkv.gateway.api.openai.completions import CompletionRequest
from radixkv.gateway.config import TenantLimits
from radixkv.gateway.http.auth import KeyRing, Tenant
from radixkv.gateway.protocol.errors import RATE_LIMIT_HEADERS, ApiError, error_body
from radixkv.gateway.turns.messages import ChatMessage, template_messages
from radixkv.gateway.turns.options import GenerationOptions, check_plain
from radixkv.generation.request import ModelInfo, UnknownGenerationError
from radixkv.net.limits import Limiter

INFO = ModelInfo("m", 4096, 100, 16, (2,), True)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


# -- errors


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidArgumentError("top_p", 2, "at most 1"), 400, "invalid_request_error"),
        (OutOfBlocksError(5, 3), 429, "rate_limit_error"),
        (QuotaError("tenant", "blocks", 5, 3, 8), 429, "rate_limit_error"),
        (LimitError("too many"), 429, "rate_limit_error"),
        (UnavailableError("gone"), 503, "server_error"),
        (DeadlineExceededError("late"), 504, "timeout_error"),
        (UnauthenticatedError("who calls is not known"), 502, "server_error"),
        (PermissionDeniedError("not there"), 502, "server_error"),
        (UnknownGenerationError("x"), 404, "invalid_request_error"),
        (UnknownSequenceError(0), 404, "invalid_request_error"),  # so it comes over the wire
        (AbortedError("meanwhile"), 409, "invalid_request_error"),
        (UnimplementedError("op"), 501, "server_error"),
        (RadixKVError("odd"), 500, "server_error"),
        (ValueError("a bug, with a secret in it"), 500, "server_error"),
    ],
)
def test_every_error_has_its_status(error: Exception, status: int, kind: str) -> None:
    told = ApiError.of(error)
    assert (told.status, told.type) == (status, kind)
    assert ("Retry-After" in told.headers) is (status in (429, 503))
    assert set(error_body(told)["error"]) == {"message", "type", "param", "code"}


def test_a_fault_tells_nothing_of_itself() -> None:
    assert "secret" not in ApiError.of(ValueError("a secret")).message


def test_a_bad_argument_is_named() -> None:
    told = ApiError.of(InvalidArgumentError("timeout_s", -1, "above 0"))
    assert (told.param, told.code) == ("timeout", "invalid_value")
    long = ApiError.of(InvalidArgumentError("prompt", "9000 tokens", "at most 8191 tokens"))
    assert long.code == "context_length_exceeded"


# -- keys


def test_a_key_leads_to_its_tenant(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[tenant]]\nname = "a"\nnamespace = "shared"\nkeys = ["sha256:{digest("one")}", "{digest("two").upper()}"]\n'
        f'max_concurrent = 3\n[[tenant]]\nname = "b"\nkeys = ["{digest("three")}"]\n'
    )
    ring = KeyRing(path, TenantLimits(requests_per_minute=9))
    assert (
        ring.find("one")
        == ring.find("two")
        == Tenant("a", "shared", TenantLimits(requests_per_minute=9, max_concurrent=3))
    )
    assert ring.find("three") == Tenant("b", "b", TenantLimits(requests_per_minute=9))
    assert [ring.find(key) for key in ("", None, "four", digest("one"))] == [None] * 4


def test_what_a_tenant_may_name_is_its_own_unless_the_file_says_more(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    rows = {
        "own": "",
        "some": 'namespaces = ["x", "y"]',
        "all": 'namespaces = ["*"]',
        "none": "namespaces = []",
        "chief": 'roles = ["admin"]',
    }
    path.write_text(
        "".join(f'[[tenant]]\nname = "{name}"\nkeys = ["{digest(name)}"]\n{row}\n' for name, row in rows.items())
    )
    ring = KeyRing(path)
    named = ("own", "own#adapter=a", "x", "y#adapter=a", "z", "ownx", "")
    allowed = {}
    for name in rows:
        tenant = ring.find(name)
        assert tenant is not None
        allowed[name] = [namespace for namespace in named if tenant.may_name(namespace)]
    assert allowed == {
        "own": ["own", "own#adapter=a"],
        "some": ["x", "y#adapter=a"],
        "all": list(named),
        "none": [],
        "chief": list(named),
    }


def test_a_key_that_is_no_text_of_this_world_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[[tenant]]\nname = "a"\nkeys = ["{digest("one")}"]\n')
    assert KeyRing(path).find("\udcff\ud800") is None


def test_without_a_file_everybody_is_the_default_tenant() -> None:
    ring = KeyRing(None, TenantLimits(max_concurrent=7))
    everybody = ring.find(None)
    assert everybody is not None
    assert everybody.limits == TenantLimits(max_concurrent=7)
    assert everybody == ring.find("anything") == ring.find_certificate(["anybody"]) == ring.named(everybody.name)
    assert ring.named("somebody") is None


def test_work_goes_on_for_a_tenant_by_its_name_and_a_certificate_leads_to_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[tenant]]\nname = "a"\nkeys = ["{digest("one")}"]\n'
        f'[[tenant]]\nname = "b"\nkeys = ["{digest("two")}"]\ncertificates = ["b.example"]\n'
    )
    clock = Clock()
    ring = KeyRing(path, clock=clock)
    assert ring.named("a") == ring.find("one")
    assert ring.named("b") == ring.find("two") == ring.find_certificate(["unknown", "b.example"])
    assert ring.named("c") is None
    assert ring.find_certificate(["a", "one"]) is None
    path.write_text(f'[[tenant]]\nname = "b"\nkeys = ["{digest("two")}"]\ncertificates = ["c.example"]\n')
    os.utime(path, (0, 0))
    clock.now_s += 1
    assert ring.named("a") is None
    path.write_text(f'[[tenant]]\nname = "d"\nkeys = ["{digest("two")}"]\ncertificates = ["d.example"]\n')
    os.utime(path, (1, 1))
    clock.now_s += 1
    assert ring.find_certificate(["d.example"]) == ring.find("two")


@pytest.mark.parametrize(
    "text",
    [
        "not toml [",
        "[[tenants]]\nname = 'a'",
        "[[tenant]]\nkeys = []",
        "[[tenant]]\nname = ''",
        "[[tenant]]\nname = 'a'\nkeys = ['plain-text-key']",
        "[[tenant]]\nname = 'a'\nmax_concurrent = true",
        "[[tenant]]\nname = 'a'\nmax_concurrent = 0",
        "[[tenant]]\nname = 'a'\nunknown = 1",
        "tenant = 3",
        "tenant = [3]",
        f"[[tenant]]\nname = 'a'\nkeys = ['{'0' * 64}']\n[[tenant]]\nname = 'b'\nkeys = ['{'0' * 64}']",
        "[[tenant]]\nname = 'a'\nkeys = 'x'",
        "[[tenant]]\nname = 'a'\nkeys = []\noperator = 1",
        "[[tenant]]\nname = 'a'\nroles = ['owner']",
        "[[tenant]]\nname = 'a'\nroles = 'admin'",
        "[[tenant]]\nname = 'a'\nnamespaces = [1]",
        "[[tenant]]\nname = 'a'\nnamespace = 'b#adapter=c'",
        "[[tenant]]\nname = 'a'\ncertificates = ['']",
        "[[tenant]]\nname = 'a'\ncertificates = ['x']\n[[tenant]]\nname = 'b'\ncertificates = ['x']",
    ],
)
def test_a_keys_file_that_makes_no_sense_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError):
        KeyRing(path)
    with pytest.raises(InvalidArgumentError):
        KeyRing(tmp_path / "missing")


def test_the_file_is_looked_at_once_a_second_at_most(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "keys.toml"
    path.write_text(f"[[tenant]]\nname = 'a'\nkeys = ['{digest('one')}']")
    ring = KeyRing(path, clock=clock)
    path.write_text(f"[[tenant]]\nname = 'b'\nkeys = ['{digest('two')}']")
    os.utime(path, (0, 0))
    assert ring.find("one") is not None
    clock.now_s += 1
    assert ring.find("one") is None


# -- limits


def test_a_limit_that_is_reached_tells_its_figures_in_headers() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    tenant = Tenant("t", "t", TenantLimits(requests_per_minute=1, tokens_per_minute=600))
    limiter.admit(tenant).charge(1200)
    with pytest.raises(LimitError) as caught:
        limiter.admit(tenant)
    refusal = ApiError.of(caught.value)
    assert (refusal.status, refusal.type, refusal.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert refusal.message == "the limit of 1 requests per minute is reached; try again in 1m0s"
    assert refusal.headers == {
        "Retry-After": "60",
        "x-ratelimit-limit-requests": "1",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "2m0s",
    }
    assert set(RATE_LIMIT_HEADERS) == set(refusal.headers) - {"Retry-After"}


# -- messages and options


def test_calls_and_their_results_reach_the_template_as_it_wants_them() -> None:
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}'), call("no json")]},
        {"role": "tool", "content": [{"type": "text", "text": "42"}], "tool_call_id": "c1"},
        {"role": "function", "name": "f", "content": "43"},
        {"role": "developer", "content": "x"},
    ]
    assistant, tool, function, system = template_messages([ChatMessage.model_validate(turn) for turn in turns])
    assert assistant["content"] == ""
    assert [made["function"]["arguments"] for made in assistant["tool_calls"]] == [{"a": 1}, "no json"]
    assert tool == {"role": "tool", "content": "42", "tool_call_id": "c1"}
    assert (function["role"], function["name"], system["role"]) == ("tool", "f", "system")


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "text"])
def test_parts_that_are_no_text_are_refused(kind: str) -> None:
    message = ChatMessage.model_validate({"role": "user", "content": [{"type": kind, "image_url": {"url": "x"}}]})
    with pytest.raises(ApiError) as caught:
        template_messages([message])
    assert (caught.value.code, caught.value.param) == ("unsupported_content_type", "messages.0.content.0")


def sampling(**fields: Any) -> Any:
    return GenerationOptions.model_validate({"model": "m", **fields}).sampling(INFO, max_tokens=10)


def test_options_mean_what_the_api_says() -> None:
    assert (sampling().temperature, sampling().top_p) == (0.7, 0.9)
    assert (sampling(temperature=1).temperature, sampling(temperature=1).top_p) == (1.0, 1.0)
    assert sampling(temperature=0).is_greedy
    assert sampling(top_p=0).is_greedy
    assert sampling(seed=-1).seed == 2**64 - 1
    assert sampling(stop="x").stop == ("x",)
    assert sampling(stop=["x", "y"]).stop == ("x", "y")
    assert sampling(logit_bias={"5": -100}).logit_bias == {5: -100}
    assert sampling(top_k=-1).top_k == 0
    assert sampling(num_beams=4).temperature == 0
    assert sampling(stop=None, seed=None, n=None, logit_bias=None).n == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": "1"},
        {"n": 1.5},
        {"n": True},
        {"seed": 2**64},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"1": 101}},
        {"temperature": float("nan")},
        {"stop": [""]},
        {"stop": 3},
        {"model": ""},
        {"priority": 101},
    ],
)
def test_options_out_of_bounds_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        sampling(**fields)


@pytest.mark.parametrize("value", ["\ud800", {"\udc00": 1}, [float("inf")], {"a": [float("nan")]}])
def test_what_cannot_be_written_again_is_refused(value: Any) -> None:
    with pytest.raises(ApiError):
        check_plain(value, "field")


@pytest.mark.parametrize("ids", [[0], [7, 2**31 - 1], [5.0, 6], [1] * 8192])
def test_a_prompt_of_ids_is_packed_as_it_is_read(ids: list[Any]) -> None:
    packed = pack_tokens([int(token_id) for token_id in ids])
    assert CompletionRequest(model="m", prompt=ids).prompt == packed
    assert CompletionRequest(model="m", prompt=[ids, [3]]).prompt == [packed, pack_tokens([3])]


@pytest.mark.parametrize("wrong", [True, -1, 2**31, 2**32, 2**70, 1.5, "5", None, [5]])
def test_the_place_of_what_is_no_token_id_is_told(wrong: Any) -> None:
    for prompt, place in (([3, wrong, -1], (1,)), ([[3], [4, wrong]], (1, 1))):
        with pytest.raises(ValidationError) as refusal:
            CompletionRequest(model="m", prompt=prompt)
        assert place in [tuple(part for part in e["loc"] if isinstance(part, int)) for e in refusal.value.errors()]
