"""Calls of batches by the OpenAI SDK, for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from openai import OpenAI
from openai.types import Batch

from radixkv.gateway.server import GatewayServer

__all__ = ["CHAT", "body_of", "client_of", "create", "ended", "jsonl", "line", "results"]

CHAT = "/v1/chat/completions"
OPEN = ("validating", "in_progress", "finalizing", "cancelling")


@contextmanager
def client_of(server: GatewayServer, key: str = "red") -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key=key, max_retries=0) as client:
        yield client


def body_of(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, **fields}


def line(custom_id: str, body: Any, url: str = CHAT) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def create(client: OpenAI, *lines: Any, endpoint: Any = CHAT, **fields: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


def ended(client: OpenAI, batch: Batch, among: Collection[str] = OPEN) -> Batch:
    """The batch when its status is no longer `among` these."""
    while (now := client.batches.retrieve(batch.id)).status in among:
        time.sleep(0.05)  # a tenant's reads have a rate of their own
    return now


def results(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """Lines of a file of results by `custom_id`, each once."""
    assert file_id is not None
    text = client.files.content(file_id).text
    assert len(text.encode()) == client.files.retrieve(file_id).bytes
    lines = [json.loads(each) for each in text.splitlines()]
    found = {each["custom_id"]: each for each in lines}
    assert len(found) == len(lines)
    return found
