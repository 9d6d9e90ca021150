"""Workers make themselves known, and routers ask who holds how much of a prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixkv.core.api import (
    AcquireOp,
    HintOp,
    InsertOp,
    PoolRoute,
    PoolShape,
    ReleaseOp,
    SetQuotaOp,
    StepOp,
    WorkerLoad,
    WorkerReport,
)
from radixkv.core.errors import InvalidArgumentError, LimitError, PermissionDeniedError, RadixKVError, UnknownPoolError
from radixkv.core.tokens import pack_tokens
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.net.calls.callers import Caller
from radixkv.net.rights import check_call
from radixkv.net.tenants import Tenant
from radixkv.service.attach.session import AttachSession
from radixkv.service.config import ServiceConfig
from radixkv.service.events.subscriptions import SubscriberGate
from radixkv.service.pools.table import PoolTable
from radixkv.service.reading import MAX_ROUTED_POOLS, PrefixCacheServicer
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.reads import ROUTE
from radixkv.wire.steps import op_to_proto
from radixkv.wire.values import SHAPE, WORKER_LOAD, WORKER_REPORT

PROMPT = pack_tokens(range(40))
BUSY = WorkerLoad(5000, 800.0, 3, is_accepting=True)


class Service:
    """A service without a network, by a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.table = PoolTable(ServiceConfig(max_pools=80), lambda: self.now_s, stall_clock=lambda: self.now_s)
        self.servicer = PrefixCacheServicer(self.table, SubscriberGate(1))

    def attach(self, name: str, **hello: Any) -> Holder:
        return Holder(self, name, **hello)

    def route(self, tokens: bytes = PROMPT, pool: str = "", namespace: str | None = None) -> dict[str, PoolRoute]:
        request = readers.RouteRequest(pool=pool, namespace=namespace, tokens=tokens)
        response = asyncio.run(self.servicer.Route(request, None))
        return {pool.pool: ROUTE.read(pool) for pool in response.pools}


class Holder:
    def __init__(self, service: Service, name: str, incarnation: int = 7, **hello: Any) -> None:
        self.answers: list[workers.AttachResponse] = []
        self.ending: RadixKVError | None = None
        self._session = AttachSession(service.table, self.answers.append, self._end)
        self._number = 0
        shape = SHAPE.to_proto(PoolShape(16, 4, name))
        self.send(hello=workers.Hello(pool=shape, incarnation=incarnation, **hello))

    def _end(self, error: RadixKVError) -> None:
        self.ending = error

    def send(self, **message: Any) -> None:
        self._session.receive(workers.AttachRequest(**message))

    def step(self, *ops: StepOp, load: WorkerLoad | None = None) -> None:
        self._number += 1
        step = workers.Step(number=self._number)
        for op in ops:
            op_to_proto(op, step.ops.add())
        if load is not None:
            WORKER_LOAD.write(load, step.load)
        self.send(step=step)


def test_a_worker_says_where_it_serves_and_what_and_how_busy_it_is() -> None:
    service = Service()
    holder = service.attach("a", holder_name="left", generation_address="host:1", fingerprint="f00d")
    report = WorkerReport(7, "left", "host:1", "f00d")
    assert service.route()["a"] == PoolRoute(0, 0, report, num_room_tokens=64, held_s=2.0)
    holder.step(load=BUSY)
    service.now_s += 2.5
    assert service.route()["a"].worker == report._replace(load=BUSY, load_age_s=2.5)
    stopping = BUSY._replace(is_accepting=False, num_backlog_tokens=0)
    holder.send(heartbeat=workers.Heartbeat(load=WORKER_LOAD.to_proto(stopping)))
    assert service.route()["a"].worker == report._replace(load=stopping)
    holder.send(heartbeat=workers.Heartbeat())
    assert service.route()["a"].worker.load == stopping, "one without a load leaves the last"
    response = asyncio.run(service.servicer.Stats(readers.StatsRequest(), None))
    assert WORKER_REPORT.read(response.pools[0].worker) == service.route()["a"].worker


def test_a_worker_that_begins_to_serve_says_so_on_a_new_stream() -> None:
    service = Service()
    holder = service.attach("a", load=WORKER_LOAD.to_proto(BUSY))
    holder.step(AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40))
    assert service.route()["a"][:3] == (40, 0, WorkerReport(7, load=BUSY))
    service.attach("a", generation_address="host:2")
    assert service.route()["a"][:3] == (40, 0, WorkerReport(7, "", "host:2", load=BUSY))


def test_route_tells_the_room_for_a_prompt_and_how_long_others_hold_theirs() -> None:
    service = Service()
    holder = service.attach("a")
    holder.step(AcquireOp(PROMPT, reserve=8, seq_id=1), InsertOp(1, 40))
    service.now_s += 5.0
    assert service.route()["a"][4:] == (64 - 48, 48, 2.0), "no sequence has ended"
    for seq_id in range(2, 200):
        holder.step(ReleaseOp(seq_id - 1), AcquireOp(PROMPT, reserve=8, seq_id=seq_id))
        service.now_s += 5.0
    assert service.route()["a"][4:] == (64 - 48, 48, pytest.approx(5.0, rel=1e-3))
    holder.step(ReleaseOp(199))
    assert service.route()["a"][4:6] == (64, 0), "cached blocks make room"


