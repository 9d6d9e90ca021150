"""From runs to figures: medians, the information limit, a peer's redundant work and the bound on the speed-up over it.

    bound = peer's wall time / (peer's wall time - its redundant prefill x its own prefill seconds per token)

That is the speed-up of a system as fast as the peer in everything else that computes nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from bench.common.report import Bar, Table, percentile
from bench.serving.limit import information_limit
from bench.serving.plan import Workload
from bench.serving.system import Run

__all__ = ["OURS", "Figures", "as_document", "bars", "prefill_bars", "prefill_seconds", "summarise_runs", "table"]

OURS = "radixkv"
SHARE_OF_BOUND = 0.8
LEAST_CACHED = 0.98
"""Prompt positions that several workers find cached: over those that one finds."""
LEAST_LEFT = 0.02
"""Least share of a peer's wall time assumed to be left if its redundant prefill, timed alone, seems to fill all of it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One workload on one system: medians over its runs. Times in seconds, memory in bytes, work in positions.

    tokens_per_s: of all replies, over the wall time. token_p50_s: from one token of a reply to its next, within a call.
    num_cached: prompt positions that were not computed. num_redundant: those computed beyond the limit. bound: None for
    radixkv itself.
    """

    workload: str
    system: str
    num_runs: int
    wall_s: float
    wall_least_s: float
    wall_most_s: float
    first_p50_s: float
    first_p99_s: float
    token_p50_s: float
    tokens_per_s: float
    num_computed: int
    num_cached: int
    num_prompt_limit: int
    num_decode: int
    num_calls: int
    num_redundant: int
    redundant_s: float | None
    bound: float | None
    peak_kv_bytes: int | None
    peak_rss_bytes: int | None

    @property
    def most_allowed(self) -> int:
        """The limit, and one more per call."""
        return self.num_prompt_limit + self.num_decode + self.num_calls


def prefill_seconds(runs: Sequence[Run]) -> dict[int, float]:
    """Prompt length -> median seconds to its first token, of consecutive runs that only prefill, without the first."""
    times: dict[int, list[float]] = {}
    for run in runs:
        for outcome in run.outcomes[1:]:
            times.setdefault(len(outcome.prompt), []).append(outcome.first_s - outcome.start_s)
    return {length: median(samples) for length, samples in sorted(times.items())}


def _seconds_per_token(times: Mapping[int, float], length: float) -> float:
    """Seconds per token at that prompt length: linear between two measured ones, beyond them as at the nearest."""
    lengths = list(times)
    below = max((known for known in lengths if known <= length), default=lengths[0])
    above = min((known for known in lengths if known >= length), default=lengths[-1])
    share = 0.0 if above == below else (length - below) / (above - below)
    return (1 - share) * times[below] / below + share * times[above] / above


def summarise_runs(
    workload: Workload, runs: Sequence[Run], prefill: Mapping[int, float], kv_token_bytes: int
) -> Figures:
    """Figures of one workload's runs on one system. `prefill`: `prefill_seconds` of that system."""
    limits = [information_limit(run.outcomes) for run in runs]
    firsts = [[outcome.first_s - outcome.start_s for outcome in run.outcomes] for run in runs]
    wall_s = median(run.wall_s for run in runs)
    redundant = [
        run.counts.num_computed - limit.num_decode - limit.num_prompt for run, limit in zip(runs, limits, strict=True)
    ]
    num_redundant = max(0, round(median(redundant)))
    redundant_s = bound = None
    if prefill:
        mean_length = sum(len(outcome.prompt) for outcome in runs[0].outcomes) / len(runs[0].outcomes)
        redundant_s = num_redundant * _seconds_per_token(prefill, mean_length)
        bound = wall_s / max(LEAST_LEFT * wall_s, wall_s - redundant_s)
    peaks = [run.counts.peak_kv_tokens for run in runs if run.counts.peak_kv_tokens is not None]
    resident = [run.peak_rss_bytes for run in runs if run.peak_rss_bytes is not None]
    return Figures(
        workload=workload.name,
        system=runs[0].system,
        num_runs=len(runs),
        wall_s=wall_s,
        wall_least_s=min(run.wall_s for run in runs),
        wall_most_s=max(run.wall_s for run in runs),
        first_p50_s=median(percentile(times, 0.5) for times in firsts),
        first_p99_s=median(percentile(times, 0.99) for times in firsts),
        token_p50_s=median(_token_seconds(run) for run in runs),
        tokens_per_s=workload.num_generated / wall_s,
        num_computed=round(median(run.counts.num_computed for run in runs)),
        num_cached=round(
            median(
                sum(len(outcome.prompt) for outcome in run.outcomes) + limit.num_decode - run.counts.num_computed
                for run, limit in zip(runs, limits, strict=True)
            )
        ),
        num_prompt_limit=round(median(limit.num_prompt for limit in limits)),
        num_decode=limits[0].num_decode,
        num_calls=limits[0].num_asked,
        num_redundant=num_redundant,
        redundant_s=redundant_s,
        bound=None if runs[0].system == OURS else bound,
        peak_kv_bytes=max(peaks) * kv_token_bytes if peaks else None,
        peak_rss_bytes=max(resident, default=None),
    )


