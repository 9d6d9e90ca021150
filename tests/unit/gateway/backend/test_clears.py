"""The book of clears over one database: written before anything is told, read by every gateway, ended by being told alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from waiting import until

from radixkv import PoolShape, connect, pack_tokens
from radixkv.core.errors import LimitError
from radixkv.gateway.backend import clears as module
from radixkv.gateway.backend.clears import Clears
from radixkv.gateway.backend.members import PendingClear
from radixkv.gateway.backend.pools import CachePools, PoolName
from radixkv.gateway.storage.database import Database
from radixkv.service import ServiceConfig, ServiceThread

TOKENS = pack_tokens(range(16))
DEADLINE_S = 300.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent pool, and no gateway that is gone."""
    monkeypatch.setattr(module, "CLEAR_S", DEADLINE_S)
    monkeypatch.setattr(module, "ASKED_S", DEADLINE_S)


@pytest.fixture
def service() -> Iterator[ServiceThread]:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        yield service


@pytest.fixture(params=["file", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "file":
        return tmp_path / "state"
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.new_database()


class Gateway:
    """The part of a gateway that clears: `held` is what it routes nowhere."""

    def __init__(self, state: Path | str, met: dict[str, list[str]]) -> None:
        self.held = self.confirmed = frozenset[PendingClear]()
        self.database = Database(state)
        self.pools = CachePools(lambda: met)
        self.clears = Clears(self.pools, self, asyncio.to_thread)  # type: ignore[arg-type]  # stands for `Members`

    def hold_back(self, pending: frozenset[PendingClear], confirmed: frozenset[PendingClear]) -> None:
        self.held, self.confirmed = pending, confirmed


@asynccontextmanager
async def gateway(state: Path | str, met: dict[str, list[str]]) -> AsyncIterator[Gateway]:
    each = Gateway(state, met)
    try:
        await each.clears.open(each.database)
        yield each
    finally:
        await each.clears.aclose()
        each.pools.close()
        each.database.close()


def stored(service: ServiceThread, name: str) -> Any:
    """A holder that has a prompt in namespace `red`."""
    holder = connect(service.addresses[0], PoolShape(8, 4, name))
    seq = holder.acquire(TOKENS, namespace="red")
    holder.insert(seq.seq_id, 16)
    holder.release(seq.seq_id)
    return holder


def held_pools(service: ServiceThread) -> set[str]:
    with connect(service.addresses[0]) as reader:
        return set(reader.stats_all())


def test_a_pool_without_a_worker_is_cleared_when_it_has_one_and_held_back_until_then(
    service: ServiceThread, state: Path | str
) -> None:
    (address,) = service.addresses
    met = {address: ["here", "left"]}

    async def run() -> None:
        async with gateway(state, met) as first:
            cleared = await first.clears.clear(["red"])
            assert (cleared.by_pool, cleared.pending) == ({PoolName(address, "here"): 4}, [PoolName(address, "left")])
            assert first.held == {PendingClear(address, "left", "red")}
        async with gateway(state, met) as again:
            assert again.held == first.held, "it is kept over the gateway's end"
            with stored(service, "left") as holder:
                await until(lambda: not again.held)
                assert holder.match(TOKENS, namespace="red").num_tokens == 0

    with stored(service, "here"):
        asyncio.run(run())


def test_a_pool_that_is_away_while_its_gateway_starts_is_not_forgotten(
    service: ServiceThread, state: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (address,) = service.addresses
    away, gone = PendingClear(address, "away", "red"), "127.0.0.1:1"

    async def noted(each: Gateway) -> set[tuple[str, str]]:
        return {(row[0], row[1]) for row in await each.database.run(read_met)}

    def read_met(connection: Any) -> list[Any]:
        return list(connection.execute("SELECT service, pool FROM pools").fetchall())

    async def run() -> None:
        met = {address: ["here"], gone: ["away"]}
        async with gateway(state, met) as each:
            await until(lambda: each.clears._met[0])
            met[address] = ["away", "here"]
            await until(lambda: len(each.clears._met[0]) == 3)
            assert await noted(each) == {(address, "away"), (address, "here"), (gone, "away")}
        async with gateway(state, {address: ["here"]}) as each:
            cleared = await each.clears.clear(["red"])
            assert cleared.pending == [PoolName(address, "away")], "the gateway has this service alone"
            assert each.held == {away}
            with stored(service, "away") as holder:
                await until(lambda: not each.held)
                assert holder.match(TOKENS, namespace="red").num_tokens == 0
            monkeypatch.setattr(module, "KEPT_S", 0.0)
            each.clears._met = ([], 0.0)
            await until(lambda: each.clears._met[0])
            assert await noted(each) == {(address, "here")}

    with stored(service, "here"):
        asyncio.run(run())


def test_each_pool_of_a_service_that_had_not_answered_is_cleared_when_it_is_there(
    service: ServiceThread, state: Path | str
) -> None:
    (address,) = service.addresses
    met: dict[str, list[str]] = {address: []}
    first, second = PendingClear(address, "first", "red"), PendingClear(address, "second", "red")

    async def run() -> None:
        async with gateway(state, met) as each:
            assert (await each.clears.clear(["red"])).pending == [PoolName(address, "")]
        async with gateway(state, met) as each:
            with stored(service, "first") as holder:
                met[address] = ["first"]
                await until(lambda: each.confirmed == {first})
                assert holder.match(TOKENS, namespace="red").num_tokens == 0
            with stored(service, "second") as holder, stored(service, "first") as kept:
                met[address] = ["first", "second"]
                await until(lambda: each.confirmed == {first, second})
                assert holder.match(TOKENS, namespace="red").num_tokens == 0
                assert kept.match(TOKENS, namespace="red").num_tokens == 16, "what it was told it is not told again"
                assert (await each.clears.clear(["red"])).pending == []
                assert kept.match(TOKENS, namespace="red").num_tokens == 0
            await until(lambda: not held_pools(service))
            assert (await each.clears.clear(["red"])).pending == [PoolName(address, name) for name in met[address]]
            assert each.held == {first, second, PendingClear(address, "", "red")}

    asyncio.run(run())


def test_gateways_of_one_database_hold_back_what_another_could_not_clear(
    service: ServiceThread, postgres: PostgresServer
) -> None:
    state = postgres.new_database()
    met: dict[str, list[str]] = {service.addresses[0]: [], "127.0.0.1:1": []}

    async def run() -> None:
        async with gateway(state, met) as one, gateway(state, met) as other:
            began_s = time.monotonic()
            cleared = await one.clears.clear(["red", "red#adapter=a"])
            assert time.monotonic() - began_s >= 2 * module.LOOK_S, "others have had the time to read it"
            assert cleared.pending == [PoolName("127.0.0.1:1", "")]
            namespaces, (address,) = ("red", "red#adapter=a"), service.addresses
            await until(lambda: other.held == {PendingClear(each, "", name) for each in met for name in namespaces})
            await until(lambda: other.confirmed == {PendingClear(address, "here", name) for name in namespaces})

    with stored(service, "here"):
        asyncio.run(run())


def test_a_clear_whose_gateway_was_killed_under_way_is_ended_by_the_next(
    service: ServiceThread, tmp_path: Path
) -> None:
    pool = PoolName(service.addresses[0], "here")

    async def before() -> None:
        with Database(tmp_path / "state") as database:
            await database.run(lambda connection: module._ask(connection, [pool], ["red"]))

    asyncio.run(before())

    async def again() -> None:
        async with gateway(tmp_path / "state", {pool.service: [pool.pool]}) as each:
            await until(lambda: not each.held and not holder.match(TOKENS, namespace="red").num_tokens)

    with stored(service, "here") as holder:
        asyncio.run(again())


def test_what_was_asked_again_meanwhile_is_not_ended_by_the_earlier_answer(tmp_path: Path) -> None:
    pool = PoolName("127.0.0.1:1", "here")

    async def run() -> None:
        with Database(tmp_path / "state") as database:
            _, earlier = await database.run(lambda c: module._ask(c, [pool], ["red"]))
            _, later = await database.run(lambda c: module._ask(c, [pool], ["red"]))
            await database.run(lambda c: module._settle(c, [pool], ["red"], earlier))
            assert [row[:3] for row in await database.run(module._read)] == [(*pool, "red")]
            await database.run(lambda c: module._settle(c, [pool], ["red"], later))
            assert await database.run(module._read) == []

    asyncio.run(run())


def test_one_tenant_fills_no_more_than_its_part_of_the_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)

    async def run() -> None:
        async with gateway(tmp_path / "state", {"127.0.0.1:1": ["here"]}) as each:
            for number in range(2):
                await each.clears.clear([f"red#salt={number}"])
            with pytest.raises(LimitError, match="2 clears"):
                await each.clears.clear(["red#salt=2"])
            assert (await each.clears.clear(["blue"])).pending

    asyncio.run(run())


@pytest.mark.parametrize("is_repeating", [False, True])
def test_a_gateway_that_closes_leaves_no_work_behind(tmp_path: Path, is_repeating: bool) -> None:
    """Its pools are closed next: what still asked them would fail, or keep the process from its end."""
    asked, met = asyncio.Event(), {"127.0.0.1:1": ["here"]}

    async def run() -> None:
        async with gateway(tmp_path / "state", met) as first:
            if is_repeating:
                assert (await first.clears.clear(["red"])).pending

        async def never(_: Callable[[], Any]) -> Any:
            asked.set()
            await asyncio.Event().wait()

        each = Gateway(tmp_path / "state", met)
        each.clears = Clears(each.pools, each, never)  # type: ignore[arg-type]  # as in `Gateway`
        await each.clears.open(each.database)
        if is_repeating:
            await asyncio.wait_for(asked.wait(), DEADLINE_S)
        await each.clears.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        each.pools.close()
        each.database.close()

    asyncio.run(run())