def test_the_room_of_a_namespace_is_that_of_its_quota_and_of_the_others_what_quotas_leave() -> None:
    service = Service()
    holder = service.attach("a")
    holder.step(SetQuotaOp("team", 6), AcquireOp(PROMPT[:64], namespace="team", seq_id=1))
    assert service.route(namespace="team")["a"][4:6] == ((6 - 4) * 4, 16)
    assert service.route()["a"][4:6] == ((16 - 6) * 4, 0)
    assert service.route(namespace="new")["a"][4:6] == ((16 - 6) * 4, 0)
    (told,) = asyncio.run(service.servicer.Usage(readers.UsageRequest(), None)).pools
    assert [usage.namespace for usage in told.usages] == ["team"], "asking opens no account"


def test_route_finds_what_is_cached_and_what_is_about_to_be_published() -> None:
    service = Service()
    holder = service.attach("a")
    service.attach("b", incarnation=8)
    holder.step(AcquireOp(PROMPT[:48], seq_id=1, waits=True), InsertOp(1, 8))
    assert {name: route[:2] for name, route in service.route().items()} == {"a": (8, 12), "b": (0, 0)}
    assert service.route(PROMPT[:40])["a"][:2] == (8, 10)
    assert service.route(pack_tokens([9, 9]))["a"][:2] == (0, 0)
    assert service.route(b"")["a"][:2] == (0, 0)
    holder.step(InsertOp(1, 12))
    assert service.route()["a"][:2] == (12, 0)
    holder.step(ReleaseOp(1))
    assert set(service.route(pool="b")) == {"b"}


def test_route_finds_what_lies_below_the_pool_after_what_is_cached() -> None:
    service = Service()
    holder = service.attach("a")
    hashes = chained_hashes(namespace_hash("default"), PROMPT, 16)
    holder.step(AcquireOp(PROMPT, seq_id=1), InsertOp(1, 10), HintOp("disk", hashes[1:5]), HintOp("host", hashes[5:6]))
    assert service.route()["a"].num_stored_tokens == 24 - 10
    assert service.route(PROMPT[:60])["a"].num_stored_tokens == 12 - 10
    assert service.route(namespace="team")["a"].num_stored_tokens == 0
    holder.step(HintOp("disk", lost=hashes[3:4]))
    assert service.route()["a"].num_stored_tokens == 12 - 10


def test_route_is_a_pure_read_and_keeps_namespaces_apart() -> None:
    service = Service()
    holder = service.attach("a")
    holder.step(AcquireOp(PROMPT, seq_id=1, namespace="team", waits=True), InsertOp(1, 16))
    pool = service.table.select("a")[0]
    before = (pool.cache.stats(), pool.cache.dump())
    assert service.route(namespace="team")["a"][:2] == (16, 40)
    assert service.route()["a"][:2] == (0, 0)
    assert (pool.cache.stats(), pool.cache.dump()) == before
    pool.cache.check()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"generation_address": "h" * 257}, "generation_address"),
        ({"fingerprint": "f" * 129}, "fingerprint"),
        ({"load": types.WorkerLoad(num_backlog_tokens=-1)}, r"load\.num_backlog_tokens"),
        ({"load": types.WorkerLoad(tokens_per_s=float("nan"))}, r"load\.tokens_per_s"),
        ({"load": types.WorkerLoad(loaded_tokens_per_s=-0.5)}, r"load\.loaded_tokens_per_s"),
        ({"load": types.WorkerLoad(num_ahead=-1)}, r"load\.num_ahead"),
    ],
)
def test_what_a_worker_may_not_say_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    service = Service()
    with pytest.raises(InvalidArgumentError, match=named):
        service.attach("a", **change)
    assert service.route() == {}


def test_a_bad_load_in_a_step_is_refused_and_the_step_is_not_applied() -> None:
    service = Service()
    holder = service.attach("a")
    with pytest.raises(InvalidArgumentError, match=r"load\.num_running"):
        holder.step(AcquireOp(PROMPT, seq_id=1), load=BUSY._replace(num_running=-2))
    assert service.table.select("a")[0].cache.stats().num_sequences == 0


def test_bad_requests_are_refused_as_for_other_reads() -> None:
    service = Service()
    service.attach("a")
    with pytest.raises(InvalidArgumentError, match="tokens"):
        service.route(b"abc")
    with pytest.raises(InvalidArgumentError, match="namespace"):
        service.route(namespace="n" * 257)
    with pytest.raises(UnknownPoolError):
        service.route(pool="none")


def test_more_pools_than_are_routed_to_at_once_are_refused() -> None:
    service = Service()
    for number in range(MAX_ROUTED_POOLS):
        service.attach(f"pool {number}", incarnation=number + 1)
    assert len(service.route()) == MAX_ROUTED_POOLS
    service.attach("one more", incarnation=1000)
    with pytest.raises(LimitError, match="65 pools"):
        service.route()
    assert set(service.route(pool="one more")) == {"one more"}


@pytest.mark.parametrize("role", ["client", "reader"])
def test_a_tenant_routes_in_its_own_namespaces_only(role: str) -> None:
    tenant = Tenant("team-a", "team-a", roles=frozenset({role}))
    caller = Caller(tenant, lambda: tenant)
    method = "/radixkv.v1.PrefixCache/Route"
    check_call(caller, method, readers.RouteRequest(namespace="team-a", tokens=PROMPT), ())
    for namespace in ("team-b", None):
        with pytest.raises(PermissionDeniedError):
            check_call(caller, method, readers.RouteRequest(namespace=namespace, tokens=PROMPT), ())
