"""`response_format`: what the text of a reply is held to."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from radixkv.gateway.errors import ApiError
from radixkv.gateway.fields import PlainObject
from radixkv.gateway.options import ApiModel
from radixkv.worker.sampling import Grammar

__all__ = ["JsonSchema", "ResponseFormat", "format_grammar", "schema_grammar"]


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
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(ApiModel):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def format_grammar(wanted: ResponseFormat | None) -> Grammar | None:
    """The grammar of a format; None for text. Raises ApiError 400 for a schema that is none."""
    if isinstance(wanted, JsonObjectFormat):
        return Grammar("json_object")
    if isinstance(wanted, JsonSchemaFormat):
        return schema_grammar(wanted.json_schema.schema_, "response_format.json_schema.schema")
    return None


def schema_grammar(schema: dict[str, Any] | None, param: str) -> Grammar:
    """The grammar of a JSON schema; any JSON object where it is left out.

    Raises:
        ApiError: 400.
    """
    if not schema:
        return Grammar("json_object")
    if "type" in schema and not isinstance(schema["type"], (str, list)):
        raise ApiError(400, f"{param} is no JSON schema: its type must be a text", code="invalid_value", param=param)
    return Grammar("json_schema", json.dumps(schema))
