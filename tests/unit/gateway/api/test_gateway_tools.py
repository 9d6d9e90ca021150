"""Tools: what a request's tools mean, and calls found in replies however they are cut into pieces."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from llguidance import LLTokenizer
from pydantic import TypeAdapter, ValidationError

from radixkv.gateway.api.anthropic import routes as anthropic_routes
from radixkv.gateway.api.openai import chat
from radixkv.gateway.api.responses.plan import Plan
from radixkv.gateway.api.responses.tools import ResponseTool, SpacedTool, offers_of
from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.turns.call_parser import CallParser, CallPiece
from radixkv.gateway.turns.replies import Reply
from radixkv.gateway.turns.response_format import json_object, schema_constraint
from radixkv.gateway.turns.tools import (
    MAX_NAME_CHARACTERS,
    ChatTool,
    ChatTools,
    NamedTool,
    ToolChoice,
    ToolPlan,
    plan_tools,
)
from radixkv.generation.params import SamplingParams
from radixkv.generation.stream import BranchFinished, Delta, FinishReason
from radixkv.worker.generations.tool_prompt import knows_tools, with_tool_prompt
from radixkv.worker.sampling.grammar_source import grammar_source, new_matcher

HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
LLAMA = '{"name": "weather", "parameters": {"city": "Paris"}}'
MISTRAL = '[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]'


def parse(pieces: list[str], names: tuple[str, ...] = ("weather", "time")) -> tuple[str, list[tuple[str, object]]]:
    parser = CallParser(names)
    text, told = "", list[CallPiece]()
    for piece in pieces:
        shown, found = parser.push(piece)
        text += shown
        told += found
    shown, found = parser.flush()
    told += found
    calls = [piece.call for piece in told if piece.begins]
    assert len({call.call_id for call in calls}) == len(calls)
    for number, call in enumerate(calls):
        own = [piece for piece in told if piece.call is call]
        assert {piece.number for piece in own} == {number}
        assert "".join(piece.arguments for piece in own) == call.arguments
        assert [piece.ends for piece in own] == [False] * (len(own) - 1) + [True]
    return text + shown, [(call.name, json.loads(call.arguments)) for call in calls]


def tool(name: str = "weather", **parameters: object) -> ChatTool:
    return ChatTool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}})


WEATHER = ("weather", {"city": "Paris"})


@pytest.mark.parametrize(
    ("reply", "text", "calls"),
    [
        ("Hello there", "Hello there", []),
        (HERMES, "", [WEATHER]),
        (f"Let me see.\n{HERMES}", "Let me see.\n", [WEATHER]),
        (f"{HERMES}\n{HERMES}", "", [WEATHER, WEATHER]),
        (f"{HERMES}\ndone", "done", [WEATHER]),
        (LLAMA, "", [WEATHER]),
        (f"\n  {LLAMA}\n", "", [WEATHER]),
        (MISTRAL, "", [WEATHER, ("time", {})]),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
        ('{"name": "weather", "parameters": 3}', '{"name": "weather", "parameters": 3}', []),
        ("{not json", "{not json", []),
        ("<tool_call>nonsense</tool_call> and on", "<tool_call>nonsense</tool_call> and on", []),
        ("a < b and <tool", "a < b and <tool", []),
        ('<tool_call>{"name": "time", "arguments": {}}', "", [("time", {})]),
        ("<tool_call>cut off", "<tool_call>cut off", []),
        ("", "", []),
    ],
)
def test_calls_are_found_wherever_the_reply_is_cut(reply: str, text: str, calls: list[tuple[str, object]]) -> None:
    assert parse([reply]) == (text, calls)
    assert parse(list(reply)) == (text, calls)
    source = random.Random(reply)
    for _ in range(20):
        cuts = sorted(source.choices(range(len(reply) + 1), k=3))
        assert parse([reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]) == (text, calls)


FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        "[",
        "]",
        '"name": ',
        '"weather"',
        ", ",
        '"arguments": ',
        "{}",
        "\n",
        " ",
        "text",
        "<tool",
    ),
    *('{"a": "}{"}', '{"a": "\\"}"}', '"x', "\\", "3", HERMES, LLAMA, MISTRAL, '{"name": "weather", "arguments": '),
    *('{"name": "other", "arguments": {}}', '{"arguments": {"c": 1}, "name": "time"}'),
]


@pytest.mark.parametrize(("takes_one_call", "must_call"), [(False, False), (True, False), (False, True)])
def test_random_replies_say_the_same_however_they_are_cut(takes_one_call: bool, must_call: bool) -> None:
    def read(pieces: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
        parser = CallParser(("weather", "time"), takes_one_call=takes_one_call, must_call=must_call)
        told = [parser.push(piece) for piece in pieces if not parser.is_over]
        told += [] if parser.is_over else [parser.flush()]
        calls = [piece for _, found in told for piece in found]
        assert sum(piece.begins for piece in calls) == sum(piece.ends for piece in calls)
        return "".join(text for text, _ in told), [
            (each.call.name, each.call.arguments) for each in calls if each.begins
        ]

    source = random.Random(0)
    num_with_calls = 0
    for _ in range(1500):
        reply = "".join(source.choices(FRAGMENTS, k=source.randint(1, 9)))
        whole = read([reply])
        num_with_calls += bool(whole[1])
        assert read(reply) == whole, reply
        cut = source.randint(0, len(reply))
        assert read([reply[:cut], reply[cut:]]) == whole, reply
    assert num_with_calls > 200


def test_without_tools_nothing_is_held_back() -> None:
    assert CallParser(()).push("<tool_call>{") == ("<tool_call>{", [])


def test_plain_text_is_shown_at_once_with_tools() -> None:
    parser = CallParser(("weather",))
    assert parser.push("The ")[0] == "The "
    assert parser.push("{x}")[0] == "{x}"


@pytest.mark.parametrize("separator", ["\n", "\nand then\n", ""])
def test_one_call_at_a_time_ends_the_reply_for_its_caller(separator: str) -> None:
    assert plan_tools([tool()], None, False).takes_one_call
    assert plan_tools([tool()], "required", False).takes_one_call
    assert not plan_tools([tool()], None, True).takes_one_call
    reply = Reply(0, ("weather", "time"), (), takes_one_call=True)
    first, rest = f"Let me see.{HERMES}", f"{separator}{HERMES}"
    shown = [reply.push(Delta(0, (number,), piece)).text for number, piece in enumerate((*first, *rest))]
    reply.finish(BranchFinished(0, FinishReason.LENGTH, None, None))
    assert "".join(shown) == reply.text == "Let me see."
    assert [call.name for call in reply.calls] == ["weather"]
    assert (reply.raw, reply.token_ids) == (first, list(range(len(first))))
    assert (reply.finish_reason, reply.stop) == ("tool_calls", None)


@pytest.mark.parametrize("plan", [chat.ChatPlan, anthropic_routes._Plan, Plan])
@pytest.mark.parametrize(("takes_one_call", "num_calls"), [(True, 1), (False, 2)])
def test_every_api_leaves_out_what_is_behind_the_first_call_where_it_is_asked_to(
    plan: Any, takes_one_call: bool, num_calls: int
) -> None:
    said = dict.fromkeys(field.name for field in fields(plan))
    named = {
        "tools": ToolPlan(functions=dict.fromkeys(["weather"]), takes_one_call=takes_one_call),
        "model": SimpleNamespace(info=SimpleNamespace(eos_token_ids=(), thinking=None)),
        "sampling": SamplingParams(),
    }
    known = plan(**{name: named.get(name, value) for name, value in said.items()})
    (reply,) = known.reader(SimpleNamespace(transcripts=None, backend=None), None).replies
    reply.push(Delta(0, (1,), HERMES + HERMES))
    reply.finish(BranchFinished(0, FinishReason.LENGTH, None, None))
    assert len(reply.calls) == num_calls


@pytest.mark.parametrize(
    ("text", "is_exact"), [(f"Hi {HERMES}", True), (f"Hi {HERMES}\n", True), (f"Hi {HERMES} and then {HERMES}", False)]
)
def test_what_comes_with_the_first_call_is_left_out_as_well(text: str, is_exact: bool) -> None:
    reply = Reply(0, ("weather",), (), takes_one_call=True)
    grown = reply.push(Delta(0, (1, 2), text))
    assert (grown.text, len(grown.calls), grown.token_ids) == ("Hi ", 1, (1, 2))
    assert reply.push(Delta(0, (3,), "more")).token_ids == ()
    assert (reply.text, len(reply.calls), reply.token_ids) == ("Hi ", 1, [1, 2])
    assert reply.is_exact is is_exact


def test_of_a_list_of_calls_the_first_is_taken_where_one_is_wanted() -> None:
    reply = Reply(0, ("weather", "time"), (), takes_one_call=True)
    reply.push(Delta(0, (1,), MISTRAL))
    reply.finish(BranchFinished(0, FinishReason.STOP, 2, None))
    assert [call.name for call in reply.calls] == ["weather"]
    assert not reply.is_exact
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("num_said", "takes_one_call", "num_calls", "is_exact"),
    [(1, True, 1, True), (2, True, 1, False), (2, False, 2, True)],
)
def test_a_list_of_calls_that_begin_with_their_arguments_is_exact_where_none_is_left_out(
    num_said: int, takes_one_call: bool, num_calls: int, is_exact: bool
) -> None:
    reply = Reply(0, ("weather",), (), takes_one_call=takes_one_call)
    reply.push(Delta(0, (1,), json.dumps([{"arguments": {"city": "Paris"}, "name": "weather"}] * num_said)))
    reply.finish(BranchFinished(0, FinishReason.STOP, 2, None))
    assert len(reply.calls) == num_calls
    assert reply.is_exact is is_exact


def test_a_choice_of_none_hides_the_tools() -> None:
    plan = plan_tools([tool()], "none")
    assert (plan.tools, plan.names, plan.constraint) == ((), frozenset(), None)


def test_a_required_call_is_held_to_the_functions_schemas() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    both = plan_tools([tool(**schema), tool("time")], "required")
    assert both.constraint is not None
    assert [call["properties"]["name"] for call in json.loads(both.constraint.grammar.text)["anyOf"]] == [
        {"const": "weather"},
        {"const": "time"},
    ]
    choice = NamedTool.model_validate({"type": "function", "function": {"name": "weather"}})
    named = plan_tools([tool(**schema), tool("time")], choice)
    assert named.constraint is not None
    (call,) = json.loads(named.constraint.grammar.text)["anyOf"]
    assert call["properties"]["arguments"] == schema | {"additionalProperties": False}
    assert named.names == {"weather"}


def test_a_choice_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ApiError, match="tool_choice needs tools"):
        plan_tools(None, "required")
    choice = NamedTool.model_validate({"type": "function", "function": {"name": "other"}})
    with pytest.raises(ApiError, match="not in tools"):
        plan_tools([tool()], choice)


def test_a_function_may_leave_its_type_out() -> None:
    named = {"function": {"name": "weather"}}
    read = TypeAdapter(ChatTools).validate_python
    assert read([named]) == read([{"type": "function", **named}])
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for given in (named, allowed):
        choice = TypeAdapter[ToolChoice](ToolChoice).validate_python(given)
        assert plan_tools([tool(), tool("time")], choice).names == {"weather"}
    for wrong in ({}, {"name": "weather"}, {"type": None, **named}, {"type": "any", **named}):
        with pytest.raises(ValidationError, match="type"):
            TypeAdapter(ToolChoice).validate_python(wrong)


def test_tools_that_are_too_many_too_deep_or_too_large_are_refused() -> None:
    read = TypeAdapter(ChatTools).validate_python
    one = {"type": "function", "function": {"name": "f"}}
    assert len(read([one] * 512)) == 512
    with pytest.raises(ValidationError, match="at most 512"):
        read([one] * 513)
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"x": deep}
    with pytest.raises(ValidationError, match="64 levels"):
        read([{"type": "function", "function": {"name": "f", "parameters": deep}}])
    wide = {str(number): {} for number in range(30_000)}
    with pytest.raises(ValidationError, match="at most 50,000 names and values"):
        read([{"type": "function", "function": {"name": "f", "returns": wide}}])


def test_a_template_without_tools_is_told_of_them_in_the_system_prompt() -> None:
    assert knows_tools("{% if tools %}")
    assert not knows_tools("{% for m in messages %}{{ m.content }}{% endfor %}")
    function = {"type": "function", "function": {"name": "weather"}}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
    }
    told = with_tool_prompt([{"role": "system", "content": "Be brief."}, called], [function])
    assert told[0]["content"].startswith("You can call functions.")
    assert told[0]["content"].endswith("\n\nBe brief.")
    assert '{"name": "weather"}' in told[0]["content"]
    assert parse([told[1]["content"]])[1] == [("weather", {"city": "Rome"})]
    assert with_tool_prompt([{"role": "user", "content": "hi"}], [function])[0]["role"] == "system"


def test_a_name_and_its_namespace_are_offered_up_to_their_bound() -> None:
    def offered(length: int) -> list[str]:
        tool = SpacedTool(type="function", name="f" * length)
        return list(offers_of([ResponseTool(type="namespace", name="n", tools=[tool])]))

    longest = MAX_NAME_CHARACTERS - len("n.")
    assert offered(longest) == ["n." + "f" * longest]
    with pytest.raises(ApiError, match=f"at most {MAX_NAME_CHARACTERS} may be"):
        offered(longest + 1)


def fits(constraint: Constraint, text: str) -> bool:
    matcher = new_matcher(grammar_source(constraint.grammar), LLTokenizer("byte"))
    assert not matcher.is_error(), matcher.get_error()
    return all(map(matcher.consume_token, text.encode())) and matcher.is_accepting()


def test_a_held_answer_and_the_calls_that_may_come_before_it_are_loosened_together() -> None:
    answer = schema_constraint({"properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}, "format")
    days = {"days": {"type": "integer", "maximum": 9}}
    plan = plan_tools([tool("weather", type="object", properties=days, required=["days"])], "auto")
    exact = plan.hold(answer)
    assert exact is not None
    loosest = exact
    while loosest.looser is not None:
        loosest = loosest.looser()
    for text in ('{"n": 9}', '<tool_call>\n{"name": "weather", "arguments": {"days": 9}}\n</tool_call>'):
        wrong = text.replace("9", "true")
        assert [fits(exact, text), fits(exact, wrong)] == [True, False]
        assert [fits(loosest, text), fits(loosest, wrong)] == [True, True]
    assert not fits(loosest, "n is 9")
    assert {"format", "tools.0.function.parameters"} <= set(loosest.left_out)


def test_only_tools_that_may_be_called_change_what_an_answer_is_held_to() -> None:
    answer = json_object("response_format")
    tools = [tool(type="object")]
    assert plan_tools(None, None).hold(answer) is answer
    assert plan_tools(tools, "none").hold(answer) is answer
    assert plan_tools(tools, "auto").hold(None) is None
    required = plan_tools(tools, "required")
    assert required.hold(answer) is required.constraint
