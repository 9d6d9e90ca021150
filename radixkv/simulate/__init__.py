"""Replay: a cache's hit rate on a recorded load, by policy and size, computed with the real core."""

from __future__ import annotations

from radixkv.simulate.belady import BeladyPolicy, Future
from radixkv.simulate.errors import TraceError
from radixkv.simulate.replay import LIMITS, HitRate, check_policies, parse_capacities, replay
from radixkv.simulate.shapes import Branching, Shape, branchings, shapes_of
from radixkv.simulate.traces import Request, Trace, read_trace, trace_of_texts

__all__ = [
    "LIMITS",
    "BeladyPolicy",
    "Branching",
    "Future",
    "HitRate",
    "Request",
    "Shape",
    "Trace",
    "TraceError",
    "branchings",
    "check_policies",
    "parse_capacities",
    "read_trace",
    "replay",
    "shapes_of",
    "trace_of_texts",
]
