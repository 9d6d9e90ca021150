"""A service goes over its pools by itself, drops one whose books are wrong, and tells whoever asks."""

from __future__ import annotations

import time

import pytest

from radixkv import LeaseError, PoolShape, connect
from radixkv.cli.program import main
from radixkv.client import RemoteHolder
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.service.pools.table import Pool

CONFIG = ServiceConfig(addresses=("127.0.0.1:0",), audit_s=0.01)


def test_a_sound_pool_is_gone_over_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    with ServiceThread(CONFIG) as service, connect(service.addresses[0], PoolShape(64)) as holder:
        holder.acquire(range(40), seq_id=1)
        holder.insert(1, 40)
        until_s = time.monotonic() + 300
        while (found := holder.check_all()["default"]).num_audits < 2 and time.monotonic() < until_s:
            holder.extend(1, 41)
        assert (found.violation, found.num_audits >= 2) == ("", True)
        assert main(["check", "--service", service.addresses[0]]) == 0
        assert "pool default: sound" in capsys.readouterr().out


def call_for_long(holder: RemoteHolder) -> None:
    until_s = time.monotonic() + 300
    while time.monotonic() < until_s:
        holder.extend(1, 40)


def test_a_pool_whose_books_are_wrong_is_dropped_and_its_holder_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[PrefixCache] = []
    make = Pool.__init__

    def keep(self: Pool, *arguments: object) -> None:
        make(self, *arguments)  # type: ignore[arg-type]  # as they come
        made.append(self.cache)

    monkeypatch.setattr(Pool, "__init__", keep)
    with ServiceThread(CONFIG) as service, connect(service.addresses[0], PoolShape(64)) as holder:
        holder.acquire(range(40), seq_id=1)
        holder.insert(1, 40)
        made[0]._forest.pool._free.pop()
        with pytest.raises(LeaseError, match="books"):
            call_for_long(holder)
        with connect(service.addresses[0], PoolShape(64)) as again:
            assert again.stats().num_sequences == 0
            again.check()
    assert "no block is lost" in caplog.text


def test_check_tells_of_a_broken_pool_by_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ServiceConfig(addresses=("127.0.0.1:0",), audit_s=0)
    with ServiceThread(config) as service, connect(service.addresses[0], PoolShape(64)) as holder:
        made: list[PrefixCache] = []
        check = PrefixCache.check
        monkeypatch.setattr(PrefixCache, "check", lambda self: (made.append(self), check(self))[1])
        assert main(["check", "--service", service.addresses[0]]) == 0
        made[0]._forest.pool._free.pop()
        assert main(["check", "--service", service.addresses[0]]) == 1
        assert "pool default: BROKEN: no block is lost" in capsys.readouterr().out
        holder.close()


def test_check_says_where_there_is_nothing_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    with ServiceThread(CONFIG) as service:
        assert main(["check", "--service", service.addresses[0]]) == 0
    assert "radixkv worker" in capsys.readouterr().out
