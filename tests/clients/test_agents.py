"""Coding agents that nobody here wrote, as their vendors ship them: Claude Code and Codex, from their first message on.

Fetched from npm into the cache folder at the first run (640 MB); skipped where they cannot be had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_stack import Stack, chat_stack

from bench.agents.clients import AgentMissingError, ClaudeCode, Codex, fetch_agents
from radixkv.gateway.config import GatewayConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs() -> Path:
    try:
        return fetch_agents()
    except AgentMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, log_requests=True)
    with chat_stack(default_model, config, num_blocks=12_000, max_model_len=100_000) as stack:
        yield stack


def num_cached(caplog: pytest.LogCaptureFixture, path: str) -> list[tuple[int, int]]:
    """Tokens of the prompt and of it found, of each of the agent's own requests; it asks for short titles beside them."""
    told = [
        re.search(rf"{path} status=200 prompt=(\d+) cached=(\d+)", record.getMessage()) for record in caplog.records
    ]
    return [(int(found[1]), int(found[2])) for found in told if found and int(found[1]) > 5_000]


def test_claude_code_reads_its_prompt_from_the_cache(
    programs: Path, stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "radixkv.gateway")
    claude = ClaudeCode(programs, tmp_path / "home", stack.server.address, "gibberish")
    claude.ask("Say hello", tmp_path / "work")
    claude.ask("Another conversation", tmp_path / "work")
    claude.ask("Go on", tmp_path / "work", goes_on=True)
    (_, at_first), (length, in_second), (_, in_turn) = num_cached(caplog, "/v1/messages")
    assert at_first == 0
    assert in_second > 0.9 * length
    assert in_turn > 0.99 * length
    assert not any("billing-header" in stack.engine.shown(index) for index in range(len(stack.engine.prompts)))


def test_codex_has_its_calls_carried_out(
    programs: Path, stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "radixkv.gateway")
    codex = Codex(programs, tmp_path / "home", stack.server.address, "gibberish")
    call = {"name": "multi_agent_v1.wait_agent", "arguments": {"targets": ["nobody"]}}
    stack.dictate(f"<tool_call>{json.dumps(call)}</tool_call>")
    codex.ask("Wait", tmp_path / "work")
    (length, _), (second_length, cached) = num_cached(caplog, "/v1/responses")
    assert "invalid agent id nobody" in stack.engine.shown()  # what Codex's own function has answered
    assert second_length > length
    assert cached >= length