def _token_seconds(run: Run) -> float:
    """Median over the calls of more than one token; 0 without any."""
    calls = [(outcome, max(map(len, outcome.replies)) - 1) for outcome in run.outcomes]
    return median([(outcome.end_s - outcome.first_s) / steps for outcome, steps in calls if steps] or [0.0])


def prefill_bars(prefills: Mapping[str, Mapping[int, float]], peers: Sequence[str], why_missing: str) -> list[Bar]:
    """Prompts without sharing are to be computed faster than by every peer. `prefills`: `prefill_seconds` by system."""
    found = []
    for peer in peers:
        theirs = prefills.get(peer)
        for length, seconds in prefills[OURS].items():
            sooner = theirs[length] / seconds if theirs else None
            reason = f"{length / seconds:,.0f} tokens/s" if theirs else why_missing
            name = f"a prompt of {length:,} tokens: sooner than {peer}"
            found.append(Bar(name, sooner, 1, "x", at_least=True, reason=reason))
    return found


def bars(workload: Workload, by_system: Mapping[str, Figures], peers: Sequence[str], why_missing: str) -> list[Bar]:
    """Bars of one workload. A plain conversation has to compute no more than necessary, and to decode as fast."""
    ours = by_system[OURS]
    over = ours.num_computed - ours.most_allowed
    note = f"{ours.num_computed:,} of at most {ours.most_allowed:,}"
    found = [Bar(f"{workload.name}: tokens computed beyond the limit + 1 per request", over, 0, reason=note)]
    for system, several in by_system.items():
        if system.startswith(f"{OURS}, "):
            cached = several.num_cached / ours.num_cached if ours.num_cached else None
            reason = f"{several.num_cached:,} of {ours.num_cached:,}"
            name = f"{workload.name}: cached tokens of {system.removeprefix(f'{OURS}, ')} / one's"
            found.append(Bar(name, cached, LEAST_CACHED, at_least=True, reason=reason))
    if not workload.branches:
        return found + [_decode_bar(workload, ours, by_system.get(peer), peer, why_missing) for peer in peers]
    walls_s = [by_system[peer].wall_s for peer in peers if peer in by_system]
    if peers and workload.least_faster > 1:
        faster = min(walls_s) / ours.wall_s if len(walls_s) == len(peers) else None
        name = f"{workload.name}: faster than the better peer"
        found.append(Bar(name, faster, workload.least_faster, "x", at_least=True, reason=why_missing))
    for peer in peers:
        theirs = by_system.get(peer)
        if theirs is None or theirs.bound is None:
            found.append(Bar(f"{workload.name}: faster than {peer}", None, 1, "x", at_least=True, reason=why_missing))
            continue
        faster = theirs.wall_s / ours.wall_s
        bound = f"bound {theirs.bound:.2f}x, {theirs.num_redundant:,} tokens computed twice"
        sooner = theirs.first_p50_s / ours.first_p50_s
        found += [
            Bar(f"{workload.name}: faster than {peer}", faster, 1, "x", at_least=True),
            Bar(f"{workload.name}: first token sooner than {peer}", sooner, 1, "x", at_least=True),
            Bar(
                f"{workload.name}: share of the bound over {peer}",
                faster / theirs.bound,
                SHARE_OF_BOUND,
                at_least=True,
                reason=bound,
            ),
        ]
    return found


def _decode_bar(workload: Workload, ours: Figures, theirs: Figures | None, peer: str, why_missing: str) -> Bar:
    name = f"{workload.name}: decodes as fast as {peer}"
    if theirs is None:
        return Bar(name, None, 1, "x", at_least=True, reason=why_missing)
    reason = f"{1 / ours.token_p50_s:,.0f} tokens/s, {1 / theirs.token_p50_s:,.0f}"
    return Bar(name, theirs.token_p50_s / ours.token_p50_s, 1, "x", at_least=True, reason=reason)


def table(workload: Workload, by_system: Mapping[str, Figures]) -> Table:
    """One row per system."""
    columns = (
        "system",
        "wall s",
        "first ms p50",
        "p99",
        "a token ms",
        "tokens/s",
        "computed",
        "limit",
        "cached",
        "KV MB",
        "RSS MB",
        "ours is",
        "bound",
    )
    rows = []
    for name, figures in by_system.items():
        faster = figures.wall_s / by_system[OURS].wall_s if OURS in by_system else None
        rows.append(
            (
                name,
                f"{figures.wall_s:.2f}",
                f"{1e3 * figures.first_p50_s:,.0f}",
                f"{1e3 * figures.first_p99_s:,.0f}",
                f"{1e3 * figures.token_p50_s:.1f}",
                f"{figures.tokens_per_s:.0f}",
                f"{figures.num_computed:,}",
                f"{figures.num_prompt_limit + figures.num_decode:,}",
                f"{figures.num_cached:,}",
                _megabytes(figures.peak_kv_bytes),
                _megabytes(figures.peak_rss_bytes),
                "-" if faster is None or name == OURS else f"{faster:.2f}x",
                "-" if figures.bound is None else f"{figures.bound:.2f}x",
            )
        )
    return Table(f"{workload.name}: {workload.about}", columns, rows)


def _megabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:,.0f}"


def as_document(figures: Figures) -> dict[str, object]:
    """Figures for the JSON file."""
    return asdict(figures)
