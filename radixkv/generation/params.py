"""Sampling parameters of a request, validated, and the sampled token; the sampler does the drawing.

Clients use these without torch.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from radixkv.core.errors import InvalidArgumentError

__all__ = [
    "JSON_WHITESPACE",
    "MAX_LOGPROBS",
    "MAX_PREDICTION_CHARACTERS",
    "SPECULATION",
    "EarlyStopping",
    "Grammar",
    "SampledToken",
    "SamplingParams",
    "fresh_seed",
]

MAX_LOGPROBS = 20
MAX_BRANCHES = 128
MAX_BEAMS = 32
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_PENALTY = 2.0
MAX_LENGTH_PENALTY = 16.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256
MAX_ALLOWED_IDS = 262_144
MAX_PREDICTION_CHARACTERS = 1 << 20
JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,16}"
"""Between the parts of a constrained JSON text. Without a bound a small model may write blanks up to its token limit."""
SPECULATION = ("none", "own", "all")
"""Sources of guesses; each has those before it."""

_GREEDY_BELOW = 1e-5


class EarlyStopping(Enum):
    """When a beam search with `num_beams` finished hypotheses ends."""

    HEURISTIC = "heuristic"
    """When the best running beam, ended now, would not beat the worst finished one."""
    ALWAYS = "always"
    """At once."""
    NEVER = "never"
    """When no continuation of a running beam, however long, can beat the worst finished one."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint on the text of a reply.

    Attributes:
        kind: ``"json_object"`` (any JSON object), ``"json_schema"``, ``"regex"`` or ``"lark"``.
        text: the schema as JSON, the expression, or the grammar; empty for ``"json_object"``.
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        kinds = ("json_object", "json_schema", "regex", "lark")
        _check("grammar.kind", self.kind, self.kind in kinds, f"one of {', '.join(kinds)}")
        has_text = bool(self.text) is (self.kind != "json_object")
        _check("grammar.text", self.text[:64], has_text, "given for every kind but json_object")


class SamplingDefaults(NamedTuple):
    """A model's defaults of `SamplingParams` that a request leaves out; None: unset."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def over(self, others: SamplingDefaults) -> SamplingDefaults:
        """These defaults, with others' where unset."""
        return SamplingDefaults._make(other if own is None else own for own, other in zip(self, others, strict=True))

    def fill(
        self, temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None
    ) -> dict[str, Any]:
        """The four parameters for a request that gave these. Unset ones keep all; if all are unset: 0.7 and 0.9."""
        given = SamplingDefaults(temperature, top_k, top_p, min_p)
        chosen = given.over(self)
        return (chosen if any(each is not None for each in chosen) else _SENSIBLE).over(_NEUTRAL)._asdict()


