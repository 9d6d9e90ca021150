"""Generations of other gateways, by the Valkey or Redis server that they share: the gateway that has one is asked for it.

    find     PUBLISH what is wanted, and a list for the answers  --  every gateway pushes the generation, or that it has none
    forget   PUBLISH the keys of deleted conversations           --  every gateway drops their generations

The server keeps nothing but answers, for seconds. While it is away each gateway has its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from radixkv.gateway.backend.generations import GeneratedBranch, Generations, ToldGeneration
from radixkv.gateway.storage.shared_streams import SharedStreams
from radixkv.gateway.storage.transcripts import Transcript, Transcripts

__all__ = ["Elsewhere"]

ASK_S = 1.0
"""How long the gateways are waited for. Below `TIMEOUT_S` of the streams, as is `_LISTEN_S`."""

_ANSWER_KEPT_S = 10
_LISTEN_S = 1.0
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)
"""Kinds of failures of reading what another version wrote."""

_CHANNEL = "radixkv:generations"
_LOG = logging.getLogger(__name__)


class Elsewhere:
    """Asks for generations, and answers for this gateway's. The event loop owns it.

    Args:
        streams: of the server. own: this gateway's. transcripts: resolve the history that a generation replies to.
    """

    def __init__(self, streams: SharedStreams, own: Generations, transcripts: Transcripts) -> None:
        self._streams = streams
        self._own = own
        self._transcripts = transcripts
        self._saying: set[asyncio.Task[None]] = set()
        streams.repeat(self._listen)

    async def find(self, namespace: str, generation_id: str) -> ToldGeneration | None:
        """The generation of that id as far as it is now, from the gateway that has it; None: none answers that it does."""
        answers = f"{_CHANNEL}:{uuid.uuid4().hex}"
        wanted = {"namespace": namespace, "id": generation_id, "answers": answers}
        redis = self._streams.redis
        with suppress(*self._streams.failures):
            until_s = time.monotonic() + ASK_S
            for _ in range(await redis.publish(_CHANNEL, json.dumps(wanted))):
                answer = await redis.blpop(answers, max(0.01, until_s - time.monotonic()))
                if answer is None:
                    break
                if answer[1]:
                    try:
                        return await self._read(json.loads(answer[1]), namespace, generation_id)
                    except _UNREADABLE as error:
                        _LOG.warning("an answer of another version is left out: %r", error)
        return None

    def forget(self, namespace: str, keys: Collection[bytes]) -> None:
        """Have the other gateways drop what replies to conversations of these keys; see `Generations.forget`."""
        message = json.dumps({"namespace": namespace, "forget": [key.hex() for key in keys]})
        saying = asyncio.get_running_loop().create_task(self._say(message), name="radixkv-forget")
        self._saying.add(saying)
        saying.add_done_callback(self._saying.discard)

    async def _say(self, message: str) -> None:
        try:
            await self._streams.redis.publish(_CHANNEL, message)
        except self._streams.failures as error:
            _LOG.warning("other gateways keep generations of a deleted conversation until they drop them: %s", error)

    async def _listen(self) -> None:
        async with self._streams.redis.pubsub() as channel:
            await channel.subscribe(_CHANNEL)
            while True:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=_LISTEN_S)
                if message is not None:
                    try:
                        await self._handle(json.loads(message["data"]))
                    except _UNREADABLE as error:
                        _LOG.warning("a message of another version on %s is left out: %r", _CHANNEL, error)

    async def _handle(self, told: dict[str, Any]) -> None:
        if "forget" in told:
            self._own.forget(told["namespace"], [bytes.fromhex(key) for key in told["forget"]])
            return
        found = self._own.find(told["namespace"], told["id"])
        batch = self._streams.redis.pipeline(transaction=False)
        batch.rpush(told["answers"], json.dumps(_written(found)) if found is not None else "")
        batch.expire(told["answers"], _ANSWER_KEPT_S)
        await batch.execute()

    async def _read(self, told: dict[str, Any], namespace: str, generation_id: str) -> ToldGeneration:
        fields: dict[str, Any] = {name: b64decode(told[name]) for name in _BYTES} | {
            name: told[name] for name in _PLAIN
        }
        keys = [bytes.fromhex(key) for key in told["path"]]
        parent = await self._transcripts.look_up(namespace, keys) if keys else None
        return ToldGeneration(
            generation_id,
            Transcript(**fields, namespace=namespace, parent=parent, tokenizer=told.get("tokenizer", "")),
            told["adapter"],
            b64decode(told["prompt"]),
            [GeneratedBranch(b64decode(tokens), text) for tokens, text in told["branches"]],
            told["cache_salt"],
        )


_BYTES = ("history", "model", "key", "stem")
_PLAIN = ("rest", "messages", "goes_on", "begun")
"""Fields of a transcript."""


def _written(told: ToldGeneration) -> dict[str, Any]:
    transcript = told.transcript
    path = [] if transcript.parent is None else [part.key.hex() for part in transcript.parent.path()][::-1]
    return {
        "adapter": told.adapter,
        "cache_salt": told.cache_salt,
        "prompt": _text(told.prompt),
        "branches": [(_text(branch.tokens.tobytes()), branch.text) for branch in told.branches],
        "path": path,
        "tokenizer": transcript.tokenizer,
        **{name: _text(getattr(transcript, name)) for name in _BYTES},
        **{name: getattr(transcript, name) for name in _PLAIN},
    }


def _text(data: bytes) -> str:
    return b64encode(data).decode()
