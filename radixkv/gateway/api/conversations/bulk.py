"""One change to several conversations."""

from __future__ import annotations

from functools import partial
from typing import Any

from radixkv.gateway.api.conversations.conversation_service import ConversationService
from radixkv.gateway.api.conversations.messages import Conversation
from radixkv.gateway.api.conversations.schema import MAX_TAGS, BulkChange, dump_tags
from radixkv.gateway.api.conversations.writing import Value
from radixkv.gateway.protocol.errors import ApiError, conflict

__all__ = ["change_all"]

_FLAGS: dict[str, dict[str, Value]] = {
    "archive": {"is_archived": 1},
    "unarchive": {"is_archived": 0},
    "pin": {"is_pinned": 1},
    "unpin": {"is_pinned": 0},
}


async def change_all(service: ConversationService, namespace: str, asked: BulkChange) -> dict[str, Any]:
    """Change the conversations one by one; return changed ids, missing ids, and rejected ones with the reason."""
    done: list[str] = []
    missing: list[str] = []
    refused: list[dict[str, str]] = []
    for conversation_id in dict.fromkeys(asked.ids):
        try:
            await _change(service, namespace, conversation_id, asked)
            done.append(conversation_id)
        except ApiError as error:
            if error.status == 404:
                missing.append(conversation_id)
            else:
                refused.append({"id": conversation_id, "reason": error.message})
    return {"ids": done, "missing": missing, "refused": refused}


async def _change(service: ConversationService, namespace: str, conversation_id: str, asked: BulkChange) -> None:
    match asked.action:
        case "trash":
            await service.throw(namespace, conversation_id)
        case "restore":
            await service.restore(namespace, conversation_id)
        case "delete":
            await service.delete(namespace, conversation_id)
        case "tag" | "untag":
            await service.change(namespace, conversation_id, partial(_retagged, asked))
        case flag:
            await service.change(namespace, conversation_id, _FLAGS[flag])


def _retagged(asked: BulkChange, before: Conversation) -> dict[str, Value]:
    tags = [tag for tag in before.tags if tag != asked.tag] + [asked.tag or ""] * (asked.action == "tag")
    if len(tags) > MAX_TAGS:
        raise conflict(f"it has {MAX_TAGS} tags already", "tag")
    return {"tags": dump_tags(tags)}
