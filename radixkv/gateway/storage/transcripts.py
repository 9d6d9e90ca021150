"""Stable transcripts: a reply that comes back as text is read as the token ids it was generated as.

Clients of chat APIs send the whole conversation as text each time. Tokenizing a reply again gives other ids in one of
twenty cases, and everything after it misses the cache. So each reply is cached under the messages that a client will send
to continue:

    key    hash chain over (model, namespace, tools, template arguments), message, message, ..., the reply
    value  the exact ids of the conversation up to the reply's end: the prompt as it was, the ids as sampled

    messages of a request    system  user  assistant  user  assistant  user
                             '--- longest known chain that ends in a reply ---'  '-- rest --'
    input of the worker          its ids, as `history`                       encoded after them

One changed character makes another chain: that text and everything after it is encoded as sent. Blanks around a reply are
ignored where the template strips them itself, since many clients do, too.

The model's input differs from the template's own rendering only in the replies, which are as generated: their token
boundaries, and text that the template would have stripped from an earlier turn.

Thoughts follow the template. A reply with thoughts is cached under itself and, as its alias, under the message that a client
sends without them. Where the template would drop the thoughts, most often after the next user turn, the ids are not used:
the reply is rendered again, and from there on the prompt is another branch than the generated one.
A reply that continues its own text reuses the ids of the known reply with the longest common beginning:

    messages of a request    system  user  assistant's text, unfinished
    known replies to these   '----------'  | ids ... |          the rest of the text is encoded after these

The cache is in memory, bounded, LRU; a copy in the gateway's database survives a restart. Gateways that share a database share
its entries.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from radixkv.core.errors import InvalidArgumentError, RadixKVError, UnavailableError
from radixkv.core.namespaces import owner_of
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.splicing import Spliced, splice, splice_whole
from radixkv.gateway.storage.transcript import Reader, Transcript
from radixkv.gateway.storage.transcript_cache import Remembered, TranscriptCache, TranscriptCacheLimits
from radixkv.gateway.storage.transcript_keys import canonical, digest, message_bytes, root_key
from radixkv.generation.request import Message, ModelInfo, Prompt
from radixkv.generation.thinking import NUM_TAIL_TOKENS, ThinkingMarks
from radixkv.generation.thought_splitter import splitter_of
from radixkv.util.fair_semaphore import own_work

__all__ = ["Reader", "Transcript", "Transcripts", "ends_in_mark"]

MAX_MESSAGES_AT_ONCE = 500
"""Hashed on the event loop, at some 5 microseconds each; longer lists are hashed on a thread."""

MAX_STOP_TOKENS = 64
"""Tokens that a stop string may span; a reply that ended with a longer one is not cached."""

MAX_COMPARED = 16
"""Replies to one prompt that are compared with the text to continue."""

_READING = b"control tokens are the template's"
"""Version of how messages become ids. Database entries of another version are not found."""

_PROBE = 'The 3 quick foxes,\tno. 12345: naïve 日本語 ½ 🙂\n\n  x = {"a": [1.5, None]}  # <end>'
_PROBE_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
_THOUGHTS = "reasoning_content"
"""Field of an assistant's message."""

_LOG = logging.getLogger(__name__)


