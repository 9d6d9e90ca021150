"""A price list: the cost of a worker's tokens, by whether they were computed, found in the cache, generated or kept there.

    currency = "EUR"
    computed = 0.40      # a million tokens of prompts that were computed
    found = 0.04         # a million that were found in the cache
    generated = 1.60     # a million generated tokens, of all branches
    held = 0.10          # a million tokens kept in the cache for an hour

A price that is left out is 0.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from radixkv.core.errors import InvalidArgumentError

__all__ = ["Prices", "read_prices"]

MAX_CURRENCY_CHARACTERS = 16
_PER = 1_000_000
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in `currency`; see this module for their units. All are at least 0 and finite."""

    currency: str = ""
    computed: float = 0.0
    found: float = 0.0
    generated: float = 0.0
    held: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.currency, str) or not 1 <= len(self.currency) <= MAX_CURRENCY_CHARACTERS:
            raise InvalidArgumentError(
                "currency", self.currency, f"a text of 1 to {MAX_CURRENCY_CHARACTERS} characters"
            )
        for name in ("computed", "found", "generated", "held"):
            price = getattr(self, name)
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
                raise InvalidArgumentError(name, price, "a number of at least 0")

    def cost(self, num_prompt_tokens: int, num_cached_tokens: int, num_generated_tokens: int) -> float:
        """Cost of a request; `num_cached_tokens` of its prompt were found."""
        computed = (num_prompt_tokens - num_cached_tokens) * self.computed
        return (computed + num_cached_tokens * self.found + num_generated_tokens * self.generated) / _PER

    def held_cost(self, token_s: float) -> float:
        """Cost of so many tokens in the cache times the seconds that they were there."""
        return token_s * self.held / (_PER * _HOUR_S)


def read_prices(path: Path) -> Prices:
    """The prices of a TOML file.

    Raises:
        InvalidArgumentError: it cannot be read, has another key, or a price is out of bounds; names the file.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError("price list", str(path), f"a TOML file that can be read: {error}") from None
    names = [field.name for field in fields(Prices)]
    if unknown := sorted(set(document) - set(names)):
        raise InvalidArgumentError(f"price list {path}", unknown, f"of the keys {', '.join(names)}")
    try:
        return Prices(**document)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error.argument} in price list {path}", error.value, error.bound) from None
