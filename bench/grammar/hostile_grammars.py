"""Grammars made to be costly, by name: short or long texts that need much time, memory, stack, or slow masks.

`HONEST`: grammars that programs request.
"""

from __future__ import annotations

import json
import string
from typing import Any

from radixkv.generation.params import Grammar

__all__ = ["HONEST", "HOSTILE"]


def _schema(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


def _text(pattern: str, **more: Any) -> Grammar:
    return _schema({"type": "string", "pattern": pattern, **more})


def _nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


def _properties(count: int, schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property{number}": schema for number in range(count)}, **more}


_LETTERS = string.ascii_lowercase
_NAMES_2000 = [f"property{number}" for number in range(2000)]
_SMALL = {"type": "integer"}

HOSTILE = {
    "multipleOf a prime of 8 digits": _schema({"type": "integer", "multipleOf": 99999989}),
    "multipleOf a prime of 7 digits": _schema({"type": "integer", "multipleOf": 1000003}),
    "multipleOf within %json": Grammar("lark", 'start: %json {"type": "integer", "multipleOf": 99999989}'),
    "multipleOf four primes": _schema(
        {"allOf": [{"type": "integer", "multipleOf": one} for one in (97, 101, 103, 107)]}
    ),
    "multipleOf a fraction": _schema({"type": "number", "multipleOf": 0.0000001}),
    "multipleOf within bounds": _schema({"type": "integer", "multipleOf": 10007, "minimum": 3, "maximum": 10**15}),
    "a range of 300 digits": _schema({"type": "integer", "minimum": -(10**300), "maximum": 10**300 + 7}),
    "a range of fractions": _schema({"type": "number", "minimum": 0.1234567890123, "maximum": 9.87654321e100}),
    "uniqueItems": _schema({"type": "array", "uniqueItems": True, "minItems": 50, "items": {"enum": list(range(50))}}),
    "minItems 10^9": _schema({"type": "array", "minItems": 10**9}),
    "maxItems 10^5": _schema({"type": "array", "maxItems": 10**5, "items": {"type": "integer"}}),
    "minLength 10^9": _schema({"type": "string", "minLength": 10**9}),
    "maxLength 10^9": _schema({"type": "string", "maxLength": 10**9}),
    "minProperties 10^6": _schema({"type": "object", "minProperties": 10**6}),
    "pattern (a{1000}){1000}": _text("^(a{1000}){1000}$"),
    "pattern (a{1000}){1000}, deep": _schema(
        {
            "type": "object",
            "properties": {"a": {"type": "string", "pattern": "^b{300}(a{1000}){1000}$"}},
            "required": ["a"],
        }
    ),
    "pattern ((a{0,300}){0,300}){0,300}": _text("^((a{0,300}){0,300}){0,300}$"),
    "pattern of large classes": _text(r"^(\w{1,500}\W{1,500}){1,200}$"),
    "pattern .*a.{30}": _text("^.*a.{30}$"),
    "pattern of three distances": _text("^(.*a.{200}|.*b.{150}|.*c.{133})$"),
    "pattern and minLength": _text("^(ab|cd)*$", minLength=100_000),
    "format and pattern": _text("^.*a.{20}$", format="uri"),
    "formats and patterns": _schema(
        {"type": "string", "allOf": [{"format": "uri"}, {"pattern": "a.{20}b"}, {"pattern": "c.{15}d"}]}
    ),
    "patternProperties that overlap": _schema(
        {
            "type": "object",
            "patternProperties": {f"^.*{letter}.{{5}}$": {"type": "integer"} for letter in _LETTERS},
            "additionalProperties": False,
        }
    ),
    "not": _schema({"type": "string", "not": {"pattern": "^.*a.{20}$"}}),
    "anyOf, 11 deep": _schema(_nested(11)),
    "allOf of anyOf": _schema(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"type": "integer"}}} for j in range(6)]} for i in range(12)]}
    ),
    "allOf of oneOf": _schema(
        {
            "allOf": [
                {"oneOf": [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for j in range(4)]}
                for i in range(12)
            ]
        }
    ),
    "2,000 properties": _schema(_properties(2000, {})),
    "8,000 properties": _schema(_properties(8000, {})),
    "1,500 properties, deep": _schema(
        {"type": "array", "prefixItems": [{"const": "b" * 300}, _properties(1500, {})], "minItems": 2}
    ),
    "2,000 required": _schema(_properties(2000, _SMALL, required=_NAMES_2000, additionalProperties=False)),
    "10,000 additional": _schema(
        {"type": "object", "required": [f"p{i}" for i in range(10_000)], "additionalProperties": {"type": "integer"}}
    ),
    "enum of 12,000": _schema({"enum": [f"value {i * 7919}" for i in range(12_000)]}),
    "const of 200,000 characters": _schema({"const": "x" * 200_000}),
    "1,000 prefixItems": _schema({"type": "array", "prefixItems": [{"enum": list(range(50))}] * 1000}),
    "500 definitions of one another": _schema(
        {
            "$defs": {
                f"d{i}": {
                    "anyOf": [*({"$ref": f"#/$defs/d{(i * 3 + j) % 500}"} for j in range(5)), {"type": "integer"}]
                }
                for i in range(500)
            },
            "$ref": "#/$defs/d0",
        }
    ),
    "allOf that doubles 40 times": _schema(
        {
            "$defs": {
                **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)},
                "d40": {"type": "integer"},
            },
            "$ref": "#/$defs/d0",
        }
    ),
    "regex (a{1000}){1000}": Grammar("regex", "(a{1000}){1000}"),
    "regex with .* 520 times": Grammar("regex", ".*".join(_LETTERS * 20)),
    "regex of 676 alternatives of .*": Grammar("regex", "|".join(f".*{a}.*{b}.*" for a in _LETTERS for b in _LETTERS)),
    "regex of four distances, repeated": Grammar("regex", "(.*a.{12}b|.*b.{13}c|.*c.{14}d|.*d.{15}e)+"),
    "regex of classes of letters": Grammar("regex", r"(\p{L}{1,100}\p{N}{1,100}){1,100}"),
    "lark that asks to be forced": Grammar("lark", '%llguidance {"no_forcing": false}\nstart: /(a{1000}){1000}/\n'),
    "lark: an intersection of 26": Grammar(
        "lark", "start: T\nT: " + " & ".join(f"/.*{c}.{{{9 + i}}}/" for i, c in enumerate(_LETTERS))
    ),
    "lark: but not": Grammar("lark", "start: T\nT: /[a-z]*a[a-z]{14}/ & ~/[a-z]*b[a-z]{13}/"),
    "lark: 5,000 rules in one another": Grammar(
        "lark",
        "start: r0\n"
        + "\n".join(f'r{i}: "a{i}" r{i + 1} | "b" r{(i * 7) % 5000}' for i in range(5000))
        + '\nr5000: "x"',
    ),
    "lark: 3,000 terminals": Grammar(
        "lark",
        "start: ("
        + "|".join(f"T{i}" for i in range(3000))
        + ")*\n"
        + "\n".join(f"T{i}: /[a-z]{{1,{i % 20 + 1}}}x{i}/" for i in range(3000)),
    ),
    "lark: 300 terminals that overlap": Grammar(
        "lark",
        "start: ("
        + "|".join(f"T{i}" for i in range(300))
        + ")*\n"
        + "\n".join(f"T{i}: /[a-z]*[{_LETTERS[i % 26]}][a-z]{{{i // 26 + 1}}}/" for i in range(300)),
    ),
    "lark: ambiguous": Grammar("lark", 'start: s\ns: s s | "a" s "a" | "a" | "b" | s "b" s'),
    "lark: 400 that may be left out": Grammar(
        "lark",
        "start: " + " ".join(f"x{i}?" for i in range(400)) + "\n" + "\n".join(f"x{i}: /[a-z ]*/" for i in range(400)),
    ),
    "lark: repeats of repeats": Grammar("lark", 'start: a{1000}\na: b{1000}\nb: c{1000}\nc: "x"'),
    "lark: 20,000 words to take some of": Grammar(
        "lark",
        'start: %regex {"substring_words": "' + " ".join(f"w{i * 7919 % 100_003}" for i in range(20_000)) + '"}',
    ),
    "lark: 8,000 alternatives": Grammar(
        "lark", "start: /" + "|".join(f"w{i * 7919 % 100_003}[a-z]*z{i}" for i in range(8000)) + "/"
    ),
}

_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["good", "bad"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "when": {"type": "string", "format": "date-time"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
HONEST = {
    "an object": Grammar("json_object"),
    "a person": _schema(_PERSON),
    "600 properties": _schema(
        {
            "type": "object",
            "properties": {f"{name}{i}": one for i in range(100) for name, one in _PERSON["properties"].items()},
            "required": ["name3"],
            "additionalProperties": False,
        }
    ),
    "40 tools": _schema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"name": {"const": f"tool{i}"}, "arguments": _PERSON},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
                for i in range(40)
            ]
        }
    ),
    "enum of 1,000": _schema({"enum": [f"value {i * 7919}" for i in range(1000)]}),
    "a price": _schema({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 100_000}),
    "a long text": _schema({"type": "string", "minLength": 1000, "maxLength": 5000}),
    "an address by regex": Grammar("regex", r"[a-z0-9._%+-]{1,64}@[a-z0-9.-]{1,255}\.(com|org)"),
    "a sum by lark": Grammar("lark", 'start: term (("+" | "-") term)*\nterm: /[0-9]+/ | "(" start ")"'),
}