NO_DEFAULTS = SamplingDefaults()
_SENSIBLE = SamplingDefaults(temperature=0.7, top_p=0.9)
_NEUTRAL = SamplingDefaults(1.0, 0, 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request, validated. Defaults keep all tokens; see `SamplingDefaults` for models' defaults.

    Attributes:
        max_tokens: most tokens to generate; 0 computes and caches the prompt alone, not with beams.
        temperature: 0 (and anything below 1e-5) is greedy; otherwise logits are divided by it. At most 100.
        top_k: keep the `top_k` most likely entries; 0 keeps all.
        top_p: keep the most likely entries that together reach this mass, in (0, 1].
        min_p: drop entries less likely than this share of the most likely one, in [0, 1].
        seed: makes draws repeatable; None: a new one per request.
        n: branches to return.
        best_of: branches to generate. The `n` with the highest mean log probability per token are returned, best first, once
            all have ended; None generates `n` and returns each as it comes. At least `n`.
        num_beams: above 1, search for the most likely replies with this many beams instead of drawing; the `n` best are
            returned, best first, once the search has ended. At most 32, and at least `n`. Excludes parameters of draws
            (temperature except 0 and 1, top_k, top_p, min_p), `best_of` and `grammar`. A stop string ends a beam like a stop
            token.
        length_penalty: exponent of the length by which a beam's log probability is divided: above 0 prefers long replies. In
            [-16, 16]; the length is that of the drawn tokens.
        early_stopping: when a beam search ends; see `EarlyStopping`.
        logit_bias: token id -> added to its logit before all else, in [-100, 100]; at most 1,024 entries.
        forced_token_ids: the reply starts with them; they count as generated, and are penalised and matched as such. They are
            run with the prompt, or, with log probabilities, one after the other. They must not end the reply.
        min_tokens: no end of reply and no stop token is drawn before so many tokens, unless the grammar allows nothing else.
        presence_penalty: subtracted from the logit of every token already in the reply, in [-2, 2].
        frequency_penalty: subtracted once per occurrence of the token in the reply, in [-2, 2].
        repetition_penalty: the logit of every token in prompt or reply is divided by it if above 0, otherwise multiplied, after
            `logit_bias` and before the other penalties; from 0.01 to 100; 1: none.
        bad_words: texts that the reply must not contain, with a space before them or without: no token that completes one is
            drawn, unless nothing else may be chosen. At most 256, of 1 to 256 characters each.
        allowed_token_ids: the only tokens that may be drawn; None: all. At most 262,144, without `grammar` and `num_beams`.
        grammar: constraint on the text of the reply from its first token; the reply ends where the grammar allows nothing
            more. None: no constraint.
        stop: texts at which the reply ends; at most 64, of 1 to 1,024 characters each.
        stop_token_ids: token ids at which the reply ends, in addition to the model's own.
        ignore_eos: continue past the model's own end of reply.
        include_stop: the stop string or stop token that ends a reply is part of its text.
        keep_special_tokens: special tokens are text, by their names.
        logprobs: return log probabilities of the drawn token and of this many most likely ones; None: none.
        prompt_logprobs: return the log probability of each prompt token given the tokens before it, and of this many most
            likely ones there; None: none. Cached tokens are not recomputed if their log probabilities are remembered, as for
            shared prefixes with at most 1 most likely token.
        speculation: source of guesses, which change no token: ``"all"``, ``"own"``, prompt, reply and `prediction` alone, or
            ``"none"``.
        prediction: text that the reply is expected to repeat; at most 1,048,576 characters.
        prompt_logprobs_start: first prompt position to score, at most the prompt's length; cached tokens before it are not
            recomputed. Position 0 has no log probability: no token precedes it.
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
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    best_of: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    forced_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    grammar: Grammar | None = None
    repetition_penalty: float = 1.0
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    include_stop: bool = False
    keep_special_tokens: bool = False
    speculation: str = "all"
    prediction: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError with the first field that is out of bounds."""
        _check("max_tokens", self.max_tokens, self.max_tokens >= 0, "at least 0")
        _check("temperature", self.temperature, 0 <= self.temperature <= 100, "between 0 and 100")
        _check("top_k", self.top_k, self.top_k >= 0, "at least 0 (0 keeps all)")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1")
        _check("seed", self.seed, self.seed is None or 0 <= self.seed < 2**64, "between 0 and 2**64 - 1")
        _check("n", self.n, 1 <= self.n <= MAX_BRANCHES, f"between 1 and {MAX_BRANCHES}")
        stops_ok = len(self.stop) <= MAX_STOPS and all(self.stop)
        _check("stop", f"{len(self.stop)} texts", stops_ok, f"at most {MAX_STOPS} texts, none empty")
        longest = max(map(len, self.stop), default=0)
        bound = f"texts of at most {MAX_STOP_CHARACTERS} characters"
        _check("stop", f"a text of {longest} characters", longest <= MAX_STOP_CHARACTERS, bound)
        ids_ok = len(self.stop_token_ids) <= MAX_STOPS and all(token_id >= 0 for token_id in self.stop_token_ids)
        _check("stop_token_ids", self.stop_token_ids, ids_ok, f"at most {MAX_STOPS} token ids, none negative")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            value_ok = value is None or 0 <= value <= MAX_LOGPROBS
            _check(name, value, value_ok, f"None or between 0 and {MAX_LOGPROBS}")
        start = self.prompt_logprobs_start
        _check("prompt_logprobs_start", start, start >= 0, "at least 0")
        start_ok = not start or self.prompt_logprobs is not None
        _check("prompt_logprobs_start", start, start_ok, "0 without prompt_logprobs")
        _check("speculation", self.speculation, self.speculation in SPECULATION, f"one of {', '.join(SPECULATION)}")
        length = len(self.prediction)
        bound = f"at most {MAX_PREDICTION_CHARACTERS:,} characters"
        _check("prediction", f"a text of {length:,} characters", length <= MAX_PREDICTION_CHARACTERS, bound)
        self._check_search()
        self._check_biases()
        self._check_what_may_be_drawn()

    def _check_search(self) -> None:
        best_of_ok = self.best_of is None or self.n <= self.best_of <= MAX_BRANCHES
        _check("best_of", self.best_of, best_of_ok, f"None or between n, {self.n}, and {MAX_BRANCHES}")
        _check("num_beams", self.num_beams, 1 <= self.num_beams <= MAX_BEAMS, f"between 1 and {MAX_BEAMS}")
        if self.num_beams > 1:
            _check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1 with num_beams")
            _check("n", self.n, self.n <= self.num_beams, f"at most num_beams, {self.num_beams}")
            _check("best_of", self.best_of, self.best_of is None, "left out with num_beams")
            _check("grammar", self.grammar, self.grammar is None, "left out with num_beams")
            _check("temperature", self.temperature, self.temperature in {0, 1}, "left out with num_beams")
            _check("top_k", self.top_k, self.top_k == 0, "left out with num_beams")
            _check("top_p", self.top_p, self.top_p == 1, "left out with num_beams")
            _check("min_p", self.min_p, self.min_p == 0, "left out with num_beams")
        penalty_ok = abs(self.length_penalty) <= MAX_LENGTH_PENALTY
        bound = f"between -{MAX_LENGTH_PENALTY:g} and {MAX_LENGTH_PENALTY:g}"
        _check("length_penalty", self.length_penalty, penalty_ok, bound)

    def _check_biases(self) -> None:
        biases = self.logit_bias
        few = len(biases) <= MAX_BIASES and all(token_id >= 0 for token_id in biases)
        _check("logit_bias", f"{len(biases)} entries", few, f"at most {MAX_BIASES} token ids, none negative")
        for bias in biases.values():
            _check("logit_bias", bias, abs(bias) <= MAX_BIAS, f"between -{MAX_BIAS:g} and {MAX_BIAS:g}")
        forced = self.forced_token_ids
        forced_ok = len(forced) < self.max_tokens or not forced
        _check("forced_token_ids", f"{len(forced)} ids", forced_ok, f"fewer than max_tokens, {self.max_tokens}")
        _check("forced_token_ids", min(forced, default=0), min(forced, default=0) >= 0, "token ids, none negative")
        min_tokens_ok = 0 <= self.min_tokens <= self.max_tokens
        _check("min_tokens", self.min_tokens, min_tokens_ok, f"between 0 and max_tokens, {self.max_tokens}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, abs(value) <= MAX_PENALTY, f"between -{MAX_PENALTY:g} and {MAX_PENALTY:g}")

    def _check_what_may_be_drawn(self) -> None:
        penalty = self.repetition_penalty
        penalty_ok = MIN_REPETITION_PENALTY <= penalty <= MAX_REPETITION_PENALTY
        bound = f"between {MIN_REPETITION_PENALTY:g} and {MAX_REPETITION_PENALTY:g}"
        _check("repetition_penalty", penalty, penalty_ok, bound)
        words_ok = len(self.bad_words) <= MAX_BAD_WORDS and all(map(str.strip, self.bad_words))
        _check("bad_words", f"{len(self.bad_words)} texts", words_ok, f"at most {MAX_BAD_WORDS} texts, none empty")
        longest = max(map(len, self.bad_words), default=0)
        bound = f"texts of at most {MAX_BAD_WORD_CHARACTERS} characters"
        _check("bad_words", f"a text of {longest} characters", longest <= MAX_BAD_WORD_CHARACTERS, bound)
        allowed = self.allowed_token_ids
        if allowed is None:
            return
        few = 0 < len(allowed) <= MAX_ALLOWED_IDS and min(allowed) >= 0
        bound = f"between 1 and {MAX_ALLOWED_IDS:,} token ids, none negative"
        _check("allowed_token_ids", f"{len(allowed)} ids", few, bound)
        _check("allowed_token_ids", f"{len(allowed)} ids", self.grammar is None, "left out with a grammar")
        _check("allowed_token_ids", f"{len(allowed)} ids", self.num_beams == 1, "left out with num_beams")

    def with_speculation(self, most: str) -> SamplingParams:
        """The same with no source of guesses that `most` has not."""
        is_within = SPECULATION.index(self.speculation) <= SPECULATION.index(most)
        return self if is_within else replace(self, speculation=most)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, without a draw."""
        return self.temperature < _GREEDY_BELOW or self.top_k == 1


def _check(argument: str, value: object, holds: bool, bound: str) -> None:
    if not holds:
        raise InvalidArgumentError(argument, value, bound)


def fresh_seed() -> int:
    """A seed for a request without one: draw it once at admission and keep it with the request."""
    return secrets.randbits(64)


class SampledToken(NamedTuple):
    """A drawn token. `logprob` and `top` (id, logprob; most likely first) are of the raw distribution, at temperature 1 and
    unfiltered; None and empty if the row requested none.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
