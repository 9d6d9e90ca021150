"""Rewrites callers' JSON schemas for the grammar engine, llguidance, which supports part of JSON Schema and rejects the rest.

The engine's own lenient option ignores some keywords and reports them to the worker only, and still rejects common patterns,
formats and references. So a schema is rewritten here, and the ignored keywords are reported to the caller.

    $ref                        to one list of definitions, numbered; a dangling reference is left out
    properties alone            closed: no other names than the schema and its sibling schemas describe
    propertyNames of an enum    these names; of a pattern: `patternProperties`
    oneOf                       anyOf, which is the same where each has a type or a name of its own
    nullable, draft 4 bounds    as in draft 2020-12
    uniqueItems, not, if, ...   left out, as are patterns with lookaround, unknown formats, numbers beyond 64 bits

Where the engine still rejects the result, less detail is tried: see `Detail`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any
from urllib.parse import unquote

from radixkv.gateway.protocol.errors import ApiError, invalid

__all__ = ["FORMATS", "Definitions", "Detail", "engine_schema"]

Definitions = dict[str, Any]
"""Schemas that the rewritten schemas of one grammar refer to: its `$defs`."""


class Detail(IntEnum):
    """How much of a non-strict schema is enforced. NOTHING: any object."""

    ALL = 2
    SHAPE = 1
    NOTHING = 0


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_MEMBERS = ("allOf", "anyOf", "oneOf")
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
"""Text formats that the engine supports."""
_LEFT_OUT = (
    *("$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "if"),
    *("maxContains", "minContains", "uniqueItems"),
)
_OF_OBJECTS = ("additionalProperties", "patternProperties", "properties", "propertyNames", "unevaluatedProperties")
_LENGTHS = ("maxItems", "maxLength", "minItems", "minLength")
_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
_NO_SHAPE = (*_LENGTHS, *_BOUNDS, "format", "maxProperties", "minProperties", "pattern")

_TAKEN = (*_LENGTHS, *_BOUNDS, "const", "enum", "format", "maxProperties", "minProperties", "pattern", "required")

MAX_NUMBER = dict.fromkeys(_BOUNDS, 2**64) | {"const": 2**53, "enum": 2**53}
"""By keyword. The engine reads numbers as doubles, and clips bounds: beyond these it would allow others than the schema."""

MAX_LOOKS = 50_000
"""Names visited to close the objects of one schema; objects after this bound stay open."""

_OUT_OF_REACH = re.compile(r"\(\?(?:[=!>]|<[=!])|(?<!\\)(?:\\\\)*\\[1-9bBkGcZ]")
"""Constructs beyond an automaton: lookaround, references to groups, word boundaries."""


def engine_schema(
    schema: Mapping[str, Any], param: str, definitions: Definitions, detail: Detail = Detail.ALL
) -> tuple[dict[str, Any], list[str]]:
    """Return a schema in the engine's form, and the keywords without effect, as `param.keyword`. O(schema).

    Args:
        schema: plain JSON.
        param: the field that holds it.
        definitions: extended by the schemas that it refers to.
        detail: how much is enforced; the rest is reported by keyword as well.

    Raises:
        ApiError: 400: not a valid schema.
    """
    if detail is Detail.NOTHING:
        return {"type": "object"}, [param]
    rewriter = _Rewriter(schema, param, definitions, detail)
    rewritten = rewriter.rewrite_all()
    if not isinstance(rewritten, dict):
        raise rewriter.fault("it allows nothing")
    return rewritten, [f"{param}.{keyword}" for keyword in rewriter.left_out]


class _Rewriter:
    """Rewrites one schema. `left_out`: keywords, each once, in the order in which they were met."""

    def __init__(self, root: Mapping[str, Any], param: str, definitions: Definitions, detail: Detail) -> None:
        self.left_out: dict[str, None] = {}
        self._root = root
        self._param = param
        self._definitions = definitions
        self._detail = detail
        self._names: dict[tuple[int, bool], str] = {}  # by the identity of the referenced schema
        self._to_do: list[tuple[str, Any, bool]] = []
        self._looks_left = MAX_LOOKS

    def fault(self, message: str) -> ApiError:
        """Return the rejection of an invalid schema."""
        message = f"{self._param} is no JSON schema: {message}"[:500]
        return invalid(message, self._param)

    def rewrite_all(self) -> Any:
        """Return the rewritten schema; referenced schemas go to the definitions. Chains of references may be of any length."""
        told = self._rewrite(self._root)
        while self._to_do:
            name, found, is_open = self._to_do.pop()
            self._definitions[name] = self._rewrite(found, is_open)
        return told

    def _rewrite(self, schema: Any, is_open: bool = False) -> Any:
        """Rewrite a subschema. `is_open`: a sibling schema lists the allowed names."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self.fault(f"{schema!r} stands where a schema must")
        if schema.get("not") in ({}, True):
            return False
        told, are_open = ({}, True) if is_open else self._closing(schema)
        for keyword, value in schema.items():
            if self._is_kept(keyword, value, schema):
                told |= self._keyword(keyword, value, schema, told, are_open)
        if "properties" in told and "type" not in told and not is_open:
            told["type"] = "object"
        return {"anyOf": [told, {"type": "null"}]} if schema.get("nullable") is True else told

    def _leave_out(self, keyword: str) -> bool:
        self.left_out[keyword] = None
        return False

    def _is_kept(self, keyword: str, value: Any, schema: Mapping[str, Any]) -> bool:
        if keyword in _LEFT_OUT or keyword == "not":
            return value is not False and self._leave_out(keyword)
        if self._detail is Detail.SHAPE and keyword in _NO_SHAPE:
            return self._leave_out(keyword)
        if keyword in ("minProperties", "maxProperties"):
            named, required = _object(schema, "properties"), _texts(_list(schema, "required"))
            return named.keys() <= set(required) or self._leave_out(keyword)
        if keyword in MAX_NUMBER and not _is_within(value, MAX_NUMBER[keyword]):
            return self._leave_out(keyword)
        if keyword == "pattern" and _OUT_OF_REACH.search(str(value)):
            return self._leave_out(keyword)
        if keyword == "format" and value not in FORMATS:
            return "string" in str(schema.get("type", "string")) and self._leave_out(keyword)
        if keyword == "required" and not isinstance(value, list):
            return self._leave_out(keyword)
        return True

    def _keyword(
        self, keyword: str, value: Any, schema: Mapping[str, Any], told: Mapping[str, Any], is_open: bool
    ) -> dict[str, Any]:
        """Return the rewritten keyword; empty for annotations."""
        match keyword:
            case "$ref":
                return self._reference(value, is_open)
            case "allOf" | "anyOf" | "oneOf":
                members = [self._rewrite(each, is_open) for each in self._schemas(keyword, value)]
                return {keyword: members} if keyword != "oneOf" else self._one_of(value, members, schema)
            case "items" | "prefixItems" | "additionalItems" | "unevaluatedItems":
                return self._of_array(keyword, value, schema)
            case "type":
                return {keyword: self._type(value)}
            case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):  # draft 4
                plain = keyword.removeprefix("exclusive").lower()
                return {keyword: schema[plain]} if value and plain in schema else {}
            case _ if keyword in _OF_OBJECTS:
                return self._of_object(keyword, value, schema, told)
        return {keyword: value} if keyword in _TAKEN else {}

    def _one_of(self, value: list[Any], members: list[Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """Rewrite oneOf to anyOf; reported as left out where a value may match two members."""
        if "discriminator" not in schema and not _are_apart([self._seen_through(each) for each in value]):
            self._leave_out("oneOf")
        return {"allOf": [{"anyOf": members}]} if "anyOf" in schema else {"anyOf": members}

    def _seen_through(self, schema: Any) -> Mapping[str, Any]:
        """Return the referenced schema where a schema is only a reference."""
        found = self._find(schema["$ref"]) if isinstance(schema, Mapping) and "$ref" in schema else schema
        return found if isinstance(found, Mapping) else {}

    def _of_array(self, keyword: str, value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
        match keyword:
            case "items" | "prefixItems" if isinstance(value, list):
                return {"prefixItems": [self._rewrite(each) for each in value]}
            case "items":
                return {keyword: self._rewrite(value)}
            case "additionalItems" if isinstance(schema.get("items"), list):
                return {"items": self._rewrite(value)}
            case "unevaluatedItems":
                return {"items": False} if value is False and "prefixItems" in schema else self._gone(keyword)
        return {}

    def _of_object(
        self, keyword: str, value: Any, schema: Mapping[str, Any], told: Mapping[str, Any]
    ) -> dict[str, Any]:
        match keyword:
            case "properties":
                own = {name: self._rewrite(each) for name, each in self._named(keyword, value).items()}
                return {keyword: {**told.get(keyword, {}), **own}}
            case "patternProperties" if self._loses_patterns(schema):
                return {**self._gone(keyword), "additionalProperties": True}
            case "patternProperties":
                closed = {} if "additionalProperties" in schema else {"additionalProperties": False}
                named = {name: self._rewrite(each) for name, each in self._named(keyword, value).items()}
                return {keyword: named, **closed}
            case "additionalProperties" if "propertyNames" in schema or self._loses_patterns(schema):
                return {}
            case "additionalProperties":
                return {keyword: self._rewrite(value)}
            case "unevaluatedProperties":
                is_said = value is True or (value is False and not any(each in schema for each in ("anyOf", "oneOf")))
                return {} if is_said else self._gone(keyword)
            case "propertyNames":
                members = self._rewrite(schema.get("additionalProperties", True))
                return self._property_names(value, members, schema)
        return {}

    def _gone(self, keyword: str) -> dict[str, Any]:
        self._leave_out(keyword)
        return {}

    def _type(self, value: Any) -> Any:
        for each in value if isinstance(value, list) else [value]:
            if each not in _TYPES:
                raise self.fault(f"type is {each!r}; it must be one of {', '.join(_TYPES)}")
        return value

    def _named(self, keyword: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.fault(f"{keyword} must be an object")
        return value

    def _schemas(self, keyword: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self.fault(f"{keyword} must be a list of schemas")
        return value

    # -- objects

    def _closing(self, schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Close an object that names its members and does not say whether others are allowed.

        Returns the closing keywords, and whether sibling schemas must stay open, since these keywords cover them.
        """
        beside = [keyword for keyword in ("$ref", *_MEMBERS, "if") if keyword in schema]
        has_members = "properties" in schema or len(beside) > 1 or len(_list(schema, "allOf")) > 1
        is_said = "additionalProperties" in schema or schema.get("unevaluatedProperties", False) is not False
        if is_said or not has_members or _object(schema, "patternProperties") or "propertyNames" in schema:
            return {}, is_said
        names = self._described(schema)
        if names is None:
            return {}, True
        if not names and "properties" not in schema:
            return {}, False
        return {"properties": dict.fromkeys(names, True), "additionalProperties": False}, True

    def _described(self, schema: Mapping[str, Any]) -> dict[str, None] | None:
        """Return the member names of a schema and its siblings; None where other names are allowed."""
        names: dict[str, None] = {}
        seen: set[int] = set()
        to_see: list[Any] = [schema]  # a stack: names keep their order in the schema
        while to_see:
            each = to_see.pop()
            if isinstance(each, str):
                names[each] = None
            if not isinstance(each, Mapping) or id(each) in seen:
                continue
            seen.add(id(each))
            if each.get("additionalProperties", False) is not False or _object(each, "patternProperties"):
                return None
            beside = list(self._beside(each))
            self._looks_left -= 1 + len(beside)
            if self._looks_left < 0:  # over the bound
                return None
            to_see += reversed(beside)
        return names

    def _beside(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Yield its own names and its sibling schemas."""
        for keyword, value in schema.items():
            if keyword in _MEMBERS:
                yield from _list(schema, keyword)
            elif keyword == "properties":
                yield from _object(schema, keyword)
            elif keyword in ("dependencies", "dependentSchemas"):
                yield from _object(schema, keyword).values()
            elif keyword in ("then", "else"):
                yield value
            elif keyword == "$ref":
                yield self._find(value)
        yield from _texts(_list(schema, "required"))

    def _loses_patterns(self, schema: Mapping[str, Any]) -> bool:
        patterns = _object(schema, "patternProperties")
        return bool(patterns) and (self._detail is Detail.SHAPE or any(map(_OUT_OF_REACH.search, patterns)))

    def _property_names(self, value: Any, members: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Rewrite propertyNames: an enum becomes optional members; a pattern becomes patternProperties."""
        told = self._seen_through(value)
        if told and not {"properties", "patternProperties"} & schema.keys():
            names = told.get("enum", [told["const"]] if "const" in told else None)
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                shared = {"$ref": f"#/$defs/{self._define(members)}"}
                return {"properties": dict.fromkeys(names, shared), "additionalProperties": False}
            pattern = told.get("pattern")
            if self._detail is Detail.ALL and isinstance(pattern, str) and not _OUT_OF_REACH.search(pattern):
                return {"patternProperties": {pattern: members}, "additionalProperties": False}
        if not told.keys() <= {"type", "title", "description"}:
            self._leave_out("propertyNames")
        return {"additionalProperties": members}

    # -- references

    def _define(self, rewritten: Any) -> str:
        name = str(len(self._definitions))
        self._definitions[name] = rewritten
        return name

    def _reference(self, value: Any, is_open: bool) -> dict[str, Any]:
        found = self._find(value)
        if found is None:
            return self._gone("$ref")
        key = (id(found), is_open)
        if key not in self._names:
            self._names[key] = self._define(True)
            self._to_do.append((self._names[key], found, is_open))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _find(self, reference: Any) -> Any:
        """Resolve a reference within the schema; None: dangling."""
        base, _, fragment = str(reference).partition("#")
        found: Any = self._root
        if base and base != self._root.get("$id"):
            found = self._first(lambda each: each.get("$id") == base)
        if fragment and not fragment.startswith("/"):
            return self._first(lambda each: fragment in (each.get("$anchor"), str(each.get("$id")).removeprefix("#")))
        for place in fragment.split("/")[1:]:
            step = unquote(place).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
            else:
                found = found.get(step) if isinstance(found, Mapping) else None
        return found

    def _first(self, is_it: Callable[[Mapping[str, Any]], bool]) -> Any:
        """Return the first of the schema's definitions that matches."""
        known = [self._root]
        for keyword in ("$defs", "definitions"):
            known += [each for each in _object(self._root, keyword).values() if isinstance(each, Mapping)]
        return next(filter(is_it, known), None)


def _is_within(value: Any, largest: int) -> bool:
    """Whether no number in it is larger."""
    if isinstance(value, Mapping | list):
        return all(_is_within(each, largest) for each in (value.values() if isinstance(value, Mapping) else value))
    return not isinstance(value, int | float) or abs(value) <= largest


def _object(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    """Return the value of a keyword if it is an object; else an empty one."""
    value = schema.get(keyword)
    return value if isinstance(value, Mapping) else {}


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _are_apart(members: list[Mapping[str, Any]]) -> bool:
    """Whether no value matches two members: their types differ, or a required name has distinct values."""
    if all("type" in each for each in members) and _are_disjoint([_types(each) for each in members]):
        return True
    shared = set.intersection(*(set(_texts(_list(each, "required"))) for each in members))
    tags = [[_values(_object(_object(each, "properties"), name)) for each in members] for name in shared]
    return any(all(values) and _are_disjoint(values) for values in tags)


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Types of a value; a whole number is a number."""
    told = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {"number" if each == "integer" else str(each) for each in told}


def _values(schema: Mapping[str, Any]) -> set[str]:
    told = [schema["const"]] if "const" in schema else _list(schema, "enum")
    return set(_texts(told)) if all(isinstance(each, str) for each in told) else set()


def _are_disjoint(sets: list[set[str]]) -> bool:
    return len(set[str]().union(*sets)) == sum(map(len, sets))


def _texts(values: list[Any]) -> list[str]:
    return [each for each in values if isinstance(each, str)]
