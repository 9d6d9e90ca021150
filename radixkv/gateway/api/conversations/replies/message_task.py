"""Replies under way: the messages that a generation becomes.

worker -> EventStream -> MessageTask -> replies that grow -> followers, at once
                                                         -> the store, every half second and before their end is sent
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.gateway.api.conversations.messages import Message
from radixkv.gateway.api.conversations.replies.live import Live, Piece
from radixkv.gateway.api.conversations.store.store import ConversationStore, Growth
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.transcripts import Transcript
from radixkv.gateway.turns.replies import Growth as ReplyGrowth
from radixkv.gateway.turns.replies import Reply, cost_of
from radixkv.gateway.turns.reply_task import ReplyTask, ReplyTasks
from radixkv.gateway.turns.turns import TurnReader
from radixkv.generation.stream import BranchFinished, Completed, Delta, GenerationEvent, Usage

__all__ = ["Branch", "MessageTask", "MessageTasks", "Origin"]

SAVE_S = 0.5
"""How often the text so far is stored, in seconds."""

SERVER_STOPPED = "the server stopped"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a generation: its request.

    namespace: of its owner. started_s: time of the request, on the clock of `MessageTask`. about: other details of its replies.
    """

    namespace: str
    started_s: float
    about: Mapping[str, Any] = field(default_factory=dict)


class Branch:
    """One reply of a generation."""

    def __init__(self, task: MessageTask, message: Message, reply: Reply) -> None:
        self.message = message
        self.reply = reply
        self.first_text_s: float | None = None
        self.ended_s: float | None = None
        self.num_saved = self.num_drawn = len(message.text)  # characters
        self._task = task

    def beyond_what_is_told(self, growth: ReplyGrowth) -> ReplyGrowth:
        """Return the growth after the text that another gateway has written, which is drawn again.

        Raises:
            UnavailableError: another text is drawn.
        """
        told = self.message.text[self.num_drawn :]
        self.num_drawn += len(growth.text)
        if not told:
            return growth
        if not (told.startswith(growth.text) or growth.text.startswith(told)):
            raise UnavailableError("its gateway was lost, and what it had begun to tell cannot be continued; ask again")
        return growth._replace(text=growth.text[len(told) :])

    @property
    def is_running(self) -> bool:
        """Whether it is still being written."""
        return self.ended_s is None

    async def stop(self) -> bool:
        """End it; its text so far stays. False: another gateway writes it by now. The caller holds the lock `changing`."""
        self._task.finish(self, "stopped")
        is_own = await self._task.store_end([self])
        self._task.close_if_idle()
        return is_own

    async def remember(self) -> None:
        """Cache the token ids of an ended reply for the next turn; of a stopped one, if they spell exactly its text."""
        try:
            if self.reply.token_ids and self.message.status != "failed":
                await self._task.turn.remember(self.reply, is_cut=self.message.status == "stopped")
        except RadixKVError as error:
            _LOG.info("a reply is not remembered: %s", error)

    def drop(self) -> None:
        """End it; its message is gone."""
        self.ended_s = self._task.clock()
        self._task.close_if_idle()

    async def within(self, text: str) -> Transcript | None:
        """Return the transcript of a reply that continues a beginning of its text; None: its token ids are not known yet."""
        return await self._task.turn.within(self.reply, text)


