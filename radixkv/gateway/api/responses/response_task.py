"""One running response: the output and the events that a generation becomes.

    worker -> EventStream -> ResponseTask -> frames 0, 1, 2 ... -> any number of followers, from any frame on
                                          -> the store, before the last frame

A response outside the background ends when its request's client disconnects.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from radixkv.core.errors import RadixKVError
from radixkv.gateway.api.responses.item_lists import ItemLists
from radixkv.gateway.api.responses.items import assistant_turn
from radixkv.gateway.api.responses.live_events import LiveEvents
from radixkv.gateway.api.responses.output import Output
from radixkv.gateway.api.responses.plan import Plan
from radixkv.gateway.api.responses.response_store import ResponseStore
from radixkv.gateway.api.responses.tools import offers_of
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.follower import Follower, Followers
from radixkv.gateway.protocol.sse import sse
from radixkv.gateway.turns.logprobs import chat_logprobs
from radixkv.gateway.turns.replies import Growth, cost_of
from radixkv.gateway.turns.reply_task import ReplyTask, ReplyTasks
from radixkv.gateway.turns.turns import TurnReader
from radixkv.generation.stream import BranchFinished, Completed, Delta, FinishReason, GenerationEvent, Usage

__all__ = ["ResponseTask", "ResponseTasks"]

MAX_FINISHED = 64
"""Finished background responses whose events can still be followed."""

_LAST = ("response.completed", "response.incomplete", "response.failed")
_LOG = logging.getLogger(__name__)


class ResponseTask(ReplyTask):
    """The generation of one response. The event loop owns it.

    Args:
        plan: the parsed request; the task fills in its `body`.
        turn: source of the events; of one reply.
        store, lists: of the response, and of its conversation.
        live_events: of followers at other gateways; None: there are none.

    Attributes:
        failure: its error, if it failed.
        is_stored: whether the store has it.
        is_lost: whether another gateway writes it, or has ended it; only the store knows its state then.
    """

    def __init__(
        self,
        plan: Plan,
        turn: TurnReader,
        store: ResponseStore,
        lists: ItemLists,
        live_events: LiveEvents | None = None,
    ) -> None:
        self.body = plan.body
        (self._reply,) = turn.replies
        super().__init__(self.body["id"], plan.namespace, turn)
        self.is_background = bool(self.body["background"])
        self.keeps_events = bool(plan.request.stream)
        self.is_stored = plan.request.stores
        self.is_lost = False
        self.failure: ApiError | None = None
        self._plan = plan
        self._store = store
        self._lists = lists
        self._live_events = live_events if self.is_background else None
        self._frames: list[bytes] = []
        self._followers = Followers()
        self._output = Output(self._emit if self.keeps_events else None, offers_of(plan.request.tools), self.task_id)
        self._is_stopped = False
        self._emit_body("created")
        if self.is_background:
            self._emit_body("queued")

    async def current(self) -> dict[str, Any] | None:
        """Return the body so far; a final one only after it is stored and no longer counts as running. None: it is lost."""
        if self.body["status"] not in ("queued", "in_progress"):
            await self.wait()
        return None if self.is_lost else self.body

    def lose(self) -> None:
        """End it soon and store nothing: it is another gateway's. Harmless at the end."""
        self.is_lost = True
        self.turn.stream.close()

    def stop(self) -> None:
        """End it soon; its output so far stays. Harmless at the end."""
        self._is_stopped = True
        self.turn.stream.close()

    def follow(self, first: int = 0) -> Follower:
        """Return a follower from sequence number `first` on; outside the background, its leaving stops the task."""
        follower = Follower(b"".join(self._frames[first:]), None if self.is_background else self.stop)
        self._followers.add(follower)
        if self.work.done():
            follower.end()
        return follower

    # -- the task

    async def _work(self) -> None:
        self.body["status"] = "in_progress"
        self._emit_body("in_progress")
        await super()._work()

    async def _grow(self, event: GenerationEvent) -> None:
        match event:
            case Delta():
                await self._add(self._reply.push(event))
            case BranchFinished():
                await self._add(self._reply.finish(event))
            case Completed():
                self.body["usage"] = _usage(event.usage, self._reply.num_thinking_tokens)

    async def _add(self, growth: Growth) -> None:
        logprobs: list[dict[str, Any]] = []
        if growth.logprobs:
            logprobs = await chat_logprobs(self.turn.backend, growth.logprobs)
        self._output.add_thinking(growth.thinking)
        self._output.add_text(growth.text, logprobs)
        for piece in growth.calls:
            self._output.add_call(piece)

    async def _end(self, failure: ApiError | None) -> None:
        if self.is_lost:
            await self._let_go()
            return
        if failure is not None and self.is_handed_on:
            await self._hand_on()
            return
        reason = self._reply.reason
        if failure is None and reason is None and not self._is_stopped:
            failure = ApiError.of(RadixKVError("the generation ended without an end"))
        if failure is not None:
            self._fail(failure)
        elif reason is None:
            self._finish("cancelled")
        elif reason is FinishReason.LENGTH:
            self.body["incomplete_details"] = {"reason": "max_output_tokens"}
            self._finish("incomplete")
        else:
            self.body["completed_at"] = int(time.time())
            self._finish("completed")
        try:
            self.is_lost = not await self._keep()
        except RadixKVError as error:
            _LOG.error("response %s is not stored: %s", self.task_id, error)
            if self.is_stored and self.failure is None:  # another gateway would not have it
                if self.can_be_handed_on:
                    await self._hand_on()
                    return
                self._fail(ApiError.of(error))
        if self.is_lost:
            await self._let_go()
            return
        self._emit_end()
        self._followers.end()

    def _emit_end(self) -> None:
        status = self.body["status"]
        # The protocol has no event for a cancelled response: its follower cancelled it, or sees the status.
        self._emit_body("incomplete" if status == "cancelled" else status)

    async def _let_go(self) -> None:
        """End the followers of a lost response; those of one that has ended elsewhere get its stored end."""
        try:
            stored = await self._store.get(self.namespace, self.task_id)
        except (ApiError, RadixKVError) as error:
            _LOG.info("the end of response %s is not known: %s", self.task_id, error)
        else:
            self.body = stored
            if stored["status"] not in ("queued", "in_progress"):
                self._emit_end()
        self._followers.end()

    async def _hand_on(self) -> None:
        self.is_lost = True
        try:
            await self._store.release(self.task_id)
        except RadixKVError as error:
            _LOG.error("response %s waits for the end of this gateway's lease: %s", self.task_id, error)
        self._followers.end()

    def _finish(self, status: str) -> None:
        self._output.finish("completed" if status == "completed" else "incomplete")
        self.body |= {"status": status, "output": self._output.items}

    def _fail(self, error: ApiError) -> None:
        self.failure = error
        self._output.close("incomplete")
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        told = {"code": code, "message": error.message}
        ended = {"output": self._output.items, "completed_at": None, "incomplete_details": None}
        self.body |= {"status": "failed", "error": told, **ended}

    async def _keep(self) -> bool:
        """Store the finished response and cache its exact ids, so that responses and chats can continue it.

        False where it is lost or deleted.
        """
        plan, body, reply, exact = self._plan, self.body, self._reply, None
        transcript = self.turn.plan.transcript
        has_output = body["status"] in ("completed", "incomplete")
        if has_output and reply.is_exact:
            exact = await self.turn.transcripts.exact_tokens(reply.token_ids, reply.raw, reply.stop)
        tokens = b"" if exact is None else self.turn.prompt + exact
        if plan.request.stores and not await self._store.finish(body, tokens, transcript.model):
            return False  # a deleted response is not remembered
        if exact is not None and (turn := assistant_turn(body["output"])) is not None:
            await self.turn.transcripts.remember(transcript, turn, self.turn.prompt, exact, text=reply.raw)
        if has_output and plan.request.conversation_id is not None:
            try:
                items = [*plan.items, *body["output"]]
                await self._lists.add(self.namespace, plan.request.conversation_id, items)
            except ApiError as refusal:  # deleted or full by now; the response itself is complete
                _LOG.warning("response %s is not added to its conversation: %s", self.task_id, refusal)
        return True

    def _emit_body(self, kind: str) -> None:
        self._emit(f"response.{kind}", {"response": self.body})

    def _emit(self, kind: str, fields: dict[str, Any]) -> None:
        if self.keeps_events:
            number = len(self._frames)
            frame = sse({"type": kind, "sequence_number": number, **fields}, kind)
            self._frames.append(frame)
            self._followers.put(frame)
            if self._live_events is not None and not self.is_lost:
                self._live_events.send(self.task_id, number, frame, is_last=kind in _LAST)


