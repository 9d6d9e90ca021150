"""Running replies: one task per generation, which outlives the request that began it.

worker -> EventStream -> ReplyTask (a task) -> replies that grow -> followers, at once
                                                           -> the store, every half second and before their end is sent
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixkv.core.errors import LimitError, RadixKVError, UnavailableError
from radixkv.gateway.api.conversations.messages import Message
from radixkv.gateway.api.conversations.replies.live import Live
from radixkv.gateway.api.conversations.store.store import ConversationStore, Growth
from radixkv.gateway.backend.backend import EventStream
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.transcripts import Reader, Transcript, Transcripts
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.replies import Growth as ReplyGrowth
from radixkv.gateway.turns.replies import Reply
from radixkv.gateway.turns.turns import begin_replies, remember_reply
from radixkv.generation.stream import BranchFinished, Completed, Delta, Started, Usage

__all__ = ["Branch", "Origin", "ReplyTask", "ReplyTasks"]

MAX_RUNNING = 256
"""Concurrent generations of all namespaces; a single namespace may have half as many."""

SAVE_S = 0.5
"""How often the text so far is stored, in seconds."""

SERVER_STOPPED = "the server stopped"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a generation: its request and its prompt.

    namespace: of its owner. model: of its replies. transcript: its prompt. end_ids: tokens that end a reply.
    started_s: time of the request, on the clock of `ReplyTask`. about: other details of its replies.
    """

    namespace: str
    model: ServedModel
    transcript: Transcript
    end_ids: Collection[int]
    started_s: float
    about: Mapping[str, Any] = field(default_factory=dict)


class Branch:
    """One reply of a generation."""

    def __init__(self, task: ReplyTask, message: Message, reply: Reply) -> None:
        self.message = message
        self.reply = reply
        self.first_text_s: float | None = None
        self.ended_s: float | None = None
        self.num_saved = len(message.text)  # characters
        self._task = task

    @property
    def is_running(self) -> bool:
        """Whether it is still being written."""
        return self.ended_s is None

    async def stop(self) -> None:
        """End it; its text so far stays. The caller holds the lock `changing`."""
        await self._task.stop(self)

    async def remember(self) -> None:
        """Cache the token ids of a stopped reply for the next turn."""
        await self._task.remember_stopped(self)

    def drop(self) -> None:
        """End it; its message is gone."""
        self._task.drop(self)

    async def within(self, text: str) -> Transcript | None:
        """Return the transcript of a reply that continues a beginning of its text; None: its token ids are not known yet."""
        return await self._task.within(self, text)


