"""The engine: one thread that turns the requests of many callers into tokens, a round at a time.

    callers' threads                          the engine's thread
    generate / fork / call / close  - inbox ->  commands, then a round: see `loop`
    events                         <- stream -

The thread sleeps when no branch can run and no op is left for the cache; `closed_loop` adds milliseconds. Only this thread
calls the holder, so it owns an in-process `PrefixCache`.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from radixkv.core.api import DEFAULT_NAMESPACE, BlockTimes, CacheHolder, CacheStats, ClearOp, WorkerLoad
from radixkv.core.errors import InvalidArgumentError, LeaseError, LimitError, RadixKVError, UnavailableError
from radixkv.core.namespaces import adapter_of, derived_namespace, has_salt, is_derived, owner_of, shares_prefix
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, num_tokens, pack_tokens, unpack_tokens
from radixkv.core.tree.journal import Dropped, JournalEntry
from radixkv.core.validation import check_namespace
from radixkv.generation.block_file import ImportedBlocks
from radixkv.generation.erasure import ErasedLevel, StoredPrefix
from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults, SamplingParams
from radixkv.generation.prices import Prices
from radixkv.generation.request import BACKGROUND_PRIORITY, ForkParams, GenerateParams, ModelInfo, PrefixPin, Prompt
from radixkv.generation.stats import WorkerStats
from radixkv.generation.stream import MAX_UNREAD_EVENTS, EventQueue, GenerationStream, Started
from radixkv.generation.verification import Verification
from radixkv.stores.errors import StoreError
from radixkv.util.closing import Closing
from radixkv.worker.engine.loop import EngineLoop, Origin
from radixkv.worker.engine.prompts import PromptReader
from radixkv.worker.generations.beam_search import generation_type
from radixkv.worker.generations.generation import Generation, History, Terms
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.runner import Runner
from radixkv.worker.sampling.scoring import PromptScores, ScoreMemory
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.scheduling.scheduler import Scheduler
from radixkv.worker.speculation.settings import SpeculationSettings
from radixkv.worker.speculation.sources import DraftSource

if TYPE_CHECKING:
    from radixkv.stores.store import BlockStore
    from radixkv.worker.storing.block_files import BlockFiles

__all__ = ["Engine"]

MAX_GENERATIONS = 8192
"""Generations that may run and wait at once; further ones are rejected."""

DRAIN_S = 1.0
"""How long a closing engine waits for the cache to take its last releases."""

_LONGEST_WAIT_S = 3600.0
"""How long an idle engine sleeps at a time."""

_NUM_BEFORE = 8
"""Tokens of a continued text that the reply's first tokens are decoded with."""

