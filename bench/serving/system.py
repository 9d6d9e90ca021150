"""Interface of a measured serving system, and the results of one run."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench.serving.plan import Outcome, ReadyCall, Workload

__all__ = ["KV_TOKENS", "Counts", "Run", "Session", "System", "kv_token_bytes"]

KV_TOKENS = 65_536
"""Token slots of KV memory of each system."""


class Counts(NamedTuple):
    """Since the session began, by the system's own counters.

    num_computed: positions run through the model. peak_kv_tokens: most token slots held at once; None if not reported.
    """

    num_computed: int
    peak_kv_tokens: int | None


class Session(Protocol):
    """A system with an empty cache, for one workload."""

    def ask(self, call: ReadyCall) -> Outcome: ...

    def counts(self) -> Counts: ...


class System(Protocol):
    """A running system. `kv_token_bytes`: of one token slot over all layers."""

    kv_token_bytes: int

    def session(self, workload: Workload) -> AbstractContextManager[Session]: ...

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One workload, once, on one system. `peak_rss_bytes`: of the serving processes together, None if the machine does not
    report it.
    """

    system: str
    workload: str
    outcomes: list[Outcome]
    wall_s: float
    counts: Counts
    peak_rss_bytes: int | None


def kv_token_bytes(model: Path) -> int:
    """Bytes of one token's K and V in 16 bits, over all layers."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * num_kv_heads * head_dim * 2)
