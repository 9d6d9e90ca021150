"""A gateway's generator over two services with a worker each: who gets a request, and what happens when one of them is lost."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stored_engine import open_store
from waiting import wait_until

from radixkv import PoolShape, connect, pack_tokens
from radixkv.core.api import WorkerLoad
from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.core.namespaces import derived_namespace
from radixkv.gateway.backend import members as members_module
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.backend.members import Members, PendingClear, resolve
from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, ModelInfo, Prompt, UnknownGenerationError
from radixkv.generation.stream import Completed, Delta, GenerationEvent, Started
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.stores.costs import PrefillCost, PrefillMeter
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.server import GenerationServer

NUM_BLOCKS, BLOCK_SIZE = 256, 4
TOKENS_PER_S = 2.0
"""Said of a worker with a block store."""
DEADLINE_S = 60.0
"""Of a call, which a stopping server may leave without an end."""


class Host:
    """A cache service with one worker beside it."""

    def __init__(self, name: str, folder: Path | None = None, max_running: int = 64) -> None:
        self.stack = ExitStack()
        self.service = self.stack.enter_context(ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))))
        self.address = self.service.addresses[0]
        self.is_accepting = True
        self.speed = {"tokens_per_s": TOKENS_PER_S} if folder else {}
        self.runner = HashRunner(NUM_BLOCKS, BLOCK_SIZE)
        self.engine: Engine | None = None
        shape = PoolShape(NUM_BLOCKS, BLOCK_SIZE, name)
        self.holder = self.stack.enter_context(connect(self.address, shape, load=self._load, patience_s=300.0))
        store = open_store(folder, self.runner) if folder else None
        if store is not None:
            self.stack.callback(store.close)
        limits = SchedulerLimits(max_running=max_running)
        self.engine = Engine(self.runner, self.holder, limits=limits, store=store)
        self.stack.callback(self.engine.close)
        self.server = self.stack.enter_context(GenerationServer(self.engine, "127.0.0.1:0"))
        self.holder.announce(self.server.address, "f00d")

    def _load(self) -> WorkerLoad:
        load = self.engine.load() if self.engine is not None else WorkerLoad(0, 0.0, 0, is_accepting=False)
        return load._replace(is_accepting=load.is_accepting and self.is_accepting, **self.speed)

    def lose_worker(self) -> None:
        """As if it was killed: nothing is said to anybody."""
        self.server.stop()
        self.runner.gate.open()

    def close(self) -> None:
        self.runner.gate.open()
        self.stack.close()


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    both = Host("left"), Host("right")
    try:
        yield both
    finally:
        for host in both:
            host.close()


@pytest.fixture
def routed(hosts: tuple[Host, Host]) -> Iterator[RoutedGenerator]:
    with RoutedGenerator([host.address for host in hosts], answer_s=DEADLINE_S) as generator:
        wait_until(lambda: len(generator.rank(b"")) == 2)
        yield generator


def request(first: int, length: int = 40, **more: Any) -> GenerateParams:
    sampling = SamplingParams(max_tokens=8, temperature=5.0, seed=3, ignore_eos=True)
    return GenerateParams(token_ids=[1 + (first + step) % 38 for step in range(length)], sampling=sampling, **more)


def told(events: list[GenerationEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


def cached(events: list[GenerationEvent]) -> int:
    (completed,) = [event for event in events if isinstance(event, Completed)]
    return completed.usage.num_cached_tokens


def holds(host: Host, first: int) -> int:
    return host.holder.match([1 + (first + step) % 38 for step in range(40)]).num_tokens


def figures(generator: RoutedGenerator) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("reason", "")): sample.value
        for metric in generator.collect()
        for sample in metric.samples
    }


def test_a_request_goes_to_the_worker_that_holds_its_prompt_from_any_gateway(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    for first in range(6):
        list(routed.generate(request(first)))
    owners = [max(hosts, key=lambda host, first=first: holds(host, first)) for first in range(6)]  # type: ignore[misc]
    with RoutedGenerator([host.address for host in hosts], answer_s=DEADLINE_S) as another:
        for first in range(6):
            assert cached(list(another.generate(request(first)))) == 39
        after = figures(another)
    for first, owner in enumerate(owners):
        (other,) = [host for host in hosts if host is not owner]
        assert holds(owner, first) >= 40
        assert holds(other, first) < 8, "it was computed once"
    assert after["radixkv:routed_requests_total", "matched"] == 6
    assert after["radixkv:routed_predicted_tokens_total", "matched"] == 6 * 39
    assert after["radixkv:routed_found_tokens_total", "matched"] == 6 * 39


def test_a_request_goes_to_the_worker_that_can_load_its_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PrefillMeter, "cost", lambda _meter: PrefillCost(1 / TOKENS_PER_S, 0.0)
    )  # else it computes faster
    with ExitStack() as stack:
        hosts = [Host(name, tmp_path / name) for name in ("left", "right")]
        for host in hosts:
            stack.callback(host.close)
        routed = stack.enter_context(RoutedGenerator([host.address for host in hosts], answer_s=DEADLINE_S))
        wait_until(lambda: len(routed.rank(b"")) == 2)
        owners = []
        for first in range(6):
            list(routed.generate(request(first)))
            owners.append(max(hosts, key=lambda host, first=first: holds(host, first)))  # type: ignore[misc]
        for first, owner in enumerate(owners):
            tokens = request(first).token_ids
            wait_until(lambda owner=owner: owner.engine.stats().engine.num_store_unsaved_blocks == 0)  # type: ignore[misc]
            owner.engine.call(lambda holder: holder.evict(NUM_BLOCKS))
            wait_until(lambda tokens=tokens: routed.rank(pack_tokens(tokens))[0].num_found_tokens == 40)  # type: ignore[misc]
            best = routed.rank(pack_tokens(tokens))[0]
            assert (best.worker, best.reason) == (owner.server.address, "stored")
            assert cached(list(routed.generate(request(first)))) == 39
        after = figures(routed)
    assert after["radixkv:routed_requests_total", "stored"] == 6
    assert after["radixkv:routed_predicted_tokens_total", "stored"] == 6 * 39
    assert after["radixkv:routed_found_tokens_total", "stored"] == 6 * 39


def test_another_namespace_and_salt_find_nothing_and_an_unshared_request_is_not_asked_for(
    routed: RoutedGenerator,
) -> None:
    list(routed.generate(request(1)))
    for more in ({"namespace": "team"}, {"cache_salt": "secret"}):
        assert cached(list(routed.generate(request(1, **more)))) == 0
        assert cached(list(routed.generate(request(1, **more)))) == 39
    assert cached(list(routed.generate(request(1, sharing="off")))) == 0


def test_a_busy_worker_is_left_to_others_and_siblings_wait_for_one_prompt(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    for host in hosts:
        host.runner.gate.close()
    first = routed.generate(request(1))
    wait_until(lambda: routed.rank(b"")[0].backlog_s < routed.rank(b"")[1].backlog_s)
    busy = routed.rank(b"")[1].worker
    assert routed.rank(request_tokens(1))[0].worker == busy, "it computes just this prompt"
    assert routed.rank(request_tokens(1))[0].reason == "pending"
    assert routed.rank(request_tokens(30))[0].worker != busy
    for host in hosts:
        host.runner.gate.open()
    list(first)


def test_once_all_places_of_its_worker_are_taken_others_get_a_prompt_that_only_it_holds() -> None:
    with ExitStack() as stack:
        hosts = [Host(name, max_running=4) for name in ("left", "right")]
        for host in hosts:
            stack.callback(host.close)
        routed = stack.enter_context(RoutedGenerator([host.address for host in hosts], answer_s=DEADLINE_S))
        wait_until(lambda: len(routed.rank(b"")) == 2)
        list(routed.generate(request(1)))
        owner, other = sorted(hosts, key=lambda host: holds(host, 1), reverse=True)
        for host in hosts:
            host.runner.gate.close()
        streams = []
        while other.engine.load().num_running == 0:
            assert len(streams) < 60, f"all went to one worker: {owner.engine.load()}"
            streams.append(routed.generate(request(1)))
            if num_over := max(0, len(streams) - 3):
                wait_until(lambda at_least=num_over: ahead_of(owner) >= at_least or other.engine.load().num_running)  # type: ignore[misc]
        assert len(streams) > 4, "as long as it has a place, the prompt is not computed again"
        for host in hosts:
            host.runner.gate.open()
        assert len({tuple(told(list(stream))) for stream in streams}) == 1


def ahead_of(host: Host) -> int:
    """Branches ahead of a request that comes to a worker now, as routers know it."""
    (report,) = host.holder.workers_all().values()
    return report.load.num_ahead if report.load else 0


def request_tokens(first: int) -> bytes:
    return pack_tokens([1 + (first + step) % 38 for step in range(40)])


def test_a_worker_that_is_stopping_gets_nothing_new(hosts: tuple[Host, Host], routed: RoutedGenerator) -> None:
    list(routed.generate(request(1)))
    owner, other = sorted(hosts, key=lambda host: -holds(host, 1))
    owner.is_accepting = False
    wait_until(lambda: [choice.worker for choice in routed.rank(b"")] == [other.server.address])
    assert cached(list(routed.generate(request(1)))) < 8
    other.is_accepting = False
    wait_until(lambda: not routed.rank(b""))
    with pytest.raises(UnavailableError):
        routed.generate(request(2))


def test_a_lost_worker_is_passed_over_at_once(hosts: tuple[Host, Host], routed: RoutedGenerator) -> None:
    expected = told(list(routed.generate(request(1))))
    owner, other = sorted(hosts, key=lambda host: -holds(host, 1))
    owner.lose_worker()
    for first in range(1, 5):
        events = list(routed.generate(request(first)))
        assert first > 1 or told(events) == expected
        assert holds(other, first) >= 40
    assert figures(routed)["radixkv:routed_refusals_total", ""] >= 1


def test_a_stream_whose_worker_is_lost_goes_on_at_the_other_to_the_same_tokens(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    expected = told(list(routed.generate(request(7, length=20))))
    owner, _ = sorted(hosts, key=lambda host: -host.holder.match(request_tokens(7)).num_tokens)

    async def use() -> list[GenerationEvent]:
        backend = Backend(routed, patience_s=300)
        owner.runner.gate.close_after(4)
        async with await backend.generate(request(7, length=20)) as stream:
            while owner.runner.gate.is_open:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(owner.lose_worker)
            events = [event async for event in stream]
        backend.close()
        return events

    assert told(asyncio.run(use())) == expected


def test_workers_of_a_service_that_is_gone_are_served_by_load(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    now_s = 1000.0
    with RoutedGenerator([hosts[0].address], clock=lambda: now_s) as alone:
        hosts[0].service.stop()

        def aged_s() -> float:
            nonlocal now_s
            (before,) = alone.workers()
            now_s += 50.0
            (after,) = alone.workers()
            return after.load_age_s - before.load_age_s

        wait_until(lambda: aged_s() == pytest.approx(50.0))  # once the last answer is in
    hosts[1].service.stop()
    assert len({choice.worker for choice in routed.rank(request_tokens(1))}) == 2
    assert {choice.reason for choice in routed.rank(request_tokens(1))} == {"load"}


def test_without_a_worker_each_call_says_so() -> None:
    calls: list[Callable[[RoutedGenerator], Any]] = [
        lambda generator: generator.generate(request(1)),
        lambda generator: generator.model(),
        lambda generator: generator.detokenize(pack_tokens([1])),
        lambda generator: generator.stats(),
        lambda generator: generator.verify_block(pack_tokens([1])),
    ]
    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
        RoutedGenerator(service.addresses) as none,
    ):
        assert none.workers() == []
        assert none.erase() == []
        for call in calls:
            with pytest.raises(UnavailableError):
                call(none)


def test_a_worker_whose_service_is_gone_is_the_last_also_for_what_it_holds(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    list(routed.generate(request(1)))
    owner, other = sorted(hosts, key=lambda host: -holds(host, 1))
    owner.service.stop()
    wait_until(lambda: owner.server.address in routed.members.stalled())
    other.runner.gate.close()
    waiting = [routed.generate(request(first)) for first in range(2, 6)]  # a backlog, which the other would not have
    assert [choice.worker for choice in routed.rank(request_tokens(1))] == [other.server.address, owner.server.address]
    other.runner.gate.open()
    assert all(len(told(list(stream))) == 8 for stream in waiting)


def test_a_worker_whose_service_is_gone_is_the_last_to_be_asked_what_any_can_answer(
    hosts: tuple[Host, Host], routed: RoutedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, other = hosts
    gone.service.stop()
    wait_until(lambda: gone.server.address in routed.members.stalled())
    asked: list[str] = []
    answer = GenerationClient.model

    def model(client: GenerationClient) -> ModelInfo:
        asked.append(client.address)
        return answer(client)

    monkeypatch.setattr(GenerationClient, "model", model)
    for _ in range(8):
        routed.model()
    assert set(asked) == {other.server.address}, "the network of the other's host may be cut: a call would hang there"


def test_a_fork_goes_to_the_worker_that_its_generation_names(hosts: tuple[Host, Host], routed: RoutedGenerator) -> None:
    streams = [routed.generate(request(first)) for first in range(4)]
    for stream in streams:
        list(stream)
    with RoutedGenerator([host.address for host in hosts], answer_s=DEADLINE_S) as another:
        sampling = SamplingParams(max_tokens=4, ignore_eos=True)
        for stream in streams:
            fork = another.fork(ForkParams(generation_id=stream.generation_id, position=36, sampling=sampling))
            assert cached(list(fork)) == 35
        with pytest.raises(UnknownGenerationError):
            another.fork(ForkParams(generation_id="of nobody"))


def test_all_workers_are_counted_together(hosts: tuple[Host, Host], routed: RoutedGenerator) -> None:
    for first in range(3):
        list(routed.generate(request(first)))
    stats = routed.stats()
    assert stats.engine.num_finished == 3
    assert stats.cache is not None
    assert stats.cache.num_blocks == 2 * NUM_BLOCKS
    assert stats.cache.eviction == hosts[0].holder.stats().eviction


def slowed(forward: Callable[..., Any], seconds: float, *, once: bool = False) -> Callable[..., Any]:
    waits = itertools.chain([seconds], itertools.repeat(0.0 if once else seconds))

    def run(*rows: Any) -> Any:
        time.sleep(next(waits))
        return forward(*rows)

    return run


def test_an_idle_worker_reports_no_backlog_and_its_measured_speed(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    list(routed.generate(request(1)))
    owner, _ = sorted(hosts, key=lambda host: -holds(host, 1))
    owner.runner.forward = slowed(owner.runner.forward, 1.1)  # type: ignore[method-assign]
    list(routed.generate(request(1, length=60)))

    def reported() -> WorkerLoad:
        load = owner.holder.workers_all()[owner.holder.pool_name].load
        assert load is not None
        return load

    wait_until(lambda: (reported().num_backlog_tokens, reported().num_running) == (0, 0))
    assert reported().tokens_per_s > 0
    assert reported().is_accepting


def test_a_worker_that_was_slow_at_its_first_prompt_gets_its_share_of_later_ones(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    """The first use of a worker compiles, loads and allocates."""
    slow = hosts[0]
    slow.runner.forward = slowed(slow.runner.forward, 0.5, once=True)  # type: ignore[method-assign]
    given = []
    for first in range(1, 38):
        list(routed.generate(request(first)))
        given.append(max(hosts, key=lambda host, first=first: holds(host, first)))  # type: ignore[misc]
    assert 5 <= given.count(slow) <= 32


def test_names_of_services_are_looked_up_and_bad_ones_refused() -> None:
    assert resolve("127.0.0.1:50051") == ["127.0.0.1:50051"]
    assert resolve("unix:/tmp/service") == ["unix:/tmp/service"]
    assert resolve("localhost:50051") == ["localhost:50051"]
    for unknown in ("no-such-host.invalid:50051", "no..such:50051"):
        assert resolve(unknown) == [unknown]
    for services in ([], ["127.0.0.1:1"] * 17, ["nonsense"]):
        with pytest.raises(ValueError, match=r"services|address"):
            Members(services)


def test_a_fork_whose_worker_is_lost_says_so(hosts: tuple[Host, Host], routed: RoutedGenerator) -> None:
    stream = routed.generate(request(1))
    list(stream)
    max(hosts, key=lambda host: holds(host, 1)).lose_worker()
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    with pytest.raises(UnavailableError):
        routed.fork(ForkParams(generation_id=stream.generation_id, position=36, sampling=sampling))


def test_the_connection_of_a_worker_that_is_gone_ends_with_its_last_stream() -> None:
    def num_clients() -> int:
        gc.collect()
        return sum(isinstance(each, GenerationClient) and each.address in addresses for each in gc.get_objects())

    host = Host("moving")
    addresses = {host.server.address}
    try:
        with RoutedGenerator([host.address], answer_s=DEADLINE_S) as routed:
            wait_until(lambda: len(routed.workers()) == 1)
            early = routed.generate(request(0))
            for number in range(4):
                server = host.stack.enter_context(GenerationServer(host.engine, "127.0.0.1:0"))
                addresses.add(server.address)
                host.holder.announce(server.address, "f00d")
                wait_until(lambda: routed.workers()[0].generation_address == server.address)  # noqa: B023
                list(routed.generate(request(number)))
            assert num_clients() == 2, "that of the stream, and of the worker as it is now"
            assert len(told(list(early))) == 8
            del early
            assert num_clients() == 1
    finally:
        host.close()


def test_equal_workers_are_chosen_by_the_given_chance(hosts: tuple[Host, Host]) -> None:
    services = [host.address for host in hosts]
    drawn = []
    for seed in (1, 1, 2):
        with RoutedGenerator(services, answer_s=DEADLINE_S, rng=random.Random(seed)) as generator:
            wait_until(lambda: len(generator.workers()) == 2)
            drawn.append([generator.rank(b"")[0].worker for _ in range(30)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 2


def test_an_answer_of_any_worker_is_the_routers_and_so_is_its_error(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    with GenerationClient(hosts[0].server.address) as direct:
        assert routed.model() == direct.model()
        assert routed.find_stored(pack_tokens([1])) == direct.find_stored(pack_tokens([1]))
        asked: list[Callable[[RoutedGenerator | GenerationClient], Any]] = [
            lambda generator: generator.tokenize(Prompt(text="some text")),
            lambda generator: generator.detokenize(pack_tokens([1])),
            lambda generator: generator.spell(pack_tokens([1])),
            lambda generator: list(generator.export(pack_tokens([1]))),
        ]
        for call in asked:  # these workers have no tokenizer and no store
            with pytest.raises(RadixKVError) as expected:
                call(direct)
            with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
                call(routed)
    again = Prompt(messages=[{"role": "assistant", "content": ""}], continue_final_message=True)
    assert routed.tokenize(again, pack_tokens([4, 5])) == pack_tokens([4, 5]), "nothing is to be asked"
    asks = GenerateParams(messages=again.messages, continue_final_message=True, history=pack_tokens([4, 5]))
    assert routed._as_ids(asks).params.goes_on_from_text, "its first tokens are decoded with those before them"


def test_a_chat_is_generated_from_the_ids_that_it_was_routed_by(
    routed: RoutedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These workers have no tokenizer; one message of an assistant without text is no text to go on from."""
    monkeypatch.setattr(routed, "tokenize", lambda *_: pack_tokens([4, 5, 6]))
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]
    for goes_on in (False, True):
        asks = GenerateParams(messages=chat, continue_final_message=goes_on, sampling=SamplingParams(max_tokens=2))
        started, *_ = list(routed.generate(asks))
        assert isinstance(started, Started)
        assert started.prompt == pack_tokens([4, 5, 6])


