"""Bounds on what a message of the Generation service is made into."""

from __future__ import annotations

import time

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.v1 import generation_pb2 as pb
from radixkv.worker import wire
from radixkv.worker.sampling import MAX_STOPS

MANY_IDS = b"\1\0\0\0" * (wire.MAX_IDS + 1)


@pytest.mark.parametrize(
    ("sampling", "argument", "bound"),
    [
        (pb.SamplingParams(stop_token_ids=b"\1\0\0\0" * (MAX_STOPS + 1)), "stop_token_ids", f"at most {MAX_STOPS}"),
        (pb.SamplingParams(forced_token_ids=MANY_IDS), "forced_token_ids", "at most 500,000"),
    ],
)
def test_ids_that_are_too_many_are_refused_before_they_are_made_into_numbers(
    sampling: pb.SamplingParams, argument: str, bound: str
) -> None:
    start_s = time.thread_time()
    with pytest.raises(InvalidArgumentError) as refused:
        wire.generate_from_proto(pb.GenerateRequest(sampling=sampling))
    assert (refused.value.argument, refused.value.bound) == (argument, bound)
    assert time.thread_time() - start_s < 0.5


def test_ids_within_the_bound_are_left_as_they_are() -> None:
    assert wire.ids_from_proto("token_ids", MANY_IDS[4:]) == MANY_IDS[4:]
    with pytest.raises(InvalidArgumentError, match="500,001 token ids"):
        wire.ids_from_proto("token_ids", MANY_IDS)


def chat(fields_json: str, num_messages: int) -> pb.Prompt:
    turn = pb.ChatMessage(role="user", content="hello", fields_json=fields_json)
    return pb.Prompt(messages=pb.ChatMessages(messages=[turn] * num_messages))


def test_json_of_many_turns_is_bounded_together() -> None:
    lists = '{"a":[' + ",".join(["[]"] * 20_000) + "]}"
    start_s = time.thread_time()
    with pytest.raises(InvalidArgumentError, match="at most 500,000 values together"):
        wire.prompt_from_proto(chat(lists, 200))
    assert time.thread_time() - start_s < 5.0
    long_text = '{"name":"' + "a, b and {c}, " * 3000 + '"}'
    prompt = wire.prompt_from_proto(chat(long_text, 100))
    assert prompt.messages is not None
    assert len(prompt.messages) == 100
