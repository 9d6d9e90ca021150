"""What is asked of a file and of a message batch, before anything is stored: each bound is taken, past it is the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixkv.gateway.api.jobs.message_batch_routes import MAX_REQUESTS, _read
from radixkv.gateway.api.jobs.routes import MAX_TTL_S, MIN_TTL_S, PURPOSE, _check_fields
from radixkv.gateway.protocol.errors import ApiError

ASKED = {"custom_id": "a", "params": {"messages": []}}


def lifetime(seconds: Any, anchor: str | None = "created_at") -> dict[str, str]:
    fields = {"purpose": PURPOSE, "expires_after[seconds]": str(seconds)}
    return fields | ({"expires_after[anchor]": anchor} if anchor is not None else {})


@pytest.mark.parametrize(
    ("fields", "ttl_s"),
    [({"purpose": PURPOSE}, None), (lifetime(MIN_TTL_S), MIN_TTL_S), (lifetime(MAX_TTL_S), MAX_TTL_S)],
)
def test_a_file_may_have_a_lifetime(fields: dict[str, str], ttl_s: float | None) -> None:
    assert _check_fields(fields) == ttl_s


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "vision"}, "purpose"),
        ({"purpose": PURPOSE, "colour": "red", "zest": ""}, "colour"),
        (lifetime(MIN_TTL_S, None), "expires_after.anchor"),
        (lifetime(MIN_TTL_S, "now"), "expires_after.anchor"),
        ({"purpose": PURPOSE, "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        (lifetime(MIN_TTL_S - 1), "expires_after.seconds"),
        (lifetime(MAX_TTL_S + 1), "expires_after.seconds"),
        (lifetime(f"{MIN_TTL_S}.0"), "expires_after.seconds"),
        (lifetime(f"{10**12}"), "expires_after.seconds"),
    ],
)
def test_a_field_of_a_file_that_cannot_be_is_refused_by_name(fields: dict[str, str], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        _check_fields(fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_the_requests_of_a_message_batch_are_read_in_order_and_other_fields_are_named() -> None:
    asked = [ASKED | {"custom_id": f"c{number}"} for number in range(3)]
    lines, unknown = _read(body(requests=asked, service_tier="auto", extra=1))
    assert [line.custom_id for line in lines] == ["c0", "c1", "c2"]
    assert unknown == ["service_tier", "extra"]


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"\xff", "invalid_json", None),
        (b"[]", "invalid_value", "requests"),
        (b"{}", "invalid_value", "requests"),
        (body(requests={}), "invalid_value", "requests"),
        (body(requests=[]), "invalid_value", "requests"),
        (body(requests=[1] * (MAX_REQUESTS + 1)), "invalid_value", "requests"),
        (body(requests=[ASKED, ASKED | {"custom_id": "a b"}]), None, "requests.1.custom_id"),
        (body(requests=[ASKED | {"params": []}]), None, "requests.0.params"),
        (body(requests=[1] * MAX_REQUESTS), None, "requests.0"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_message_batch_that_cannot_be_is_refused_by_the_place(content: bytes, code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        _read(content)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert code is None or refused.value.code == code
