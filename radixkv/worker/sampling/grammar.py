"""Grammars that constrain a reply's text, token by token, by llguidance.

A new grammar is tried in a process of its own, see `grammar_trial`: compiling it may take any time and memory, and end the
process. A grammar within the bounds is compiled here and kept. Another is rejected, the next time at once. Each branch has a
matcher of its own, which returns the allowed tokens and advances with every token. The reply ends where a grammar is fulfilled
and allows nothing more. Where the reply may end, the model's end tokens are allowed in addition to continuations.

A grammar constrains a reply from its first token. To continue inside one, put the tokens so far in `forced_token_ids`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError, LimitError, UnavailableError
from radixkv.generation.params import Grammar
from radixkv.worker.sampling.grammar_source import first_line, grammar_source, new_matcher
from radixkv.worker.sampling.grammar_store import NamespaceStore
from radixkv.worker.sampling.grammar_trials import GrammarTrials
from radixkv.worker.turns import Turns

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["CompiledMatcher", "GrammarCompiler", "GrammarMatcher"]

_KINDS = {
    "json_object": "JSON object",
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar in Lark's notation",
}
"""Names of grammars in error messages."""

MAX_GRAMMAR_CHARACTERS = 256 * 1024

NUM_TRIALS, MAX_WAITING, MAX_WAIT_S = 4, 8, 10.0
"""Concurrent trials, at most one per namespace; a namespace's grammars that may wait for it, and for how long."""

NUM_KEPT, KEPT_BYTES = 64, 2 << 20
"""Most compiled grammars kept, and the least that each counts for; `NamespaceStore` chooses which is dropped."""
TAKEN_BYTES, MAX_TAKEN = 16 << 10, 2048
"""Growth of a compiled grammar per token, as measured; tokens after which it is recompiled."""
NUM_REFUSED, REFUSED_S = 1024, 300.0
"""Rejections remembered, and for how long: a grammar that exceeded its bound on a busy machine is then tried again."""

EASY_MASK_S, MASK_CREDIT_S = 0.001, 0.03
"""CPU time per token on the engine's thread that is free, and the excess that a branch may cost in total. Beyond it the branch
ends with an error, and its grammar is rejected from then on: it cost far less in its trial."""
MOST_CHARGED_S = 0.02
"""Of one token: where a busy machine counts another program's turn as ours, one token is long, and the next is not."""


class GrammarMatcher(Protocol):
    """Progress of one reply in its grammar."""

    fault: str
    """Error of the grammar after which the reply cannot continue; otherwise empty."""

    @property
    def is_over(self) -> bool:
        """Whether the grammar is fulfilled and no token may follow."""

    def allowed(self) -> bytes:
        """Tokens that may come next: one bit per token id, least significant first."""

    def take(self, token_id: int) -> bool:
        """Advance by a token. Returns whether the grammar allows it."""

    def copy(self) -> GrammarMatcher:
        """An independent copy at the same point."""


