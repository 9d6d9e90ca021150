"""Limits over several gateways, by a real server: as one gateway's, by shares without it, slots of the gone are free."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from resp_servers import RedisServer, needs_redis

from radixkv.core.errors import InvalidArgumentError, LimitError
from radixkv.gateway.http import shared_limits
from radixkv.gateway.http.shared_limits import SharedLimiter, SharedSlot
from radixkv.net.limits import Limiter, Slot
from radixkv.net.tenants import Tenant, TenantLimits

pytestmark = needs_redis
STEP_S = 0.04


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="radixkv-redis-") as folder:
        started = RedisServer(Path(folder))
        yield started
        started.stop()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no absent server."""
    monkeypatch.setattr(shared_limits, "TIMEOUT_S", 300.0)


def tenant(**limits: int) -> Tenant:
    return Tenant("t", "t", TenantLimits(**limits))


def with_gateways(
    server: RedisServer, story: Callable[[list[SharedLimiter]], Awaitable[None]], number: int = 4
) -> None:
    """Tell a story to gateways that charge where it says `_flush`, and not by themselves in the middle of it."""

    async def run() -> None:
        gateways = [SharedLimiter(server.url, Limiter()) for _ in range(number)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_limits, "CHARGE_S", 3600.0)
            for each in gateways:
                await each.start()
        try:
            await story(gateways)
        finally:
            for each in gateways:
                await each.aclose()

    asyncio.run(run())


async def tried(limiter: SharedLimiter | Limiter, asked: Tenant) -> Slot | SharedSlot | LimitError:
    try:
        return limiter.admit(asked) if isinstance(limiter, Limiter) else await limiter.admit(asked)
    except LimitError as error:
        return error


def test_four_gateways_admit_as_many_requests_as_one(server: RedisServer) -> None:
    async def story(gateways: list[SharedLimiter]) -> None:
        asked = tenant(requests_per_minute=60)
        begun_s = asyncio.get_running_loop().time()
        results = [await tried(gateways[number % 4], asked) for number in range(240)]
        took_s = asyncio.get_running_loop().time() - begun_s
        admitted = [result for result in results if isinstance(result, SharedSlot)]
        assert 60 <= len(admitted) <= 60 + took_s + 1
        refusals = [result for result in results if isinstance(result, LimitError)]
        assert refusals
        assert 0 < (refusals[-1].retry_after_s or 0) <= 1.01
        assert admitted[0].rates[0].remaining == 59

    with_gateways(server, story)


def test_a_gateway_closes_whatever_it_is_sending(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.0)

    async def story(gateways: list[SharedLimiter]) -> None:
        source = random.Random(0)
        for gateway in gateways:
            for _ in range(source.randrange(60)):
                await asyncio.sleep(0)
            async with asyncio.timeout(300):
                await gateway.aclose()
            assert all(task.done() for task in gateway._tasks)

    with_gateways(server, story, 16)


@pytest.mark.parametrize(
    ("takes_s", "num_tokens", "limit"),
    [(0.08, 10, "150 requests per minute"), (0.2, 400, "50000 tokens per minute"), (4.0, 100, "8 requests at once")],
)
def test_of_ten_times_as_much_four_gateways_admit_what_one_does(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, takes_s: float, num_tokens: int, limit: str
) -> None:
    """25 requests a second, over more than a lease, by a clock that the test moves, the server's, too."""
    for name in ("_ADMIT", "_CHARGE", "_BEAT"):
        script = getattr(shared_limits, name).replace("redis.call('TIME')", "{redis.call('GET', 'clock'), 0}")
        monkeypatch.setattr(shared_limits, name, script)
    asked = tenant(requests_per_minute=150, tokens_per_minute=50_000, max_concurrent=8)
    source, now_s = random.Random(0), 1000.0
    one = Limiter(lambda: now_s)
    counts, refusals = [0, 0], [Counter[str](), Counter[str]()]
    running: list[list[tuple[float, Slot | SharedSlot]]] = [[], []]

    async def story() -> None:
        nonlocal now_s
        gateways = [SharedLimiter(server.url, Limiter()) for _ in range(4)]
        for number in range(300):
            now_s += STEP_S
            await gateways[0]._redis.set("clock", now_s)
            for begun in running:
                while begun and begun[0][0] <= now_s:
                    _, slot = begun.pop(0)
                    slot.charge(num_tokens)
                    slot.close()
            for gateway in gateways:
                if number % round(shared_limits.BEAT_S / STEP_S) == 0:
                    await gateway._beat()
                if number % round(shared_limits.CHARGE_S / STEP_S) == 0:
                    await gateway._flush()
            limiters: tuple[Limiter, SharedLimiter] = one, source.choice(gateways)
            for side, limiter in enumerate(limiters):
                result = await tried(limiter, asked)
                if isinstance(result, LimitError):
                    refusals[side][str(result).partition(" of ")[2].partition(" is ")[0]] += 1
                else:
                    counts[side] += 1
                    running[side].append((now_s + takes_s, result))
        for gateway in gateways:
            await gateway.aclose()

    asyncio.run(story())
    assert abs(counts[1] - counts[0]) <= 0.02 * counts[0], (counts, refusals)
    assert all(each.most_common(1)[0][0] == limit for each in refusals)


