"""A gateway over a model of gibberish, and the official client at it; a file may have its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chat_stack import Stack, chat_stack
from openai import OpenAI


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.server.url, api_key="none", max_retries=0) as client:
        yield client
