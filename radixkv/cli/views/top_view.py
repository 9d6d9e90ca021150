"""Output of `radixkv top`: two readings of a worker's stats, the rates between them, and their formats.

Readings and rates are plain numbers; a screen, a plain text and JSON are three formats of the same `View`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from radixkv.planner.sizes import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from radixkv.core.api import CacheStats
    from radixkv.generation.request import ModelInfo
    from radixkv.generation.stats import EngineStats, Percentiles, WorkerStats
    from radixkv.stores.stats import LevelStats

__all__ = ["Rates", "Reading", "View", "level_line"]

_BAR_WIDTH = 48


class Reading(NamedTuple):
    """A worker's stats at a moment, in seconds of any monotonic clock."""

    time_s: float
    stats: WorkerStats


class Rates(NamedTuple):
    """Per second between two readings. `hit_rate`: share of the prompt tokens found in the cache; None without prompts."""

    prefill_tokens: float
    decode_tokens: float
    requests: float
    preemptions: float
    hit_rate: float | None

    @classmethod
    def between(cls, before: Reading, now: Reading) -> Rates | None:
        """None if the worker was restarted between the two, or no time has passed."""
        old, new = before.stats.engine, now.stats.engine
        seconds = now.time_s - before.time_s
        if seconds <= 0 or new.num_forwards < old.num_forwards or new.num_prompt_tokens < old.num_prompt_tokens:
            return None
        generated = new.num_generated_tokens - old.num_generated_tokens
        computed = new.num_computed_tokens - old.num_computed_tokens
        prompts = new.num_prompt_tokens - old.num_prompt_tokens
        return cls(
            prefill_tokens=max(0, computed - generated)
            / seconds,  # a decode computes a position for each token it draws
            decode_tokens=generated / seconds,
            requests=(_num_ended(new) - _num_ended(old)) / seconds,
            preemptions=(new.num_preemptions - old.num_preemptions) / seconds,
            hit_rate=(new.num_cached_tokens - old.num_cached_tokens) / prompts if prompts else None,
        )


def _num_ended(engine: EngineStats) -> int:
    return engine.num_finished + engine.num_cancelled + engine.num_failed + engine.num_expired


class _Part(NamedTuple):
    """A part of the pool: its blocks, and its mark and colour."""

    name: str
    num_blocks: int
    mark: str
    colour: str


