"""What the text of a reply is held to, and where a request says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixkv.generation.params import Grammar

__all__ = ["Constraint"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply is held to, as the caller's fields say it.

    Attributes:
        param: the field. told: the beginning of what it says.
        left_out: what of it the grammar does not hold the reply to: fields, and keywords of schemas.
        looser: the next one to be tried where the engine refuses this one; None: the refusal is the caller's.
    """

    grammar: Grammar
    param: str
    told: str
    left_out: tuple[str, ...] = ()
    looser: Callable[[], Constraint] | None = None
