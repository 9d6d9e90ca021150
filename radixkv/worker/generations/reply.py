"""Rules of a request's replies, and one branch's reply while it grows.

    forced tokens | drawn tokens ...
    ^ 0           ^ num_forced                 both are the reply: they count, are penalised, and are seen by stop rules

A reply's state follows from its tokens, and is kept while its branch is preempted.
"""

from __future__ import annotations

import copy
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import token_array
from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.generation.stream import FinishReason
from radixkv.worker.generations.stop_rules import StopRules, Taken, TextDecoder
from radixkv.worker.sampling.bad_words import BadWords
from radixkv.worker.sampling.grammar import GrammarMatcher
from radixkv.worker.sampling.logit_processors import Addend, Adjustment, Repetition

__all__ = ["Reply", "ReplyRules"]


class ReplyRules:
    """Rules of a request's replies. Made on the caller's thread, where it checks the request; used on the engine's.

    Args:
        sampling: the request.
        vocab_size: token ids must be below it.
        stop_token_ids: tokens that end a reply, including the model's own unless ignored.
        make_decoder: returns a decoder for one reply; None where there is no text.
        matcher: a fresh matcher of the request's grammar, if any.
        prompt: packed token ids that the reply continues.
        bad_words: token ids of each spelling of the bad words.
        prediction: token ids that the reply is expected to repeat.

    Attributes:
        looks_back: whether the choice of a token depends on those before it other than by the logits.

    Raises:
        InvalidArgumentError: a token id is outside the vocabulary; the forced tokens end the reply, or the grammar does not
            allow them; no token may be drawn at all, or before `min_tokens`.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        *,
        vocab_size: int,
        stop_token_ids: Collection[int] = (),
        make_decoder: Callable[[], TextDecoder | None] = lambda: None,
        matcher: GrammarMatcher | None = None,
        prompt: bytes = b"",
        bad_words: Sequence[Sequence[int]] = (),
        prediction: Sequence[int] = (),
    ) -> None:
        self.sampling = replace(sampling, prediction="") if sampling.prediction else sampling  # up to 4 MiB of text
        self.prediction = array("I", prediction)
        self.stop_token_ids = frozenset(stop_token_ids)
        for name in ("logit_bias", "forced_token_ids", "allowed_token_ids"):
            largest = max(getattr(sampling, name) or (), default=0)
            if largest >= vocab_size:
                raise InvalidArgumentError(name, largest, f"below the vocabulary's size, {vocab_size}")
        banned = [token_id for token_id in sorted(self.stop_token_ids) if token_id < vocab_size]
        if sampling.min_tokens > 0 and len(banned) == vocab_size:
            raise InvalidArgumentError("min_tokens", sampling.min_tokens, "0 where every token ends the reply")
        self._banned = np.array(banned, dtype=np.int64) if banned else None
        self._bias = _addend(sampling.logit_bias) if sampling.logit_bias else None
        self._is_penalised = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._repeated = None
        if sampling.repetition_penalty != 1:
            self._repeated = np.unique(token_array(prompt)).astype(np.int64)
        self._bad_words = BadWords(bad_words) if bad_words else None
        self._allowed = _bits(sampling.allowed_token_ids, vocab_size) if sampling.allowed_token_ids else None
        self._vocab_size = vocab_size
        # Without a change here a parameter is never applied.
        self._may_adjust = bool(self._bias or self.counts_tokens or sampling.min_tokens or matcher)
        self._may_adjust |= self._allowed is not None or self._bad_words is not None
        self.looks_back = self.counts_tokens or self._bad_words is not None or matcher is not None
        self._require_a_choice()
        stops = StopRules(self.stop_token_ids, sampling.stop, make_decoder(), sampling.include_stop)
        self._first = Reply(self, stops, matcher)
        self._force(self._first, matcher)

    def _require_a_choice(self) -> None:
        """Check that some token may be drawn first, grammar aside."""
        words = self._bad_words.banned(()) if self._bad_words is not None else ()
        for argument, banned in (
            ("min_tokens", self._banned if self.sampling.min_tokens else None),
            ("bad_words", words),
        ):
            if self._allowed is not None and banned is not None and not _bits_without(self._allowed, banned).any():
                raise InvalidArgumentError(argument, "all of allowed_token_ids", "fewer than may be drawn")

    def new_reply(self) -> Reply:
        """A reply with the forced tokens. O(distinct ones)."""
        return self._first.copy()

    def _force(self, reply: Reply, matcher: GrammarMatcher | None) -> None:
        for token_id in self.sampling.forced_token_ids:
            if matcher is not None and not matcher.take(token_id):
                raise InvalidArgumentError("forced_token_ids", token_id, "what the grammar allows there")
            if reply.force(token_id):
                raise InvalidArgumentError("forced_token_ids", token_id, "tokens that do not end the reply")

    def adjustment(
        self, counts: Mapping[int, int], num_tokens: int, allowed: bytes | None = None, last: Sequence[int] = ()
    ) -> Adjustment | None:
        """Changes to the logits after a reply.

        Args:
            counts: occurrences of each token in the reply; read only with penalties.
            num_tokens: its length.
            allowed: tokens that the grammar allows next, one bit per token id.
            last: its last `num_looked_back` tokens.
        """
        if not self._may_adjust:
            return None
        allowed = self._allowed if allowed is None else allowed
        banned = self._banned if num_tokens < self.sampling.min_tokens else None
        if self._bad_words is not None and (words := self._bad_words.banned(last)):
            banned = self._with_words(banned, words, allowed)
        if allowed is not None and banned is not None:
            allowed, banned = _without(allowed, banned), None
        penalties = self._penalties(counts) if self._is_penalised and counts else None
        return Adjustment(self._bias, self._repetition(counts), penalties, banned, allowed)

    @property
    def counts_tokens(self) -> bool:
        """Whether penalties depend on the reply's tokens."""
        return self._is_penalised or self._repeated is not None

    @property
    def num_looked_back(self) -> int:
        """Number of a reply's last tokens that the next token depends on."""
        return self._bad_words.num_looked_back if self._bad_words is not None else 0

    def _with_words(
        self, banned: npt.NDArray[np.int64] | None, words: Collection[int], allowed: bytes | None
    ) -> npt.NDArray[np.int64] | None:
        """Banned tokens with the last tokens of bad words; without these if no token would be left."""
        both = np.union1d(np.array(list(words), np.int64), np.array([], np.int64) if banned is None else banned)
        bits = _bits(range(self._vocab_size), self._vocab_size) if allowed is None else allowed
        return both if _bits_without(bits, both).any() else banned

    def _repetition(self, counts: Mapping[int, int]) -> Repetition | None:
        if self._repeated is None:
            return None
        ids = np.union1d(self._repeated, np.fromiter(counts.keys(), dtype=np.int64, count=len(counts)))
        return Repetition(ids, self.sampling.repetition_penalty)

    def _penalties(self, counts: Mapping[int, int]) -> Addend:
        ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
        times = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
        sampling = self.sampling
        values: npt.NDArray[np.float32] = np.float32(-sampling.presence_penalty) - times * np.float32(
            sampling.frequency_penalty
        )
        return Addend(ids, values)


