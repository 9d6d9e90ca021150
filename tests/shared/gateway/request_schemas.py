"""What has no bound in the schemas of requests: lists, sets, tuples and maps, values of any kind, fields that are unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi.routing import APIRoute

from radixkv.gateway.protocol.fields import ClosedModel, Plain

__all__ = ["body_model", "routes_of", "unbounded"]

_LISTS = ("list", "set", "frozenset", "generator", "dict")
_SCALARS = (
    "str",
    "bytes",
    "int",
    "float",
    "decimal",
    "bool",
    "none",
    "literal",
    "enum",
    "date",
    "datetime",
    "time",
    "uuid",
)
_INNER = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "lax_schema",
    "strict_schema",
    "json_schema",
    "python_schema",
)
_MANY = ("choices", "steps", "definitions", "fields")


def routes_of(app: Any) -> Iterator[APIRoute]:
    """All routes of an application or router that read what callers send."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from routes_of(route.original_router)


def body_model(route: APIRoute) -> Any:
    """The type of a route's body; None where it takes none."""
    return None if route.body_field is None else route.body_field.field_info.annotation


def unbounded(schema: Mapping[str, Any], place: str = "", *, is_plain: bool = False) -> list[str]:
    """The places in pydantic's core schema that take as much as is sent, or go on behind their first fault.

    `is_plain`: within what is bounded as a whole.
    """
    kind = schema["type"]
    found = [f"{place}: {problem}" for problem in _problems(schema, kind, is_plain)]
    if kind in ("function-before", "function-wrap") and schema["function"]["function"] is Plain.func:
        is_plain = True
    for name, inner in _members(schema):
        below = f"{place}.{name}" if kind in ("model-fields", "typed-dict", "dataclass-args") else place
        if kind in _LISTS or kind == "tuple":
            below += "[]"
        found += unbounded(inner, below, is_plain=is_plain)
    return found


def _problems(schema: Mapping[str, Any], kind: str, is_plain: bool) -> Iterable[str]:
    if kind in _LISTS or (kind == "tuple" and "variadic_item_index" in schema):
        if not is_plain and "max_length" not in schema:
            yield f"a {kind} without a bound"
        holds_any = schema.get("items_schema", schema.get("values_schema", {"type": "any"})) == {"type": "any"}
        if not holds_any and not schema.get("fail_fast"):
            yield f"a {kind} that goes on behind its first fault"
    elif kind == "any":
        if not is_plain:
            yield "a value of any kind without a bound"
    elif kind == "model":
        extra = schema.get("config", {}).get("extra_fields_behavior")
        if extra == "allow" and not is_plain:
            yield "unknown fields, which are kept, without a bound"
        if extra == "forbid" and not issubclass(schema["cls"], ClosedModel):
            yield "unknown fields, each of them an error, without a bound"
    elif kind not in (*_SCALARS, *_WRAPPERS):
        yield f"a schema of a kind that nobody has judged: {kind}"


_WRAPPERS = (
    "model-fields",
    "model-field",
    "default",
    "nullable",
    "union",
    "tagged-union",
    "function-before",
    "function-after",
    "function-wrap",
    "chain",
    "lax-or-strict",
    "json-or-python",
    "definitions",
    "definition-ref",
    "tuple",
)


def _members(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in _INNER:
        inner = schema.get(name)
        if isinstance(inner, Mapping) and "type" in inner:
            yield name, inner
    for name in (*_MANY, "items_schema"):
        inner = schema.get(name)
        if isinstance(inner, Mapping) and not isinstance(inner.get("type"), str):
            yield from inner.items()
        elif isinstance(inner, list):
            yield from (("", each[0] if isinstance(each, tuple) else each) for each in inner)
