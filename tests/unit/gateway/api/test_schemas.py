"""Schemas as programs make them: what the engine is told, what of it is left out, and which texts it then allows."""

from __future__ import annotations

import json
import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal

import pytest
from llguidance import LLTokenizer
from pydantic import BaseModel, Field, RootModel

from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.turns.response_format import schema_constraint
from radixkv.gateway.turns.tools import ChatTool, plan_tools
from radixkv.worker.sampling.grammar_source import grammar_source, new_matcher

TRIE = LLTokenizer("byte")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Tree(BaseModel):
    value: int
    below: list[Tree] = []


class Pets(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    others: list[Cat | Dog] = []


class Many(BaseModel):
    tags: set[str]
    sizes: dict[Literal["s", "m"], int]
    colours: dict[Colour, float]
    codes: dict[Annotated[str, Field(pattern="^c[0-9]$")], int]
    price: Decimal
    count: Annotated[int, Field(gt=0, le=9, multiple_of=3)]
    at: datetime
    day: date
    took: timedelta
    id: uuid.UUID
    ip: IPv4Address
    pair: tuple[int, str]


class Amounts(RootModel[list[Decimal]]):
    pass


MANY = {
    "tags": ["a"],
    "sizes": {"s": 1},
    "colours": {"red": 1.5},
    "codes": {"c1": 2},
    "price": "1.50",
    "count": 3,
    "at": "2026-01-02T03:04:05Z",
    "day": "2026-01-02",
    "took": "P1D",
    "id": "12345678-1234-4234-8234-123456789abc",
    "ip": "1.2.3.4",
    "pair": [1, "x"],
}
POINT = {"x": {"type": "number"}, "y": {"type": "number"}}
NAME, AGE = {"name": {"type": "string"}}, {"age": {"type": "integer"}}
ZOD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
        "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        "url": {"type": "string", "format": "uri"},
        "from": {"$ref": "#/$defs/point"},
        "to": {"$ref": "#/properties/from"},
        "never": {"not": {}},
        "record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        "tuple": {"type": "array", "items": [{"type": "string"}, {"type": "number"}], "additionalItems": False},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["mode", "limit"],
    "$defs": {"point": {"type": "object", "properties": POINT, "required": ["x"]}},
}

