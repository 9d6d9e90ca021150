"""A trial by itself, and the server that forks trials, without the process that they have in a worker."""

from __future__ import annotations

import json
import os
import random
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from llguidance import LLTokenizer

from bench.grammar.hostile_grammars import HOSTILE
from radixkv.generation.params import Grammar
from radixkv.worker.sampling import grammar_trial
from radixkv.worker.sampling.grammar_source import grammar_source, new_matcher
from radixkv.worker.sampling.grammar_trial import (
    _choice,
    _Server,
    _verdict,
    _walk,
    encode_frame,
    split_frames,
)

TRIE = LLTokenizer("byte")
STRUCTURE = _Server(TRIE, 0, 0)._structure
NAME = grammar_source(Grammar("regex", "[a-c]{3}"))
NO_GRAMMAR = grammar_source(Grammar("lark", "start: nowhere"))
SLOW = grammar_source(HOSTILE["multipleOf a prime of 8 digits"])


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no grammar a slow one."""
    monkeypatch.setattr(grammar_trial, "MAX_MASK_S", 10.0)


def test_messages_are_read_from_a_pipe_however_they_are_cut() -> None:
    messages = [{"a": 1}, {}, {"text": "x" * 300}]
    whole, buffer, found = b"".join(map(encode_frame, messages)), bytearray(), []
    for byte in whole:
        buffer.append(byte)
        found += split_frames(buffer)
    assert found == messages
    assert not buffer
    buffer += whole + whole[:5]
    assert split_frames(buffer) == messages
    assert buffer == whole[:5]


def test_a_trial_tells_the_memory_or_what_is_wrong() -> None:
    assert _verdict(TRIE, NAME, STRUCTURE).keys() == {"memory_bytes"}
    assert _verdict(TRIE, grammar_source(Grammar("json_object")), STRUCTURE)["memory_bytes"] >= 0
    assert "nowhere" in _verdict(TRIE, NO_GRAMMAR, STRUCTURE)["problem"]


def test_a_grammar_whose_masks_take_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "MAX_MASK_S", 0.0)
    assert _verdict(TRIE, NAME, STRUCTURE) == {"bound": "whose masks take under 0 ms"}


@pytest.mark.parametrize("num_optional", [130, 300, 1000])
def test_a_grammar_with_more_readings_than_are_followed_is_told_so(num_optional: int) -> None:
    names = {f"p{number}": {"type": "string"} for number in range(num_optional)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    verdict = _verdict(TRIE, grammar_source(Grammar("json_schema", json.dumps(schema))), STRUCTURE)
    assert "simple enough to follow" in verdict["bound"]
    required = grammar_source(Grammar("json_schema", json.dumps(schema | {"required": list(names)})))
    assert "bound" not in _verdict(TRIE, required, STRUCTURE)


def test_a_walk_goes_through_the_grammar_and_no_further() -> None:
    matcher = new_matcher(NAME, TRIE)
    assert _walk(matcher, random.Random(0), STRUCTURE) > 0
    assert matcher.is_stopped()
    endless = new_matcher(grammar_source(Grammar("regex", "a*")), TRIE)
    assert _walk(endless, random.Random(0), STRUCTURE) > 0
    assert not endless.is_error()


def test_a_choice_is_allowed_and_each_that_is_may_be_one() -> None:
    rng, allowed = random.Random(0), {1, 9, 77, 255}
    mask = bytearray(TRIE.vocab_size // 8 + 1)
    for token in allowed:
        mask[token >> 3] |= 1 << (token & 7)
    assert {_choice(bytes(mask), rng, []) for _ in range(300)} == allowed
    chosen = [_choice(bytes(mask), rng, [9, 10]) for _ in range(300)]
    assert set(chosen) == allowed
    assert 130 < chosen.count(9) < 280, "what JSON is made of is taken half of the times, and by chance"


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """A server on a thread; the ends of its pipes. It ends with its input, and its trials with it."""
    (source, asked), (told, target) = os.pipe(), os.pipe()
    served = _Server(TRIE, source, target)
    thread = threading.Thread(target=served.run)
    thread.start()
    try:
        yield asked, told
    finally:
        os.close(asked)
        thread.join(300)
        for end in (source, told, target):
            os.close(end)
    assert not thread.is_alive()
    for trial in served._running.values():
        with pytest.raises(ChildProcessError):
            os.waitpid(trial.pid, os.WNOHANG)


def verdicts(told: int, number: int) -> dict[int, dict[str, object]]:
    poll, buffer, found = select.poll(), bytearray(), {}
    poll.register(told, select.POLLIN)
    while len(found) < number:
        assert poll.poll(300_000), "no verdict"
        buffer += os.read(told, 1 << 16)
        found |= {message.pop("number"): message for message in split_frames(buffer)}
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads: a trial uses nothing of theirs
def test_a_server_tries_several_at_once_and_tells_each_by_its_number() -> None:
    with server() as (asked, told):
        sources = {7: NAME, 8: NO_GRAMMAR, 9: "no JSON", 10: NAME}
        os.write(asked, b"".join(encode_frame({"number": n, "source": source}) for n, source in sources.items()))
        found = verdicts(told, len(sources))
        assert found[7].keys() == found[10].keys() == {"memory_bytes", "is_final"}
        assert "nowhere" in str(found[8]["problem"])
        assert all(verdict["is_final"] for verdict in found.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trial_that_takes_too_long_is_ended_without_a_verdict_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_trial, "MAX_WALL_S", 0.0)
    monkeypatch.setattr(grammar_trial, "MAX_CPU_S", 300.0)  # the server ends it, however late it looks
    with server() as (asked, told):
        os.write(asked, encode_frame({"number": 1, "source": SLOW}))
        assert verdicts(told, 1) == {1: {"is_final": False}}
        os.write(asked, encode_frame({"number": 2, "source": SLOW}))  # it runs as the server ends
