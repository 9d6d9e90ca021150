"""Output constraints of a reply, in the fields of OpenAI, vLLM, SGLang and llama.cpp.

    response_format                                                                 OpenAI
    structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar    vLLM
    json_schema, regex, ebnf                                                        SGLang
    json_schema, grammar                                                            llama.cpp

Grammars are in Lark's notation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.protocol.fields import FAIL_FAST, PlainObject
from radixkv.gateway.turns.options import GenerationOptions, check_plain
from radixkv.gateway.turns.response_format import (
    MAX_TOLD,
    ResponseFormat,
    format_constraint,
    json_object,
    schema_constraint,
)
from radixkv.generation.params import Grammar
from radixkv.util.json_text import read_json

__all__ = ["ConstrainedOptions"]

MAX_CHOICES = 1000

_Text = Annotated[str, Field(min_length=1)]
_Schema = PlainObject | _Text
_Choices = Annotated[list[_Text], Field(min_length=1, max_length=MAX_CHOICES), FAIL_FAST]


class StructuredOutputs(ApiModel):
    """Exactly one of these fields."""

    json_: _Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: _Text | None = None
    choice: _Choices | None = None
    grammar: _Text | None = None


class ConstrainedOptions(GenerationOptions):
    """Fields that constrain the reply; those that are set must say the same."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(None, description="Extension, as in vLLM.")
    guided_json: _Schema | None = Field(None, description="Extension.")
    guided_regex: _Text | None = Field(None, description="Extension.")
    guided_choice: _Choices | None = Field(None, description="Extension.")
    guided_grammar: _Text | None = Field(None, description="Extension, in Lark's notation.")
    json_schema: _Schema | None = Field(None, description="Extension.")
    regex: _Text | None = Field(None, description="Extension.")
    ebnf: _Text | None = Field(None, description="Extension, in Lark's notation.")
    grammar: _Text | None = Field(None, description="Extension, in Lark's notation.")

    def constraint(self) -> Constraint | None:
        """Return the output constraint; None for free text.

        Raises:
            ApiError: 400: different constraints are given, or a schema is invalid.
        """
        held = list(self._constraints())
        other = next((each for each in held if each.grammar != held[0].grammar), None)
        if other is not None:
            names = f"{held[0].param} and {other.param}"
            raise invalid(f"{names} both say what the reply is held to; leave one of them out", other.param)
        return held[0] if held else None

    def _constraints(self) -> Iterator[Constraint]:
        wanted = format_constraint(self.response_format)
        if wanted is not None:
            yield wanted
        told = self.structured_outputs or StructuredOutputs(json=None)
        for param, schema in (
            ("structured_outputs.json", told.json_),
            ("guided_json", self.guided_json),
            ("json_schema", self.json_schema),
        ):
            if schema is not None:
                yield _schema_constraint(schema, param)
        if told.json_object:
            yield json_object("structured_outputs.json_object")
        for param, choices in (("structured_outputs.choice", told.choice), ("guided_choice", self.guided_choice)):
            if choices is not None:
                alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
                yield Constraint(Grammar("lark", f"start: {alternatives}"), param, alternatives[:MAX_TOLD])
        for kind, param, text in (
            ("regex", "structured_outputs.regex", told.regex),
            ("regex", "guided_regex", self.guided_regex),
            ("regex", "regex", self.regex),
            ("lark", "structured_outputs.grammar", told.grammar),
            ("lark", "guided_grammar", self.guided_grammar),
            ("lark", "ebnf", self.ebnf),
            ("lark", "grammar", self.grammar),
        ):
            if text is not None:
                yield Constraint(Grammar(kind, text), param, text[:MAX_TOLD])


def _schema_constraint(schema: PlainObject | str, param: str) -> Constraint:
    try:
        told = read_json(schema) if isinstance(schema, str) else schema
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise invalid(f"{param} is no JSON schema, which is an object", param)
    check_plain(told, param)
    return schema_constraint(told, param)
