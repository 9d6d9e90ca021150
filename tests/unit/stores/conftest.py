"""A busy machine is no slow disk."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixkv.stores.disk.level.SLOW_S", 300.0)