class View(NamedTuple):
    """All values shown at a moment. `rates` is None before the second reading."""

    address: str
    model: ModelInfo
    now: Reading
    rates: Rates | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the stats, nested, and the rates."""
        engine, cache = self.now.stats.engine, self.now.stats.cache
        return {
            "worker": self.address,
            "model": self.model.name,
            "engine": {name: _plain(value) for name, value in engine._asdict().items()},
            "cache": None if cache is None else cache._asdict(),
            "levels": [asdict(level) for level in self.now.stats.levels],
            "rates_per_second": None if self.rates is None else self.rates._asdict(),
        }

    def lines(self) -> list[str]:
        """As plain text."""
        rows = [f"{label:<12} {value}" for label, value in self._rows()]
        parts = self._parts()
        if parts:
            rows.insert(1, f"{'pool':<12} [{''.join(part.mark * width for part, width in _widths(parts))}]")
            rows.insert(2, f"{'':<12} {self._legend(parts)}")
        return [self._title(), *rows]

    def screen(self) -> RenderableType:
        """For a terminal, by rich."""
        from rich import box
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for index, (label, value) in enumerate(self._rows()):
            table.add_row(label, Text(value))
            parts = self._parts()
            if index == 0 and parts:
                bar, legend = Text(), Text()
                for part, width in _widths(parts):
                    bar.append("█" * width, style=part.colour)
                for part in parts:
                    legend.append("■ ", style=part.colour).append(f"{part.name} {part.num_blocks:,}   ")
                table.add_row("pool", bar)
                table.add_row("", legend)
                table.add_row("", Text(self._promised()))
        return Panel(table, title=self._title(), subtitle="Ctrl-C leaves", box=box.ROUNDED)

    def _title(self) -> str:
        return f"{self.model.name} at {self.address}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        engine, cache = self.now.stats.engine, self.now.stats.cache
        yield (
            "branches",
            f"{engine.num_running_branches:,} running, {engine.num_queued_branches:,} waiting, "
            f"{engine.num_pending_branches:,} pending, {engine.num_parked_branches:,} swapped",
        )
        rates = self.rates
        if rates is not None:
            yield "tokens/s", f"{rates.prefill_tokens:,.0f} prefill, {rates.decode_tokens:,.0f} decode"
        total = engine.num_cached_tokens / engine.num_prompt_tokens if engine.num_prompt_tokens else None
        recent = f"{_percent(rates.hit_rate)} now, " if rates is not None else ""
        yield "hit rate", f"{recent}{_percent(total)} since the start"
        yield "first token", _spread(engine.time_to_first_token)
        yield "inter-token", _spread(engine.inter_token)
        yield "waited", _spread(engine.waited)
        per_second = f" ({rates.preemptions:,.1f}/s)" if rates is not None and rates.preemptions else ""
        yield (
            "preemptions",
            f"{engine.num_preemptions:,}{per_second}; blocks swapped out {engine.num_saved_blocks:,}, "
            f"back {engine.num_loaded_blocks:,}",
        )
        ended = f" ({rates.requests:,.1f}/s ended)" if rates is not None else ""
        yield (
            "requests",
            f"{engine.num_generations:,} now{ended}; {engine.num_finished:,} finished, {engine.num_cancelled:,} cancelled, "
            f"{engine.num_failed:,} failed, {engine.num_expired:,} out of time",
        )
        if engine.drafted_tokens:
            yield "speculation", speculation_line(engine)
        if cache is None:
            yield "cache", "cannot be reached"
        else:
            yield (
                "cache",
                f"{cache.num_nodes:,} nodes, {cache.num_sequences:,} sequences, {cache.num_forks:,} forks, "
                f"{cache.num_evicted_blocks:,} blocks evicted, in the order of {cache.eviction_followed} now",
            )
            yield (
                "missed",
                f"{cache.num_missed_new_tokens:,} tokens new, {cache.num_missed_parted_tokens:,} parted from others, "
                f"{cache.num_missed_evicted_tokens:,} evicted before",
            )
        levels = self.now.stats.levels
        if levels:
            found = engine.num_loaded_tokens / engine.num_prompt_tokens if engine.num_prompt_tokens else None
            yield (
                "block store",
                f"{_percent(found)} of prompt tokens found there since the start, {engine.num_store_loaded_blocks:,} blocks "
                f"loaded; {engine.num_store_unsaved_blocks:,} wait to be saved, {engine.num_saves_left_out:,} saves left out",
            )
        for level in levels:
            yield level.level, level_line(level)

    def _parts(self) -> list[_Part]:
        cache = self.now.stats.cache
        return [] if cache is None else _parts(cache)

    def _promised(self) -> str:
        cache = self.now.stats.cache
        return "" if cache is None else f"{cache.num_promised_blocks:,} promised, of {cache.num_blocks:,} in all"

    def _legend(self, parts: list[_Part]) -> str:
        return ", ".join(f"{part.mark} {part.name} {part.num_blocks:,}" for part in parts) + f"; {self._promised()}"


def speculation_line(engine: EngineStats) -> str:
    """What speculation has come to, in a line."""
    num_accepted, num_drafted = sum(engine.accepted_tokens.values()), sum(engine.drafted_tokens.values())
    by_source = ", ".join(
        f"{source} {engine.accepted_tokens.get(source, 0):,} of {number:,}"
        for source, number in engine.drafted_tokens.items()
    )
    depths = zip(engine.accepted_by_depth, engine.drafted_by_depth, strict=False)
    by_depth = " ".join(f"{100 * accepted // drafted}" for accepted, drafted in depths if drafted)
    a_step = engine.num_generated_tokens / max(1, engine.num_draws)
    return (
        f"{a_step:.2f} tokens a step; {num_accepted:,} of {num_drafted:,} guesses drawn ({by_source}), by depth {by_depth} %; "
        f"{engine.draft_s:,.1f} s spent on them"
    )


def level_line(level: LevelStats) -> str:
    """A level of a block store, in a line."""
    room = f" of {format_bytes(level.size_bytes)}" if level.size_bytes else ""
    held = f"{level.num_blocks:,} blocks, {format_bytes(level.used_bytes)}{room}; " if room else ""
    state = "" if level.breaker == "closed" else f"resting after a fault ({level.breaker}); "
    return (
        f"{state}{held}{level.num_hits:,} read, {_by_cause(level.misses)} missed, {level.num_written:,} written, "
        f"{_by_cause(level.unwritten)} lost, {level.num_evicted:,} evicted; {_by_cause(level.faults)} faults"
    )


def _by_cause(numbers: Mapping[str, int]) -> str:
    """Their sum, and each."""
    causes = ", ".join(f"{cause} {number:,}" for cause, number in sorted(numbers.items()))
    return f"{sum(numbers.values()):,}" + (f" ({causes})" if causes else "")


def _parts(cache: CacheStats) -> list[_Part]:
    return [
        _Part("private", cache.num_private_blocks, "#", "red"),
        _Part("cached, in use", cache.num_cached_blocks - cache.num_evictable_blocks, "=", "yellow"),
        _Part("cached, evictable", cache.num_evictable_blocks, "-", "green"),
        _Part("free", cache.num_free_blocks, ".", "bright_black"),
    ]


def _widths(parts: list[_Part]) -> list[tuple[_Part, int]]:
    """Columns of each part of a bar; they add up to `_BAR_WIDTH`, and a part with blocks has at least one."""
    total = max(1, sum(part.num_blocks for part in parts))
    widths = [max(1, round(_BAR_WIDTH * part.num_blocks / total)) if part.num_blocks else 0 for part in parts]
    widest = max(range(len(parts)), key=lambda index: widths[index])
    widths[widest] += _BAR_WIDTH - sum(widths)
    return list(zip(parts, widths, strict=True))


def _spread(seconds: Percentiles) -> str:
    if not any(seconds):
        return "none yet"
    return f"p50 {_duration(seconds.p50_s)}, p90 {_duration(seconds.p90_s)}, p99 {_duration(seconds.p99_s)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else value
