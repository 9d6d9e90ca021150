"""A worker's disk level as its cache service knows it: by hints, which `match` and its siblings show to a router."""

from __future__ import annotations

from pathlib import Path

import pytest
from resp_servers import wait_until
from stored_engine import BLOCK, ask, draw, serving

from radixkv import MatchResult
from radixkv.stores.costs import PrefillCost, PrefillMeter
from radixkv.worker.engine.engine import Engine


@pytest.fixture(autouse=True)
def slow_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model computes faster than a busy machine reads: a block is said to take a second."""
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(1 / BLOCK, 0.0))


def match(engine: Engine, prompt: list[int], namespace: str = "default") -> MatchResult:
    return engine.call(lambda holder: holder.match(prompt, namespace=namespace))


def on_disk(engine: Engine) -> int:
    return engine.call(lambda holder: holder.stats().num_disk_blocks)


def test_a_worker_that_comes_back_tells_what_lies_on_its_disk(tmp_path: Path) -> None:
    prompt, foreign = draw(1, 50), draw(2, 30)
    with serving(tmp_path) as engine:
        ask(engine, prompt, namespace="default")
        ask(engine, foreign, namespace="other")
    with serving(tmp_path) as engine:
        wait_until(lambda: match(engine, prompt) == (0, 0, 0, 48))
        assert match(engine, prompt[:11]) == (0, 0, 0, 8), "whole blocks only"
        assert match(engine, prompt, "other") == (0, 0, 0, 0)