# Schema; keywords that are left out; what is allowed; what is not.
MADE: dict[str, tuple[dict[str, Any], set[str], list[Any], list[Any]]] = {
    "pydantic": (
        Many.model_json_schema(),
        {"uniqueItems"},
        [MANY],
        [
            {**MANY, "more": 1},
            {**MANY, "count": 4},
            {**MANY, "sizes": {"l": 1}},
            {**MANY, "colours": {"green": 1}},
            {**MANY, "codes": {"d1": 1}},
        ],
    ),
    "pydantic's unions": (
        Pets.model_json_schema(),
        set(),
        [{"pet": {"kind": "cat", "lives": 3}}, {"pet": {"kind": "dog", "name": None}, "others": [{"kind": "cat"}]}],
        [{"pet": {"kind": "cow"}}, {"pet": {"kind": "cat", "name": "x"}}],
    ),
    "pydantic's recursion": (
        Tree.model_json_schema(),
        set(),
        [{"value": 1, "below": [{"value": 2, "below": []}]}],
        [{"value": 1, "below": [{"value": "2"}]}, {"value": 1, "up": 1}],
    ),
    "zod": (
        ZOD,
        set(),
        [{"mode": "fast", "limit": 3, "to": {"x": 1}, "record": {"a": 1}, "tuple": ["a", 1], "maybe": None}],
        [
            {"mode": "fast", "limit": 0},
            {"mode": "fast", "limit": 1, "never": 1},
            {"mode": "fast", "limit": 1, "to": {"x": 1, "z": 1}},
        ],
    ),
    "look-ahead": (
        {"type": "object", "properties": {"p": {"type": "string", "pattern": r"^(?=.*\d).{8,}$"}}},
        {"pattern"},
        [{"p": "x"}, {}],
        [{"p": 1}],
    ),
    "a condition": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "if": {"properties": {"a": {"const": 1}}},
            "then": {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
            "else": {"not": {"required": ["b"]}},
        },
        {"if"},
        [{"a": 1, "b": 2}, {"a": 2}],
        [{"a": "x"}, {"a": 1, "c": 3}],
    ),
    "what depends": (
        {
            "type": "object",
            "properties": NAME | AGE,
            "dependentRequired": {"name": ["age"]},
            "dependentSchemas": {"age": {"properties": {"born": {"type": "integer"}}}},
            "minProperties": 1,
            "not": {"required": ["x"]},
        },
        {"dependentRequired", "dependentSchemas", "minProperties", "not"},
        [{"name": "a"}, {"name": "a", "age": 1, "born": 2}],
        [{"height": 1}],
    ),
    "one of several": (
        {
            "properties": {
                "a": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
                "b": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
            }
        },
        {"oneOf"},
        [{"a": 1, "b": 2}, {"a": "x", "b": 1.5}],
        [{"a": 1.5}, {"b": "x"}],
    ),
    "arrays": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}, "minContains": 1, "maxItems": 2},
        {"contains", "minContains"},
        [[1, 2]],
        [[1, 2, 3], ["x"]],
    ),
    "what is not evaluated": (
        {
            "allOf": [{"$ref": "#/$defs/n"}],
            "properties": AGE,
            "unevaluatedProperties": False,
            "$defs": {"n": {"properties": NAME}},
        },
        set(),
        [{"name": "a", "age": 1}],
        [{"name": "a", "age": 1, "more": 1}],
    ),
    "formats": (
        {"properties": {"n": {"type": "integer", "format": "int64"}, "f": {"type": "string", "format": "password"}}},
        {"format"},
        [{"n": 1, "f": "x"}],
        [{"n": "x"}, {"more": 1}, 3],
    ),
    "inheritance of OpenAPI": (
        {
            "allOf": [
                {"$ref": "#/components/schemas/Base"},
                {"type": "object", "properties": AGE, "required": ["age"]},
            ],
            "components": {"schemas": {"Base": {"type": "object", "properties": NAME, "required": ["name"]}}},
        },
        set(),
        [{"name": "a", "age": 1}],
        [{"name": "a", "age": 1, "more": 1}, {"age": 1}],
    ),
    "nullable of OpenAPI 3.0": (
        {
            "type": "object",
            "properties": {"n": {"type": "number", "nullable": True, "minimum": 0, "exclusiveMinimum": True}},
        },
        set(),
        [{"n": None}, {"n": 1}],
        [{"n": 0}],
    ),
    "one of two required": (
        {
            "type": "object",
            "properties": {**NAME, **AGE},
            "anyOf": [{"required": ["name"]}, {"required": ["age"]}],
        },
        set(),
        [{"name": "a"}, {"age": 1}],
        [{}, {"name": "a", "more": 1}],
    ),
    "open objects": (
        {"properties": {"free": {"type": "object"}, "map": {"properties": NAME, "additionalProperties": True}}},
        set(),
        [{"free": {"a": [1]}, "map": {"name": "a", "b": 1}}],
        [{"more": 1}],
    ),
    "references that lead nowhere": (
        {"type": "object", "properties": {"a": {"$ref": "https://example.org/x.json"}, "b": {"$ref": "#/$defs/no"}}},
        {"$ref"},
        [{"a": 1, "b": "x"}],
        [{"c": 1}],
    ),
    "references by name": (
        {
            "$id": "https://example.org/tree",
            "type": "object",
            "properties": {
                "kids": {"type": "array", "items": {"$ref": "https://example.org/tree#"}},
                "leaf": {"$ref": "#leaf"},
            },
            "definitions": {"x": {"$anchor": "leaf", "type": "integer"}},
        },
        set(),
        [{"kids": [{"kids": [], "leaf": 1}]}],
        [{"kids": [{"leaf": "x"}]}],
    ),
    "a list at the root": (Amounts.model_json_schema(), set(), [["1"], []], [[None], {"a": 1}]),
    "patterns of names": (
        {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}},
        set(),
        [{"x-a": 1}],
        [{"x-a": "b"}, {"y": 1}],
    ),
    "patterns of names that look around": (
        {"type": "object", "patternProperties": {"^(?!x-)": {"type": "integer"}}, "additionalProperties": False},
        {"patternProperties"},
        [{"a": 1}],
        [3],
    ),
}


def allows(constraint: Constraint, value: Any) -> bool:
    matcher = new_matcher(grammar_source(constraint.grammar), TRIE)
    assert not matcher.is_error(), matcher.get_error()
    text = json.dumps(value).encode()
    return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()


@pytest.mark.parametrize("name", MADE)
def test_a_schema_allows_what_it_says_and_tells_what_it_cannot_enforce(name: str) -> None:
    schema, left_out, allowed, refused = MADE[name]
    as_format = schema_constraint(schema, "format")
    assert {each.removeprefix("format.") for each in as_format.left_out} == left_out
    for value in allowed:
        assert allows(as_format, value), value
    for value in refused:
        assert not allows(as_format, value), value


