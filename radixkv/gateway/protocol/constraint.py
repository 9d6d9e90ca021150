"""The output constraint of a reply, with the request field that sets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixkv.generation.params import Grammar

__all__ = ["Constraint"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """Output constraint of a reply, as set by the caller's fields.

    Attributes:
        param: the field. excerpt: the beginning of its text.
        left_out: parts that the grammar does not enforce: fields, and keywords of schemas.
        looser: the next constraint to try where the engine rejects this one; None: the caller gets the rejection.
    """

    grammar: Grammar
    param: str
    excerpt: str
    left_out: tuple[str, ...] = ()
    looser: Callable[[], Constraint] | None = None
