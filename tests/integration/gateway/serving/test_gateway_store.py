"""Prompt tokens that a worker loads from its block store are cached tokens of every API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import BLOCK_SIZE, Stack, chat_stack
from stored_engine import open_store

from radixkv.stores.costs import PrefillCost, PrefillMeter

QUESTION = [{"role": "user", "content": "Which rivers of France flow into the sea, and where? " * 8}]


@pytest.fixture(autouse=True)
def slow_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model computes faster than a busy machine reads: a block is said to take two seconds."""
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(2 / BLOCK_SIZE, 0.0))


@contextmanager
def started(model: str, folder: Path) -> Iterator[Stack]:
    with chat_stack(model, store=partial(open_store, folder)) as stack:
        yield stack


def post(stack: Stack, path: str, **fields: Any) -> Any:
    asked = {"model": "gibberish", "max_tokens": 2, **fields}
    return httpx.post(f"{stack.server.url}/{path}", json=asked, timeout=300).raise_for_status().json()


def test_loaded_tokens_are_cached_tokens(default_model: str, tmp_path: Path) -> None:
    with started(default_model, tmp_path) as stack:
        usage = post(stack, "chat/completions", messages=QUESTION)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    whole = usage["prompt_tokens"] // BLOCK_SIZE * BLOCK_SIZE
    with started(default_model, tmp_path) as stack:
        usage = post(stack, "chat/completions", messages=QUESTION)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == whole
        assert stack.engine.stats().engine.num_loaded_tokens == whole
    with started(default_model, tmp_path) as stack:
        usage = post(stack, "messages", messages=QUESTION)["usage"]
        assert usage["cache_read_input_tokens"] == whole
    with started(default_model, tmp_path) as stack:
        usage = post(stack, "responses", input=QUESTION, max_output_tokens=2, max_tokens=None)["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == whole
