"""How a request wants its tokens chosen, and what is told of one that was; the choosing itself is the sampler's.

Clients use these without torch.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import NamedTuple

from radixkv.core.errors import InvalidArgumentError

__all__ = ["MAX_LOGPROBS", "SampledToken", "SamplingParams", "fresh_seed"]

MAX_LOGPROBS = 20
MAX_BRANCHES = 128
MAX_STOPS = 64

_GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it ends.

    Attributes:
        max_tokens: tokens to generate at most, at least 1.
        temperature: 0 (and anything below 1e-5) is greedy; else logits are divided by it. At most 100.
        top_k: keep the `top_k` most likely entries; 0 keeps all.
        top_p: keep the most likely entries that together reach this mass, in (0, 1].
        min_p: drop entries less likely than this share of the most likely one, in [0, 1].
        seed: makes draws repeatable; None for a fresh one per request.
        n: branches to generate from the prompt.
        stop: texts at which the reply ends.
        stop_token_ids: token ids at which the reply ends, besides the model's own.
        ignore_eos: go on past the model's own end of reply.
        logprobs: answer log probabilities of the token drawn and of this many most likely ones; None for none at all.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError naming the first field outside its bound."""
        _check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        _check("temperature", self.temperature, 0 <= self.temperature <= 100, "between 0 and 100")
        _check("top_k", self.top_k, self.top_k >= 0, "at least 0 (0 keeps all)")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1")
        _check("seed", self.seed, self.seed is None or 0 <= self.seed < 2**64, "between 0 and 2**64 - 1")
        _check("n", self.n, 1 <= self.n <= MAX_BRANCHES, f"between 1 and {MAX_BRANCHES}")
        stops_ok = len(self.stop) <= MAX_STOPS and all(self.stop)
        _check("stop", self.stop, stops_ok, f"at most {MAX_STOPS} texts, none empty")
        ids_ok = len(self.stop_token_ids) <= MAX_STOPS and all(token_id >= 0 for token_id in self.stop_token_ids)
        _check("stop_token_ids", self.stop_token_ids, ids_ok, f"at most {MAX_STOPS} token ids, none negative")
        logprobs_ok = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        _check("logprobs", self.logprobs, logprobs_ok, f"None or between 0 and {MAX_LOGPROBS}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, so that nothing is drawn."""
        return self.temperature < _GREEDY_BELOW or self.top_k == 1


def _check(argument: str, value: object, holds: bool, bound: str) -> None:
    if not holds:
        raise InvalidArgumentError(argument, value, bound)


def fresh_seed() -> int:
    """A seed for a request that names none: draw it once at admission and keep it with the request."""
    return secrets.randbits(64)


class SampledToken(NamedTuple):
    """A drawn token. `logprob` and `top` (id, logprob; most likely first) are of the raw distribution, at
    temperature 1 and unfiltered; None and empty where the row asked for none.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
