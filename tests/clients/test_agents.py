"""Coding agents that nobody here wrote, as their vendors ship them: Claude Code and Codex, from their first message on.

Fetched from npm into the cache folder at the first run (640 MB); skipped where they cannot be had.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_stack import Stack, chat_stack

from radixkv.core.folders import cache_folder
from radixkv.gateway.config import GatewayConfig

PACKAGES = ("@anthropic-ai/claude-code@2.1", "@openai/codex@0.169")
TIMEOUT_S = 120.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs() -> Path:
    folder = cache_folder() / "clients" / "agents"
    if not (folder / "node_modules" / ".bin" / "codex").exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no npm: Claude Code and Codex cannot be fetched")
        folder.mkdir(parents=True, exist_ok=True)
        fetched = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES],
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode:
            pytest.skip(f"Claude Code and Codex cannot be fetched: {fetched.stderr[-200:]}")
    return folder / "node_modules" / ".bin"


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, log_requests=True)
    with chat_stack(default_model, config, num_blocks=12_000, max_model_len=100_000) as stack:
        yield stack


def run(command: list[str], folder: Path, **environment: str) -> str:
    folder.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "HOME")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=kept | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    given = {
        "ANTHROPIC_BASE_URL": f"http://{stack.server.address}",
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_MODEL": "gibberish",
        "ANTHROPIC_SMALL_FAST_MODEL": "gibberish",
        "CLAUDE_CONFIG_DIR": str(tmp_path / "config"),
    }
    claude = str(programs / "claude")
    for arguments in (["-p", "Say hello"], ["-p", "Another conversation"], ["-c", "-p", "Go on"]):
        run([claude, *arguments], tmp_path / "work", **given)
    (_, at_first), (length, in_second), (_, in_turn) = num_cached(caplog, "/v1/messages")
    assert at_first == 0
    assert in_second > 0.9 * length
    assert in_turn > 0.99 * length
    assert not any("billing-header" in stack.engine.shown(index) for index in range(len(stack.engine.prompts)))


def test_codex_has_its_calls_carried_out(
    programs: Path, stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "radixkv.gateway")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        'model = "gibberish"\nmodel_provider = "own"\n[model_providers.own]\nname = "own"\nwire_api = "responses"\n'
        f'base_url = "{stack.server.url}"\n'
    )
    call = {"name": "multi_agent_v1.wait_agent", "arguments": {"targets": ["nobody"]}}
    stack.dictate(f"<tool_call>{json.dumps(call)}</tool_call>")
    run([str(programs / "codex"), "exec", "--skip-git-repo-check", "Wait"], tmp_path / "work", CODEX_HOME=str(home))
    (length, _), (second_length, cached) = num_cached(caplog, "/v1/responses")
    assert "invalid agent id nobody" in stack.engine.shown()  # what Codex's own function has answered
    assert second_length > length
    assert cached >= length
