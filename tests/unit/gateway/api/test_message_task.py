"""Replies as they are written, stopped and stored: what is told of each end, also where the worker or the database fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from radixkv.core.errors import LimitError, UnavailableError
from radixkv.gateway.api.conversations.messages import Message, new_id
from radixkv.gateway.api.conversations.replies import message_task
from radixkv.gateway.api.conversations.replies.live import Lives
from radixkv.gateway.api.conversations.replies.message_task import Branch, MessageTask, MessageTasks, Origin
from radixkv.gateway.api.conversations.store.rows import CUT_SHORT
from radixkv.gateway.api.conversations.store.store import ConversationStore, Growth
from radixkv.gateway.api.conversations.writing import Change
from radixkv.gateway.protocol.follower import Follower
from radixkv.gateway.storage.database import Database
from radixkv.gateway.turns import reply_task
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.turns import TurnPlan
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ModelInfo
from radixkv.generation.stream import BranchFinished, Completed, Delta, FinishReason, GenerationEvent, Started, Usage

MODEL = ServedModel("m", ModelInfo("m", 4096, 100, 16, (2,), True), "fp")
PROMPT = b"\1\0\0\0" * 7
USAGE = Usage(7, 5, 9, 11, 0.25, 4)


class Events:
    """A worker's stream, told by the test."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[list[GenerationEvent] | Exception] = asyncio.Queue()
        self.is_closed = self.has_left = False

    async def __aenter__(self) -> Events:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.has_left = True

    async def take(self) -> list[GenerationEvent]:
        taken = await self.waiting.get()
        if isinstance(taken, Exception):
            raise taken
        return taken

    def tell(self, *events: GenerationEvent) -> None:
        self.waiting.put_nowait(list(events))

    def close(self) -> None:
        self.is_closed = True
        self.waiting.put_nowait([])

    def fail(self, error: Exception) -> None:
        self.waiting.put_nowait(error)


class BrokenStore(ConversationStore):
    """Stores nothing while it is broken."""

    is_broken = False

    async def save(self, growths: Sequence[Growth]) -> None:
        self._check()
        await super().save(growths)

    async def finish(self, *args: Any) -> Change | None:
        self._check()
        return await super().finish(*args)

    def _check(self) -> None:
        if self.is_broken:
            raise UnavailableError("the disk is full")


class Desk:
    """A conversation with a question, replies to it that are written, and who looks on."""

    def __init__(self, store: BrokenStore) -> None:
        self.store = store
        self.tasks = MessageTasks(store)
        self.lives = Lives()
        self.events = Events()
        self.remembered: list[tuple[str, list[int]]] = []
        self.reader_fails = False
        self.now_s = 10.0

    async def begin(self, num_drafts: int = 1) -> None:
        asked = Message(new_id("msg"), None, "user", "?", 5.0)
        made = await self.store.create("a", messages=[asked])
        self.live = self.lives.hold(made.id)
        self.follower: Follower = self.lives.join(self.live, "a", b"snapshot")
        replies = [Message(new_id("msg"), asked.id, "assistant", "", 5.0, status="running") for _ in range(num_drafts)]
        change = await self.store.begin("a", made.id, replies, 0)
        self.live.tell_change(change)
        nothing: Any = None  # nobody here looks at the transcript
        plan = TurnPlan(model=MODEL, sampling=SamplingParams(n=num_drafts), transcript=nothing)
        fakes: Any = (SimpleNamespace(transcripts=self, backend=self), self.events)
        turn = plan.reader(*fakes)
        origin = Origin("a", 10.0)
        self.task = MessageTask(self.live, change.messages, origin, turn, self.store, clock=lambda: self.now_s)
        self.tasks.add(self.task)
        self.events.tell(Started("g", PROMPT))

    async def remember(self, *args: Any, text: str, stop: object, is_cut: bool) -> None:
        del stop
        if is_cut and self.reader_fails:
            raise UnavailableError("the worker is gone")
        self.remembered.append((text, list(args[3])))

    async def read(self) -> None:
        """Until all that was told is taken in."""
        while not self.events.waiting.empty():
            await asyncio.sleep(0)
        async with self.live.changing:
            pass

    async def stop(self, branch: Branch) -> None:
        async with self.live.changing:
            await branch.stop()

    async def stored(self) -> list[Message]:
        """The replies, as they are told to who asks now."""
        conversation, messages = await self.store.open("a", self.live.conversation_id)
        return self.live.as_it_stands(conversation, messages)[1][1:]

    def frames(self) -> bytes:
        return b"".join(self.follower._frames)


