"""The stack under attack: cache service, worker and gateway, a process each, with a keys file of several tenants.

    attacker's process ──HTTP, gRPC──> gateway ──> worker ──> service
    neighbour "b" ─────────────────────^───────────^──────────^

The model is tiny and random, so that a first token costs nearly nothing and a neighbour's waiting time comes from the attack;
its tokenizer and chat template are the default model's own.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from bench.faults.stack import GATEWAY, SERVICE, Role, free_port

__all__ = ["DRAIN_S", "WORKER", "Ending", "HostileStack", "Site", "save_small_model", "write_keys"]

WORKER = "worker"
NAMES = (SERVICE, WORKER, GATEWAY)
DRAIN_S = 3.0
NUM_BLOCKS = 1024
BLOCK_SIZE = 16
MODEL_NAME = "small"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_TENANTS = {
    "a": "",
    "b": "",
    "limited": "requests_per_minute = 6\nmax_concurrent = 1\n",
    "team": 'namespace = "team-x"\nroles = ["reader"]\n',
    "gateway": 'roles = ["client", "reader"]\nnamespaces = ["*"]\n',
    "holder": 'roles = ["holder"]\nnamespaces = ["*"]\n',
    "router": 'roles = ["reader"]\nnamespaces = ["*"]\n',
}
"""Tenants, each with its name as key, and further entries of the keys file: "a" attacks, "limited" has one request at once."""


class Site(NamedTuple):
    """Addresses as ``host:port``, for attacker and neighbour, and the keys file."""

    gateway: str
    worker: str
    service: str
    keys_file: str

    model: str = MODEL_NAME


class Ending(NamedTuple):
    """A process's end after SIGTERM: seconds, exit code."""

    seconds: float
    exit_code: int


def keys_text() -> str:
    """The intended text of the keys file."""
    rows = []
    for name, more in _TENANTS.items():
        digest = hashlib.sha256(name.encode()).hexdigest()
        rows.append(f'[[tenant]]\nname = "{name}"\nkeys = ["sha256:{digest}"]\n{more}')
    return "\n".join(rows)


def write_keys(path: Path) -> None:
    """Replace the file as a whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(keys_text())
    partial.replace(path)


def save_small_model(folder: Path, tokenizer: str) -> str:
    """A random two-layer model with the tokenizer of the model in the folder `tokenizer`; returns its folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copy(Path(tokenizer) / name, folder / name)
    return str(folder)


class HostileStack:
    """The three processes, a context manager. Ended ones are reported; none is restarted automatically.

    Args:
        folder: for keys, logs and the gateway's state.
        model: a folder.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.site = Site(*(f"127.0.0.1:{free_port()}" for _ in range(3)), str(folder / "keys.toml"))
        write_keys(Path(self.site.keys_file))
        tokens = {name: folder / f"{name}.token" for name in ("gateway", "holder")}
        for name, path in tokens.items():
            path.write_text(name)
            path.chmod(0o600)
        keys = ("--keys", self.site.keys_file)
        drain = ("--drain", str(DRAIN_S))
        pool = ("--num-blocks", str(NUM_BLOCKS), "--block-size", str(BLOCK_SIZE))
        model_flags = ("--model", model, "--dtype", "float32", "--device", "cpu")
        worker = ("--service", self.site.service, "--listen", self.site.worker, "--token-file", str(tokens["holder"]))
        gateway = ("--worker", self.site.worker, "--service", self.site.service, "--listen", self.site.gateway)
        state = ("--state", str(folder / "state.sqlite"), "--model-name", MODEL_NAME)
        lines = {
            SERVICE: ("serve", "--listen", self.site.service, *keys, *drain),
            WORKER: ("worker", *worker, *keys, *drain, *model_flags, *pool),
            GATEWAY: ("gateway", *gateway, *keys, *drain, *state, "--token-file", str(tokens["gateway"])),
        }
        self.roles = {name: Role(name, line, folder / f"{name}.log") for name, line in lines.items()}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start all, and wait until each serves."""
        for name in NAMES:
            self.roles[name].start()
            self.roles[name].wait_ready()

    def restart(self) -> None:
        """Kill remaining processes and start again; stored data stays."""
        self.kill()
        self.start()

    def stop(self) -> dict[str, Ending]:
        """Send SIGTERM to all at once, like a machine that shuts down. Returns the end of each."""

        def stop(role: Role) -> Ending:
            started_s = time.monotonic()
            code = role.stop()
            return Ending(time.monotonic() - started_s, code)

        with ThreadPoolExecutor(len(NAMES)) as threads:
            return dict(zip(NAMES, threads.map(stop, (self.roles[name] for name in NAMES)), strict=True))

    def kill(self) -> None:
        """End all at once."""
        for role in self.roles.values():
            role.kill()

    def ended(self) -> list[str]:
        """The processes that have ended by themselves, with the end of their output."""
        return [f"{name} ended: {role.log[-500:]}" for name, role in self.roles.items() if role.ended()]

    def rss_bytes(self) -> dict[str, int]:
        """Resident memory of each process, and of the largest of all their children."""
        found, children = {}, [0]
        for name, role in self.roles.items():
            process = psutil.Process(role.pid)
            found[name] = _rss(process.memory_info)
            children += [_rss(child.memory_info) for child in process.children(recursive=True)]
        return found | {"children": max(children)}


def _rss(look: Callable[[], object]) -> int:
    """0 if the process has ended meanwhile."""
    try:
        return int(getattr(look(), "rss", 0))
    except psutil.Error:
        return 0
