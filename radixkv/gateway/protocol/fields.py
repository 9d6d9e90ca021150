"""Field types of requests, each with its bound; only texts are bounded by the body's size.

Every list and map stops at its first fault: errors for a million items would cost a thousand times the items.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens

__all__ = [
    "FAIL_FAST",
    "MAX_MESSAGES",
    "MAX_NAME_CHARACTERS",
    "MAX_PARTS",
    "MAX_PLAIN_VALUES",
    "ClosedModel",
    "Each",
    "Name",
    "Plain",
    "PlainObject",
    "PlainValue",
    "TokenIds",
    "Whole",
    "check_fits",
    "plain_problem",
]

MAX_MESSAGES = 12_000
"""Messages, turns or items of one request."""

MAX_PARTS = 10_000
"""Parts of one message, and tool calls of one message."""

MAX_PLAIN_VALUES = 50_000
"""Keys and values of JSON that has no schema of its own."""

MAX_DEPTH = 64
"""Nesting of such JSON."""

MAX_NAME_CHARACTERS = 512
MAX_PROMPT_TOKENS = 500_000
MAX_FIELDS = 64
"""Of an object that rejects unknown fields: each of them would be an error."""


class _FailFast(FailFast):
    """FailFast that can stand in a union."""

    __hash__ = object.__hash__


FAIL_FAST = _FailFast()
"""Marks a list or map: validation stops at its first fault."""

Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]
"""An identifier: an id, a type, a function name."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number, which JSON may also write as 3.0."""


def _packed(values: Any, validate: ValidatorFunctionWrapHandler) -> bytes:
    """Pack a list of valid ids in half the time of its schema; the schema reports the fault of any other list."""
    kinds = set(map(type, values)) if isinstance(values, list) else set()
    if kinds == {int} and len(values) <= MAX_PROMPT_TOKENS:
        with suppress(InvalidArgumentError):
            tokens = pack_tokens(values)
            if tokens[TOKEN_BYTES - 1 :: TOKEN_BYTES].isascii():  # the highest byte of each id
                return tokens
    return pack_tokens(validate([*map(_whole, values)] if float in kinds else values))


TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**31)]],
    Field(min_length=1, max_length=MAX_PROMPT_TOKENS),
    FAIL_FAST,
    WrapValidator(_packed),
]
"""A prompt, packed as it is parsed; each id a `Whole` number."""


def check_fits(value: Any, bound: int) -> Any:
    """Reject a list or map of more than `bound` members before its members are validated."""
    if isinstance(value, list | dict) and len(value) > bound:
        message = "must have at most {bound} members, not {number}"
        raise PydanticCustomError("too_long", message, {"bound": bound, "number": len(value)})
    return value


def _let_others_run(value: Any) -> Any:
    """Let other threads run: this call is Python, while pydantic itself holds the GIL until the last item."""
    return value


Each = BeforeValidator(_let_others_run)
"""Marks the items of a list that may hold thousands of objects."""


def plain_problem(value: Any, max_values: int = MAX_PLAIN_VALUES) -> str | None:
    """Return the requirement that free-form JSON fails: bounded, and serializable again. O(values)."""
    num_values = 0
    level = [value]
    for _ in range(MAX_DEPTH):
        num_values += len(level)
        if num_values > max_values:
            return f"of at most {max_values:,} names and values"
        below: list[Any] = []
        for each in level:
            if isinstance(each, str):
                if not each.isascii() and not _is_text(each):
                    return "valid Unicode"
            elif isinstance(each, float):
                if not math.isfinite(each):
                    return "free of NaN and Infinity"
            elif isinstance(each, dict):
                below += each
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return None
        level = below
    return f"at most {MAX_DEPTH} levels deep"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_plain(value: Any) -> Any:
    problem = plain_problem(value)
    if problem is not None:
        raise PydanticCustomError("not_plain", "must be {problem}", {"problem": problem})
    return value


Plain = BeforeValidator(_check_plain)
"""Marks a value that is bounded as a whole, whatever its schema allows inside."""

PlainObject = Annotated[dict[str, Any], Plain]
PlainValue = Annotated[Any, Plain]
"""JSON that has no schema of its own."""


class ClosedModel(BaseModel):
    """Base of objects that reject unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, value: Any) -> Any:
        return check_fits(value, MAX_FIELDS)