def test_as_many_run_at_once_and_a_slot_that_ends_is_anybodys(server: RedisServer) -> None:
    async def story(gateways: list[SharedLimiter]) -> None:
        asked = tenant(max_concurrent=8)
        results = await asyncio.gather(*(tried(gateways[number % 4], asked) for number in range(40)))
        held = [result for result in results if isinstance(result, SharedSlot)]
        assert len(held) == 8
        assert (await gateways[1].standing(asked)).num_running == 8
        held[0].close()
        held[0].close()
        for gateway in gateways:
            await gateway._flush()
        again = [await tried(gateway, asked) for gateway in gateways]
        assert sum(isinstance(each, SharedSlot) for each in again) == 1

    with_gateways(server, story)


def test_tokens_are_charged_to_one_account(server: RedisServer) -> None:
    async def story(gateways: list[SharedLimiter]) -> None:
        asked = tenant(tokens_per_minute=1000)
        slots = [await tried(gateway, asked) for gateway in gateways]
        for slot in slots:
            assert isinstance(slot, SharedSlot)
            slot.charge(400)
        for gateway in gateways:
            await gateway._flush()
        refused = await tried(gateways[2], asked)
        assert isinstance(refused, LimitError)
        assert 20 < (refused.retry_after_s or 0) < 37

    with_gateways(server, story)


def test_slots_of_a_gateway_that_is_gone_are_free_after_its_lease(server: RedisServer) -> None:
    async def story(gateways: list[SharedLimiter]) -> None:
        asked, (gone, left) = tenant(max_concurrent=1), gateways
        assert isinstance(await tried(gone, asked), SharedSlot)
        assert isinstance(await tried(left, asked), LimitError)
        for task in gone._tasks:
            task.cancel()
        await left._redis.zadd("radixkv:gateways", {gone._id: 1.0})  # as after its lease
        assert isinstance(await tried(left, asked), SharedSlot)
        assert isinstance(await tried(left, asked), LimitError)

    with_gateways(server, story, 2)


def test_without_the_server_each_grants_its_share_and_running_slots_are_told_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.1)
    monkeypatch.setattr(shared_limits, "AWAY_S", 0.2)

    async def story(gateways: list[SharedLimiter]) -> None:
        asked = tenant(max_concurrent=8)
        async with asyncio.timeout(300):
            while [gateway.num_gateways for gateway in gateways] != [4] * 4:
                await asyncio.sleep(0.01)
        held = await tried(gateways[0], asked)
        assert isinstance(held, SharedSlot)
        server.stop()
        for gateway in gateways:
            shares = [await tried(gateway, asked) for _ in range(4)]
            assert [type(each) for each in shares] == [Slot, Slot, LimitError, LimitError]
        server.start()
        async with asyncio.timeout(300):
            while (await gateways[3].standing(asked)).num_running != 1 or gateways[0]._is_in_doubt:
                await asyncio.sleep(0.01)
        held.close()
        await gateways[0]._flush()
        assert (await gateways[3].standing(asked)).num_running == 0

    with_gateways(server, story)


def test_a_request_given_up_while_it_was_admitted_holds_no_slot(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.1)

    async def story(gateways: list[SharedLimiter]) -> None:
        asked, (gateway,) = tenant(max_concurrent=1), gateways
        server.pause()
        given_up = asyncio.create_task(gateway.admit(asked))
        await asyncio.sleep(0.2)
        given_up.cancel()
        server.resume()
        deadline_s = asyncio.get_running_loop().time() + 300
        while gateway._num_asking or gateway._is_in_doubt or (await gateway.standing(asked)).num_running:
            assert asyncio.get_running_loop().time() < deadline_s, "its slot is held for good"
            await asyncio.sleep(0.05)
        assert isinstance(await tried(gateway, asked), SharedSlot)

    with_gateways(server, story, 1)


def test_slots_given_back_while_running_ones_are_told_again_are_free(server: RedisServer) -> None:
    tenants = [Tenant(f"t{number}", "t", TenantLimits(max_concurrent=1)) for number in range(64)]

    async def story(gateways: list[SharedLimiter]) -> None:
        gateway, other = gateways
        slots = [await gateway.admit(each) for each in tenants]
        gateway._doubt()
        told = asyncio.create_task(gateway._beat())
        for slot in reversed(slots):
            await asyncio.sleep(0.0005)
            slot.close()
        await told
        await gateway._flush()
        assert [each.name for each in tenants if (await other.standing(each)).num_running] == []

    with_gateways(server, story, 2)


def test_slots_that_could_not_be_told_again_are_told_once_more(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "AWAY_S", 0.0)

    async def story(gateways: list[SharedLimiter]) -> None:
        asked, (gateway, other) = tenant(max_concurrent=1), gateways
        held = await tried(gateway, asked)
        assert isinstance(held, SharedSlot)
        gateway._doubt()
        held.close()

        async def lose(_: object) -> None:
            raise ConnectionError

        monkeypatch.setattr(type(gateway._redis.pipeline()), "execute", lose)
        with pytest.raises(ConnectionError):
            await gateway._beat()
        monkeypatch.undo()
        gateway._doubt()
        await gateway._beat()
        assert (await other.standing(asked)).num_running == 0

    with_gateways(server, story, 2)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@localhost",
        "redis://user:pa:s3cret@localhost:port",
        "redis://[s3cret",
        "redis://localhost:99999",
        "redis://localhost?socket_timeout=s3cret",
        "redis://localhost?no_such_option=s3cret",
        "rediss://localhost?ssl_cert_reqs=s3cret",
    ],
)
def test_a_url_that_is_none_of_a_server_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="shared") as refused:
        SharedLimiter(url, Limiter())
    assert "s3cret" not in str(refused.value)
