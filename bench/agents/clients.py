"""Claude Code and Codex, as distributed by their vendors: fetched from npm into the cache folder, one message at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from radixkv.util.folders import cache_folder

__all__ = ["PACKAGES", "Agent", "AgentMissingError", "ClaudeCode", "Codex", "fetch_agents"]

PACKAGES = ("@anthropic-ai/claude-code@2.1", "@openai/codex@0.169")
FETCH_S, RUN_S = 900.0, 300.0


class AgentMissingError(RuntimeError):
    """The agents are missing and cannot be fetched."""


def fetch_agents() -> Path:
    """Folder of both programs, fetched by the first process that needs it (640 MB).

    Raises:
        AgentMissingError: npm is missing, or could not fetch them.
    """
    folder = cache_folder() / "clients" / "agents"
    told = folder / "packages.json"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not told.exists() or json.loads(told.read_text()) != list(PACKAGES):
            _install(folder)
            told.write_text(json.dumps(PACKAGES))
    return folder / "node_modules" / ".bin"


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise AgentMissingError("no npm: Claude Code and Codex cannot be fetched")
    print(f"fetching {' and '.join(PACKAGES)} into {folder}", file=sys.stderr)
    command = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
    except subprocess.TimeoutExpired as error:
        raise AgentMissingError(f"Claude Code and Codex cannot be fetched: {error}") from None
    if done.returncode:
        raise AgentMissingError(f"Claude Code and Codex cannot be fetched: {done.stderr[-200:]}")


class Agent(Protocol):
    """A program that works in a folder.

    Attributes:
        name: for users.
        path: of the API that it sends requests to.
    """

    name: str
    path: str

    def ask(self, said: str, folder: Path, *, goes_on: bool = False) -> str:
        """Run it on a message in `folder`, in a new conversation or the last one of that folder. Returns its output."""
        ...

    def read(self, file: Path) -> tuple[str, dict[str, Any]]:
        """Its model's call for reading a file: name and arguments."""
        ...

    def run(self, command: str) -> tuple[str, dict[str, Any]]:
        """Its model's call for running a command."""
        ...


class ClaudeCode:
    """Claude Code, against an Anthropic API.

    Args:
        programs: folder of the programs.
        home: its state between runs.
        address: ``host:port``.
        model: name of the model in the API.
    """

    name = "Claude Code"
    path = "/v1/messages"

    def __init__(self, programs: Path, home: Path, address: str, model: str) -> None:
        self._program = str(programs / "claude")
        self._environment = {
            "ANTHROPIC_BASE_URL": f"http://{address}",
            "ANTHROPIC_API_KEY": "any",
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model,
            "HOME": str(home),
        }
        home.mkdir(parents=True, exist_ok=True)

    def ask(self, said: str, folder: Path, *, goes_on: bool = False) -> str:
        return _run([self._program, *(["-c"] if goes_on else []), "-p", said], folder, self._environment)

    def read(self, file: Path) -> tuple[str, dict[str, Any]]:
        return "Read", {"file_path": str(file)}

    def run(self, command: str) -> tuple[str, dict[str, Any]]:
        return "Bash", {"command": command, "description": f"Run {command.split(maxsplit=1)[0]}"}


class Codex:
    """Codex, against the Responses API. Arguments are those of `ClaudeCode`."""

    name = "Codex"
    path = "/v1/responses"

    def __init__(self, programs: Path, home: Path, address: str, model: str) -> None:
        self._program = str(programs / "codex")
        self._environment = {"CODEX_HOME": str(home), "HOME": str(home)}
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'model = "{model}"\nmodel_provider = "own"\n[model_providers.own]\nname = "own"\nwire_api = "responses"\n'
            f'base_url = "http://{address}/v1"\n'
        )

    def ask(self, said: str, folder: Path, *, goes_on: bool = False) -> str:
        resumed = ["resume", "--last"] if goes_on else []
        return _run([self._program, "exec", *resumed, "--skip-git-repo-check", said], folder, self._environment)

    def read(self, file: Path) -> tuple[str, dict[str, Any]]:
        return self.run(f"cat {file.name}")

    def run(self, command: str) -> tuple[str, dict[str, Any]]:
        return "exec_command", {"cmd": command}


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