@pytest.mark.parametrize("name", MADE)
def test_a_tool_allows_the_same_arguments(name: str) -> None:
    schema, left_out, allowed, refused = MADE[name]
    tools = [made_tool("other", {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}})]
    tools.append(made_tool("f", schema))
    constraint = plan_tools(tools, "required").constraint
    assert constraint is not None
    if isinstance(allowed[0], dict):
        assert set(constraint.left_out) == {f"tools.1.function.parameters.{each}" for each in left_out}
    else:  # a call has an object
        assert constraint.left_out == ("tools.1.function.parameters",)
    for value in allowed:
        assert allows(constraint, {"name": "f", "arguments": value}) is isinstance(value, dict), value
    for value in refused if isinstance(allowed[0], dict) else ():
        assert not allows(constraint, {"name": "f", "arguments": value}), value


@pytest.mark.parametrize("name", [name for name in MADE if MADE[name][1]])
def test_a_strict_schema_is_refused_by_what_cannot_be_enforced(name: str) -> None:
    schema, left_out, _, _ = MADE[name]
    for make, param in (
        (lambda: schema_constraint(schema, "text.format.schema", is_strict=True), "text.format.schema"),
        (lambda: plan_tools([made_tool("f", schema, strict=True)], "required"), "tools.0.function.parameters"),
    ):
        with pytest.raises(ApiError) as caught:
            make()
        assert (caught.value.status, caught.value.param) == (400, param)
        is_of_objects = isinstance(MADE[name][2][0], dict) or param != "tools.0.function.parameters"
        says = left_out if is_of_objects else {"must be a schema of an object"}
        assert all(each in caught.value.message for each in says)


# What is found to be out of the engine's reach by trying alone; the least that is kept.
HARD: dict[str, tuple[dict[str, Any], Any, int]] = {
    "a class of a class": ({"type": "object", "properties": {"a": {"type": "string", "pattern": "[[]"}}}, {"a": 1}, 1),
    "numbers of 64 bits": ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "x", 1),
    "nothing at all": ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, [], 2),
}


@pytest.mark.parametrize("name", HARD)
def test_what_the_engine_refuses_is_tried_with_less(name: str) -> None:
    schema, refused, num_steps = HARD[name]
    constraint = schema_constraint(schema, "format")
    for _ in range(num_steps):
        assert new_matcher(grammar_source(constraint.grammar), TRIE).is_error()
        assert constraint.looser is not None
        constraint = constraint.looser()
    assert constraint.left_out
    assert not allows(constraint, refused)
    assert schema_constraint(schema, "format", is_strict=True).looser is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "text"}, "type is 'text'"),
        ({"type": ["string", 3]}, "type is 3"),
        ({"properties": []}, "properties must be an object"),
        ({"properties": {"a": 3}}, "3 stands where a schema must"),
        ({"anyOf": {}}, "anyOf must be a list"),
        ({"allOf": []}, "allOf must be a list"),
        ({"not": {}}, "it allows nothing"),
        ({"items": "x"}, "'x' stands where"),
        ({"$ref": "#/x", "x": 3}, "3 stands where"),
    ],
)
def test_what_is_no_schema_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ApiError, match=r"^f is no JSON schema") as caught:
        schema_constraint(schema, "f")
    assert says in caught.value.message


