"""State of a gateway across requests: stored responses, conversations, transcripts, batches, running replies.

One file stores it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from fastapi import FastAPI

from radixkv.core.errors import RadixKVError
from radixkv.gateway.api.billing import kept_bills
from radixkv.gateway.api.conversations.conversation_service import ConversationService
from radixkv.gateway.api.conversations.replies.live_text import LiveText
from radixkv.gateway.api.jobs.batches import BatchStore
from radixkv.gateway.api.jobs.files import FileStore
from radixkv.gateway.api.jobs.quotas import JobLimits
from radixkv.gateway.api.jobs.running import JobRunner
from radixkv.gateway.api.responses.item_lists import ItemLists
from radixkv.gateway.api.responses.live_events import LiveEvents
from radixkv.gateway.api.responses.response_store import ResponseStore
from radixkv.gateway.api.responses.response_task import ResponseTasks
from radixkv.gateway.backend.elsewhere import Elsewhere
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.owners import BEAT_S, beat, num_gateways
from radixkv.gateway.storage.shared_streams import SharedStreams
from radixkv.gateway.storage.transcript_cache import TranscriptCacheLimits
from radixkv.gateway.storage.transcripts import Transcripts
from radixkv.gateway.takeover import release_left, take_over

__all__ = ["kept_state"]

SWEEP_S = 300.0
"""How often expired entries are removed, in seconds. An expired entry is never returned, removed or not."""

LOOK_S = 0.5
"""How often followers get the changes of other gateways, in seconds."""

_LOG = logging.getLogger(__name__)


@asynccontextmanager
async def kept_state(app: FastAPI) -> AsyncIterator[None]:
    """The application's lifespan: opens its state file and sets
    `state.database`, `state.store`, `state.item_lists`, `state.conversations`, `state.transcripts`, `state.response_tasks`,
    `state.live_events`, `state.elsewhere`, `state.files`, `state.batches` and `state.jobs`.

    At the end, everything under way is ended and stored.

    Raises:
        DatabaseError: the state file cannot be opened, e.g. because another gateway uses it.
    """
    state = app.state
    config = state.config
    with Database(config.state_file) as database:
        state.database = database
        state.response_tasks = ResponseTasks()
        limits = TranscriptCacheLimits(ttl_s=config.response_ttl_s)

        def forget_generations(namespace: str, keys: Collection[bytes]) -> None:
            state.generations.forget(namespace, keys)
            if state.elsewhere is not None:
                state.elsewhere.forget(namespace, keys)

        state.transcripts = Transcripts(state.backend, database, limits, when_forgotten=forget_generations)
        state.store = ResponseStore(
            database,
            ttl_s=config.response_ttl_s,
            max_responses=config.max_responses,
            max_bytes=config.max_response_bytes,
        )
        state.item_lists = ItemLists(
            database, max_lists=config.max_conversations, max_bytes=config.max_conversation_bytes
        )
        state.conversations = ConversationService(
            database,
            state.transcripts,
            max_conversations=config.max_conversations,
            max_bytes=config.max_conversation_bytes,
            system_prompt=config.system_prompt,
        )
        job_limits = JobLimits(max_file_bytes=config.max_file_bytes, max_bytes=config.max_job_bytes)
        state.files = FileStore(database, job_limits)
        state.batches = BatchStore(database, job_limits)
        state.jobs = JobRunner(
            app,
            state.files,
            state.batches,
            keys=state.keys,
            calls=state.body_calls,
            gate=state.gate,
            max_body_bytes=config.max_body_bytes,
        )
        loops = [_sweep(state.store, state.transcripts, state.conversations)]
        if database.is_shared:
            loops += [_keep_lease(app), _end_left(app), _look_elsewhere(state.conversations)]
        await state.limits.start()
        if state.clears is not None:
            await state.clears.open(database)
        streams = state.live_events = state.elsewhere = None
        if config.shared_url is not None and database.is_shared:
            streams = SharedStreams(config.shared_url)
            state.live_events = LiveEvents(streams)
            state.elsewhere = Elsewhere(streams, state.generations, state.transcripts)
            live_text = LiveText(streams, state.conversations.lives, state.conversations.look_at)
            state.conversations.lives.spread = live_text.send
        tasks = [asyncio.create_task(loop, name="radixkv-sweep") for loop in loops]
        try:
            async with kept_bills(app):
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if state.clears is not None:
                await state.clears.aclose()
            await state.jobs.aclose()
            await state.response_tasks.aclose()
            await state.conversations.aclose()
            if streams is not None:
                await streams.aclose()
            await state.transcripts.aclose()
            await state.limits.aclose()


async def _keep_lease(app: FastAPI) -> None:
    """Renew this gateway's lease, and end what others have taken from it. Waits for nothing but the database."""
    state = app.state
    database, tasks = state.database, state.response_tasks
    while True:
        try:
            await database.run(lambda connection: beat(connection, database.owner))
            if state.config.shared_url is None:
                state.limits.num_gateways = max(1, await database.run(num_gateways))
            if tasks.stored_ids:
                tasks.lose(await state.store.taken(tasks.stored_ids))
        except RadixKVError as error:
            _LOG.error("this gateway's lease is not renewed: %s", error)
        await asyncio.sleep(BEAT_S)


async def _end_left(app: FastAPI) -> None:
    """End what gateways without a lease have left. A worker that is away is waited for."""
    state = app.state
    left: set[str | tuple[str, str]] = set()
    while True:
        try:
            left = await release_left(app, left)
            if not state.gate.is_draining:
                await take_over(app)
            await state.store.fail_lost()
            await state.conversations.store.leases.fail_lost()
        except RadixKVError as error:
            _LOG.error("what other gateways left unfinished waits: %s", error)
        await asyncio.sleep(BEAT_S)


async def _look_elsewhere(conversations: ConversationService) -> None:
    while True:
        try:
            await conversations.look_elsewhere()
        except RadixKVError as error:
            _LOG.error("followers wait for what other gateways write: %s", error)
        await asyncio.sleep(LOOK_S)


async def _sweep(store: ResponseStore, transcripts: Transcripts, conversations: ConversationService) -> None:
    while True:
        try:
            num_removed, num_forgotten = await store.sweep(), transcripts.sweep()
            if num_removed or num_forgotten:
                _LOG.info("%d stored responses and %d turns have expired", num_removed, num_forgotten)
            await conversations.sweep()
        except RadixKVError as error:
            _LOG.error("expired responses are not removed: %s", error)
        await asyncio.sleep(SWEEP_S)