_NO_STORE = "this worker has no block store: --disk-cache, --host-cache or --remote gives it one"

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class Engine(Closing):
    """Generates for many callers at once on one model and one pool. Any thread may call it; `close` it at the end.

    Args:
        runner: the model and its KV tensors.
        holder: the cache of that pool: a `PrefixCache` that no thread has called yet, or an attached client.
        text: tokenizer and template; None: prompts and replies are token ids only.
        model_name, num_parameters: as reported by `model`.
        adapters: names of the adapters that the runner has.
        limits: bounds of a round.
        reattach: returns a new holder, with a new incarnation of the pool, after the lease is lost. All running generations
            are then recomputed. None: they fail with the error.
        num_remembered: finished generations that can still be forked.
        unshared_namespaces: namespaces in which no request shares a prefix with another; None: all of them.
        overlaps: whether the runner computes on a device of its own, so that the host works meanwhile; see `loop`.
        cache_stats: returns the cache's stats and times, on any thread. None: the holder's, on the engine's thread.
        store: a block store below the pool; None: there is none.
        prices: of its tokens, for the usage of each request; None: no usage has a cost.
        arena: keeps lines in those blocks of the runner's pool that are not the holder's; None: no lines.
        speculation: bounds of drafts, and `sources` of them, None: the usual ones; None: none are made. Not with `overlaps`.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        runner: Runner,
        holder: CacheHolder,
        *,
        text: ChatText | None = None,
        model_name: str = "",
        num_parameters: int = 0,
        adapters: Sequence[str] = (),
        sampling: SamplingDefaults = NO_DEFAULTS,
        limits: SchedulerLimits | None = None,
        reattach: Callable[[], CacheHolder] | None = None,
        num_remembered: int = 1024,
        unshared_namespaces: Collection[str] | None = (),
        overlaps: bool = False,
        cache_stats: Callable[[], tuple[CacheStats, BlockTimes]] | None = None,
        arena: Arena | None = None,
        store: BlockStore | None = None,
        prices: Prices | None = None,
        speculation: SpeculationSettings | None = None,
        sources: Sequence[DraftSource] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pool = runner.pool
        self._num_blocks = arena.first_block if arena else pool.num_blocks
        self._reader = PromptReader(
            text,
            vocab_size=runner.vocab_size,
            eos_token_ids=runner.eos_token_ids,
            max_length=runner.max_model_len,
            num_blocks=self._num_blocks,
            block_size=pool.block_size,
        )
        self._info = ModelInfo(
            name=model_name,
            max_length=self._reader.longest,
            vocab_size=runner.vocab_size,
            block_size=pool.block_size,
            eos_token_ids=tuple(sorted(runner.eos_token_ids)),
            has_chat_template=self._reader.has_chat_template,
            adapters=tuple(adapters),
            sampling=sampling,
            thinking=self._reader.thinking,
            template_variables=self._reader.template_variables,
            num_parameters=num_parameters,
            prices=prices,
            tokenizer=self._reader.tokenizer,
        )
        self._limits = limits or SchedulerLimits()
        self._unshared_namespaces = unshared_namespaces
        self._scores = ScoreMemory()  # of the engine's thread
        self._cache_stats = cache_stats
        self._clock = clock
        self._arrivals = itertools.count()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._gate = threading.Lock()  # nothing enters the inbox once the engine is closed
        self._is_closed = False
        self._is_closing = False
        self._loop = EngineLoop(
            runner,
            holder,
            Scheduler(
                pool.block_size,
                self._limits,
                clock=clock,
                has_lines=arena is not None,
                num_blocks=self._num_blocks,
                host=store.host if store else None,
                windows=pool.windows,
            ),
            reattach=reattach,
            clock=clock,
            wake=self.wake,
            num_remembered=num_remembered,
            overlaps=overlaps,
            arena=arena,
            store=store,
            speculation=None if overlaps else speculation,
            sources=sources,
        )
        self._store, self._files = store, self._open_files(runner, store)
        self._thread = threading.Thread(target=self._run, name="radixkv-engine", daemon=True)
        self._thread.start()

    def _open_files(self, runner: Runner, store: BlockStore | None) -> BlockFiles | None:
        if store is None or self._loop.stored is None:
            return None
        from radixkv.worker.storing.block_files import BlockFiles  # with its cipher only where it is used

        store.wake, store.on_erased = self.wake, self._erased
        sizes = (runner.pool.block_size, runner.max_model_len, runner.vocab_size)
        return BlockFiles(store, self._loop.stored, self._ask, *sizes)

    # -- for callers, on any thread

    def model(self) -> ModelInfo:
        """Facts of the model served."""
        return self._info

    def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes:
        """Packed token ids of `history` with the prompt appended, as `generate` reads it in the namespace."""
        return self._reader.read(prompt, history, DEFAULT_NAMESPACE if namespace is None else namespace)

    def detokenize(self, token_ids: TokensLike) -> str:
        """Text of token ids, special tokens left out."""
        return self._reader.decode(token_ids)

    def spell(self, token_ids: TokensLike) -> list[bytes]:
        """The bytes that each token stands for by itself; special tokens by name."""
        return self._reader.spell(token_ids)

    def generate(self, params: GenerateParams) -> GenerationStream:
        """Continue a prompt, or score it, or both; see `GenerationStream`.

        With `prompt_logprobs` the prompt's log probabilities come first. With `max_tokens` 0 the prompt is cached only.

        Raises:
            InvalidArgumentError: the prompt is empty, cannot be read, or can never fit the model or the pool; the adapter is
                not served, or the tokenizer is another one.
            LimitError: too many generations run and wait already.
            UnavailableError: the engine is closed.
        """
        if params.tokenizer not in ("", self._info.tokenizer):
            bound = (
                f"{self._info.tokenizer or 'left out'}, as of this worker: ids of another tokenizer mean another text"
            )
            raise InvalidArgumentError("tokenizer", params.tokenizer, bound)
        namespace = DEFAULT_NAMESPACE if params.namespace is None else params.namespace
        tokens = self._reader.read(params, params.history, namespace)
        tokens = self._reader.truncate(tokens, params.truncate_prompt_tokens)
        unshared = self._unshared_namespaces
        sharing = "off" if unshared is None or namespace in unshared else params.sharing or "on"
        shares = shares_prefix(sharing, salted=bool(params.cache_salt))
        if params.adapter and params.adapter not in self._info.adapters:
            bound = f"one of {', '.join(self._info.adapters)}" if self._info.adapters else "left out: none is served"
            raise InvalidArgumentError("adapter", params.adapter, bound)
        namespace = derived_namespace(namespace, salt=params.cache_salt, adapter=params.adapter)
        history = History(tokens, namespace, shares, tuple(params.retention), params.adapter)
        for pin in params.pins:
            if not 1 <= pin.num_tokens <= num_tokens(tokens):
                bound = f"between 1 and {num_tokens(tokens)} tokens, the length of history and prompt"
                raise InvalidArgumentError("pins", pin.num_tokens, bound)
        return self._start(history, params, None, tuple(params.pins) if shares else (), sharing=sharing)

    def fork(self, params: ForkParams) -> GenerationStream:
        """Continue a running or remembered generation from a token position; see `ForkParams`.

        A running branch is forked in the cache and runs on. For a finished one, or with another retention, the history is
        looked up in the cache by its tokens.

        Raises:
            UnknownGenerationError: no such generation runs or is remembered.
            InvalidArgumentError: no such branch or position, or as for `generate`.
            LimitError, UnavailableError: as for `generate`.
        """
        history = self._ask(lambda: self._loop.find_history(params.generation_id, params.branch, params.sees))
        length = num_tokens(history.tokens)
        position = length if params.position is None else params.position
        if not 0 <= position <= length:
            raise InvalidArgumentError("position", position, f"between 0 and {length}, the length of its history")
        tokens = self._reader.read(params, history.tokens[: position * TOKEN_BYTES], owner_of(history.namespace))
        retention = tuple(params.retention) or history.retention
        shares = history.shares_prefix and shares_prefix(params.sharing, salted=has_salt(history.namespace))
        can_fork = (num_tokens(tokens), retention, shares) == (position, history.retention, history.shares_prefix)
        origin = Origin(params.generation_id, params.branch, position) if can_fork else None
        history = history._replace(tokens=tokens, retention=retention, shares_prefix=shares)
        return self._start(history, params, origin, sharing=params.sharing if shares else "off")

    def call(self, function: Callable[[CacheHolder], _Result]) -> _Result:
        """Run a short function on the holder, on the engine's thread, after all ops submitted before.

        Speculation does not notice a namespace that is cleared by it: `erase` ends guesses from its replies.
        """
        answer: Future[_Result] = Future()
        run = partial(_answer, lambda: function(self._loop.holder), answer)
        self._post(lambda: self._loop.call_later(run))
        return answer.result()

    def verify_block(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Verification:
        """Recompute the last block of a cached branch and compare; see `verify`. Other requests wait for that one forward.

        Args:
            tokens: ids of the branch up to and with the block, whole blocks.
            namespace: where it is cached, as the cache lists it.

        Raises:
            InvalidArgumentError: not a whole number of blocks, an unknown token id, an adapter that is not served.
            UnavailableError: the engine is closed. LeaseError: the cache has ended the lease.
        """
        packed = pack_tokens(tokens)
        self._check_adapter(namespace)
        answer: Future[Verification] = Future()
        run = partial(_answer, partial(self._loop.verify_block, packed, namespace), answer)
        self._post(lambda: self._loop.call_later(run))
        return answer.result()

    def find_stored(
        self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE, num_cached_tokens: int = 0
    ) -> StoredPrefix:
        """Tokens of whole blocks of a prompt, after its cached tokens, on host and disk level of the block store, up to the
        first that is missing, and whether loading or computing them is expected to be faster. None without a store. O(tokens).

        Raises:
            InvalidArgumentError: not whole tokens, or `num_cached_tokens` is below 0.
        """
        check_namespace(namespace)
        if num_cached_tokens < 0:
            raise InvalidArgumentError("num_cached_tokens", num_cached_tokens, "at least 0")
        packed, stored = pack_tokens(tokens), self._loop.stored
        return stored.find_stored(packed, namespace, num_cached_tokens) if stored else StoredPrefix()

    def erase(self, namespace: str = DEFAULT_NAMESPACE) -> list[ErasedLevel]:
        """Destroy the keys of a namespace in the block store, durably, and delete its blocks there. The pool is not changed.

        Replies that run meanwhile are not stored. Namespaces derived for salts and adapters are erased with it.

        Raises:
            InvalidArgumentError: `namespace` is a derived one.
            UnavailableError: the key file cannot be replaced, and nothing is erased.
        """
        check_namespace(namespace)
        if is_derived(namespace):
            raise InvalidArgumentError("namespace", namespace, "the owner of the derived ones")
        with suppress(UnavailableError):
            self._post(partial(self._loop.clear_drafts, namespace))
        if self._store is None:
            return []
        try:
            return [ErasedLevel(level, is_erased) for level, is_erased in self._store.erase(namespace).items()]
        except StoreError as error:
            raise UnavailableError(str(error)) from error

    def export(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> list[bytes]:
        """The KV of a history, as far as pool and block store have it in whole blocks, as one safetensors file in pieces.

        A pure read. It takes as much memory as the file, at most 2 GiB. Recent blocks come from the pool, eight at a time
        between two rounds. Tensors: `tokens`, and `blocks` as they lie in the pool. It is not encrypted, and nothing in it is
        of the namespace: keep it as secret as the text.

        Raises:
            InvalidArgumentError: `tokens` are too many or less than a block, or not even their first block is cached; the
                adapter of the namespace is not served.
            UnavailableError: there is no block store, its key file cannot be read, or the engine is closed.
        """
        with self._using_files(namespace) as files:
            return files.export(pack_tokens(tokens), namespace)

    def import_(self, file: bytes | Iterable[bytes], namespace: str = DEFAULT_NAMESPACE) -> ImportedBlocks:
        """Store the blocks of an exported file under a namespace's own keys: requests with its tokens load them from now on.

        All is checked before anything is stored. A checksum shows damage, no intent: replies depend on what a file holds, so
        import those of a trusted author. The pool is not changed. Takes as much memory as the file.

        Args:
            file: whole, or in pieces; a file that is rejected by its header is read no further.

        Raises:
            InvalidArgumentError: the file is cut, altered, of another model, format or version, or too long.
            UnavailableError: as for `export`.
        """
        with self._using_files(namespace) as files:
            return files.import_((file,) if isinstance(file, bytes) else file, namespace)

    @contextmanager
    def _using_files(self, namespace: str) -> Iterator[BlockFiles]:
        check_namespace(namespace)
        self._check_adapter(namespace)
        if self._files is None:
            raise UnavailableError(_NO_STORE)
        try:
            yield self._files
        except StoreError as error:
            raise UnavailableError(str(error)) from error

    def _check_adapter(self, namespace: str) -> None:
        if (adapter := adapter_of(namespace)) and adapter not in self._info.adapters:
            raise InvalidArgumentError("namespace", namespace, "of the model, or of an adapter that is served")

    def _erased(self, namespace_id: bytes) -> None:
        stored = self._loop.stored
        if stored is not None:
            with suppress(UnavailableError):
                self._post(lambda: stored.erased(namespace_id))

    def noted(self, entries: Sequence[JournalEntry]) -> list[Future[None]]:
        """Others have changed the pool: cleared namespaces and dropped branches leave the block store, too. Never blocks.

        Returns:
            a future for each cleared namespace: done once nothing stored of it can be read.
        """
        store, stored, erasing = self._store, self._loop.stored, list[Future[None]]()
        for entry in entries:
            if isinstance(entry, (ClearOp, Dropped)):
                with suppress(UnavailableError):
                    self._post(partial(self._loop.clear_drafts, entry.namespace))
            if store is None or stored is None:
                continue
            if isinstance(entry, ClearOp):
                erased, is_first = store.begin_clear(entry.namespace)
                erasing.append(erased)
                try:
                    if is_first:
                        self._post(partial(stored.cleared, entry.namespace))
                except UnavailableError:  # closed: it saves nothing more
                    store.clear(entry.namespace)
            elif isinstance(entry, Dropped):
                self._inbox.put(partial(stored.dropped, entry))
        return erasing

    def stats(self) -> WorkerStats:
        """Gauges and counters of the engine, of its cache and of its block store."""
        engine = self._ask(self._loop.stats)
        levels = self._store.stats() if self._store else ()
        try:
            ask = self._cache_stats or partial(self.call, lambda holder: (holder.stats(), holder.block_times()))
            return WorkerStats(engine, *ask(), levels)
        except (LeaseError, UnavailableError):
            return WorkerStats(engine, None, levels=levels)

    def load(self) -> WorkerLoad:
        """How busy the engine is, for routers. O(1)."""
        stored, load = self._loop.stored, self._loop.meter.load()
        return load if stored is None else load._replace(loaded_tokens_per_s=stored.loaded_tokens_per_s)

    def start_grammars(self) -> None:
        """Start the grammar process now, so that the first grammar does not stall running requests."""
        self._reader.start_grammars()

    def end_grammars(self) -> None:
        """Reject new grammars with `UnavailableError` from now on, also those being compiled."""
        self._reader.end_grammars()

    def wake(self) -> None:
        """Run a round soon, for example for a notice of the cache. Any thread may call it."""
        self._inbox.put(_wake)

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs; a fault of the model ends it."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End every generation with `UnavailableError`, release its sequences, stop the thread. Idempotent."""
        with self._gate:
            if not self._is_closed:
                self._inbox.put(self._begin_closing)
        self._reader.end_grammars()
        self._thread.join()

    def _start(
        self,
        prompt: History,
        params: GenerateParams | ForkParams,
        origin: Origin | None,
        pins: tuple[PrefixPin, ...] = (),
        *,
        sharing: str,
    ) -> GenerationStream:
        tokens = prompt.tokens
        max_length = self._reader.bound_length(num_tokens(tokens), params.sampling)
        self._check_worst_case(max_length, params.sampling)
        before = unpack_tokens(tokens[-_NUM_BEFORE * TOKEN_BYTES :]) if params.goes_on_from_text else ()
        rules = self._reader.reply_rules(params.sampling, owner_of(prompt.namespace), tokens, before)
        if len(self._loop.generations) >= MAX_GENERATIONS:
            wait_s = self._loop.pace.wait_s(MAX_GENERATIONS // 16)
            raise LimitError(
                f"{MAX_GENERATIONS} generations run and wait already; try again later", retry_after_s=wait_s
            )
        items = EventQueue(MAX_UNREAD_EVENTS, clock=self._clock)
        now_s = self._clock()
        generation = generation_type(params.sampling)(
            uuid.uuid4().hex,
            prompt=tokens,
            arrival=next(self._arrivals),
            namespace=prompt.namespace,
            rules=rules,
            items=items,
            submitted_s=now_s,
            adapter=prompt.adapter,
            terms=self._terms(now_s, params, prompt, pins),
            scores=self._scores_of(prompt, params.sampling),
            prices=self._info.prices,
        )
        items.bound(partial(self._inbox.put, partial(self._loop.cut_off, generation)))
        items.put(Started(generation.generation_id, tokens, sharing))
        self._loop.meter.accepted(1, num_tokens(tokens))
        self._post(partial(self._loop.add, generation, max_length, origin))
        if params.priority != BACKGROUND_PRIORITY:
            self._loop.has_arrival.value = 1
        return GenerationStream(generation.generation_id, items, partial(self._post_cancel, generation))

    def _check_worst_case(self, max_length: int, sampling: SamplingParams) -> None:
        """Reject what could never start if the longest histories of all branches have to fit the pool.

        Raises:
            InvalidArgumentError: they do not, and admission is by the worst case.
        """
        if self._limits.admission != "worst-case":
            return
        each = -(-max(1, max_length - 1) // self._info.block_size)
        name, num_asked = (
            ("num_beams", sampling.num_beams) if sampling.num_beams > 1 else ("n", sampling.best_of or sampling.n)
        )
        each *= 2 if sampling.num_beams > 1 else 1  # a search forks beams before it drops others
        if num_asked * each > self._num_blocks:
            most = (
                f"at most {self._num_blocks // each}, since admission by the worst case reserves {each} blocks for each"
            )
            raise InvalidArgumentError(name, num_asked, f"{most}, of {self._num_blocks}; or allow fewer max_tokens")

    def _scores_of(self, prompt: History, sampling: SamplingParams) -> PromptScores | None:
        num_top, start = sampling.prompt_logprobs, sampling.prompt_logprobs_start
        memory = self._scores if prompt.shares_prefix else None
        return None if num_top is None else PromptScores(prompt.namespace, prompt.tokens, start, num_top, memory)

    def _terms(
        self, now_s: float, params: GenerateParams | ForkParams, prompt: History, pins: tuple[PrefixPin, ...]
    ) -> Terms:
        given_s = math.inf if params.timeout_s is None else params.timeout_s
        is_background = params.priority == BACKGROUND_PRIORITY
        due_s = math.inf if is_background else now_s + min(self._limits.max_wait_s, given_s / 2)
        return Terms(params.priority, due_s, now_s + given_s, prompt.shares_prefix, prompt.retention, pins)

    def _post(self, command: Callable[[], None]) -> None:
        with self._gate:
            if self._is_closed:
                raise UnavailableError("the engine is closed")
            self._inbox.put(command)

    def _post_cancel(self, generation: Generation) -> None:
        # Also called by finalisers, so it takes no lock. A closed engine has already ended the generation.
        self._inbox.put(partial(self._loop.cancel, generation))
        generation.items.put(None)

    def _ask(self, function: Callable[[], _Result]) -> _Result:
        answer: Future[_Result] = Future()
        self._post(partial(_answer, function, answer))
        return answer.result()

    # -- the engine's thread

    def _run(self) -> None:
        error: RadixKVError = UnavailableError("the engine is closed")
        try:
            has_more = False
            while not self._is_closing:
                self._loop.has_arrival.value = 0
                self._take_messages(has_more)
                has_more = self._loop.run()
        except Exception as fault:
            _LOG.exception("the engine has stopped")
            error = UnavailableError(f"the engine has stopped: {fault!r}")
        with self._gate:
            self._is_closed = True
        while not self._inbox.empty():
            self._inbox.get()()
        self._loop.end_all(error)
        self._loop.drain(DRAIN_S)

    def _take_messages(self, has_more: bool) -> None:
        """Run all commands in the inbox. Wait for one if the last round left nothing to do, or for the closed-loop delay."""
        until_s = self._loop.next_deadline_s
        while not has_more or not self._inbox.empty() or (until_s := self._loop.next_round_s()) > self._clock():
            self._next_message(until_s)()
            has_more = True

    def _next_message(self, until_s: float) -> Callable[[], None]:
        """Wait for a message until `until_s`."""
        wait_s = until_s - self._clock()
        try:
            return self._inbox.get(timeout=min(max(0.0, wait_s), _LONGEST_WAIT_S))
        except Empty:
            return _wake

    def _begin_closing(self) -> None:
        self._is_closing = True


def _wake() -> None:
    """A command that does nothing: the next round looks for news."""


def _answer(function: Callable[[], _Result], answer: Future[_Result]) -> None:
    try:
        answer.set_result(function())
    except Exception as error:  # the caller handles it, whatever its type
        answer.set_exception(error)