class ReplyTask:
    """The generation of one or more replies to one message. The event loop owns it.

    Args:
        live: the conversation; the caller holds its lock `changing`. The task holds the conversation until its end.
        messages: the replies, stored as running.
        origin: of the generation.
        stream: the worker's events.
        store: of the replies.
        transcripts: cache of their token ids.
        reader: the worker, for its tokenizer.
        when_ended: called at the complete end of the task.
        clock: seconds, as `time.perf_counter`.
    """

    def __init__(
        self,
        live: Live,
        messages: Sequence[Message],
        origin: Origin,
        stream: EventStream,
        store: ConversationStore,
        transcripts: Transcripts,
        reader: Reader,
        *,
        when_ended: Callable[[ReplyTask], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.live = live
        self.namespace = origin.namespace
        self.branches = [
            Branch(self, message, Reply(index, (), origin.end_ids, marks=origin.model.info.thinking))
            for index, message in enumerate(messages)
        ]
        live.growing.update((branch.message.id, branch) for branch in self.branches)
        self._origin = origin
        self._stream = stream
        self._store = store
        self._transcripts = transcripts
        self._reader = reader
        self._clock = clock
        self._prompt = b""
        self._usage: Usage | None = None
        self._num_cached: int | None = None
        self._failure: str | None = None
        self._task = asyncio.get_running_loop().create_task(self._work(), name=f"replies {live.conversation_id}")
        self._task.add_done_callback(lambda _: when_ended(self))

    async def wait(self) -> None:
        """Wait until everything is stored. Cancelling the wait does not end the task."""
        await asyncio.wait((self._task,))

    def abort(self) -> None:
        """Fail the replies soon: the server stops."""
        self._failure = SERVER_STOPPED
        self._stream.fail(UnavailableError(SERVER_STOPPED))

    async def stop(self, branch: Branch) -> None:
        """End one of the replies. The caller holds the lock `changing`."""
        self._end(branch, "stopped")
        await self._tell_end([branch])
        self._close_if_idle()

    def drop(self, branch: Branch) -> None:
        """Stop writing a reply whose message is gone."""
        branch.ended_s = self._clock()
        self._close_if_idle()

    async def remember_stopped(self, branch: Branch) -> None:
        """Cache the token ids of a stopped reply, if they spell exactly its text."""
        try:
            if branch.reply.token_ids:
                reply = self._transcripts, self._origin.transcript, branch.reply, self._prompt
                await remember_reply(*reply, is_cut=True)
        except RadixKVError as error:
            _LOG.info("a reply that was stopped is not remembered: %s", error)

    async def within(self, branch: Branch, text: str) -> Transcript | None:
        """See `Branch.within`."""
        if not self._prompt or self._origin.model.info.thinking is not None:
            return None  # the template decides how text after thoughts is written
        return await self._transcripts.within(self._origin.transcript, self._prompt, branch.reply.token_ids, text)

    def unsaved(self) -> list[Growth]:
        """Return the growth of replies since the last call."""
        growths: list[Growth] = []
        for branch in self.branches:
            message = branch.message
            if branch.is_running and len(message.text) > branch.num_saved:
                branch.num_saved = len(message.text)
                growths.append(Growth(self.live.conversation_id, message.id, message.text, message.seq))
        return growths

    # -- the task

    async def _work(self) -> None:
        failure = "the generation ended without an end"
        try:
            async with self._stream:
                await self._read()
        except (RadixKVError, ApiError) as error:
            failure = ApiError.of(error).message
        except Exception as fault:
            _LOG.exception("the generation of replies in %s failed", self.live.conversation_id)
            failure = ApiError.of(fault).message
        async with self.live.changing:
            left = [branch for branch in self.branches if self.live.growing.get(branch.message.id) is branch]
            for branch in left:
                if branch.is_running and branch.reply.reason is not None:
                    self._end(branch, "complete")
                elif branch.is_running:
                    self._end(branch, "failed", self._failure or failure)
            await self._tell_end(left)

    async def _read(self) -> None:
        while events := await self._stream.take():
            async with self.live.changing:
                ended: list[Branch] = []
                for event in events:
                    if isinstance(event, Delta) and event.num_cached_tokens is not None:
                        self._num_cached = event.num_cached_tokens
                    match event:
                        case Started():
                            self._prompt = event.prompt
                            replies, origin = [branch.reply for branch in self.branches], self._origin
                            await begin_replies(self._reader, origin.model, replies, event.prompt, origin.transcript)
                        case Delta() if (branch := self.branches[event.branch]).is_running:
                            self._grow(branch, branch.reply.push(event))
                        case BranchFinished() if (branch := self.branches[event.branch]).is_running:
                            self._grow(branch, branch.reply.finish(event))
                            await remember_reply(self._transcripts, self._origin.transcript, branch.reply, self._prompt)
                            if any(other.reply.reason is None for other in self.branches):
                                self._end(branch, "complete")
                                ended.append(branch)  # the last one ends with the generation, which reports its cost
                        case Completed():
                            self._usage = event.usage
                            ended = self._count_all()
                await self._tell_end(ended)
                self._close_if_idle()

    def _grow(self, branch: Branch, growth: ReplyGrowth) -> None:
        if not growth.text and not growth.thinking:
            return
        if branch.first_text_s is None:
            branch.first_text_s = self._clock()
        message = branch.message
        message.text += growth.text
        told = {"id": message.id, "text": growth.text}
        if growth.thinking:
            message.details = {**self._origin.about, "thinking": branch.reply.thinking}
            told["thinking"] = growth.thinking
        message.seq = self.live.next_version()
        self.live.tell("delta", told | {"seq": message.seq})

    def _end(self, branch: Branch, status: str, error: str | None = None) -> None:
        branch.ended_s = self._clock()
        branch.message.status, branch.message.error = status, error
        branch.message.details = self._details(branch)

    def _count_all(self) -> list[Branch]:
        """Finish all replies at the end of the generation; return those to announce."""
        for branch in self.branches:
            if branch.is_running and branch.reply.reason is not None:
                self._end(branch, "complete")
        ended = [branch for branch in self.branches if branch.message.status in ("complete", "stopped")]
        for branch in ended:
            branch.message.details = self._details(branch)
        return ended

    def _details(self, branch: Branch) -> dict[str, Any]:
        reply, usage = branch.reply, self._usage
        thoughts = {"thinking": reply.thinking, "thinking_tokens": reply.num_thinking_tokens} if reply.thinking else {}
        return {
            **self._origin.about,
            **thoughts,
            "model": self._origin.model.name,
            "prompt_tokens": len(self._prompt) // 4,
            "cached_tokens": usage.num_cached_tokens if usage else self._num_cached,
            "generated_tokens": len(reply.token_ids),
            "first_token_ms": self._since_start_ms(branch.first_text_s),
            "duration_ms": self._since_start_ms(branch.ended_s),
            "finish_reason": reply.reason.value if reply.reason else None,
            "drafts": len(self.branches),
            "generation": self.branches[0].message.id,
        }

    def _since_start_ms(self, at_s: float | None) -> float | None:
        return None if at_s is None else round((at_s - self._origin.started_s) * 1000, 1)

    async def _tell_end(self, ended: Sequence[Branch]) -> None:
        """Store the end of replies, then send it."""
        if not ended:
            return
        messages = [branch.message for branch in ended]
        try:
            change = await self._store.finish(self.live.conversation_id, messages, self.live.version)
        except RadixKVError as error:
            _LOG.error("the end of %d replies in %s is not stored: %s", len(ended), self.live.conversation_id, error)
            for message in messages:
                message.status, message.error = "failed", f"it could not be stored: {error}"
                message.seq = self.live.next_version()
                self.live.tell("message", message.body())
        else:
            if change is not None:
                self.live.tell_change(change)
        for message in messages:
            self.live.growing.pop(message.id, None)

    def _close_if_idle(self) -> None:
        """Close the stream once all replies have ended."""
        if not any(branch.is_running for branch in self.branches):
            self._stream.close()


class ReplyTasks:
    """The running generations. The event loop owns it."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self._running: set[ReplyTask] = set()
        self._num_running: Counter[str] = Counter()
        self._saving: asyncio.Task[None] | None = None

    def check_room(self, namespace: str, max_concurrent: int | None) -> None:
        """Raises LimitError: too many generations run, for the server or for this tenant's limit."""
        num_own, num_all = self._num_running[namespace], self._num_running.total()
        if num_own >= min(MAX_RUNNING // 2, max_concurrent or MAX_RUNNING) or num_all >= MAX_RUNNING:
            raise LimitError(f"{num_own} of your replies are being written already; try again later")

    def add(self, task: ReplyTask) -> None:
        """Register a task."""
        self._running.add(task)
        self._num_running[task.namespace] += 1
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save(), name="radixkv-save-replies")

    def remove(self, task: ReplyTask) -> None:
        """Remove an ended task."""
        self._running.remove(task)
        self._num_running[task.namespace] -= 1
        self._num_running += Counter()  # drops zero counts

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until none runs; False if some still run after `timeout_s`."""
        waiting = [asyncio.ensure_future(task.wait()) for task in self._running]
        if not waiting:
            return True
        _, left = await asyncio.wait(waiting, timeout=max(0.0, timeout_s))
        for one in left:
            one.cancel()
        return not left

    def abort_all(self) -> None:
        """End all tasks soon: the server stops."""
        for task in self._running:
            task.abort()

    async def aclose(self) -> None:
        """End all tasks and wait until each is stored: the server stops."""
        self.abort_all()
        for task in list(self._running):
            await task.wait()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait((self._saving,))

    async def _save(self) -> None:
        """Store the text so far, periodically, while a task exists."""
        while self._running:
            await asyncio.sleep(SAVE_S)
            growths = [growth for task in self._running for growth in task.unsaved()]
            try:
                if growths:
                    await self._store.save(growths)
            except RadixKVError as error:
                _LOG.error("what was written of %d replies is not stored: %s", len(growths), error)
        self._saving = None
