"""`generate`: acquires a prompt's cached prefix, has the model continue it, and publishes what the model computes."""

from __future__ import annotations

import signal
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from radixkv.core.api import DEFAULT_NAMESPACE, AcquireResult, CacheHolder, Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TokensLike, pack_tokens, unpack_tokens
from radixkv.core.validation import check_int
from radixkv.paged.kv import GREEDY, PagedKV, run_model

__all__ = ["Prompt", "Reply", "generate", "generate_batch"]

Prompt = str | TokensLike | Sequence[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat."""

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_REFUSED = {"past_key_values", "cache", "cache_implementation", "use_cache", "inputs", "input_ids", "inputs_embeds"}
_REFUSED |= {"attention_mask", "max_length", "num_beams", "num_return_sequences", "return_dict_in_generate"}
_REFUSED |= {"assistant_model", "prompt_lookup_num_tokens"}


@dataclass(frozen=True, slots=True)
class Reply:
    """Drafts that continue one prompt.

    Attributes:
        texts, token_ids: one per draft. Ids include the token that ended the draft; texts have no special tokens.
        prompt_token_ids: of the prompt. num_cached_tokens: how many of them were in the cache and not computed.
    """

    texts: list[str]
    token_ids: list[list[int]]
    prompt_token_ids: list[int]
    num_cached_tokens: int

    @property
    def text(self) -> str:
        """Text of the first draft."""
        return self.texts[0]


def generate(
    model: Any,
    tokenizer: Any,
    prompt: Prompt,
    cache: CacheHolder,
    kv: PagedKV,
    *,
    max_new_tokens: int,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    n: int = 1,
    namespace: str = DEFAULT_NAMESPACE,
    **options: Any,
) -> Reply:
    """Continue a prompt with the model's own `generate`, computing only the tokens that no cached history holds.

    Drafts run as one batch: the prompt is computed once, and each draft is a fork of it. Computed tokens are published a block
    at a time. After an error all that was published stays cached, and no sequence is left open. The first Ctrl-C ends the call
    after the next token, with all that is computed cached; the second one at once.

    Args:
        model: in eval mode. Other weights (another model of this shape, an adapter) need another namespace.
        tokenizer: of the model. None: `prompt` is token ids, and texts are empty.
        prompt: a text, token ids, or messages for the chat template, which opens the next reply.
        cache: of the size of `kv`, and used with this `kv` alone.
        max_new_tokens: at least 1; blocks for them are promised at the start.
        temperature: 0 is greedy. None: as in the model's generation config.
        top_p, top_k: as in transformers. None: as in the model's generation config.
        seed: makes drafts repeatable: those of `model.generate` with `num_return_sequences=n`, after `torch.manual_seed(seed)`.
            None: drawn from torch's generator.
        n: number of drafts.
        options: further options of `model.generate`, such as ``repetition_penalty``, ``stop_strings`` or ``streamer``.

    Raises:
        InvalidArgumentError: `kv` does not fit the cache or the model; an empty prompt; prompt and reply are longer than the
            pool, or than the model's rotation keeps its frequencies; an option that this function sets itself.
        OutOfBlocksError, QuotaError: the blocks cannot be had at present.
        ValueError: an option that transformers rejects.
    """
    for name in sorted(_REFUSED & options.keys()):
        raise InvalidArgumentError(name, options[name], "left out: generate sets it, or works without it")
    check_int("max_new_tokens", max_new_tokens, 1)
    check_int("n", n, 1)
    options |= _sampling(temperature, top_p, top_k)
    if tokenizer is not None:
        options["tokenizer"] = tokenizer  # for stop strings
    ids = _token_ids(tokenizer, prompt)
    _check_length(model.config, len(ids), max_new_tokens, kv)
    kv.check(model, cache)
    inputs = torch.tensor([ids], device=model.device)
    reserve = max_new_tokens - 1  # the last token is never computed
    with _deferred_interrupt() as interrupted, ExitStack() as opened, _seeded(seed, model.device):
        first = cache.acquire(ids, reserve=reserve, namespace=namespace)
        rows = [_Row(first, len(ids), cache, kv, opened)]
        past = kv.gather(first.block_table, first.num_cached_tokens)
        if n > 1:
            if first.num_stored_tokens < len(ids):
                run_model(model, inputs, past, 1, pad_token_id=0, **GREEDY)
                rows[0].publish(ids, len(ids), past)
            children = cache.fork(first.seq_id, len(ids), n - 1, reserve)
            rows += [_Row(child, len(ids), cache, kv, opened) for child in children]
            past = kv.gather(rows[0].table, len(ids) - 1)  # each row computes the last token again, for its logits
            past.batch_repeat_interleave(n)
        endings = _endings(model, options) if n > 1 else ((), None)
        publisher = _Publisher(rows, past, kv.block_size, interrupted, len(ids), *endings)
        options["stopping_criteria"] = [*(options.get("stopping_criteria") or ()), publisher]
        histories = publisher.publish(run_model(model, inputs.repeat(n, 1), past, max_new_tokens, **options))
    replies = [history[len(ids) :] for history in histories]
    texts = [tokenizer.decode(reply, skip_special_tokens=True) if tokenizer is not None else "" for reply in replies]
    return Reply(texts, replies, ids, first.num_cached_tokens)


def generate_batch(
    model: Any, tokenizer: Any, prompts: Sequence[Prompt], cache: CacheHolder, kv: PagedKV, **options: Any
) -> list[Reply]:
    """`generate` for each prompt, with replies in the order of the list.

    Prompts run one after the other, ordered by their token ids: each finds the prefix that others computed. They are not padded
    into one batch, in which an answer would depend on its neighbours.
    """
    encoded = [_token_ids(tokenizer, prompt) for prompt in prompts]
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    replies = {index: generate(model, tokenizer, encoded[index], cache, kv, **options) for index in order}
    return [replies[index] for index in range(len(encoded))]


class _Row:
    """An open sequence that is one row of a batch; closed by `opened`.

    Its computed tokens stay cached, unless block ops have failed: then its blocks do not hold what the cache believes.
    """

    def __init__(
        self, answer: AcquireResult, num_known: int, cache: CacheHolder, kv: PagedKV, opened: ExitStack
    ) -> None:
        """`num_known`: length of the history that the cache has."""
        self._seq_id, self._cache, self._kv = answer.seq_id, cache, kv
        self.table: array[int] = answer.block_table[:]
        self._num_stored, self._num_known = answer.num_stored_tokens, num_known
        opened.callback(self._release)
        self._carry_out(answer.ops)

    def publish(self, history: list[int], end: int, past: Any, row: int = 0) -> None:
        """Store and publish positions below `end`, which row `row` of `past` holds."""
        if end <= self._num_stored:
            return
        grown = self._cache.extend(self._seq_id, end)
        self.table[grown.first_changed :] = grown.block_ids
        self._carry_out(grown.ops)
        self._kv.scatter(past, self.table, self._num_stored, end, row=row)
        self._cache.insert(self._seq_id, end, history[self._num_known : end])
        self._num_stored, self._num_known = end, max(end, self._num_known)

    def _carry_out(self, ops: Sequence[Copy]) -> None:
        self._is_kept = False
        self._kv.carry_out(ops)
        self._is_kept = True

    def _release(self) -> None:
        self._cache.release(self._seq_id, keep=self._is_kept)


@dataclass(slots=True)
class _Publisher:
    """A stopping criterion that publishes what the rows have computed, a block at a time, and ends all after an interrupt.

    `eos`, `pad`: tokens that end a row, and the one that follows them in a batch.
    """

    rows: list[_Row]
    past: Any
    block_size: int
    interrupted: threading.Event
    num_prompt: int
    eos: Sequence[int]
    pad: int | None
    next_length: int = 0

    def __call__(self, input_ids: Tensor, _scores: Any, **_options: Any) -> Tensor:
        if self.past.get_seq_length() >= self.next_length:
            self.publish(input_ids)
            self.next_length = self.past.get_seq_length() + self.block_size
        return torch.full((len(self.rows),), self.interrupted.is_set(), device=input_ids.device)

    def publish(self, input_ids: Tensor) -> list[list[int]]:
        """Publish all that is computed of [rows, length] token ids; returns the histories without padding."""
        histories = [self._ended(history) for history in input_ids.tolist()]
        num_computed = self.past.get_seq_length()
        for index, (row, history) in enumerate(zip(self.rows, histories, strict=True)):
            row.publish(history, min(num_computed, len(history)), self.past, index)
        return histories

    def _ended(self, history: list[int]) -> list[int]:
        for index in range(self.num_prompt, len(history) if self.eos else 0):
            if history[index] in self.eos:
                return history[: index + 1]
            if history[index] == self.pad:  # a stop string ended the row
                return history[:index]
        return history


def _token_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    elif isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    else:
        ids = unpack_tokens(pack_tokens(cast("TokensLike", prompt)))
    if not len(ids):
        raise InvalidArgumentError("prompt", prompt, "at least one token")
    return list(ids)


def _check_length(config: Any, num_prompt: int, max_new_tokens: int, kv: PagedKV) -> None:
    asked, num_slots = f"{num_prompt} + {max_new_tokens} tokens", kv.num_blocks * kv.block_size
    if num_prompt + max_new_tokens - 1 > num_slots:
        raise InvalidArgumentError("prompt and max_new_tokens", asked, f"at most {num_slots + 1} in all, for this pool")
    text = config.get_text_config(decoder=True)
    ropes = getattr(text, "rope_parameters", None) or {}
    for rope in (ropes, *(rope for rope in ropes.values() if isinstance(rope, Mapping))):
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            names = ("original_max_position_embeddings", "max_position_embeddings")
            longest = rope.get(names[0]) or getattr(text, names[0], None) or getattr(text, names[1])
            if num_prompt + max_new_tokens > longest:
                bound = f"at most {longest} in all: past it the model rotates its keys by other frequencies"
                raise InvalidArgumentError("prompt and max_new_tokens", asked, bound)


def _sampling(temperature: float | None, top_p: float | None, top_k: int | None) -> dict[str, Any]:
    if temperature is not None and not temperature >= 0:
        raise InvalidArgumentError("temperature", temperature, "at least 0")
    if temperature == 0:
        return GREEDY
    options = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    given = {name: value for name, value in options.items() if value is not None}
    return given | {"do_sample": True} if given else {}


def _endings(model: Any, options: Mapping[str, Any]) -> tuple[Sequence[int], int | None]:
    """Tokens that end a row, and the one that transformers pads it with."""
    config = options.get("generation_config") or model.generation_config
    eos, pad = (options.get(name, getattr(config, name)) for name in ("eos_token_id", "pad_token_id"))
    ends = [] if eos is None else [eos] if isinstance(eos, int) else [int(token) for token in eos]
    return ends, pad


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Where SIGINT would raise KeyboardInterrupt: have the first one set the event, and raise at the end of the body.

    Raised inside a call of the cache it would leave the tree half changed. A second SIGINT raises at once.
    """
    seen = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield seen
        return

    def interrupt(*_: object) -> None:
        if seen.is_set():
            raise KeyboardInterrupt
        seen.set()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
    if seen.is_set():
        raise KeyboardInterrupt