def test_a_pool_where_a_clear_is_pending_gets_no_request_of_that_namespace(
    hosts: tuple[Host, Host], routed: RoutedGenerator
) -> None:
    left, right = hosts
    both = {host.server.address for host in hosts}

    def offered(namespace: str) -> set[str]:
        return {choice.worker for choice in routed.rank(b"", namespace)}

    of_service, of_pool = PendingClear(left.address, "", "red"), PendingClear(left.address, "left", "red")
    for pending, confirmed in ((of_pool, ()), (of_service, ()), (of_service, (of_pool._replace(pool="other"),))):
        routed.members.hold_back(frozenset({pending}), frozenset(confirmed))
        for namespace in ("red", derived_namespace("red", adapter="a")):
            assert offered(namespace) == {right.server.address}
        assert offered("blue") == both
    routed.members.hold_back(frozenset({of_service}), frozenset({of_pool}))
    assert offered("red") == both, "what of the service is pending its pool has confirmed"
    routed.members.hold_back(frozenset({of_service, of_pool}), frozenset({of_pool}))
    assert offered("red") == {right.server.address}
    routed.members.hold_back(frozenset(), frozenset())
    assert offered("red") == both


def test_services_whose_addresses_are_gone_are_asked_no_more(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [host.address for host in hosts]
    monkeypatch.setattr(members_module, "resolve", lambda *_: places)
    members = Members(["any.example:1"])
    try:
        wait_until(lambda: len(members.known()) == 2)
        readers = dict(members._readers)
        places.pop()
        members._resolve()
        assert [route.worker.generation_address for route in members.known()] == [hosts[0].server.address]
        readers[hosts[0].address].workers_all()
        with pytest.raises((RadixKVError, ValueError)):
            readers[hosts[1].address].workers_all()
    finally:
        members.close()


def test_a_name_stands_for_each_of_its_addresses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def look_up(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        asked.append((host, port))
        return [(None, None, None, "", (address, port)) for address in ("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1")]

    monkeypatch.setattr(members_module.socket, "getaddrinfo", look_up)
    assert resolve("any.example:7") == ["10.0.0.2:7", "10.0.0.1:7", "[fd00::1]:7"]
    assert resolve("localhost:7") == ["localhost:7"]
    asked.clear()
    for place in ("10.0.0.9:7", "[fd00::2]:7", "unix:/tmp/service"):
        assert resolve(place) == [place]
    assert asked == [], "an address is not looked up"


def test_services_are_kept_while_their_name_cannot_be_looked_up(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(hosts[0].address.rpartition(":")[2])

    def look_up(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        if is_away:
            raise failure
        return [(None, None, None, "", ("127.0.0.1", port))]

    monkeypatch.setattr(members_module.socket, "getaddrinfo", look_up)
    is_away, failure = False, OSError("temporary failure in name resolution")
    members = Members([f"any.example:{port}"])
    try:
        wait_until(lambda: len(members.known()) == 1)
        is_away = True
        members._resolve()
        assert list(members.met()) == [hosts[0].address]
        assert [offer.worker.generation_address for offer in members.ask(b"")] == [hosts[0].server.address]
    finally:
        members.close()


def test_a_look_up_that_fails_is_not_the_last(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a cluster's manager that raises, or names what is no address."""
    monkeypatch.setattr(members_module, "_LOOKUPS_PAUSE_S", 0.0)
    monkeypatch.setattr(members_module, "_LOOK_PAUSE_S", 0.01)
    answers: list[list[str] | Exception] = [[host.address] for host in hosts]
    failures: list[list[str] | Exception] = [OSError("its manager is away"), ["nonsense"]]
    told = iter([answers[0], *failures])

    def services() -> list[str]:
        answer = next(told, answers[1])
        if isinstance(answer, Exception):
            raise answer
        return answer

    members = Members(services)
    try:
        wait_until(lambda: [route.worker.generation_address for route in members.known()] == [hosts[1].server.address])
    finally:
        members.close()


def test_a_service_that_is_let_go_during_a_question_fails_it_for_no_other(hosts: tuple[Host, Host]) -> None:
    members = Members([host.address for host in hosts])
    try:
        wait_until(lambda: len(members.known()) == 2)
        members._readers[hosts[1].address].close()  # its address is gone as of now
        offers = members.ask(b"", wait_s=DEADLINE_S)
        assert [offer.worker.generation_address for offer in offers] == [hosts[0].server.address]
    finally:
        members.close()


def test_a_service_that_never_answered_is_logged_once_with_the_reason(
    hosts: tuple[Host, Host], caplog: pytest.LogCaptureFixture
) -> None:
    worker = hosts[0].server.address
    with caplog.at_level("WARNING", members_module.__name__):
        members = Members([worker])
        try:
            assert [members.ask(b"") for _ in range(3)] == [[], [], []]
        finally:
            members.close()
    (told,) = [record.getMessage() for record in caplog.records if worker in record.getMessage()]
    assert "is not a radixkv service" in told, told
