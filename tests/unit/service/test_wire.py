"""What messages of the Generation service are made into: all that was said, and no more than is bounded."""

from __future__ import annotations

import time
from dataclasses import fields

import pytest

from radixkv import Retention, pack_tokens
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation import wire
from radixkv.generation.params import MAX_STOPS, SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, PrefixPin
from radixkv.v1 import generation_pb2 as pb

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


def test_all_that_a_request_says_comes_through() -> None:
    said = GenerateParams(
        messages=[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "he"}],
        continue_final_message=True,
        tools=[{"type": "function", "function": {"name": "look"}}],
        template_arguments={"thinks": True},
        history=pack_tokens([3]),
        sampling=SamplingParams(
            max_tokens=7,
            seed=5,
            repetition_penalty=1.5,
            bad_words=("no",),
            allowed_token_ids=(3, 5),
            include_stop=True,
            keep_special_tokens=True,
        ),
        namespace="red",
        adapter="french",
        cache_salt="pepper",
        truncate_prompt_tokens=9,
        tokenizer="f00d",
        priority=2,
        timeout_s=1.5,
        sharing="off",
        request_id="one",
        retention=(Retention(0, 2, 90, 5.0),),
        pins=(PrefixPin(2, 60.0),),
    )
    left_alone = {each.name for each in fields(said) if getattr(said, each.name) in (None, each.default)}
    assert left_alone == {"text", "token_ids"}, "of a prompt's forms one is given"
    assert wire.generate_from_proto(wire.generate_to_proto(said)) == said


def test_all_that_a_fork_says_comes_through() -> None:
    said = ForkParams(
        generation_id="one",
        branch=1,
        position=3,
        sampling=SamplingParams(max_tokens=7),
        priority=2,
        timeout_s=1.5,
        request_id="again",
        retention=(Retention(0, 2, 90, 5.0),),
    )
    assert wire.fork_from_proto(wire.fork_to_proto(said)) == said


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
