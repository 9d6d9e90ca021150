"""Prompts in any form to token ids that the model and the pool can take, or a clear error."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, num_tokens, pack_tokens, token_array, unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import Message, Prompt
from radixkv.generation.thinking import NUM_TAIL_TOKENS, ThinkingMarks
from radixkv.worker.errors import ModelError
from radixkv.worker.generations.reply import ReplyRules
from radixkv.worker.generations.text import Asker, ChatText
from radixkv.worker.sampling.bad_words import spellings
from radixkv.worker.sampling.grammar import GrammarCompiler, GrammarMatcher

__all__ = ["PromptReader"]


class PromptReader:
    """Reads prompts and bounds them. Safe to call from any thread.

    Args:
        text: tokenizer and template; None: prompts and replies are token ids only.
        vocab_size: ids must be below it.
        eos_token_ids: ids with which the model ends a reply.
        max_length: longest history that the model can run, in tokens.
        num_blocks, block_size: the pool that a history must fit in.
    """

    def __init__(
        self,
        text: ChatText | None,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        max_length: int,
        num_blocks: int,
        block_size: int,
    ) -> None:
        self._text = text
        self._grammars = GrammarCompiler(text.tokenizer, vocab_size, eos_token_ids) if text else None
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._max_length = max_length
        self._num_blocks = num_blocks
        self._block_size = block_size

    @property
    def longest(self) -> int:
        """Longest history, prompt and generated, that the model and an empty pool allow, in tokens."""
        return min(self._max_length, self._num_blocks * self._block_size + 1)  # the last token drawn is never run

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be read."""
        return self._text is not None and self._text.has_chat_template

    def read(self, prompt: Prompt, history: TokensLike = b"", namespace: str = DEFAULT_NAMESPACE) -> bytes:
        """Packed token ids of `history` with the prompt appended.

        Args:
            prompt: text, messages or token ids.
            history: token ids before it.
            namespace: whose turn at the tokenizer is used.

        Raises:
            InvalidArgumentError: the result is empty or has an id outside the vocabulary; this worker cannot read the form; the
                prompt is many times longer than the model allows.
        """
        kept = pack_tokens(history)
        if num_tokens(kept) > self._max_length:
            raise InvalidArgumentError("history", f"{num_tokens(kept)} tokens", f"at most {self._max_length} tokens")
        tokens = kept + self._encode(prompt, kept, Asker(namespace, self._max_length))
        if not tokens:
            raise InvalidArgumentError("prompt", "no tokens", "at least 1 token")
        self._check_known(tokens)
        return tokens

    def truncate(self, tokens: bytes, num_kept: int) -> bytes:
        """The last `num_kept` of a prompt's packed tokens; 0: all; -1: as many as fit, 1 less than the longest history.

        Raises:
            InvalidArgumentError: `num_kept` is more than fit.
        """
        most = self.longest - 1
        if num_kept > most:
            bound = f"at most {most} tokens, 1 less than the longest history"
            raise InvalidArgumentError("truncate_prompt_tokens", num_kept, bound)
        return tokens[-TOKEN_BYTES * (most if num_kept < 0 else num_kept) :] if num_kept else tokens

    def _check_known(self, tokens: bytes) -> None:
        largest = int(np.frombuffer(tokens, "<u4").max(initial=0))
        if largest >= self._vocab_size:
            raise InvalidArgumentError("token_ids", largest, f"below the vocabulary's size, {self._vocab_size}")

    def _encode(self, prompt: Prompt, kept: bytes, asker: Asker) -> bytes:
        if prompt.token_ids is not None:
            return pack_tokens(prompt.token_ids)
        if prompt.is_empty:
            return b""
        if self._text is None:
            raise InvalidArgumentError("prompt", "text", "token ids: this worker has no tokenizer")
        if prompt.text is not None:
            return pack_tokens(self._text.encode(prompt.text, special=not kept, asker=asker))
        messages = list(prompt.messages or ())
        if not messages:
            raise InvalidArgumentError("messages", messages, "at least 1 message")
        if len(messages) > self._max_length:
            bound = f"at most {self._max_length} tokens, and a message is one at the least"
            raise InvalidArgumentError("prompt", f"{len(messages)} messages", bound)
        try:
            return pack_tokens(self._chat_ids(self._text, prompt, messages, kept, asker))
        except ModelError as error:
            raise InvalidArgumentError(
                "messages", f"{len(messages)} messages", f"readable for the model: {error}"
            ) from error

    def _chat_ids(
        self, text: ChatText, prompt: Prompt, messages: Sequence[Message], kept: bytes, asker: Asker
    ) -> list[int]:
        goes_on = prompt.continue_final_message
        if goes_on and kept and len(messages) == 1:
            return text.further_ids(messages[0]["content"], asker=asker)
        told = messages, prompt.tools, prompt.template_arguments
        if kept:
            return text.continuation_ids(token_array(kept[-TOKEN_BYTES:]), *told, goes_on=goes_on, asker=asker)
        return text.prompt_ids(*told, goes_on=goes_on, asker=asker)

    def bound_length(self, num_prompt_tokens: int, sampling: SamplingParams) -> int:
        """Longest allowed history with this prompt: `max_tokens` more, or the model's length.

        Raises:
            InvalidArgumentError: the history is too long for the model, or does not fit an empty pool.
        """
        start = sampling.prompt_logprobs_start
        if start > num_prompt_tokens:
            bound = f"at most {num_prompt_tokens}, the prompt's length in tokens"
            raise InvalidArgumentError("prompt_logprobs_start", start, bound)
        num_forced = len(sampling.forced_token_ids)
        longest = self._max_length - 1 if sampling.max_tokens else self._max_length
        if num_prompt_tokens + num_forced > longest:
            less = "1 less than the model's length" if sampling.max_tokens else "the model's length"
            bound = f"at most {longest} tokens, {less}"
            length = f"{num_prompt_tokens + num_forced} tokens{', forced ones included' if num_forced else ''}"
            raise InvalidArgumentError("prompt", length, bound)
        max_length = min(num_prompt_tokens + sampling.max_tokens, self._max_length)
        capacity = self._num_blocks * self._block_size
        if max(num_prompt_tokens, max_length - 1) > capacity:  # the last token drawn is never run
            most, pool = capacity + bool(sampling.max_tokens), f"{self._num_blocks} blocks of {self._block_size} slots"
            raise InvalidArgumentError(
                "prompt + max_tokens",
                f"{num_prompt_tokens} + {sampling.max_tokens} tokens",
                f"at most {most} tokens, for the pool's {pool}",
            )
        return max_length

    @property
    def thinking(self) -> ThinkingMarks | None:
        """Marks around a model's thoughts; None: the model has none."""
        return self._text.thinking if self._text is not None else None

    @property
    def tokenizer(self) -> str:
        """Stands for the tokenizer; empty: there is none."""
        return self._text.digest if self._text is not None else ""

    @property
    def template_variables(self) -> tuple[str, ...]:
        """Thinking variables that the chat template reads."""
        return self._text.template_variables if self._text is not None else ()

    def reply_rules(
        self,
        sampling: SamplingParams,
        namespace: str = DEFAULT_NAMESPACE,
        prompt: bytes = b"",
        before: Sequence[int] = (),
    ) -> ReplyRules:
        """Rules of the replies to a request. A grammar that is new to `namespace` is tried and compiled here. With a `prompt`
        that opens thoughts, the grammar applies after them.

        Args:
            sampling: the request.
            namespace: of the request.
            prompt: packed token ids that the replies continue.
            before: last tokens of a text that the replies continue; the decoded text may depend on them.

        Raises:
            InvalidArgumentError: as `ReplyRules`; the grammar is malformed, or cannot be used here.
            LimitError, UnavailableError: as `GrammarCompiler.matcher`.
        """
        if sampling.stop and self._text is None:
            raise InvalidArgumentError("stop", sampling.stop, "left out: this worker has no tokenizer")
        if sampling.bad_words and self._text is None:
            raise InvalidArgumentError("bad_words", sampling.bad_words, "left out: this worker has no tokenizer")
        if sampling.prediction and self._text is None:
            raise InvalidArgumentError("prediction", "a text", "left out: this worker has no tokenizer")
        stop_token_ids = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_token_ids |= self._eos_token_ids
        matcher: GrammarMatcher | None = None
        if sampling.grammar is not None:
            if self._grammars is None or self._text is None:
                raise InvalidArgumentError("grammar", sampling.grammar.kind, "left out: this worker has no tokenizer")
            matcher = self._text.after_thinking(
                self._grammars.matcher(sampling.grammar, namespace),
                unpack_tokens(prompt[-NUM_TAIL_TOKENS * TOKEN_BYTES :]),
                vocab_size=self._vocab_size,
                stop_token_ids=stop_token_ids,
            )
        return ReplyRules(
            sampling,
            vocab_size=self._vocab_size,
            stop_token_ids=stop_token_ids,
            make_decoder=partial(self._text.stream_decoder, before, keeps_special=sampling.keep_special_tokens)
            if self._text
            else lambda: None,
            matcher=matcher,
            prompt=prompt,
            bad_words=self._spelled(sampling.bad_words, namespace),
            prediction=self._predicted(sampling, namespace),
        )

    def _predicted(self, sampling: SamplingParams, namespace: str) -> Sequence[int]:
        """Token ids of the predicted text, as many as a reply may have at most."""
        if self._text is None or not sampling.prediction or sampling.speculation == "none":
            return ()
        return self._text.encode(sampling.prediction, special=False, asker=Asker(namespace))[: self._max_length]

    def _spelled(self, words: Sequence[str], namespace: str) -> list[list[int]]:
        """The token ids of bad words."""
        text, asker = self._text, Asker(namespace, self._max_length)
        if text is None:
            return []
        return [ids for word in words for ids in spellings(word, partial(text.encode, special=False, asker=asker))]

    def start_grammars(self) -> None:
        """Start the grammar process, if this model can have grammars."""
        if self._grammars is not None:
            with suppress(InvalidArgumentError, UnavailableError):  # raised again for a request with a grammar
                self._grammars.start()

    def end_grammars(self) -> None:
        """Stop the grammar process. Idempotent."""
        if self._grammars is not None:
            self._grammars.close()

    def decode(self, token_ids: TokensLike) -> str:
        """Text of token ids, special tokens left out."""
        text, ids = self._readable(token_ids)
        return text.decode(ids)

    def spell(self, token_ids: TokensLike) -> list[bytes]:
        """The bytes that each token stands for by itself; special tokens by name."""
        text, ids = self._readable(token_ids)
        return text.spell(ids)

    def _readable(self, token_ids: TokensLike) -> tuple[ChatText, Sequence[int]]:
        if self._text is None:
            raise InvalidArgumentError("token_ids", "token ids", "left as they are: this worker has no tokenizer")
        tokens = pack_tokens(token_ids)
        self._check_known(tokens)
        return self._text, token_array(tokens)