class MessageTask(ReplyTask):
    """The generation of one or more replies to one message. The event loop owns it.

    Args:
        live: the conversation, held until the end of the task; the caller holds its lock `changing`.
        messages: the replies, stored as running.
        origin: of the generation.
        turn: source of the events; of as many replies.
        store: of the replies.
        clock: seconds, as `time.perf_counter`.
    """

    def __init__(
        self,
        live: Live,
        messages: Sequence[Message],
        origin: Origin,
        turn: TurnReader,
        store: ConversationStore,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(f"{live.conversation_id}/{messages[0].id}", origin.namespace, turn)
        self.live = live
        self.branches = [Branch(self, *each) for each in zip(messages, turn.replies, strict=True)]
        live.growing.update((branch.message.id, branch) for branch in self.branches)
        self._origin = origin
        self._store = store
        self.clock = clock
        self._ended: list[Branch] = []  # to be stored and sent
        self._usage: Usage | None = None
        self._num_cached: int | None = None

    async def give_up(self, ids: Collection[str]) -> None:
        """Write these replies no longer: they were stopped or removed at another gateway."""
        async with self.live.changing:
            for branch in self.branches:
                if branch.message.id in ids and self.live.growing.pop(branch.message.id, None) is branch:
                    branch.drop()

    def draw_again(self, num_begun: int) -> None:
        """Write on what another gateway has begun: all after `num_begun` characters is drawn again; ended replies stay."""
        for branch in self.branches:
            branch.num_drawn = num_begun
            if branch.message.status != "running":
                branch.ended_s = self.clock()
                del self.live.growing[branch.message.id]

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

    async def _read(self, events: Sequence[GenerationEvent]) -> None:
        async with self.live.changing:
            await super()._read(events)
            ended, self._ended = self._ended, []
            await self.store_end(ended)
            self.close_if_idle()

    async def _grow(self, event: GenerationEvent) -> None:
        if isinstance(event, Delta) and event.num_cached_tokens is not None:
            self._num_cached = event.num_cached_tokens
        match event:
            case Delta() if (branch := self.branches[event.branch]).is_running:
                self._add(branch, branch.reply.push(event))
            case BranchFinished() if (branch := self.branches[event.branch]).is_running:
                self._add(branch, branch.reply.finish(event))
                if any(other.reply.reason is None for other in self.branches):
                    self.finish(branch, "complete")
                    self._ended.append(branch)  # the last one ends with the generation, which reports its cost
            case Completed():
                self._usage = event.usage
                self._ended = self._count_all()

    async def _end(self, failure: ApiError | None) -> None:
        if failure is not None and self.is_handed_on:
            await self._hand_on()
            return
        error = failure.message if failure is not None else "the generation ended without an end"
        async with self.live.changing:
            left = [branch for branch in self.branches if self.live.growing.get(branch.message.id) is branch]
            for branch in left:
                if branch.is_running and branch.reply.reason is not None:
                    self.finish(branch, "complete")
                elif branch.is_running:
                    self.finish(branch, "failed", error)
            await self.store_end(left)

    async def _hand_on(self) -> None:
        async with self.live.changing:
            left = [branch for branch in self.branches if self.live.growing.get(branch.message.id) is branch]
            for branch in left:
                del self.live.growing[branch.message.id]
            try:
                await self._store.save(
                    [Growth(self.live.conversation_id, b.message.id, b.message.text, b.message.seq) for b in left]
                )
                await self._store.leases.release(self.live.conversation_id, [branch.message.id for branch in left])
            except RadixKVError as error:
                _LOG.error("replies wait for the end of this gateway's lease: %s", error)

    def _add(self, branch: Branch, growth: ReplyGrowth) -> None:
        growth = branch.beyond_what_is_told(growth)
        if not growth.text and not growth.thinking:
            return
        if branch.first_text_s is None:
            branch.first_text_s = self.clock()
        message = branch.message
        position = len(message.text)
        message.text += growth.text
        told = {"id": message.id, "text": growth.text}
        if growth.thinking:
            message.details = {**self._origin.about, "thinking": branch.reply.thinking}
            told["thinking"] = growth.thinking
        message.seq = self.live.next_version()
        self.live.tell("delta", told | {"seq": message.seq})
        if self.live.spread is not None and growth.text:
            self.live.spread(Piece(self.live.conversation_id, message.id, position, growth.text, message.seq))

    def finish(self, branch: Branch, status: str, error: str | None = None) -> None:
        """Fill in the end of a reply."""
        branch.ended_s = self.clock()
        branch.message.status, branch.message.error = status, error
        branch.message.details = self._details(branch)

    def _count_all(self) -> list[Branch]:
        """Finish all replies at the end of the generation; return those to announce."""
        for branch in self.branches:
            if branch.is_running and branch.reply.reason is not None:
                self.finish(branch, "complete")
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
            "model": self.turn.plan.model.name,
            "prompt_tokens": len(self.turn.prompt) // 4,
            "cached_tokens": usage.num_cached_tokens if usage else self._num_cached,
            "loaded_tokens": usage.num_loaded_tokens if usage else None,
            "generated_tokens": len(reply.token_ids),
            **(cost_of(usage) if usage else {}),
            "first_token_ms": self._since_start_ms(branch.first_text_s),
            "duration_ms": self._since_start_ms(branch.ended_s),
            "finish_reason": reply.reason.value if reply.reason else None,
            "drafts": len(self.branches),
            "generation": self.branches[0].message.id,
        }

    def _since_start_ms(self, at_s: float | None) -> float | None:
        return None if at_s is None else round((at_s - self._origin.started_s) * 1000, 1)

    async def store_end(self, ended: Sequence[Branch]) -> bool:
        """Store the end of replies, then send it. False: none is this gateway's any more."""
        if not ended:
            return True
        messages = [branch.message for branch in ended]
        try:
            change = await self._store.finish(self.live.conversation_id, messages, self.live.version)
            is_own = change is not None
        except RadixKVError as error:
            is_own = True
            _LOG.error("the end of %d replies in %s is not stored: %s", len(ended), self.live.conversation_id, error)
            for message in messages:
                message.status, message.error = "failed", f"it could not be stored: {error}"
                message.seq = self.live.next_version()
                self.live.tell("message", message.body())
        else:
            if change is not None:
                kept = {message.id for message in change.messages}  # deleted replies are not remembered
                for branch in ended:
                    if branch.message.id in kept & self.live.growing.keys():
                        await branch.remember()
                self.live.tell_change(change)
        for message in messages:
            self.live.growing.pop(message.id, None)
        return is_own

    def close_if_idle(self) -> None:
        """Close the stream once all replies have ended."""
        if not any(branch.is_running for branch in self.branches):
            self.turn.stream.close()


class MessageTasks(ReplyTasks[MessageTask]):
    """The running generations of messages. The event loop owns it."""

    def __init__(self, store: ConversationStore) -> None:
        super().__init__("replies are being written", SERVER_STOPPED)
        self._store = store
        self._saving: asyncio.Task[None] | None = None

    def add(self, task: MessageTask) -> None:
        """Register a task until its end; the text of its replies is stored meanwhile."""
        super().add(task)
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save(), name="radixkv-save-replies")

    @property
    def written(self) -> set[tuple[str, str]]:
        """The replies being written, by conversation and message."""
        tasks = self._running.values()
        return {(task.live.conversation_id, branch.message.id) for task in tasks for branch in task.branches}

    async def aclose(self) -> None:
        """End all tasks and wait until each is stored: the server stops."""
        await super().aclose()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait((self._saving,))

    async def _save(self) -> None:
        """Store the text so far, periodically, while a task exists."""
        while self._running:
            await asyncio.sleep(SAVE_S)
            growths = [growth for task in self._running.values() for growth in task.unsaved()]
            try:
                if growths:
                    taken = await self._store.save(growths)
                    for task in list(self._running.values()) if taken else ():
                        await task.give_up(
                            {message_id for in_id, message_id in taken if in_id == task.live.conversation_id}
                        )
            except RadixKVError as error:
                _LOG.error("what was written of %d replies is not stored: %s", len(growths), error)
        self._saving = None
