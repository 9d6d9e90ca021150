"""Messages of too many fields are told from others before they are parsed, as the parser itself would count them."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.core.errors import InvalidArgumentError
from radixkv.net.calls import field_count
from radixkv.net.calls.field_count import MAX_FIELDS, has_few_fields
from radixkv.net.calls.malformed import Malformed, reader
from radixkv.v1 import generation_pb2 as pb

DESCRIPTOR = pb.GenerateRequest.DESCRIPTOR


def request(num_messages: int = 0, num_stops: int = 0, num_biases: int = 0, num_pins: int = 0, text: str = "") -> bytes:
    message = pb.GenerateRequest()
    for _ in range(num_messages):
        message.prompt.messages.messages.add(role="user", content=text)
    message.sampling.stop.extend([""] * num_stops)
    for token_id in range(num_biases):
        message.sampling.logit_bias[token_id] = 1.0
    for _ in range(num_pins):
        message.pins.add()
    return message.SerializeToString()


def num_fields(**what: int) -> int:
    """What `request` has of them, counted by hand."""
    messages, stops = what.get("num_messages", 0), what.get("num_stops", 0)
    biases, pins = what.get("num_biases", 0), what.get("num_pins", 0)
    prompt = 2 + 3 * messages if messages else 0
    return prompt + 1 + stops + 3 * biases + pins  # the sampling itself is one, empty or not


@given(
    st.fixed_dictionaries(
        {name: st.integers(0, 6) for name in ("num_messages", "num_stops", "num_biases", "num_pins")}
    ),
    st.integers(1, 40),
)
def test_the_count_is_that_of_the_message(what: dict[str, int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field_count, "MAX_FIELDS", most)
        patch.setattr(field_count, "_LEAST_BYTES", 0)
        assert has_few_fields(request(**what, text="hello"), DESCRIPTOR) == (num_fields(**what) <= most)


def varint(value: int) -> bytes:
    spelled = bytearray()
    while value > 127:
        spelled.append(value & 127 | 128)
        value >>= 7
    return bytes([*spelled, value])


def field(number: int, wire_type: int, value: int) -> bytes:
    """A field of any kind, as the parser reads it."""
    tag, eight = varint(number << 3 | wire_type), value.to_bytes(8, "little")
    told = {0: varint(value), 1: eight, 2: varint(value % 200) + b"\x09" * (value % 200), 5: eight[:4]}
    return tag + told[wire_type]


@given(
    st.lists(st.builds(field, st.integers(100, 2**29 - 1), st.sampled_from([0, 1, 2, 5]), st.integers(0, 2**64 - 1))),
    st.integers(1, 10),
)
def test_fields_of_every_kind_count_once_and_none_is_cut_off(fields: list[bytes], most: int) -> None:
    body, ends = b"".join(fields), set(itertools.accumulate(map(len, fields), initial=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field_count, "_LEAST_BYTES", 0)
        patch.setattr(field_count, "MAX_FIELDS", most)
        assert has_few_fields(body, DESCRIPTOR) == (len(fields) <= most)
        patch.setattr(field_count, "MAX_FIELDS", len(fields) + 1)
        assert {end for end in range(len(body) + 1) if has_few_fields(body[:end], DESCRIPTOR)} == ends


@pytest.mark.parametrize("what", ["num_messages", "num_stops", "num_biases", "num_pins"])
def test_millions_of_empty_fields_are_refused_in_a_moment(what: str) -> None:
    body = request(**{what: 100_000})  # type: ignore[arg-type]
    start_s = time.thread_time()
    refused = reader(pb.GenerateRequest.FromString)(body)
    assert time.thread_time() - start_s < 3.0
    assert isinstance(refused, Malformed)
    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_FIELDS:,} fields"):
        refused.WhichOneof("")


def test_an_honest_request_of_that_size_is_read() -> None:
    body = request(num_messages=12_000, text="a word or two, some more of them, and a full stop at the end." * 20)
    assert len(body) > 14_000_000
    read = reader(pb.GenerateRequest.FromString)(body)
    assert len(read.prompt.messages.messages) == 12_000


@pytest.mark.parametrize("tail", [b"\x0f", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 11, b"\x0a", b"\x09\x00"])
def test_what_hides_its_fields_behind_a_fault_is_refused_as_well(tail: bytes) -> None:
    body = request(num_messages=100_000) + tail
    assert not has_few_fields(body, DESCRIPTOR)


def test_a_group_hides_nothing() -> None:
    body = b"\xa3\x06" + request(num_pins=100_000) + b"\xa4\x06"  # a group of field 100, which no message has
    assert not has_few_fields(body, DESCRIPTOR)
