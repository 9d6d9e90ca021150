"""Stats of a worker: current gauges, and counters and latencies since its start."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from radixkv.core.api import BlockTimes, CacheStats
from radixkv.stores.stats import LevelStats

__all__ = ["EngineCounters", "EngineStats", "Percentiles", "WorkerStats"]

_NUM_LATENCIES = 1024
"""Latest latencies that percentiles are computed of."""
_NUM_DEPTHS = 16


class Percentiles(NamedTuple):
    """Of the latest 1,024 measurements, in seconds; 0: none."""

    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0


class EngineStats(NamedTuple):
    """Gauges of now, then counters since the engine started.

    Attributes:
        num_generations: running and waiting ones.
        num_running_branches: branches that hold a sequence.
        num_queued_branches: branches that wait to be acquired.
        num_pending_branches: branches that wait for a prefix that another branch computes.
        num_parked_branches: branches preempted by swap and not yet back, also counted as waiting.
        num_remembered: finished generations that can be forked.
        num_lines: histories in spans of their own, see `arena`.
        num_preemptions: times that a branch had to give up its blocks.
        num_saved_blocks, num_loaded_blocks: moved to host memory and back.
        num_moved_lines: times that a line, or a new part of it, was moved into blocks.
        num_forwards: passes over the weights.
        num_prompt_tokens: of all prompts admitted. num_cached_tokens: of these, found in the cache.
        num_computed_tokens: positions run. num_generated_tokens: tokens drawn.
        num_prefilled_tokens: positions run for prompts, except the last ones, which run with decodes.
        prefill_s: time of these: of each batch's time, their share of its positions, in seconds.
        num_finished, num_cancelled, num_failed, num_expired: generations that completed, were cancelled by their caller, ended
            with an error, exceeded their time.
        num_loaded_tokens: of all prompts, found in the block store, next to the cached ones.
        num_store_loaded_blocks: copied from the block store into the pool.
        num_store_unsaved_blocks: computed, and not saved there yet.
        num_saves_left_out: blocks overwritten unsaved, because no host row was free for them.
        time_to_first_token: from a request to its first token. inter_token: between two tokens of a branch. waited: from a
            request to its first opened acquire.
        num_draws: times that a branch drew in a batch: one token, or several with speculation.
        drafted_tokens, accepted_tokens: guessed by speculation, and of these drawn, by source.
        drafted_by_depth, accepted_by_depth: the same by their place in a draft, up to the 16th; later ones count there.
        draft_s: time spent on drafts, in seconds.
        num_uncaptured_sizes: sizes of steps that could not be captured as CUDA graphs and run without, a gauge.
    """

    num_generations: int
    num_running_branches: int
    num_queued_branches: int
    num_pending_branches: int
    num_parked_branches: int
    num_remembered: int
    num_lines: int
    num_preemptions: int
    num_saved_blocks: int
    num_loaded_blocks: int
    num_moved_lines: int
    num_forwards: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_generated_tokens: int
    num_prefilled_tokens: int
    prefill_s: float
    num_finished: int
    num_cancelled: int
    num_failed: int
    num_expired: int
    num_loaded_tokens: int
    num_store_loaded_blocks: int
    num_store_unsaved_blocks: int
    num_saves_left_out: int
    time_to_first_token: Percentiles
    inter_token: Percentiles
    waited: Percentiles
    num_draws: int = 0
    drafted_tokens: Mapping[str, int] = MappingProxyType({})
    accepted_tokens: Mapping[str, int] = MappingProxyType({})
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    draft_s: float = 0.0
    num_uncaptured_sizes: int = 0


class WorkerStats(NamedTuple):
    """A worker and the cache of its pool. `cache` and `block_times`: None if the cache cannot be reached.

    levels: of its block store, in the order in which they are read; empty without one.
    """

    engine: EngineStats
    cache: CacheStats | None
    block_times: BlockTimes | None = None
    levels: tuple[LevelStats, ...] = ()


class Latencies:
    """The latest measurements of one kind. O(1) per measurement."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_NUM_LATENCIES)

    def add(self, seconds: float) -> None:
        """Append a measurement."""
        self._latest.append(seconds)

    def percentiles(self) -> Percentiles:
        """Percentiles of the kept measurements. O(n log n)."""
        if not self._latest:
            return Percentiles()
        rising = sorted(self._latest)
        return Percentiles(*(rising[min(len(rising) - 1, int(len(rising) * share))] for share in (0.5, 0.9, 0.99)))


class EngineCounters:
    """Counters and latencies of an engine; see `EngineStats`. Owned by its thread."""

    def __init__(self) -> None:
        self.num_forwards = 0
        self.num_prompt_tokens = self.num_cached_tokens = self.num_computed_tokens = self.num_generated_tokens = 0
        self.num_prefilled_tokens = 0
        self.prefill_s = 0.0
        self.num_finished = self.num_cancelled = self.num_failed = self.num_expired = 0
        self.num_loaded_tokens = self.num_store_loaded_blocks = self.num_saves_left_out = 0
        self.time_to_first_token = Latencies()
        self.inter_token = Latencies()
        self.waited = Latencies()
        self.num_draws = 0
        self.drafted_tokens: Counter[str] = Counter()
        self.accepted_tokens: Counter[str] = Counter()
        self.drafted_by_depth = [0] * _NUM_DEPTHS
        self.accepted_by_depth = [0] * _NUM_DEPTHS
        self.draft_s = 0.0

    def count_draft(self, source: str, num_drafted: int, num_accepted: int) -> None:
        """Count a draft that was run. O(tokens)."""
        self.drafted_tokens[source] += num_drafted
        self.accepted_tokens[source] += num_accepted
        for depth in range(num_drafted):
            self.drafted_by_depth[min(depth, _NUM_DEPTHS - 1)] += 1
        for depth in range(num_accepted):
            self.accepted_by_depth[min(depth, _NUM_DEPTHS - 1)] += 1

    def told(self) -> dict[str, Any]:
        """All by their names in `EngineStats`. O(kept latencies · log)."""
        return {name: _told(kept) for name, kept in vars(self).items()}


def _told(kept: Any) -> Any:
    if isinstance(kept, Latencies):
        return kept.percentiles()
    return dict(kept) if isinstance(kept, Counter) else tuple(kept) if isinstance(kept, list) else kept
