"""How replies of kept conversations are drawn: what a request says, what their conversation says, and what is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chat_stack import Stack, chat_stack, keys_file
from talk import Talk

from radixkv.gateway.config import GatewayConfig
from radixkv.generation.params import SamplingDefaults

MODELS_OWN = SamplingDefaults(temperature=0.6, top_k=20)


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys.toml")
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0, max_tokens=300)
    with chat_stack(default_model, config, num_blocks=12, max_model_len=2048, sampling=MODELS_OWN) as stack:
        yield stack


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url, "red") as talk:
        yield talk


def test_a_reply_tells_how_it_was_drawn_and_the_same_again_says_the_same(stack: Stack, talk: Talk) -> None:
    conversation = talk.begin()
    asked, reply = talk.turn(conversation, "Hello", max_tokens=12)
    held = reply["details"]["settings"]
    seed = held["seed"]
    assert held == {
        "model": "gibberish",
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 20,
        "min_p": 0.0,
        "seed": seed,
        "stop": [],
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 12,
    }
    assert stack.engine.samplings[-1].seed == seed
    (again,) = talk.call("POST", f"/{conversation}/messages/{asked}/replies", held)["messages"]
    ended = talk.ended(conversation, again["id"])
    assert (ended["text"], ended["details"]["settings"]) == (reply["text"], held)
    _, other = talk.turn(conversation, "Hello", max_tokens=12)
    assert other["details"]["settings"]["seed"] != seed


def test_a_reply_is_told_with_its_settings_while_it_is_written(stack: Stack, talk: Talk) -> None:
    stack.runner.gate.close()
    conversation = talk.begin()
    _, begun = talk.say(conversation, "Hello", temperature=0.3)
    stack.runner.gate.open()
    assert begun["details"]["settings"]["temperature"] == 0.3
    assert talk.ended(conversation, begun["id"])["details"]["settings"] == begun["details"]["settings"]


def test_a_conversation_says_what_a_request_leaves_out(stack: Stack, talk: Talk) -> None:
    own = {"temperature": 0.2, "top_p": 0.5, "min_p": 0.1, "stop": ["###", "\n\n"], "seed": 7, "presence_penalty": 1.5}
    made = talk.call("POST", "", {"settings": {**own, "frequency_penalty": None}})
    assert made["settings"] == own
    conversation = made["id"]
    _, reply = talk.turn(conversation, "Hello", temperature=1.5, repetition_penalty=1.25, max_tokens=8)
    held = reply["details"]["settings"]
    assert held == {
        **held,
        **own,
        "temperature": 1.5,
        "repetition_penalty": 1.25,
        "max_tokens": 8,
        "top_k": 20,
        "frequency_penalty": 0.0,
    }
    drawn = stack.engine.samplings[-1]
    assert (drawn.temperature, drawn.top_p, drawn.stop, drawn.seed) == (1.5, 0.5, ("###", "\n\n"), 7)
    with talk.following(conversation) as follower:
        changed = talk.call("PATCH", f"/{conversation}", {"settings": {"max_tokens": 5, "temperature": 0}})
        follower.wait(lambda: follower.conversation["settings"] == {"max_tokens": 5, "temperature": 0})
        assert changed["settings"] == {"max_tokens": 5, "temperature": 0}
        assert changed["updated"] == talk.call("GET", f"/{conversation}")["conversation"]["updated"]
    body = {"role": "user", "text": "Hello", "replies": {}}
    reply = talk.call("POST", f"/{conversation}/messages", body)["messages"][1]
    held = talk.ended(conversation, reply["id"])["details"]["settings"]
    assert (held["max_tokens"], held["temperature"], held["stop"]) == (5, 0.0, [])
    assert talk.call("PATCH", f"/{conversation}", {"settings": None})["settings"] is None


def test_a_length_that_the_pool_shortened_is_told_as_it_held(stack: Stack, talk: Talk) -> None:
    """Nobody named it, so it may be less than the server's own."""
    conversation = talk.begin()
    body = {"role": "user", "text": "Hello", "replies": {}}
    reply = talk.call("POST", f"/{conversation}/messages", body)["messages"][1]
    held = talk.ended(conversation, reply["id"])["details"]["settings"]
    assert held["max_tokens"] == stack.engine.samplings[-1].max_tokens == (12 * 16 + 1) // 2


def test_settings_are_refused_by_name_and_change_nothing(talk: Talk) -> None:
    conversation = talk.begin(settings={"temperature": 1})
    for settings, part in (
        ({"temperature": 2.5}, "settings.temperature"),
        ({"stop": ["x" * 257]}, "settings.stop"),
        ({"stop": ["x"] * 17}, "settings.stop"),
        ({"top_k": "many"}, "settings.top_k"),
        ({"seed": 2**64}, "settings.seed"),
    ):
        assert part in talk.refused(400, "PATCH", f"/{conversation}", {"settings": settings})["message"]
        assert part in talk.refused(400, "POST", "", {"settings": settings})["message"]
    assert (
        "one of title, settings, tags, pinned and archived must be given"
        in talk.refused(400, "PATCH", f"/{conversation}", {})["message"]
    )
    assert talk.call("GET", f"/{conversation}")["conversation"]["settings"] == {"temperature": 1}
    body = {"role": "user", "text": "Hello", "replies": {"model": "no-such"}}
    assert talk.refused(404, "POST", f"/{conversation}/messages", body)["param"] == "model"
    with Talk(talk.url.removesuffix("/radixkv/conversations"), "blue") as other:
        other.refused(404, "PATCH", f"/{conversation}", {"settings": {"temperature": 0}})
