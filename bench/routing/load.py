"""A trace as a load for several pools: requests with their sessions, and the part that so many pools get.

No file has sessions. A request continues the session of the deepest block that it shares with an earlier one, but for blocks
that many begin with, such as a system prompt. Times in Mooncake's file are multiples of 3 s: requests of one time are spread
evenly over it. Where a file has no times, one request comes after another. All times are then divided by one factor, so that a
pool has as much to do as it is to have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from radixkv.simulate import Trace

__all__ = ["Arrival", "arrivals"]

FILE_PERIOD_S = 3.0
REPLY_TOKENS = 100
COMMON_SHARE = 0.01
"""A block in more of the requests belongs to no session."""


class Arrival(NamedTuple):
    """One request. `tokens`: packed ids, of which one stands for `Trace.tokens_per_block / block_size` of the load's tokens.

    `blocks`: one number for each prefix of whole blocks. `length`, `num_generated`: in the load's tokens.
    """

    time_s: float
    tokens: bytes
    blocks: tuple[int, ...]
    session: int
    length: int
    num_generated: int


def arrivals(trace: Trace, share: float, tokens_per_s: float, seed: int, most: int | None = None) -> list[Arrival]:
    """The requests of a share of the sessions, by time, as fast as `tokens_per_s` tokens in the mean. O(blocks).

    Args:
        trace: the requests; replies of unknown length get `REPLY_TOKENS`.
        share: of the sessions, drawn by `seed`.
        tokens_per_s: prompt tokens that arrive per second.
        most: requests at most, the first; None: all.
    """
    rows = _blocks(trace)
    sessions = _sessions(rows)
    drawn = random.Random(seed)
    names = sorted(set(sessions))
    kept = set(drawn.sample(names, max(1, round(share * len(names)))))
    times = _spread([request.time_s for request in trace.requests])
    chosen = [index for index in range(len(rows)) if sessions[index] in kept][:most]
    first_s, last_s = times[chosen[0]], times[chosen[-1]]
    num_tokens = sum(trace.requests[index].num_tokens for index in chosen)
    factor = num_tokens / tokens_per_s / max(last_s - first_s, 1e-9)
    return [
        Arrival(
            (times[index] - first_s) * factor,
            trace.requests[index].tokens,
            rows[index],
            sessions[index],
            trace.requests[index].num_tokens,
            trace.requests[index].num_generated or REPLY_TOKENS,
        )
        for index in chosen
    ]


def _blocks(trace: Trace) -> list[tuple[int, ...]]:
    known: dict[tuple[int, bytes], int] = {}
    rows = []
    size = trace.block_bytes
    for request in trace.requests:
        above, row = -1, []
        for start in range(0, len(request.tokens) - size + 1, size):
            above = known.setdefault((above, request.tokens[start : start + size]), len(known))
            row.append(above)
        rows.append(tuple(row))
    return rows


def _sessions(rows: Sequence[tuple[int, ...]]) -> list[int]:
    numbers = Counter(block for row in rows for block in row)
    most = max(2, COMMON_SHARE * len(rows))
    of_block: dict[int, int] = {}
    sessions = []
    for index, row in enumerate(rows):
        own = [block for block in row if numbers[block] <= most]
        session = next((of_block[block] for block in reversed(own) if block in of_block), index)
        for block in own:
            of_block.setdefault(block, session)
        sessions.append(session)
    return sessions


def _spread(times_s: Sequence[float]) -> list[float]:
    spread = []
    for time_s, group in groupby(times_s):
        size = len(list(group))
        spread += [time_s + FILE_PERIOD_S * place / size for place in range(size)]
    return spread
