"""Keys that come and go while they are used: streams of one that is taken back end, and new ones are let in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from guarded import MINE, digest, guarded_site, tenant_row
from torch import Tensor

from radixkv import (
    LeaseError,
    PermissionDeniedError,
    PoolShape,
    PrefixCache,
    UnauthenticatedError,
    UnavailableError,
    connect,
)
from radixkv.client import Credentials, RemoteReader
from radixkv.client.stream import StepStream
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.net.tls import Security
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.rows import ForwardRow
from radixkv.worker.server import GenerationServer


class SlowRunner(HashRunner):
    """Takes its time: a reply of its longest length lasts for minutes."""

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        time.sleep(0.05)
        return super().forward(rows, drawn_ids)


@pytest.mark.parametrize("heir", ["", tenant_row("heir", "one")], ids=["nobody's", "another tenant's"])
def test_a_reply_ends_when_the_key_of_who_asked_is_taken_back(tmp_path: Path, heir: str) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(tenant_row("one", "one") + tenant_row("two", "two"))
    params = GenerateParams(token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=4000, ignore_eos=True))
    with (
        Engine(SlowRunner(1024, 4), PrefixCache(1024, 4), model_name="hash") as engine,
        GenerationServer(engine, "127.0.0.1:0", security=Security(keys_file=keys)) as worker,
        GenerationClient(worker.address, credentials=Credentials(token="one")) as one,
        GenerationClient(worker.address, credentials=Credentials(token="two")) as two,
    ):
        taken, kept = one.generate(params), two.generate(params)
        for stream in (taken, kept):
            next(stream), next(stream)
        keys.write_text(tenant_row("two", "two") + heir)
        with pytest.raises(UnauthenticatedError, match="taken back"):
            list(taken)
        assert next(kept)
        until_s = time.monotonic() + 300
        while engine.stats().engine.num_generations > 1:
            assert time.monotonic() < until_s, "it runs on though nobody may read it"
            time.sleep(0.02)
        kept.close()


def test_a_key_that_is_taken_back_ends_streams_and_a_new_one_is_let_in(tmp_path: Path) -> None:
    with guarded_site(tmp_path) as site:
        address, before = site.service.addresses[0], site.keys.read_text()
        with connect(address, pool_name="filled", credentials=Credentials(token="reader")) as reader:
            site.fill()
            events = reader.follow_events(namespace=MINE)
            next(events)
            site.keys.write_text(before.replace(digest("reader"), digest("later")))
            with pytest.raises(UnauthenticatedError):
                list(events)
            with pytest.raises(UnauthenticatedError):
                reader.stats()
        with connect(address, pool_name="filled", credentials=Credentials(token="later")) as reader:
            assert reader.stats().num_blocks == 64


def test_a_holder_goes_on_when_its_key_is_replaced_and_ends_when_it_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("holder")
    with guarded_site(tmp_path, lease_ttl_s=300.0) as site:
        address, before = site.service.addresses[0], site.keys.read_text()
        with connect(address, PoolShape(8, name="own"), credentials=Credentials(token_file=path)) as holder:
            seq_id = holder.acquire([1, 2], namespace=MINE).seq_id
            path.write_text("later")
            site.keys.write_text(before.replace(digest("holder"), digest("later")))
            _until_nobodys(address, "holder")
            holder.insert(seq_id, num_computed=2)
            monkeypatch.setattr(StepStream, "_patience_s", 1.0)  # as short as a lease that runs out
            site.keys.write_text(before.replace(digest("holder"), "0" * 64))
            _until_nobodys(address, "later")
            with pytest.raises((UnavailableError, LeaseError)):
                _again_and_again(lambda: holder.step([]))


def _again_and_again(call: Callable[[], Any]) -> None:
    until_s = time.monotonic() + 300
    while time.monotonic() < until_s:
        call()


def _until_nobodys(address: str, token: str) -> None:
    """Until a service has read that a key is nobody's any more."""
    with connect(address, credentials=Credentials(token=token)) as caller, pytest.raises(UnauthenticatedError):
        _again_and_again(lambda: _stats_or_denied(caller))


def _stats_or_denied(caller: RemoteReader) -> None:
    with contextlib.suppress(PermissionDeniedError):
        caller.stats_all()


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("reader\n")
    with (
        guarded_site(tmp_path) as site,
        connect(site.service.addresses[0], pool_name="filled", credentials=Credentials(token_file=path)) as reader,
    ):
        reader.stats()
        path.write_text("nobody's")
        with pytest.raises(UnauthenticatedError):
            reader.stats()
        path.unlink()
        with pytest.raises(UnauthenticatedError):
            reader.stats()
