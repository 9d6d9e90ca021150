"""The beginning of a reply, finished or being written, that another message continues.

user ── reply, still written ..                 at any character of it:
   │      └ position
   ├── a reply that continues there             `continue`
   └── the reply up to there ── user            a message below it
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import Request

from radixkv.core.errors import RadixKVError
from radixkv.gateway.api.conversations.conversation_service import ConversationService
from radixkv.gateway.api.conversations.messages import Message
from radixkv.gateway.api.conversations.replies.live import Growing, Live
from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.storage.transcripts import Transcript, Transcripts
from radixkv.gateway.turns.turns import read_prompt
from radixkv.generation.request import Message as Turn

__all__ = ["Begun", "cut_reply", "find_reply"]

_HALF = "\ufffd"


class Begun(NamedTuple):
    """The first characters of a reply. `growing`: it is still being written. `appended`: text to add after them."""

    reply: Message
    parent: str
    text: str
    growing: Growing | None
    appended: str = ""

    @property
    def details(self) -> dict[str, Any]:
        """Details of a message that begins with them."""
        told = {"continues": self.reply.id, "position": len(self.text)}
        return told | ({"appended": self.appended} if self.appended else {})

    async def transcript(self, request: Request, tenant: Tenant, above: Sequence[Message]) -> Transcript:
        """Return the transcript of a reply that continues them; `above`: the path to the message that it answers."""
        text = self.text + self.appended
        if self.growing is not None:
            found = await self.growing.within(text)
            if found is not None:
                return found
        transcripts: Transcripts = request.app.state.transcripts
        last: Turn = {"role": "assistant", "content": text}
        turns = request.app.state.conversations.turns_of(above)
        return await transcripts.read(tenant.namespace, [*turns, last], goes_on=True)


async def find_reply(
    request: Request, live: Live, tenant: Tenant, conversation_id: str, message_id: str, position: int | None
) -> Begun:
    """Return a reply up to `position`, in characters; None: all its text so far.

    Half a character at the end of a cut reply is left out, and sampled again.

    Raises:
        ApiError: 404: no such message. 400: not a reply, or shorter.
    """
    conversations: ConversationService = request.app.state.conversations
    found = live.current(await conversations.store.message(tenant.namespace, conversation_id, message_id))
    if found.role != "assistant" or found.parent is None:
        message = f"message {message_id!r} is of role {found.role}; only a reply to a message can be gone on from"
        raise invalid(message, "message_id")
    length = len(found.text)
    if position is not None and position > length:
        message = f"position is {position}; it must be at most {length}, the characters of the reply now"
        raise invalid(message, "position")
    text = found.text[:position]
    if position is None and not (found.details or {}).get("edited"):
        text = text.rstrip(_HALF)
    return Begun(found, found.parent, text, live.growing.get(message_id))


async def cut_reply(
    request: Request, tenant: Tenant, conversation_id: str, message_id: str, position: int, follower_id: str
) -> str:
    """Add a sibling of a reply that ends at `position`, as the parent of message `follower_id`; a repeat finds the same one.

    Returns its id, or the reply's own where that has ended there.

    Raises:
        ApiError: as `find_reply`, and as `add` of a message.
    """
    conversations: ConversationService = request.app.state.conversations
    with conversations.lives.held(conversation_id) as live:
        begun = await find_reply(request, live, tenant, conversation_id, message_id, position)
        if begun.growing is None and begun.text == begun.reply.text:
            return message_id
        cut_id = f"msg_{uuid.uuid5(uuid.NAMESPACE_OID, follower_id).hex}"
        details = {"model": (begun.reply.details or {}).get("model"), **begun.details}
        now_s = conversations.clock()
        cut = Message(cut_id, begun.parent, "assistant", begun.text, now_s, status="stopped", details=details)
        path = await conversations.store.path(tenant.namespace, conversation_id, begun.parent)
        try:
            transcript = await begun.transcript(request, tenant, path)
            prompt = await read_prompt(request.app.state.backend, transcript, ())
            nothing = {"role": "assistant", "content": ""}
            await conversations.transcripts.remember(transcript, nothing, prompt, b"", text="")
        except RadixKVError:
            pass  # its text is then tokenized
        await conversations.add(tenant.namespace, conversation_id, cut)
    return cut_id