def say(text: str, branch: int = 0, token_ids: bytes | None = None) -> Delta:
    return Delta(branch, tuple(text.encode() if token_ids is None else token_ids), text)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Database(tmp_path / "state.sqlite") as database:
        yield Desk(BrokenStore(database, clock=lambda: 1000.0))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story(), 300)

    asyncio.run(bounded())


@pytest.mark.parametrize("told", ["one tw", ""])
def test_a_reply_that_was_stopped_is_remembered_and_tells_its_cost(desk: Desk, told: str) -> None:
    async def story() -> None:
        await desk.begin()
        desk.events.tell(Delta(0, tuple(told.encode()), told, num_cached_tokens=3))
        await desk.read()
        await desk.stop(desk.task.branches[0])
        await desk.task.wait()
        [stopped] = await desk.stored()
        assert (stopped.status, stopped.text) == ("stopped", told)
        assert stopped.details is not None
        assert (stopped.details["cached_tokens"], stopped.details["generated_tokens"]) == (3, len(told))
        assert desk.events.is_closed
        assert desk.remembered == ([(told, list(told.encode()))] if told else [])

    run(story)


@pytest.mark.parametrize("drawn", [("one tw", "o three"), ("on", "e", " two", " three"), ("one two three",)])
def test_what_another_gateway_has_told_is_drawn_again_and_told_once(desk: Desk, drawn: Sequence[str]) -> None:
    async def story() -> None:
        await desk.begin()
        [branch] = desk.task.branches
        branch.message.text = "one two"
        desk.task.draw_again(0)
        desk.events.tell(*map(say, drawn))
        await desk.read()
        assert branch.message.text == "one two three"
        assert b"one" not in desk.frames()
        await desk.stop(branch)
        await desk.task.wait()

    run(story)


def test_a_reply_that_is_drawn_again_otherwise_than_it_was_told_ends(desk: Desk) -> None:
    async def story() -> None:
        await desk.begin()
        desk.task.branches[0].message.text = "one two"
        desk.task.draw_again(0)
        desk.events.tell(say("one "), say("three"))
        await desk.task.wait()
        [failed] = await desk.stored()
        assert (failed.status, failed.text) == ("failed", "one two")
        assert failed.error is not None
        assert "cannot be continued" in failed.error

    run(story)


def test_a_reply_is_stopped_though_the_worker_cannot_be_asked_what_its_tokens_say(desk: Desk) -> None:
    async def story() -> None:
        await desk.begin()
        desk.events.tell(say("one"))
        await desk.read()
        desk.reader_fails = True
        await desk.stop(desk.task.branches[0])
        [stopped] = await desk.stored()
        assert (stopped.status, stopped.text) == ("stopped", "one")
        assert desk.remembered == []

    run(story)


@pytest.mark.parametrize("end", ["complete", "stopped", "failed"])
def test_an_end_that_cannot_be_stored_is_told_as_a_failure_and_leaves_nothing_under_way(desk: Desk, end: str) -> None:
    async def story() -> None:
        await desk.begin()
        desk.events.tell(say("one"))
        await desk.read()
        desk.store.is_broken = True
        if end == "complete":
            desk.events.tell(BranchFinished(0, FinishReason.STOP), Completed(USAGE))
            desk.events.tell()
        elif end == "stopped":
            await desk.stop(desk.task.branches[0])
        else:
            desk.events.fail(UnavailableError("the worker is gone"))
        await desk.task.wait()
        assert desk.events.has_left
        assert desk.live.growing == {}
        assert b'"status":"failed"' in desk.frames()
        assert b"the disk is full" in desk.frames()
        assert b'"status":"complete"' not in desk.frames()
        await asyncio.sleep(0)
        assert await desk.tasks.wait_empty(0.0)
        desk.store.is_broken = False
        [left] = await desk.stored()
        assert (left.status, left.error) == ("failed", CUT_SHORT), "so it is told to who comes later"
        async with desk.lives.changing(desk.live.conversation_id):
            await desk.store.change("a", desk.live.conversation_id, {"title": "still here"}, desk.live.version)

    run(story)


