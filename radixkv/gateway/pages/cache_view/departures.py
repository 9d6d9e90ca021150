"""Why nodes left the tree: their sequences ended, a call evicted them, or the pool ran out of free blocks.

A listing shows only that a node is gone. The service remembers the reason for whole blocks, not for tails: their reason is
inferred from the number of blocks evicted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from radixkv.client import RemoteReader
from radixkv.core.explanation import EvictionReason
from radixkv.gateway.pages.cache_view.nodes import Departure, Kind

__all__ = ["with_kinds"]

MAX_EXPLAINED = 64
"""Departures of one listing whose reason is requested; the others get the kind of the last of these."""

_KINDS: dict[EvictionReason, Kind] = {
    "pressure": "pressure",
    "quota": "pressure",
    "evict": "evicted",
    "clear": "ended",
    "release": "ended",
}


def with_kinds(
    reader: RemoteReader,
    departures: Sequence[Departure],
    history: Callable[[int], bytes],
    num_evicted_before: int | None = None,
) -> list[Departure]:
    """Return the departures, each with its kind. Calls the service.

    Args:
        reader: of the pool.
        departures: parents before children.
        history: returns the packed tokens up to the end of a node, as before it left.
        num_evicted_before: `num_evicted_blocks` while all of them existed; None: only whole blocks have left.
    """
    if num_evicted_before is None:
        return _with(departures, [kind or "ended" for kind in _explained(reader, departures, history)])
    stats = reader.stats()
    num_evicted = stats.num_evicted_blocks - num_evicted_before
    if num_evicted <= 0:
        return list(departures)
    kinds = _explained(reader, departures, history)
    num_evicted -= sum(one.num_blocks for one, kind in zip(departures, kinds, strict=True) if kind in _EVICTIONS)
    under_pressure = "pressure" in kinds or ("evicted" not in kinds and not stats.num_free_blocks)
    guess: Kind = "pressure" if under_pressure else "evicted"
    for place, departure in enumerate(departures):
        if kinds[place] is None and departure.num_blocks <= num_evicted:
            kinds[place] = guess
            num_evicted -= departure.num_blocks
    return _with(departures, [kind or "ended" for kind in kinds])


_EVICTIONS = ("evicted", "pressure")


def _with(departures: Iterable[Departure], kinds: Iterable[Kind]) -> list[Departure]:
    return [departure._replace(kind=kind) for departure, kind in zip(departures, kinds, strict=True)]


def _explained(
    reader: RemoteReader, departures: Sequence[Departure], history: Callable[[int], bytes]
) -> list[Kind | None]:
    """Return the kind of each as the service remembers it; None where it does not."""
    kinds: list[Kind | None] = []
    for departure in departures[:MAX_EXPLAINED]:
        told = reader.explain(history(departure.node.view_id), namespace=departure.node.info.namespace)
        is_elsewhere = told.cause == "cached"  # its sequence continued: another node holds the tokens now
        kinds.append(_KINDS[told.evicted.reason] if told.evicted else "ended" if is_elsewhere else None)
    return kinds + kinds[-1:] * (len(departures) - len(kinds))
