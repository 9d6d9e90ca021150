"""Shapes of requests: arrival, length, and the earlier request that its prompt branches from. Numbers without text.

prompt of an earlier request   ├──────────────────┤ its reply ├─────┤
prompt of a later one          ├────────────────────────────┤ other ├──┤        shares the tokens before `other`
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes
from radixkv.simulate.traces import Trace

__all__ = ["Branching", "Shape", "branchings", "shapes_of"]


class Shape(NamedTuple):
    """One request. `parent`: index of the earlier request that its prompt shares most with, or None."""

    arrival_s: float
    prompt_tokens: int
    generated_tokens: int
    parent: int | None
    shared_tokens: int


class Branching(NamedTuple):
    """The earlier history that a prompt shares most with, by its index, and the number of shared tokens."""

    parent: int | None
    num_shared: int


def branchings(histories: Iterable[tuple[Hashable, bytes, bytes]]) -> list[Branching]:
    """For each (namespace, packed prompt, packed reply), its branching from earlier ones in its namespace.

    In a sorted list, the history that shares most with a prompt is next to the prompt's place. O(n log n) compares.
    """
    sorted_by_namespace: dict[Hashable, list[tuple[bytes, int]]] = {}
    found = []
    for place, (namespace, prompt, reply) in enumerate(histories):
        known = sorted_by_namespace.setdefault(namespace, [])
        index = bisect_left(known, (prompt, -1))
        best, best_bytes = None, 0
        for history, earlier in known[max(0, index - 1) : index + 1]:
            common_bytes = common_prefix_bytes(prompt, 0, history, len(history))
            if common_bytes > best_bytes:
                best, best_bytes = earlier, common_bytes
        found.append(Branching(best, best_bytes // TOKEN_BYTES))
        insort(known, (prompt + reply, place))
    return found


def shapes_of(trace: Trace) -> list[Shape]:
    """The shapes of a trace, in its own tokens. Unrecorded replies count as empty. O(n log n) compares."""
    found = branchings(("", request.tokens, b"") for request in trace.requests)
    shapes = []
    for request, (parent, num_shared) in zip(trace.requests, found, strict=True):
        if num_shared * TOKEN_BYTES == len(request.tokens):
            shared = request.num_tokens
        else:
            shared = num_shared * trace.tokens_per_block // trace.block_size
            if trace.tokens_per_block != trace.block_size:
                shared -= shared % trace.tokens_per_block
        above = parent if shared else None
        shapes.append(Shape(request.time_s, request.num_tokens, request.num_generated, above, shared))
    return shapes