class Transcripts:
    """Cached replies of every namespace. Used by one event loop.

    Args:
        reader: the worker, for its tokenizer.
        database: persists the cache; its content is loaded here.
        limits: bounds of the cache.
        clock: seconds since 1970.
        when_forgotten: called with a namespace and the keys that a caller asked to forget.
    """

    def __init__(
        self,
        reader: Reader,
        database: Database,
        limits: TranscriptCacheLimits | None = None,
        *,
        clock: Callable[[], float] = time.time,
        when_forgotten: Callable[[str, Collection[bytes]], None] = lambda _namespace, _keys: None,
    ) -> None:
        self._reader = reader
        self._when_forgotten = when_forgotten
        self._cache = TranscriptCache(database, limits or TranscriptCacheLimits(), clock)
        self._model: bytes | None = None
        self._end_ids: Collection[int] = ()
        self._trims_replies = False
        self._keeps_thoughts = self._keeps_thoughts_in_calls = False
        self._marks: ThinkingMarks | None = None
        self._info: ModelInfo | None = None  # the model whose tokenizer and template were probed
        self._probing = asyncio.Lock()
        self._saving: set[asyncio.Task[None]] = set()

    async def read(
        self,
        namespace: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
        *,
        goes_on: bool = False,
    ) -> Transcript:
        """Return the longest beginning of `messages` that ends in a known reply as its ids, with the messages after it.

        Entries of a derived `namespace` are found only there, and count against its owner's bounds. Messages are in the form
        of the model's chat template. The reply's whole path counts as used. With `goes_on` the reply continues the text of the
        last message, an assistant's. O(characters of the messages).

        Raises:
            InvalidArgumentError: no such text, or the template rejects the messages before it.
        """
        if goes_on:
            Prompt(messages=messages, continue_final_message=True)  # rejects messages that cannot be continued
            before = await self.read(namespace, messages[:-1], tools, template_arguments)
            return await self._go_on(before, messages[-1], tools, template_arguments or {})
        owner = owner_of(namespace)
        model, tokenizer = await self._identify_model()
        listed = [message if self._marks else _without_thoughts(message) for message in messages]
        whole = Transcript(b"", listed, listed, model or b"", owner, b"", None, tokenizer=tokenizer)
        if model is None or not listed:
            return whole
        chain = partial(self._chain, root_key(model, namespace, tools, template_arguments or {}), listed)
        keys = chain() if len(listed) <= MAX_MESSAGES_AT_ONCE else await asyncio.to_thread(chain)
        await self._cache.look_up(owner, [key for key, turn in zip(keys[:-1], listed, strict=False) if _is_reply(turn)])
        for position in range(len(listed) - 2, -1, -1):  # at least one message must follow
            if not _is_reply(listed[position]):
                continue
            found = self._cache.find(owner, keys[position])
            if found is not None and self._stands(found, listed, keys) and await self._is_sound(found):
                self._cache.use(found)
                rest = listed[position + 1 :]
                return whole._replace(history=found.all_tokens(), rest=rest, key=keys[-1], parent=found)
        return whole._replace(key=keys[-1])

    async def _go_on(
        self, before: Transcript, last: Message, tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> Transcript:
        """Return the transcript of the turns `before` and a reply that continues the text of the `last` one."""
        begun: str = last["content"]
        whole = before._replace(rest=[*before.rest, last], messages=[*before.messages, last], goes_on=True, begun=begun)
        if not before.key:
            return whole
        thinks = self._marks is not None
        base = await self._stem_of(before, last, tools, arguments) if thinks else b""
        found = await self._most_alike(before, last, base)
        if found is not None:
            entry, spliced = found
            self._cache.use(entry)
            stem = entry.all_tokens()[: -entry.num_reply]
            rest: list[Message] = [{"role": "assistant", "content": spliced.rest}]
            return whole._replace(history=stem + spliced.tokens, rest=rest, stem=stem, parent=entry.parent)
        return whole._replace(stem=base if thinks else await self._stem_of(before, last, tools, arguments))

    async def _stem_of(
        self, before: Transcript, last: Message, tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> bytes:
        """Return the ids before the last message's text, after its thoughts; empty where they are not known."""
        told = partial(Prompt, tools=tools, template_arguments=arguments)
        prompt = told(messages=before.rest)
        if self._marks is not None:
            prompt = told(messages=[*before.rest, {**last, "content": ""}], continue_final_message=True)
        try:
            return await self._reader.tokenize(prompt, before.history, before.namespace)
        except InvalidArgumentError as error:
            if error.argument != "messages":
                raise
        return b""  # the template rejects these after a reply; the whole may work

    async def _most_alike(self, before: Transcript, last: Message, base: bytes) -> tuple[Remembered, Spliced] | None:
        """Return the latest known reply to `before` that shares most ids with the last message's text.

        `base`: where the model thinks, the ids before that text; other replies begin with thoughts.
        """
        namespace, begun = before.namespace, last["content"]
        same_key, stem_key = self._link(before.key, last), digest(before.key, b"prompt")
        await self._cache.look_up(namespace, [same_key])
        await self._cache.look_up(namespace, [stem_key], MAX_COMPARED)
        same, stem = self._cache.find(namespace, same_key), self._cache.find(namespace, stem_key)
        latest = itertools.islice(reversed(stem.replies.values()), MAX_COMPARED) if stem is not None else ()
        best: tuple[Remembered, Spliced] | None = None
        for entry in ([same] if same is not None else []) + [entry for entry in latest if entry is not same]:
            if not entry.num_reply or not await self._is_sound(entry):
                continue
            if self._marks is not None and entry.all_tokens()[: -entry.num_reply] != base:
                continue
            spliced = await self.splice(entry.reply, begun)
            if entry is same and spliced.rest:
                spliced = await splice_whole(self._reader, entry.reply, begun, self._end_ids) or spliced
            if spliced.tokens and (best is None or len(spliced.tokens) > len(best[1].tokens)):
                best = entry, spliced
            if not spliced.rest:
                break
        return best

    async def within(self, transcript: Transcript, prompt: bytes, token_ids: TokensLike, text: str) -> Transcript:
        """Return the transcript of a reply that continues `text`, a beginning of a reply being generated.

        Args:
            transcript: the conversation that the running reply answers.
            prompt: the packed ids that it continues, from its `Started` event.
            token_ids: its sampled tokens so far.
            text: a beginning of it, including the text that it continued itself.

        Raises:
            InvalidArgumentError: `text` ends within the continued text, whose ids are not known.
        """
        stem = transcript.stem if transcript.goes_on else prompt
        is_known = bool(stem) and prompt.startswith(stem)
        base, before = (stem, "") if is_known else (prompt, transcript.begun)
        if not text.startswith(before):
            raise InvalidArgumentError("position", len(text), f"at least {len(before)}, where this reply goes on")
        sampled = prompt[len(base) :] + pack_tokens(token_ids)
        spliced = await splice(
            self._reader, sampled, text[len(before) :], trims=bool(transcript.key) and self._trims_replies
        )
        turns = transcript.messages[:-1] if transcript.goes_on else transcript.messages
        reply: dict[str, Any] = {"role": "assistant", "content": text}
        if self._marks is not None:
            splitter = splitter_of(self._marks)
            if is_known and await ends_in_mark(self._reader, stem, self._marks):
                splitter.open()
            thoughts, reply["content"] = splitter.begin(text)
            if thoughts or (transcript.goes_on and transcript.messages[-1].get(_THOUGHTS)):
                reply[_THOUGHTS] = thoughts or transcript.messages[-1][_THOUGHTS]
        return transcript._replace(
            history=base + spliced.tokens,
            rest=[{"role": "assistant", "content": spliced.rest}],
            messages=[*turns, reply],
            goes_on=True,
            begun=text,
            stem=stem if is_known else b"",
        )

    async def splice(self, reply: bytes, text: str) -> Spliced:
        """Return the packed ids of a reply that spell the beginning of a text, and the rest of the text."""
        return await splice(self._reader, reply, text, trims=self._trims_replies)

    def behind(self, transcript: Transcript, tokens: bytes, messages: Sequence[Message]) -> Transcript:
        """Return the transcript of `messages` after a reply at the end of a transcript; `tokens`: all ids up to its end."""
        reply = transcript.messages[-1]
        key = transcript.key and reduce(self._link, [reply, *messages], transcript.key)
        turns = [*transcript.messages, *messages]
        model, namespace, tokenizer = transcript.model, transcript.namespace, transcript.tokenizer
        return Transcript(tokens, list(messages), turns, model, namespace, key, None, tokenizer=tokenizer)

    async def remember(
        self,
        transcript: Transcript,
        reply: Message,
        prompt: bytes,
        token_ids: TokensLike,
        *,
        text: str,
        stop: str | int | None = None,
        is_cut: bool = False,
    ) -> None:
        """Cache one reply to a transcript of `read`. Call it before the client gets the end of the reply.

        Args:
            transcript: the result of `read` for the request.
            reply: the reply as a client will send it back, an assistant's message in the chat template's form; without the text
                that it continued.
            prompt: the packed ids that were continued, from the `Started` event.
            token_ids: all sampled tokens of this branch.
            text: all its emitted text.
            stop: of its `BranchFinished` event; tokens of a stop string are not part of the reply.
            is_cut: it was cancelled, perhaps with last tokens whose text was not emitted.
        """
        if not transcript.key:
            return
        tokens = pack_tokens(token_ids)
        if transcript.goes_on:
            stem, begun = transcript.stem, transcript.begun
            if not stem or not prompt.startswith(stem):
                return  # the template begins a continued turn in another way
            reply = _joined(transcript.messages[-1], reply)
            prompt, tokens, text = stem, prompt[len(stem) :] + tokens, begun + text
        if isinstance(stop, str) or (is_cut and await self._reader.detokenize(tokens) != text):
            trimmed = await self._without_stop(tokens, text)
            if trimmed is None:
                return
            tokens = trimmed
        if not tokens:
            return
        namespace, parent = transcript.namespace, transcript.parent
        thoughts = [prompt] if transcript.goes_on and self._marks is not None else []  # the prompt may hold them
        prompted = self._cache.put(namespace, digest(transcript.key, b"prompt", *thoughts), prompt, b"", parent)
        key = self._link(transcript.key, reply)
        entry = self._cache.put(namespace, key, prompt, tokens, prompted or parent)
        bare = _without_thoughts(reply)
        if entry is not None and bare is not reply:
            self._cache.put(namespace, self._link(transcript.key, bare), prompt + tokens, b"", entry)
        if entry is not None and not entry.decoded:
            task = asyncio.get_running_loop().create_task(self._save(entry))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)

    async def look_up(self, namespace: str, keys: Sequence[bytes]) -> Remembered | None:
        """Return the last of the entries of a conversation of these keys, in order, if it is remembered."""
        await self._cache.look_up(namespace, keys)
        return self._cache.find(namespace, keys[-1])

    async def forget(
        self,
        namespace: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Drop a conversation that ends with a reply, and all its continuations; the next request finds none of them."""
        model, _ = await self._identify_model()
        if model is not None and messages:
            owner = owner_of(namespace)
            keys = self._chain(root_key(model, namespace, tools, template_arguments or {}), messages)[-2:]
            self._when_forgotten(owner, keys)
            self._cache.forget_keys(owner, keys[-1:])

    async def forget_below(
        self, namespace: str, above: Sequence[Message], below: Sequence[tuple[int | None, Message]]
    ) -> None:
        """Drop every reply of a tree of messages after `above`, and all their continuations.

        Each message comes with the index in `below` of its parent; None: it follows `above`. O(characters).
        """
        model, _ = await self._identify_model()
        if model is None:
            return
        root = [root_key(model, namespace, (), {}), *self._chain(root_key(model, namespace, (), {}), above)][-1]
        keys: list[bytes] = []
        for parent, message in below:
            keys.append(self._link(root if parent is None else keys[parent], message))
        self._when_forgotten(namespace, {root, *keys})
        self._cache.forget_keys(namespace, keys)

    def keeps_thoughts(self, messages: Sequence[Message]) -> bool:
        """Whether the template writes the thoughts of all replies among these messages, as of the last probe."""
        last_user = _last_user(messages)
        thoughtful = (place for place, message in enumerate(messages) if message.get(_THOUGHTS))
        return all(self._keeps(place, last_user) for place in thoughtful)

    def sweep(self) -> int:
        """Drop expired entries; returns their number. Call periodically."""
        return self._cache.sweep()

    async def aclose(self) -> None:
        """Wait until all entries are handed to the database, which may be closed afterwards."""
        while self._saving:
            await asyncio.gather(*self._saving, return_exceptions=True)

    async def exact_tokens(self, token_ids: TokensLike, text: str, stop: str | int | None) -> bytes | None:
        """Return the sampled ids of exactly `text`, without those of a stop string; None where no ids match."""
        tokens = pack_tokens(token_ids)
        return await self._without_stop(tokens, text) if isinstance(stop, str) else tokens

    async def _without_stop(self, tokens: bytes, text: str) -> bytes | None:
        for _ in range(MAX_STOP_TOKENS + 1):  # none are removed where the text includes the stop string
            shorter = await self._reader.detokenize(tokens) if tokens else ""
            if shorter == text:
                return tokens
            if not shorter.startswith(text):
                return None  # the stop string begins within a token
            tokens = tokens[:-TOKEN_BYTES]
        return None

    def _keeps(self, place: int, last_user: int) -> bool:
        return self._keeps_thoughts or (self._keeps_thoughts_in_calls and place > last_user)

    def _stands(self, entry: Remembered, messages: Sequence[Message], keys: Sequence[bytes]) -> bool:
        """Whether the template would write the thoughts of all replies up to this one, as they were generated."""
        places = {key: place for place, key in enumerate(keys)} if self._marks else {}
        last_user = _last_user(messages)
        for part in entry.path() if places else ():
            place = places.get(part.key)
            has_thoughts = place is not None and (not part.num_reply or messages[place].get(_THOUGHTS))
            if place is not None and has_thoughts and not self._keeps(place, last_user):
                return False
        return True

    async def _save(self, entry: Remembered) -> None:
        try:
            entry.decoded = digest((await self._reader.detokenize(entry.reply)).encode())
        except RadixKVError as error:
            _LOG.info("a reply stays out of the database: %s", error)
            return
        self._cache.save(entry)

    async def _is_sound(self, entry: Remembered) -> bool:
        """Whether all replies up to this one still decode to their texts; those loaded from disk are checked once."""
        path = [part for part in entry.path() if not part.is_verified]
        for part in path:
            if part.reply:
                try:
                    decoded = digest((await self._reader.detokenize(part.reply)).encode())
                except InvalidArgumentError:  # ids that this model does not have
                    decoded = b""
                if decoded != part.decoded:
                    self._cache.forget_keys(part.namespace, [part.key])
                    return False
            part.is_verified = True
        return True

    async def _identify_model(self) -> tuple[bytes | None, str]:
        """Return the digest of a probe of name, tokenizer and template, None where chats cannot continue after a reply; and
        the tokenizer's name.
        """
        async with self._probing:
            with own_work():  # others wait for it: it must not wait for one caller's turn
                info = await self._reader.model()
                if info != self._info:
                    self._marks = info.thinking
                    self._model = await self._probe(info) if info.has_chat_template else None
                    self._end_ids = info.eos_token_ids
                    self._info = info
            return self._model, info.tokenizer

    async def _probe(self, info: ModelInfo) -> bytes | None:
        messages = [{"role": "user", "content": _PROBE}]
        try:
            prompt = await self._reader.tokenize(Prompt(messages=messages))
            behind = await self._reader.tokenize(Prompt(messages=messages), prompt)
            self._trims_replies = await self._spell_reply(" \n. ") == await self._spell_reply(".")
            if self._marks is not None:
                self._keeps_thoughts = await self._shows_thoughts(".", [], {"role": "user", "content": "."})
                result = {"role": "tool", "content": ".", "tool_call_id": "1"}
                self._keeps_thoughts_in_calls = await self._shows_thoughts("", [_PROBE_CALL], result)
        except UnavailableError:
            raise
        except RadixKVError as error:
            _LOG.warning("replies are tokenised anew each time: %s", error)
            return None
        return digest(_READING, canonical([info.name, info.vocab_size]), prompt, behind)

    async def _shows_thoughts(self, content: str, calls: Sequence[Mapping[str, Any]], following: Message) -> bool:
        """Whether the template writes the thoughts of a reply with a turn after it."""
        told: list[bytes] = []
        for thoughts in ("1", "2"):
            reply = {"role": "assistant", "content": content, _THOUGHTS: thoughts}
            turns = [{"role": "user", "content": "."}, {**reply, "tool_calls": calls} if calls else reply, following]
            try:
                told.append(await self._reader.tokenize(Prompt(messages=turns)))
            except InvalidArgumentError:  # the template rejects such turns
                return False
        return told[0] != told[1]

    async def _spell_reply(self, reply: str) -> bytes:
        """Render a conversation with this reply."""
        turns = [
            {"role": "user", "content": "."},
            {"role": "assistant", "content": reply},
            {"role": "user", "content": "."},
        ]
        return await self._reader.tokenize(Prompt(messages=turns))

    def _chain(self, root: bytes, messages: Sequence[Message]) -> list[bytes]:
        """Return a key for every beginning of the conversation; equal only where all messages up to there are equal."""
        keys: list[bytes] = []
        for message in messages:
            root = self._link(root, message)
            keys.append(root)
        return keys

    def _link(self, key: bytes, message: Message) -> bytes:
        message = message if self._marks else _without_thoughts(message)
        content = message.get("content")
        if self._trims_replies and message.get("role") == "assistant" and isinstance(content, str):
            message = {**message, "content": content.strip()}
        return digest(key, message_bytes(message))


async def ends_in_mark(reader: Reader, prompt: bytes, marks: ThinkingMarks) -> bool:
    """Whether a prompt of packed ids has opened the thoughts of its reply, by marks that no message contains."""
    tail = await reader.detokenize(prompt[-NUM_TAIL_TOKENS * TOKEN_BYTES :])
    return marks.has_opened(tail)


def _joined(begun: Message, reply: Message) -> Message:
    """Return a reply, including the text and the thoughts that it continued."""
    joined = {name: (begun.get(name) or "") + (reply.get(name) or "") for name in ("content", _THOUGHTS)}
    return {**reply, **{name: text for name, text in joined.items() if text or name == "content"}}


def _without_thoughts(message: Message) -> Message:
    return {k: v for k, v in message.items() if k != _THOUGHTS} if _THOUGHTS in message else message


def _is_reply(message: Message) -> bool:
    return message.get("role") == "assistant"


def _last_user(messages: Sequence[Message]) -> int:
    """Return the index of the user's last turn; -1: none."""
    return max((place for place, message in enumerate(messages) if message.get("role") == "user"), default=-1)