def _usage(usage: Usage, num_thinking_tokens: int) -> dict[str, Any]:
    num_written = usage.num_prompt_tokens - usage.num_cached_tokens
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": num_written},
        "output_tokens": usage.num_generated_tokens,
        "output_tokens_details": {"reasoning_tokens": num_thinking_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_generated_tokens,
        **cost_of(usage),
    }


class ResponseTasks(ReplyTasks[ResponseTask]):
    """Running responses, and the events of some finished ones. The event loop owns it."""

    def __init__(self) -> None:
        super().__init__("responses run in the background", "the server is stopping")
        self._finished: OrderedDict[str, ResponseTask] = OrderedDict()

    def find(self, namespace: str, response_id: str, *, finished: bool = False) -> ResponseTask | None:
        """Return the task of a running response; with `finished`, also of a finished one that can still be followed."""
        task = self._running.get(response_id) or (self._finished.get(response_id) if finished else None)
        return task if task is not None and task.namespace == namespace else None

    def lose(self, ids: Collection[str]) -> None:
        """End the tasks of these responses soon: they are other gateways'."""
        for response_id in ids:
            if response_id in self._running:
                self._running[response_id].lose()

    @property
    def stored_ids(self) -> list[str]:
        """Ids of the running responses that are stored."""
        return [task.task_id for task in self._running.values() if task.is_stored]

    def forget(self, response_id: str) -> None:
        """Drop the events of a deleted response."""
        self._finished.pop(response_id, None)

    def _remove(self, task: ResponseTask) -> None:
        super()._remove(task)
        if task.is_background and task.keeps_events and not task.is_lost:
            self._finished[task.task_id] = task
            while len(self._finished) > MAX_FINISHED:
                self._finished.popitem(last=False)
