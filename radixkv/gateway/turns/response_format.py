"""`response_format`: the output constraint of a reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.protocol.fields import PlainObject
from radixkv.gateway.turns.json_schemas import Definitions, Detail, engine_schema
from radixkv.generation.params import Grammar

__all__ = [
    "MAX_TOLD",
    "JsonSchema",
    "ResponseFormat",
    "format_constraint",
    "json_object",
    "looser",
    "require_all",
    "schema_constraint",
]

MAX_TOLD = 200
"""Characters of a grammar that its rejection repeats."""


class JsonSchema(ApiModel):
    """A named JSON schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: PlainObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(ApiModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(ApiModel):
    """Any JSON object, or one of a schema."""

    type: Literal["json_object", "json"]
    schema_: PlainObject | None = Field(None, alias="schema", description="Extension, as in llama.cpp.")
    value: PlainObject | None = Field(None, description="Extension, as in TGI. Another name of `schema`.")


class JsonSchemaFormat(ApiModel):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def format_constraint(wanted: ResponseFormat | None) -> Constraint | None:
    """Return the constraint of a format; None for text. Raises ApiError 400 for an invalid schema."""
    if isinstance(wanted, JsonObjectFormat):
        if wanted.schema_ and wanted.value:
            message = "response_format.value is another name of schema; leave one of them out"
            raise invalid(message, "response_format.value")
        name = ".schema" if wanted.schema_ else ".value" if wanted.value else ""
        return schema_constraint(wanted.schema_ or wanted.value, f"response_format{name}")
    if isinstance(wanted, JsonSchemaFormat):
        told = wanted.json_schema
        return schema_constraint(told.schema_, "response_format.json_schema.schema", is_strict=bool(told.strict))
    return None


def json_object(param: str) -> Constraint:
    """Return the constraint to any JSON object."""
    return Constraint(Grammar("json_object"), param, "json_object")


def schema_constraint(
    schema: dict[str, Any] | None, param: str, *, is_strict: bool = False, detail: Detail = Detail.ALL
) -> Constraint:
    """Return the constraint of a JSON schema; any JSON object where the schema is missing.

    Raises:
        ApiError: 400: the schema is invalid, or it is strict and holds keywords that cannot be enforced.
    """
    if not schema:
        return json_object(param)
    definitions: Definitions = {}
    rewritten, left_out = engine_schema(schema, param, definitions, detail)
    if is_strict:
        require_all(left_out, param)
    return Constraint(
        Grammar("json_schema", json.dumps({**rewritten, "$defs": definitions})),
        param,
        json.dumps(schema)[:MAX_TOLD],
        tuple(left_out),
        None if is_strict else looser(partial(schema_constraint, schema, param), detail),
    )


def looser(constrained: Callable[..., Constraint], detail: Detail) -> Callable[[], Constraint] | None:
    """Return a function that makes the constraint with less detail; None: no detail is left."""
    return partial(constrained, detail=Detail(detail - 1)) if detail else None


def require_all(left_out: Sequence[str], param: str) -> None:
    """Reject a strict schema with ignored keywords.

    Raises:
        ApiError: 400.
    """
    if left_out:
        keywords = ", ".join(name.removeprefix(f"{param}.") for name in left_out)
        raise invalid(f"{param} holds {keywords}, which cannot be enforced here; leave that out, or strict", param)
