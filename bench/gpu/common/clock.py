"""Times of calls on a GPU: each is captured into a graph, the graphs are replayed in turns, medians of CUDA events.

A captured call runs over one input set after another; a graph is long enough that its launch and the events' resolution are
negligible. On a CPU, under Triton's interpreter, a call is made once: its time means nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bench.common.report import Summary, percentile, summarise

__all__ = ["Calls", "Clock", "copy_bandwidth", "eager_us", "host_us"]

Calls = Sequence[Callable[[], Any]]
"""The same work over one input set after another."""

_MIN_GRAPH_US = 400.0
_MAX_GRAPH_CALLS = 512
_ROUNDS = (5, 40)


class Clock:
    """Times calls on `device` for about `seconds` each time, within the deadline of the run."""

    def __init__(self, device: torch.device, seconds: float, minutes: float, started_s: float) -> None:
        self.device = device
        self.seconds = seconds
        self._end_s = started_s + minutes * 60
        self._section_end_s = self._end_s

    @property
    def is_real(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left_s(self) -> float:
        """Seconds until the section must end."""
        return self._section_end_s - time.monotonic()

    def begin_section(self, share: float) -> None:
        """Give the next section this share of the time left."""
        now_s = time.monotonic()
        self._section_end_s = now_s + max(0.0, self._end_s - now_s) * share

    def microseconds(self, calls: Mapping[str, Calls]) -> dict[str, Summary]:
        """Times per call, by name; the names take turns. Errors of a call propagate."""
        if not self.is_real:
            return {name: summarise([_once_us(each[0])]) for name, each in calls.items()}
        graphs = {name: _Graph(each) for name, each in calls.items()}
        round_us = sum(graph.replay_us for graph in graphs.values())
        least, most = _ROUNDS
        rounds = min(most, max(least, int(self.seconds * 1e6 / round_us)))
        events = [{name: graph.replay() for name, graph in graphs.items()} for _ in range(rounds)]
        torch.cuda.synchronize()
        return {
            name: summarise([_elapsed_us(each[name]) / graph.num_calls for each in events])
            for name, graph in graphs.items()
        }


def copy_bandwidth(clock: Clock, num_bytes: int) -> float:
    """Bytes read and written per second by the fastest copy of `num_bytes`; a graph's own copies are slower than a kernel's."""
    source = torch.empty(num_bytes // 2, dtype=torch.bfloat16, device=clock.device).normal_()
    target = torch.empty_like(source)
    copies = {"copy": [lambda: target.copy_(source)], "kernel": [lambda: torch.neg(source, out=target)]}
    return 2 * num_bytes / min(each.p50 for each in clock.microseconds(copies).values()) * 1e6


Events = tuple[torch.cuda.Event, torch.cuda.Event]


class _Graph:
    """Calls captured in turn, as often as needed."""

    def __init__(self, calls: Calls) -> None:
        for call in calls:
            call()  # compiles, and allocates persistent buffers
        torch.cuda.synchronize()
        self._capture(calls)
        self.replay()
        self.replay_us = _replayed_us(self)
        repeats = min(_MAX_GRAPH_CALLS // len(calls), math.ceil(_MIN_GRAPH_US / self.replay_us))
        if repeats > 1:
            self._capture([*calls] * repeats)
            self.replay_us = _replayed_us(self)

    def _capture(self, calls: Calls) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self.num_calls = len(calls)
        with torch.cuda.graph(self._graph):
            for call in calls:
                call()

    def replay(self) -> Events:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self._graph.replay()
        end.record()
        return start, end


def _replayed_us(graph: _Graph) -> float:
    events = graph.replay()
    torch.cuda.synchronize()
    return max(1.0, _elapsed_us(events))


def _elapsed_us(events: Events) -> float:
    start, end = events
    return start.elapsed_time(end) * 1e3


def _once_us(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def eager_us(call: Callable[[], Any], device: torch.device, count: int) -> float:
    """Time per call for `count` consecutive calls with one wait at the end: the launch cost, if that is more."""
    if device.type == "cpu":
        return _once_us(call)
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6 / count)
    return percentile(times, 0.5)


def host_us(call: Callable[[], Any], count: int) -> float:
    """Median of `count` calls that use only the host."""
    return percentile([_once_us(call) for _ in range(count)], 0.5)
