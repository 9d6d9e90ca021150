"""A plot of hit rate over capacity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixkv.simulate import HitRate, Trace

__all__ = ["plot"]

LIMIT_STYLES = {"belady": "--", "infinite": ":"}


def plot(path: Path, trace: Trace, points: list[HitRate]) -> None:
    """Draw one curve per policy, the limits dashed and dotted, and write the picture in the format of the name's suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for policy in dict.fromkeys(point.policy for point in points):
        curve = sorted((point.num_blocks / trace.num_blocks, point.rate) for point in points if point.policy == policy)
        shares, rates = zip(*curve, strict=True)
        is_limit = policy in LIMIT_STYLES
        style = LIMIT_STYLES.get(policy, "-")
        axes.plot(shares, rates, style, marker="o", markersize=4, label=policy, color="0.5" if is_limit else None)
    axes.set_xscale("log")
    ticks = sorted({point.num_blocks / trace.num_blocks for point in points})
    axes.set_xticks(ticks, [f"{share:.3g}" for share in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"capacity, share of the {trace.num_blocks:,} distinct blocks")
    axes.set_ylabel("input tokens found cached, share")
    axes.set_title(f"{trace.name}, {len(trace.requests):,} requests")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
