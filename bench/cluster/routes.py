"""Times of `Route`, of a gateway's ranking over several services, and of Steps next to Routes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import psutil

from bench.cluster.services import (
    ECHO,
    KEEP,
    PROMPT_TOKENS,
    SHARED_TOKENS,
    Cell,
    Prompts,
    running_aside,
    send_routes,
    serve_echo,
)
from radixkv import AcquireOp, AcquireResult, ReleaseOp, connect, pack_tokens
from radixkv.client.reader import open_channel
from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import prefix_cache_pb2_grpc

__all__ = [
    "ALONE",
    "BESIDE",
    "COMMON",
    "RARE",
    "TRANSPORT",
    "RouteTimes",
    "StepTimes",
    "cpu_of_rankings",
    "cpu_of_steps",
    "time_routes",
    "time_steps",
]

COMMON, RARE, TRANSPORT = "cached in all pools", "cached in one pool", "transport alone"
ALONE, BESIDE = "without Routes", "with Routes"
_PATIENT_S = 5.0
_STEP_EVERY_S = 0.01
_PERIOD_S = 0.5


class RouteTimes(NamedTuple):
    """Seconds: of calls to one service, by kind; of rankings, by number of services."""

    calls: dict[str, list[float]]
    rankings: dict[int, list[float]]


class StepTimes(NamedTuple):
    """Seconds of Steps, and Routes per second next to them, by whether there are any."""

    steps: dict[str, list[float]]
    routes_per_s: float


def time_routes(cell: Cell, num_pools: int, services: Sequence[int], prompts: Prompts, num_rounds: int) -> RouteTimes:
    """Calls in turns, each checked; a tenth more to warm up."""
    with ExitStack() as stack:
        reader = stack.enter_context(connect(cell.addresses[0]))
        echo = stack.enter_context(running_aside(serve_echo)).recv()
        channels = [stack.enter_context(open_channel(address)) for address in (cell.addresses[0], echo)]
        routers = {
            number: stack.enter_context(
                RoutedGenerator(cell.addresses[:number], answer_s=_PATIENT_S, rng=random.Random(0))
            )
            for number in services
        }
        request = readers.RouteRequest(namespace="default", tokens=prompts.common)
        response = prefix_cache_pb2_grpc.PrefixCacheStub(channels[0]).Route(request)  # type: ignore[no-untyped-call]
        text, read = readers.RouteResponse.SerializeToString, readers.RouteResponse.FromString
        channels[1].unary_unary(KEEP, text, read)(response)
        transport = channels[1].unary_unary(ECHO, readers.RouteRequest.SerializeToString, read)

        def call(tokens: bytes, num_elsewhere: int) -> None:
            routes = reader.route_all(tokens)
            found = sorted(route.num_tokens for route in routes.values())
            assert found == [num_elsewhere] * (num_pools - 1) + [PROMPT_TOKENS], found

        def rank(number: int) -> None:
            ranking = routers[number].rank(prompts.rare)
            found = [choice.num_found_tokens for choice in ranking]
            assert found == [PROMPT_TOKENS] + [SHARED_TOKENS] * (number * num_pools - 1), found

        calls: dict[str, Callable[[], object]] = {
            TRANSPORT: lambda: transport(request),
            COMMON: lambda: call(prompts.common, PROMPT_TOKENS),
            RARE: lambda: call(prompts.rare, SHARED_TOKENS),
        }
        timed = {kind: _timed(each) for kind, each in calls.items()}
        ranked = {number: _timed(lambda number=number: rank(number)) for number in services}  # type: ignore[misc]
        times = RouteTimes({kind: [] for kind in calls}, {number: [] for number in services})
        num_warm_up = num_rounds // 10
        for round_number in range(num_warm_up + num_rounds):
            for samples, of in ((times.calls, timed), (times.rankings, ranked)):
                for name, call_once in of.items():  # type: ignore[attr-defined]
                    taken_s = call_once()
                    if round_number >= num_warm_up:
                        samples[name].append(taken_s)  # type: ignore[index]
        return times


def cpu_of_rankings(cell: Cell, prompt: bytes, num_calls: int) -> tuple[float, float]:
    """CPU seconds of a service, and of a gateway's code, for a ranking of its workers."""
    with RoutedGenerator(cell.addresses[:1], answer_s=_PATIENT_S, rng=random.Random(0)) as router:
        return _cpu_s(cell, lambda: router.rank(prompt), num_calls)


def cpu_of_steps(cell: Cell, num_calls: int) -> tuple[float, float]:
    """CPU seconds of a service, and of the client, for a Step that acquires and releases a prompt of 16 tokens."""
    prompt = pack_tokens(range(16))
    return _cpu_s(cell, lambda: cell.holder.step([AcquireOp(prompt, seq_id=1), ReleaseOp(1)]), num_calls)


def _cpu_s(cell: Cell, call: Callable[[], object], num_calls: int) -> tuple[float, float]:
    service = psutil.Process(cell.pid)
    before, began_s = service.cpu_times(), time.process_time()
    for _ in range(num_calls):
        call()
    after, ended_s = service.cpu_times(), time.process_time()
    used_s = after.user + after.system - before.user - before.system
    return used_s / num_calls, (ended_s - began_s) / num_calls


def time_steps(cell: Cell, prompts: Prompts, num_periods: int, routes_per_s: float) -> StepTimes:
    """A Step every hundredth of a second that acquires and releases a cached prompt, in periods with and without Routes."""
    steps: dict[str, list[float]] = {ALONE: [], BESIDE: []}
    num_routes = 0

    def step() -> None:
        [opened, _] = cell.holder.step([AcquireOp(prompts.rare, seq_id=1), ReleaseOp(1)])
        assert isinstance(opened, AcquireResult), opened
        assert opened.num_stored_tokens == PROMPT_TOKENS, opened

    timed = _timed(step)
    with running_aside(send_routes, cell.addresses[0], prompts.rare) as pipe:
        for _ in range(num_periods):
            for kind, per_s in ((ALONE, 0.0), (BESIDE, routes_per_s)):
                pipe.send(per_s)
                before = pipe.recv()
                due_s = time.monotonic()
                until_s = due_s + _PERIOD_S
                while due_s < until_s:
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    steps[kind].append(timed())
                    due_s += _STEP_EVERY_S
                pipe.send(0.0)
                num_routes += pipe.recv() - before
    return StepTimes(steps, num_routes / (num_periods * _PERIOD_S))


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    """The call, with its seconds as its result."""

    def timed() -> float:
        start_s = time.perf_counter()
        call()
        return time.perf_counter() - start_s

    return timed