def _addend(values: Mapping[int, float]) -> Addend:
    return Addend(np.array(list(values.keys()), np.int64), np.array(list(values.values()), np.float32))


def _without(allowed: bytes, banned: npt.NDArray[np.int64]) -> bytes:
    """The allowed ids except the banned ones; all allowed ids if none would be left."""
    bits = _bits_without(allowed, banned)
    return bits.tobytes() if bits.any() else allowed


def _bits_without(allowed: bytes, banned: Iterable[int]) -> npt.NDArray[np.uint8]:
    bits = np.frombuffer(allowed, np.uint8).copy()
    ids = np.fromiter(banned, dtype=np.int64)
    inside = ids[ids < 8 * len(bits)]
    np.bitwise_and.at(bits, inside >> 3, ~(1 << (inside & 7)).astype(np.uint8))
    return bits


def _bits(token_ids: Iterable[int], vocab_size: int) -> bytes:
    """One bit per id of the vocabulary, least significant first, set for these."""
    bits = np.zeros(vocab_size, np.uint8)
    bits[np.fromiter(token_ids, dtype=np.int64)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@dataclass(slots=True, eq=False, repr=False)
class Reply:
    """One branch's reply.

    Attributes:
        stops: rules that have judged its tokens.
        text: of the forced tokens, as far as certain.
        num_tokens: forced and drawn. num_drawn: drawn alone.
        logprob: sum over the drawn tokens with a known log probability.
        fault: error of the grammar, not of the reply, after which it cannot continue.
    """

    _rules: ReplyRules
    stops: StopRules
    _matcher: GrammarMatcher | None
    _counts: Counter[int] = field(default_factory=Counter)
    _last: tuple[int, ...] = ()
    text: str = ""
    num_tokens: int = 0
    num_drawn: int = 0
    logprob: float = 0.0
    fault: str = ""

    def copy(self) -> Reply:
        """An independent copy with the same tokens."""
        twin = copy.copy(self)
        twin.stops = self.stops.copy()
        twin._matcher = self._matcher.copy() if self._matcher is not None else None
        twin._counts = self._counts.copy()
        return twin

    @property
    def score(self) -> float:
        """Mean log probability of the tokens drawn; 0 if none."""
        return self.logprob / self.num_drawn if self.num_drawn else 0.0

    def adjustment(self, num_unread: int = 0) -> Adjustment | None:
        """Changes to the logits of the token after the next `num_unread`, which is 0 if the rules look back."""
        allowed = self._matcher.allowed() if self._matcher is not None else None
        return self._rules.adjustment(self._counts, self.num_tokens + num_unread, allowed, self._last)

    def force(self, token_id: int) -> bool:
        """Append a token that was not drawn. Returns whether the reply ends with it."""
        self._count(token_id)
        taken = self.stops.take(token_id, False)
        self.text += taken.text
        return taken.reason is not None or (self._matcher is not None and self._matcher.is_over)

    def take(self, sampled: SampledToken, is_full: bool) -> Taken:
        """Append a drawn token and return whether the reply ends; `is_full`: the history may not grow further."""
        self._count(sampled.token_id)
        self.num_drawn += 1
        self.logprob += sampled.logprob or 0.0
        taken = self.stops.take(sampled.token_id, is_full)
        matcher = self._matcher
        if matcher is None:
            return taken
        is_allowed = not matcher.fault and matcher.take(sampled.token_id)
        if not is_allowed:
            self.fault = matcher.fault
        elif matcher.is_over and taken.reason is not FinishReason.STOP:
            rest = self.stops.end()
            return rest._replace(text=taken.text + rest.text)
        return taken

    def _count(self, token_id: int) -> None:
        self.num_tokens += 1
        if self._rules.counts_tokens:
            self._counts[token_id] += 1
        if num_looked_back := self._rules.num_looked_back:
            self._last = (*self._last, token_id)[-num_looked_back:]