class CompiledMatcher:
    """A matcher by llguidance.

    Args:
        matcher: llguidance's, owned.
        on_taken: called with every token taken.
        on_slow: called once, with the fault, if the grammar costs too much per token.
    """

    def __init__(self, matcher: LLMatcher, on_taken: Callable[[], None], on_slow: Callable[[str], None]) -> None:
        self._matcher = matcher
        self._on_taken, self._on_slow = on_taken, on_slow
        self._credit_s = MASK_CREDIT_S
        self.fault = ""

    @property
    def is_over(self) -> bool:
        """Whether the grammar is fulfilled and no token may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self) -> bytes:
        """Tokens that may come next: one bit per token id, least significant first."""
        began_s = time.thread_time()
        bits = self._matcher.compute_bitmask()
        self._charge(time.thread_time() - began_s)
        self._note_fault()
        return bytes(bits)

    def take(self, token_id: int) -> bool:
        """Advance by a token. Returns whether the grammar allows it."""
        began_s = time.thread_time()
        is_taken = self._matcher.consume_token(token_id)
        self._charge(time.thread_time() - began_s)
        self._on_taken()
        if not is_taken:
            self._note_fault()
        return bool(is_taken) and not self.fault

    def _charge(self, cost_s: float) -> None:
        self._credit_s = min(MASK_CREDIT_S, self._credit_s + EASY_MASK_S - min(cost_s, MOST_CHARGED_S))
        if self._credit_s < 0 and not self.fault:
            self.fault = f"its masks take longer than {EASY_MASK_S * 1000:g} ms"
            self._on_slow(self.fault)

    def _note_fault(self) -> None:
        if self._matcher.is_error() and not self.fault:
            self.fault = first_line(self._matcher.get_error())

    def copy(self) -> CompiledMatcher:
        """An independent copy at the same point."""
        twin = copy(self)
        twin._matcher = self._matcher.deep_copy()
        return twin


class _Kept:
    """A compiled grammar, and the tokens that its matchers have taken: their shared state grows with them."""

    __slots__ = ("matcher", "memory_bytes", "num_taken")

    def __init__(self, memory_bytes: int) -> None:
        self.matcher: CompiledMatcher
        self.memory_bytes = memory_bytes
        self.num_taken = 0

    def taken(self) -> None:
        self.num_taken += 1

    @property
    def cost_bytes(self) -> int:
        return max(KEPT_BYTES, self.memory_bytes + self.num_taken * TAKEN_BYTES)


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps some. Thread-safe; `close` it at the end.

    Args:
        tokenizer: the model's, a fast one of transformers.
        vocab_size: width of the logits.
        eos_token_ids: ids with which the model ends a reply.
        num_kept: most compiled grammars kept.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        eos_token_ids: Collection[int],
        num_kept: int = NUM_KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._trie: LLTokenizer | None = None
        self._trials: GrammarTrials | None = None
        self._turns = Turns(NUM_TRIALS, max_waiting=MAX_WAITING, max_wait_s=MAX_WAIT_S)
        self._kept: NamespaceStore[Grammar, _Kept] = NamespaceStore(num_kept * KEPT_BYTES, lambda kept: kept.cost_bytes)
        self._refused: NamespaceStore[bytes, tuple[str, float]] = NamespaceStore(NUM_REFUSED)
        self._underway: dict[tuple[str, Grammar], Future[_Kept]] = {}
        self._is_closed = False
        self.num_compiled = 0

    def matcher(self, grammar: Grammar, namespace: str = DEFAULT_NAMESPACE) -> CompiledMatcher:
        """A matcher at the start of `grammar`. A grammar that is new to its namespace takes a turn.

        Raises:
            InvalidArgumentError: the grammar is malformed, too large, or costs too much time or memory to compile or to follow;
                grammars cannot be used with this model.
            LimitError: too many new grammars wait already, or the machine is too busy to try it.
            UnavailableError: closed, or the trial was lost.
        """
        if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
            size = f"{len(grammar.text)} characters"
            raise InvalidArgumentError("grammar.text", size, f"at most {MAX_GRAMMAR_CHARACTERS} characters")
        key = namespace, grammar
        with self._lock:
            kept = self._known(grammar, namespace)
            underway = self._underway.get(key)
            if kept is not None and (underway is not None or kept.num_taken <= MAX_TAKEN):
                return kept.matcher.copy()
            is_mine = underway is None
            underway = self._underway.setdefault(key, Future())
        if is_mine:
            try:
                underway.set_result(self._meet(grammar, namespace, kept))
            except BaseException as error:  # raised for all that wait; a panic of llguidance is no `Exception`
                underway.set_exception(error)
            finally:
                with self._lock:
                    del self._underway[key]
        try:
            return underway.result(MAX_WAIT_S).matcher.copy()
        except TimeoutError:
            message = f"the same grammar has been tried for {MAX_WAIT_S:g} s; try again later"
            raise LimitError(message, retry_after_s=1.0) from None

    def start(self) -> None:
        """Read the tokenizer and start the process of trials, unless done already; otherwise the first grammar does.

        Raises:
            InvalidArgumentError, UnavailableError: as `matcher`.
        """
        self._read_tokenizer()

    def close(self) -> None:
        """End the process of trials and wait for it. Idempotent."""
        with self._reading:
            self._is_closed = True
            if self._trials is not None:
                self._trials.close()

    def _known(self, grammar: Grammar, namespace: str) -> _Kept | None:
        """The kept grammar, or None; raises if it was rejected recently. The lock is held."""
        bound, until_s = self._refused.get(namespace, _digest(grammar)) or ("", 0.0)
        if self._clock() < until_s:
            raise _refusal(grammar, bound)
        return self._kept.get(namespace, grammar)

    def _meet(self, grammar: Grammar, namespace: str, kept: _Kept | None) -> _Kept:
        """Try and compile a new grammar; recompile a kept one."""
        trials, _ = self._read_tokenizer()
        source = grammar_source(grammar)
        if kept is not None:
            return self._compile(grammar, namespace, source, kept.memory_bytes)
        with self._turns.take(namespace):
            verdict = trials.run(source)
            if verdict.bound:
                raise self._refuse(grammar, namespace, f"a {_KINDS[grammar.kind]} {verdict.bound}")
            if verdict.problem:
                raise self._refuse(grammar, namespace, f"a {_KINDS[grammar.kind]}: {verdict.problem}")
            return self._compile(grammar, namespace, source, verdict.memory_bytes)

    def _compile(self, grammar: Grammar, namespace: str, source: str, memory_bytes: int) -> _Kept:
        _, trie = self._read_tokenizer()
        compiled = new_matcher(source, trie)
        compiled.compute_bitmask()  # here, not on the engine's thread: all copies share the result
        if compiled.is_error():
            raise self._refuse(grammar, namespace, f"a {_KINDS[grammar.kind]}: {first_line(compiled.get_error())}")
        kept = _Kept(memory_bytes)
        kept.matcher = CompiledMatcher(compiled, kept.taken, partial(self._found_slow, grammar, namespace))
        with self._lock:
            self.num_compiled += 1
            self._kept.put(namespace, grammar, kept)
        return kept

    def _found_slow(self, grammar: Grammar, namespace: str, fault: str) -> None:
        self._refuse(grammar, namespace, f"simple enough to follow: {fault}")

    def _refuse(self, grammar: Grammar, namespace: str, bound: str) -> InvalidArgumentError:
        with self._lock:
            self._kept.drop(namespace, grammar)
            self._refused.put(namespace, _digest(grammar), (bound, self._clock() + REFUSED_S))
        return _refusal(grammar, bound)

    def _read_tokenizer(self) -> tuple[GrammarTrials, LLTokenizer]:
        with self._reading:
            if self._is_closed:
                raise UnavailableError("the worker is stopping")
            if self._trials is not None and self._trie is not None:
                return self._trials, self._trie
            try:
                from llguidance import LLTokenizer
            except ImportError:
                raise InvalidArgumentError(
                    "grammar", "a grammar", "left out: it needs `pip install 'radixkv[worker]'`"
                ) from None
            trials = None
            try:
                fast = copy(self._tokenizer.backend_tokenizer)
                fast.no_padding()
                fast.no_truncation()
                eos: Any = self._eos_token_ids or self._tokenizer.eos_token_id
                told = fast.to_str()
                trials = GrammarTrials(told, self._vocab_size, eos)
                trials.start()  # reads the tokenizer in parallel with this thread
                self._trie = LLTokenizer(told, n_vocab=self._vocab_size, eos_token=eos)
            except (ValueError, RuntimeError, AttributeError) as error:
                if trials is not None:
                    trials.close()
                bound = f"left out: this model's tokenizer cannot be read for grammars: {first_line(str(error))}"
                raise InvalidArgumentError("grammar", "a grammar", bound) from error
            self._trials = trials
            return trials, self._trie


def _digest(grammar: Grammar) -> bytes:
    return hashlib.blake2b(f"{grammar.kind}\0{grammar.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _refusal(grammar: Grammar, bound: str) -> InvalidArgumentError:
    return InvalidArgumentError("grammar.text", grammar.text[:200], bound)