def test_of_several_drafts_each_ends_by_itself_and_the_last_with_what_all_have_cost(desk: Desk) -> None:
    async def story() -> None:
        await desk.begin(3)
        first, second, third = desk.task.branches
        desk.now_s = 11.0
        desk.events.tell(say("a", 0), say("b", 1))
        await desk.read()
        desk.now_s = 12.0
        desk.events.tell(BranchFinished(0, FinishReason.STOP))
        await desk.read()
        assert [message.status for message in await desk.stored()] == ["complete", "running", "running"]
        assert desk.remembered == [("a", [ord("a")])]
        await desk.stop(second)
        desk.events.tell(say("more", 1), say("c", 2))
        await desk.read()
        assert not desk.events.is_closed
        desk.events.tell(BranchFinished(2, FinishReason.LENGTH), Completed(USAGE))
        desk.events.tell()
        await desk.task.wait()
        told = await desk.stored()
        assert [(message.status, message.text) for message in told] == [
            ("complete", "a"),
            ("stopped", "b"),
            ("complete", "c"),
        ]
        details = [message.details or {} for message in told]
        assert [each["cached_tokens"] for each in details] == [5, 5, 5]
        assert [each["loaded_tokens"] for each in details] == [4, 4, 4]
        assert [each["prompt_tokens"] for each in details] == [7, 7, 7]
        assert [each["generated_tokens"] for each in details] == [1, 1, 1]
        assert [each["finish_reason"] for each in details] == ["stop", None, "length"]
        assert [each["first_token_ms"] for each in details] == [1000.0, 1000.0, 2000.0]
        assert [each["duration_ms"] for each in details] == [2000.0] * 3
        assert {each["generation"] for each in details} == {first.message.id}
        assert third.message.error is None

    run(story)


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_generation_that_fails_fails_those_that_have_not_ended_with_the_reason(desk: Desk, is_stopping: bool) -> None:
    async def story() -> None:
        await desk.begin(2)
        desk.events.tell(say("a", 0), say("b", 1), BranchFinished(1, FinishReason.STOP))
        await desk.read()
        if is_stopping:
            await desk.tasks.aclose()
        else:
            desk.events.fail(UnavailableError("the worker is gone"))
        await desk.task.wait()
        told = await desk.stored()
        reason = message_task.SERVER_STOPPED if is_stopping else "the worker is gone"
        assert [(message.status, message.text) for message in told] == [("failed", "a"), ("complete", "b")]
        assert [message.error for message in told] == [reason, None]

    run(story)


def test_a_reply_whose_message_is_gone_is_stored_no_more_and_the_last_one_ends_the_generation(desk: Desk) -> None:
    async def story() -> None:
        await desk.begin(2)
        for branch in desk.task.branches:
            assert not desk.events.is_closed
            async with desk.live.changing:
                await desk.store.remove("a", desk.live.conversation_id, branch.message.id, 0)
                desk.live.growing.pop(branch.message.id)
                branch.drop()
        assert desk.events.is_closed
        await desk.task.wait()
        assert await desk.stored() == []

    run(story)


def test_what_is_written_is_stored_now_and_then_and_a_failure_to_do_so_is_made_up_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_task, "SAVE_S", 0.001)

    async def until_stored(text: str) -> None:
        while True:
            _, messages = await desk.store.open("a", desk.live.conversation_id)
            if messages[1].text == text:
                return
            await asyncio.sleep(0)

    async def story() -> None:
        await desk.begin()
        desk.events.tell(say("one"))
        await until_stored("one")
        desk.store.is_broken = True
        desk.events.tell(say(" two"))
        await desk.read()
        await asyncio.sleep(0.01)
        desk.store.is_broken = False
        desk.events.tell(say(" three"))
        await until_stored("one two three")
        assert desk.task.unsaved() == []
        await desk.tasks.aclose()
        assert len(asyncio.all_tasks()) == 2, "this one and who waits for it"

    run(story)


def test_so_many_generations_run_at_once_and_of_one_tenant_half_as_many(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_task, "MAX_RUNNING", 4)

    class Running:
        is_background = True

        def __init__(self, namespace: str) -> None:
            self.namespace = namespace
            self.task_id = new_id("task")

        def when_ended(self, callback: Callable[[], None]) -> None:
            self.end = callback

        def unsaved(self) -> list[Growth]:
            return []

    async def story() -> None:
        begun: list[Any] = []

        def begin(namespace: str, max_concurrent: int | None = None) -> None:
            desk.tasks.check_room(namespace, max_concurrent)
            begun.append(Running(namespace))
            desk.tasks.add(begun[-1])

        begin("a", 1)
        with pytest.raises(LimitError, match="1 of your replies"):
            begin("a", 1)
        begin("a", 5)
        with pytest.raises(LimitError, match="2 of your replies"):
            begin("a")
        begin("b")
        begin("c")
        with pytest.raises(LimitError, match="0 of your replies"):
            begin("d")
        begun[0].end()
        begin("a")
        for each in begun[1:]:
            each.end()
        begin("d")

    run(story)
