"""Replies of kept conversations that go on from another one's text, stopped, cut, edited or still being written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
from chat_stack import Stack, chat_stack, keys_file
from talk import Talk, message_id
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.request_context import GENERATION_ID

NUM_WRITTEN = 12
"""Tokens of a reply that is halted."""


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys.toml")
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0, system_prompt="Be brief.")
    with chat_stack(default_model, config, num_blocks=2048, max_model_len=1024) as stack:
        yield stack


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url, "red") as talk:
        yield talk


def go_on(talk: Talk, conversation: str, reply: str, **options: Any) -> Any:
    """A reply that goes on from another one, once it has ended."""
    body = {"continue": True, "max_tokens": 12, "temperature": 0, **options}
    (begun,) = talk.call("POST", f"/{conversation}/messages/{reply}/replies", body)["messages"]
    return talk.ended(conversation, begun["id"])


def cost(message: Any) -> tuple[int, int]:
    details = message["details"]
    return details["prompt_tokens"], details["cached_tokens"]


@pytest.fixture
def held(stack: Stack) -> Iterator[Stack]:
    """The model computes nothing until the gate is opened."""
    yield stack
    stack.runner.gate.open()


def running_reply(talk: Talk, stack: Stack) -> tuple[str, Any]:
    """A conversation, and a reply in it that is halted while it is being written."""
    conversation, text = talk.begin(), "The unbelievable river" + " is long and" * 100
    stack.dictate(text)
    stack.runner.gate.close_after(NUM_WRITTEN)
    _, begun = talk.say(conversation, "Tell me", temperature=0, max_tokens=400)
    written = stack.text.decode(stack.text.encode(text, special=False)[:NUM_WRITTEN])
    wait_until(lambda: talk.message(conversation, begun["id"])["text"] == written)
    return conversation, talk.message(conversation, begun["id"])


def test_a_cut_reply_goes_on_as_a_sibling_that_shares_its_text(talk: Talk, stack: Stack) -> None:
    conversation = talk.begin()
    asked, cut = talk.turn(conversation, "Hello", temperature=0, max_tokens=12)
    assert cut["details"]["finish_reason"] == "length"
    prompt = list(stack.engine.prompts[-1])
    begun = cut["text"].rstrip("\ufffd")
    rest = go_on(talk, conversation, cut["id"])
    assert rest["parent"] == asked
    assert rest["text"].startswith(begun)
    assert len(rest["text"]) > len(begun)
    assert (rest["details"]["continues"], rest["details"]["position"]) == (cut["id"], len(begun))
    assert stack.engine.prompts[-1][: len(prompt)] == prompt
    length, cached = cost(rest)
    assert cached == length - 1
    if begun == cut["text"]:
        assert length == cost(cut)[0] + 12
    assert talk.message(conversation, cut["id"]) == cut, "the first one stays as it is"


def test_going_on_twice_and_then_a_turn_reads_nothing_twice(talk: Talk) -> None:
    conversation = talk.begin()
    _, cut = talk.turn(conversation, "Twice", temperature=0, max_tokens=8)
    second = go_on(talk, conversation, cut["id"], max_tokens=8)
    third = go_on(talk, conversation, second["id"], max_tokens=8)
    assert third["text"].startswith(second["text"].rstrip("\ufffd"))
    assert cost(third)[1] == cost(third)[0] - 1
    _, following = talk.turn(conversation, "And?", third["id"])
    assert cost(following)[1] >= cost(third)[0] + 8 - 1


def test_a_stopped_reply_tells_its_cost_and_goes_on(talk: Talk, held: Stack) -> None:
    conversation, running = running_reply(talk, held)
    stopped = talk.call("POST", f"/{conversation}/messages/{running['id']}/stop")
    held.runner.gate.open()
    assert stopped["status"] == "stopped"
    length, cached = cost(stopped)
    assert 0 <= cached < length
    assert stopped["details"]["generated_tokens"] > 0
    rest = go_on(talk, conversation, stopped["id"])
    assert rest["text"].startswith(stopped["text"].rstrip("\ufffd"))
    assert cost(rest)[0] > length
    assert cost(rest)[1] == cost(rest)[0] - 1, "what was generated before the stop is there"


def test_an_edited_reply_computes_from_its_first_changed_token(talk: Talk, stack: Stack) -> None:
    conversation = talk.begin()
    ids = stack.dictate_pieces("The", " ri", "ver", " is", " long")
    asked, whole = talk.turn(conversation, "Describe it", temperature=0, max_tokens=len(ids))
    assert whole["text"] == "The river is long"
    body = {"parent": asked, "role": "assistant", "text": "The river is short"}
    edited = talk.call("POST", f"/{conversation}/messages", body)["messages"][0]
    rest = go_on(talk, conversation, edited["id"])
    length, changed = cost(whole)[0] + len(ids) - 1, stack.text.encode(" short", special=False)
    assert cost(rest) == (length + len(changed), length)
    assert rest["text"].startswith("The river is short")


def test_drafts_go_on_from_one_text_and_a_repeat_begins_nothing(talk: Talk) -> None:
    conversation = talk.begin()
    asked, cut = talk.turn(conversation, "Drafts", temperature=0, max_tokens=8)
    body = {"continue": True, "n": 2, "ids": [message_id(), message_id()], "max_tokens": 4}
    path = f"/{conversation}/messages/{cut['id']}/replies"
    first = talk.call("POST", path, body)["messages"]
    for draft in first:
        talk.ended(conversation, draft["id"])
    ended = [talk.message(conversation, draft["id"]) for draft in first]  # with the costs, known when all have ended
    assert [draft["parent"] for draft in ended] == [asked, asked]
    assert talk.call("POST", path, body)["messages"] == ended


@pytest.mark.parametrize("shared", ["The unbelievable", "The unbeliev", "The "])
def test_another_reply_goes_on_from_the_middle_of_one_that_runs(talk: Talk, held: Stack, shared: str) -> None:
    conversation, running = running_reply(talk, held)
    prompt, whole = list(held.engine.prompts[-1]), held.text.encode("The unbelievable river", special=False)
    body = {"continue": True, "position": len(shared), "max_tokens": 6, "temperature": 0}
    (begun,) = talk.call("POST", f"/{conversation}/messages/{running['id']}/replies", body)["messages"]
    assert (begun["text"], begun["parent"]) == (shared, running["parent"])
    held.runner.gate.open()
    branched = talk.ended(conversation, begun["id"])
    num_shared = max(n for n in range(len(whole)) if shared.startswith(held.text.decode(whole[:n])))
    rest = held.text.encode(shared.removeprefix(held.text.decode(whole[:num_shared])), special=False)
    assert held.engine.prompts[-1] == [*prompt, *whole[:num_shared], *rest]
    length, cached = cost(branched)
    assert length == len(held.engine.prompts[-1])
    assert cached == min(len(prompt) + num_shared, length - 1), "all up to the token that the position lies in"
    ended = talk.call("POST", f"/{conversation}/messages/{running['id']}/stop")
    assert ended["text"].startswith(running["text"]), "the other one was not disturbed"


def test_a_message_goes_below_the_beginning_of_a_reply_that_runs(talk: Talk, held: Stack) -> None:
    conversation, running = running_reply(talk, held)
    prompt = held.engine.prompts[-1]
    position = len(running["text"])
    body = {"id": message_id(), "parent": running["id"], "position": position, "role": "user", "text": "Wait, why?"}
    body["replies"] = {"max_tokens": 4, "temperature": 0}
    message, reply = talk.call("POST", f"/{conversation}/messages", body)["messages"]
    assert held.engine.prompts[-1][: len(prompt)] == prompt
    cut = talk.message(conversation, message["parent"])
    assert (cut["text"], cut["parent"], cut["status"]) == (running["text"], running["parent"], "stopped")
    assert cut["details"]["continues"] == running["id"]
    del body["replies"]
    assert talk.call("POST", f"/{conversation}/messages", body)["messages"] == [message], "a repeat adds nothing"
    held.runner.gate.open()
    ended = talk.ended(conversation, reply["id"])
    begun = held.text.encode(running["text"], special=False)
    assert cost(ended)[1] >= len(prompt) + len(begun) - 1, "all of the running one that was computed"
    talk.call("POST", f"/{conversation}/messages/{running['id']}/stop")


def test_what_is_deleted_is_gone_on_from_no_more(talk: Talk, stack: Stack) -> None:
    conversation = talk.begin()
    body = {"role": "user", "text": "A secret", "replies": {"max_tokens": 8, "temperature": 0}}
    answer = talk.http.post(f"{talk.url}/{conversation}/messages", json=body)
    reply = talk.ended(conversation, answer.json()["messages"][1]["id"])
    fork = f"{stack.server.url}/radixkv/generations/{answer.headers[GENERATION_ID]}/fork"
    assert talk.http.post(fork, json={"max_tokens": 1}).status_code == 200
    talk.call("DELETE", f"/{conversation}/messages/{reply['id']}")
    assert talk.http.post(fork, json={"max_tokens": 1}).status_code == 404
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A secret"}]
    begun = [*turns, {"role": "assistant", "content": reply["text"]}]
    asked = {"messages": begun, "continue_final_message": True, "max_tokens": 1}
    assert talk.http.post(f"{stack.server.url}/chat/completions", json=asked).status_code == 200
    anew = [*begun[:2], {"role": "assistant", "content": reply["text"]}]
    ids = stack.text.tokenizer.apply_chat_template(anew, continue_final_message=True, return_dict=False)
    assert stack.engine.prompts[-1] == ids, "it is read as text"


def test_what_cannot_be_gone_on_from_is_refused_by_name(talk: Talk, held: Stack) -> None:
    conversation, running = running_reply(talk, held)
    path = f"/{conversation}/messages/{running['id']}/replies"
    number = len(running["text"]) + 1
    refused = talk.refused(400, "POST", path, {"continue": True, "position": number})
    assert refused["param"] == "position"
    assert f"position is {number}; it must be at most {number - 1}" in refused["message"]
    assert "position goes with continue" in talk.refused(400, "POST", path, {"position": 1})["message"]
    own = talk.refused(400, "POST", f"/{conversation}/messages/{running['parent']}/replies", {"continue": True})
    assert "role user" in own["message"]
    below = {"parent": running["id"], "role": "user", "text": "x"}
    assert "say a position" in talk.refused(409, "POST", f"/{conversation}/messages", below)["message"]
    far = talk.refused(400, "POST", f"/{conversation}/messages", below | {"position": number})
    assert far["param"] == "position"
    talk.refused(400, "POST", f"/{conversation}/messages", below | {"position": 0})
    with Talk(held.server.url, "blue") as other:
        other.refused(404, "POST", path, {"continue": True, "position": 1})
        other.refused(404, "POST", f"/{conversation}/messages", below | {"position": 1})
    talk.call("POST", f"/{conversation}/messages/{running['id']}/stop")


# -- alternatives


def alternatives(talk: Talk, conversation: str, reply: str, position: int, **options: Any) -> Any:
    path = f"/{conversation}/messages/{reply}/alternatives"
    return talk.call("POST", path, {"position": position, **options})


def test_the_tokens_that_might_have_stood_at_a_place_are_told_for_one_that_is_computed(
    talk: Talk, stack: Stack
) -> None:
    conversation = talk.begin()
    ids = stack.dictate_pieces("The", " ri", "ver", " is", " long")
    _, reply = talk.turn(conversation, "Describe it again", temperature=0, max_tokens=len(ids))
    prompt = stack.engine.prompts[-1]
    assert reply["text"] == "The river is long"
    ends = list(accumulate(len(stack.text.decode([token_id])) for token_id in ids))
    for place, (begin, end) in enumerate(pairwise([0, *ends])):
        for position in (begin, end - 1):
            before = len(stack.runner.rows)
            told = alternatives(talk, conversation, reply["id"], position, top=5)
            assert stack.engine.prompts[-1] == [*prompt, *ids[: place + 1]]
            num_run = sum(until - start for start, until in stack.runner.rows[before:])
            assert num_run <= 2, "all before it was found"
            assert (told["position"], told["text"]) == (begin, reply["text"][begin:end])
            assert told["model"] == "gibberish"
            logprobs = [each["logprob"] for each in told["alternatives"]]
            assert len(logprobs) == 5
            assert logprobs == sorted(logprobs, reverse=True)
            assert sum(1 for each in logprobs if each > told["logprob"]) < told["rank"]
            assert told["logprob"] <= max(logprobs)


def test_a_reply_goes_on_with_an_alternative(talk: Talk, stack: Stack) -> None:
    conversation = talk.begin()
    asked, reply = talk.turn(conversation, "Go on otherwise", temperature=0, max_tokens=8, seed=3)
    prompt = stack.engine.prompts[-1]
    position = 0
    told = alternatives(talk, conversation, reply["id"], position)
    assert told["rank"] == 1, "it was the most likely one"
    assert told["alternatives"][0] == {name: told[name] for name in ("token", "text", "logprob")}
    other = next(each for each in told["alternatives"][1:] if each["text"] and each["text"].strip())
    rest = go_on(talk, conversation, reply["id"], position=told["position"], append=other["text"])
    assert rest["text"].startswith(other["text"])
    assert rest["parent"] == asked
    details = rest["details"]
    assert (details["continues"], details["position"], details["appended"]) == (reply["id"], 0, other["text"])
    assert stack.engine.prompts[-1] == [*prompt, *stack.text.encode(other["text"], special=False)]
    _, following = talk.turn(conversation, "And?", rest["id"])
    assert cost(following)[1] >= cost(rest)[0] + 8 - 1, "it is remembered as it was generated"


def test_a_running_reply_tells_alternatives_and_goes_on_with_one(talk: Talk, held: Stack) -> None:
    conversation, running = running_reply(talk, held)
    prompt, shared = list(held.engine.prompts[-1]), "The unbelievable"
    body = {"continue": True, "position": len(shared), "append": " lake", "max_tokens": 4, "temperature": 0}
    (begun,) = talk.call("POST", f"/{conversation}/messages/{running['id']}/replies", body)["messages"]
    assert begun["text"] == "The unbelievable lake"
    held.runner.gate.open()
    talk.ended(conversation, begun["id"])
    whole = held.text.encode("The unbelievable river", special=False)
    assert held.engine.prompts[-1][: len(prompt) + 1] == [*prompt, whole[0]]
    talk.call("POST", f"/{conversation}/messages/{running['id']}/stop")
    assert alternatives(talk, conversation, running["id"], 0)["position"] == 0


def test_alternatives_of_what_is_no_reply_are_refused_by_name(talk: Talk) -> None:
    conversation = talk.begin()
    asked, reply = talk.turn(conversation, "Refuse", temperature=0, max_tokens=4)
    path = f"/{conversation}/messages/{reply['id']}/alternatives"
    length = len(reply["text"].rstrip("\ufffd"))
    refused = talk.refused(400, "POST", path, {"position": length})
    assert f"position is {length}; it must be below {length}" in refused["message"]
    assert "top" in talk.refused(400, "POST", path, {"position": 0, "top": 21})["message"]
    own = f"/{conversation}/messages/{asked}/alternatives"
    assert "role user" in talk.refused(400, "POST", own, {"position": 0})["message"]
    replies = f"/{conversation}/messages/{asked}/replies"
    assert "append goes with continue" in talk.refused(400, "POST", replies, {"append": "x"})["message"]
    with Talk(talk.url.removesuffix("/radixkv/conversations"), "blue") as other:
        other.refused(404, "POST", path, {"position": 0})