def test_schemas_that_refer_in_rows_circles_and_powers_cost_no_more_than_they_hold() -> None:
    row = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5000)}
    assert schema_constraint({"$ref": "#/$defs/0", "$defs": row}, "f").left_out == ("f.$ref",)
    assert schema_constraint({"$ref": "#"}, "f").grammar.text
    powers = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2, "properties": {str(n): {}}} for n in range(60)}
    assert len(schema_constraint({"$ref": "#/$defs/0", "$defs": powers}, "f").grammar.text) < 200_000
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(60):
        nested = {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": nested}
    assert len(schema_constraint(nested, "f").grammar.text) < 50_000
    wide = {"allOf": [{"$ref": "#/$defs/w"}, {"$ref": "#/$defs/v"}]}
    names = {"w": {"properties": {str(n): {} for n in range(2000)}}, "v": {"properties": {"v": {}}}}
    many = {"properties": {f"p{n}": wide for n in range(2000)}, "$defs": names}
    assert len(schema_constraint(many, "f").grammar.text) < 2_000_000


def made_tool(name: str, schema: dict[str, Any], *, strict: bool | None = None) -> ChatTool:
    return ChatTool.model_validate(
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
    )


STRING = {"type": "string"}
KEYWORDS: list[tuple[dict[str, Any], set[str], list[Any], list[Any]]] = [
    ({"type": "object", "properties": NAME, "required": "name"}, {"required"}, [{}, {"name": "a"}], [{"name": 1}]),
    ({"type": "array", "prefixItems": [STRING], "unevaluatedItems": False}, set(), [["a"]], [["a", "b"]]),
    ({"type": "array", "items": STRING, "unevaluatedItems": False}, {"unevaluatedItems"}, [["a", "b"]], [[1]]),
    ({"type": "array", "prefixItems": [STRING], "unevaluatedItems": STRING}, {"unevaluatedItems"}, [["a", "b"]], [[1]]),
    ({"type": "array", "items": STRING, "additionalItems": False}, set(), [["a", "b"]], [[1]]),
    ({"type": "array", "items": [STRING], "additionalItems": {"type": "number"}}, set(), [["a", 1]], [["a", "b"]]),
    ({"type": "object", "propertyNames": {"pattern": "^k"}}, set(), [{"k1": 1}], [{"x": 1}]),
    (
        {"type": "object", "propertyNames": {"pattern": "^k"}, "additionalProperties": STRING},
        set(),
        [{"k1": "a"}],
        [{"k1": 1}, {"x": "a"}],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^(?=k)k"}}, {"propertyNames"}, [{"x": 1}], []),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, {"propertyNames"}, [{"long name": 1}], []),
    ({"type": "object", "propertyNames": {"type": "string", "title": "t"}}, set(), [{"x": 1}], []),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, set(), [{"a": 1}, {}], [{"c": 1}]),
    ({"type": "object", "propertyNames": {"const": "a"}}, set(), [{"a": 1}], [{"b": 1}]),
    ({"type": "object", "propertyNames": {"enum": ["a", 1]}}, {"propertyNames"}, [{"c": 1}], []),
    ({"anyOf": [{"type": "number"}, {"$ref": "#/anyOf/0"}]}, set(), [1], ["a"]),
    ({"anyOf": [STRING, {"$ref": "#/anyOf/9"}]}, {"$ref"}, ["a"], []),
    ({"anyOf": [STRING, {"$ref": "#/anyOf/x"}]}, {"$ref"}, ["a"], []),
    ({"oneOf": [STRING, {"type": "integer"}]}, set(), ["a", 1], [1.5]),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, {"oneOf"}, [1, 1.5], ["a"]),
    ({"oneOf": [{"type": ["string", "null"]}, {"type": "integer"}]}, set(), [None, 1], [True]),
    ({"oneOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]}, {"oneOf"}, [None, 1], [True]),
    ({"enum": [2**53, -1]}, set(), [2**53, -1], [2**53 - 1]),
    ({"enum": [2**53 + 1, "x"]}, {"enum"}, [2**53 + 1, "x"], []),
    ({"type": "array", "items": {"const": {"id": [2**64]}}}, {"const"}, [[{"id": [2**64]}]], [{}]),
    ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, set(), [0, 2**60], [-1]),
    ({"type": "integer", "minimum": 10**30, "multipleOf": 5}, {"minimum"}, [10], [11]),
]


def kinds(tags: list[list[Any]], required: list[str]) -> dict[str, Any]:
    members = [{"type": "object", "properties": {"k": {"enum": tag}}, "required": required} for tag in tags]
    return {"oneOf": members}


KEYWORDS += [
    (kinds([["a"], ["b", "c"]], ["k"]), set(), [{"k": "a"}, {"k": "c"}], [{"k": "d"}, {}]),
    (kinds([["a"], ["a", "c"]], ["k"]), {"oneOf"}, [{"k": "a"}], [{"k": "d"}]),
    (kinds([["a"], ["b"]], []), {"oneOf"}, [{"k": "a"}, {}], [{"k": "d"}]),
    (kinds([["a"], [1]], ["k"]), {"oneOf"}, [{"k": "a"}, {"k": 1}], [{"k": "d"}]),
]


@pytest.mark.parametrize(("schema", "left_out", "allowed", "refused"), KEYWORDS, ids=lambda value: str(value)[:60])
def test_a_keyword_holds_or_is_told_as_left_out(
    schema: dict[str, Any], left_out: set[str], allowed: list[Any], refused: list[Any]
) -> None:
    constraint = schema_constraint(schema, "f")
    assert {each.removeprefix("f.") for each in constraint.left_out} == left_out
    for value in allowed:
        assert allows(constraint, value), value
    for value in refused:
        assert not allows(constraint, value), value


@pytest.mark.parametrize("schema", [None, {}])
def test_without_a_schema_it_is_any_object(schema: dict[str, Any] | None) -> None:
    constraint = schema_constraint(schema, "f")
    assert allows(constraint, {"a": [1]})
    assert not allows(constraint, [1])


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "text"}, "type is 'text'; it must be one of"),
        ({"type": ["string", "text"]}, "type is 'text'"),
        ({"properties": []}, "properties must be an object"),
        ({"anyOf": []}, "anyOf must be a list of schemas"),
        ({"allOf": {}}, "allOf must be a list of schemas"),
        ({"items": 3}, "3 stands where a schema must"),
    ],
)
def test_what_is_no_schema_is_said(schema: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ApiError, match="f is no JSON schema") as refused:
        schema_constraint(schema, "f")
    assert complaint in refused.value.message
    assert (refused.value.status, refused.value.param) == (400, "f")
