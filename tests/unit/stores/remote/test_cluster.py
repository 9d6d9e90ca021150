"""A key is kept by the server of its slot, as the cluster last said; what is not understood changes nothing."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from redis.crc import key_slot

from radixkv.stores.remote import cluster
from radixkv.stores.remote.cluster import MAX_SERVERS, Servers
from radixkv.stores.remote.url import RemoteUrl
from radixkv.stores.remote.wire import ClosedError

NUM_SLOTS = 16384
TIMEOUT_S = 300.0
FIRST = RemoteUrl.parse("redis://first:7000?cluster=1")


class Cluster:
    """What its servers answer, and which of them were opened."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.num_asked = 0
        self.opened: list[Member] = []

    def open(self, url: RemoteUrl) -> Any:
        self.opened.append(Member(self, url))
        return self.opened[-1]


class Member:
    def __init__(self, of: Cluster, url: RemoteUrl) -> None:
        self.url, self._of = url, of
        self.is_usable, self.is_closed = True, False

    def call(self, until_s: float, *parts: bytes) -> Any:
        assert parts == (b"CLUSTER", b"SLOTS")
        assert 0 < until_s - time.monotonic() <= TIMEOUT_S
        self._of.num_asked += 1
        if not self.is_usable:
            raise ClosedError
        return self._of.reply

    def close(self) -> None:
        self.is_closed = True


def entry(first: int, last: int, host: bytes | None, port: int = 7000) -> list[Any]:
    return [first, last, [host, port, b"id", []], [b"replica", 9999]]


def draw(rng: random.Random) -> tuple[list[Any], dict[int, str]]:
    """A reply, and the place of each slot."""
    reply, places = [], {}
    bounds = sorted(rng.sample(range(1, NUM_SLOTS), rng.randint(1, 30)))
    for first, end in zip([0, *bounds], [*bounds, NUM_SLOTS], strict=True):
        host, port = rng.choice([b"a", b"b", b"::1", b"", None]), rng.choice([1, 65535])
        if rng.random() < 0.8:
            reply.append(entry(first, end - 1, host, port))
            name = host.decode() if host else "first"
            place = f"redis://[{name}]:{port}" if ":" in name else f"redis://{name}:{port}"
            places.update(dict.fromkeys(range(first, end), place))
    return (reply, places) if reply else draw(rng)


@pytest.mark.parametrize("seed", range(8))
def test_each_slot_leads_to_its_primary_and_servers_that_have_none_are_closed(seed: int) -> None:
    rng = random.Random(seed)
    reply, places = draw(rng)
    told = Cluster(reply)
    servers = Servers(FIRST, told.open)
    assert servers.of(b"key") is None, "not known yet"
    for _ in range(3):
        servers.refresh(TIMEOUT_S)
        for key in (b"radixkv:%d" % rng.randrange(10**9) for _ in range(200)):
            server: Any = servers.of(key)
            assert (server and server.url.place) == places.get(key_slot(key))
        alive = [server for server in told.opened[1:] if not server.is_closed]
        assert sorted(server.url.place for server in alive) == sorted(set(places.values()))
        assert set(servers.all()) == set(alive)
        told.reply, places = draw(rng)
        servers.moved()
    servers.close()
    assert all(server.is_closed for server in told.opened)


def test_the_map_is_read_again_where_a_server_failed_or_moved_a_slot_or_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Cluster([entry(0, 100, b"a"), entry(101, NUM_SLOTS - 1, b"b")])
    servers = Servers(FIRST, told.open)
    for _ in range(3):
        servers.refresh(TIMEOUT_S)
    assert told.num_asked == 1
    servers.moved()
    servers.refresh(TIMEOUT_S)
    servers.refresh(TIMEOUT_S)
    assert told.num_asked == 2
    first, one, _ = told.opened
    one.is_usable = False
    servers.refresh(TIMEOUT_S)
    assert told.num_asked == 3
    first.is_usable = False
    servers.refresh(TIMEOUT_S)
    assert told.num_asked == 6, "the next is asked where one does not answer"
    one.is_usable = True
    servers.refresh(TIMEOUT_S)
    assert told.num_asked == 6, "the first keeps no keys"
    monkeypatch.setattr(cluster, "REFRESH_S", 0.0)
    servers.refresh(TIMEOUT_S)
    assert told.num_asked == 8


@pytest.mark.parametrize(
    "reply",
    [
        None,
        b"OK",
        [],
        [b"x"],
        [[0, 1]],
        [[0, 1, b"a"]],
        [[0, 1, [b"a"]]],
        [entry(5, 4, b"a")],
        [entry(-1, 4, b"a")],
        [entry(0, NUM_SLOTS, b"a")],
        [[b"0", 4, [b"a", 7000]]],
        [[0, b"4", [b"a", 7000]]],
        [entry(0, 4, b"a", 0)],
        [entry(0, 4, b"a", 65536)],
        [[0, 4, [b"a", b"7000"]]],
        [[0, 4, [7, 7000]]],
        [entry(0, 4, b"\xff")],
        [entry(0, 4, b"a\n")],
        [entry(0, 4, b"a" * 256)],
        [entry(0, 4, b"a"), entry(5, 4, b"a")],
        [entry(number, number, b"h%d" % number) for number in range(MAX_SERVERS + 1)],
    ],
)
def test_a_map_that_is_none_leaves_the_old_one(reply: Any) -> None:
    told = Cluster([entry(0, NUM_SLOTS - 1, b"old")])
    servers = Servers(FIRST, told.open)
    servers.refresh(TIMEOUT_S)
    old: Any = servers.of(b"key")
    told.reply = reply
    servers.moved()
    servers.refresh(TIMEOUT_S)
    assert servers.of(b"key") is old
    assert not old.is_closed
    told.reply = [entry(number, number, b"h" * (255 - 3) + b"%03d" % number) for number in range(MAX_SERVERS)]
    servers.refresh(TIMEOUT_S)
    assert len(servers.all()) == MAX_SERVERS, "and it is asked for again"
    assert old.is_closed


def test_a_server_alone_is_asked_for_no_map_and_has_every_key() -> None:
    told = Cluster([entry(0, NUM_SLOTS - 1, b"a")])
    servers: Any = Servers(RemoteUrl.parse("redis://first:7000"), told.open)
    servers.moved()
    servers.refresh(TIMEOUT_S)
    assert told.num_asked == 0
    assert servers.of(b"key") is told.opened[0]
    assert servers.all() == told.opened
    servers.close()
    assert told.opened[0].is_closed
