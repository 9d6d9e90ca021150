"""Small responses to store, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from radixkv.gateway.api.responses.response_store import ResponseStore

__all__ = ["add", "body", "item", "run", "texts"]


def body(response_id: str, status: str = "in_progress", text: str | None = None) -> dict[str, Any]:
    output = [] if text is None else [{"id": f"msg_{response_id}", "type": "message", "text": text}]
    return {"id": response_id, "status": status, "output": output, "metadata": {"of": response_id}}


def item(text: str) -> dict[str, Any]:
    return {"id": f"in_{text}", "type": "message", "text": text}


async def add(store: ResponseStore, response_id: str, parent: str | None, tokens: bytes, namespace: str = "a") -> None:
    """A whole exchange: asked, answered, stored."""
    await store.begin(namespace, body(response_id), [item(f"to {response_id}")], parent)
    await store.finish(body(response_id, "completed", f"of {response_id}"), tokens)


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["text"] for item in items]


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)
