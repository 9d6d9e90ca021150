"""`radixkv replay`: hit rates of a cache on a recorded load, by eviction policy and size."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from radixkv.cli.flags import add_command, say
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.eviction import DEFAULT_POLICY, POLICIES

if TYPE_CHECKING:
    from radixkv.simulate import HitRate, Trace

__all__ = ["add"]

EPILOG = f"""\
TRACE is one of:
  a file in Mooncake's format   JSON lines with timestamp (ms), input_length and hash_ids, one per 512 tokens
  a folder of conversations     .json or .jsonl files: lists of messages, or trees of messages with replies
  a list of prompts             one per line, as text or as JSON with prompt, input or text

Every request runs through the cache itself, one after the other: acquire, insert, release, without its reply. In texts four
characters count as one token. A hit rate is the share of input tokens found cached, in whole blocks. A capacity is a share of
the trace's distinct blocks, or a number of blocks. Two limits are added to the policies: belady, which knows the future, and
infinite, which never evicts.

policies: {", ".join(POLICIES)} (default {DEFAULT_POLICY} and lru)

examples:
  radixkv replay conversation_trace.jsonl
  radixkv replay conversation_trace.jsonl --policy hit-density,lru,slru --capacity 1%,5%,10% --warm-up 0.5
  radixkv replay chats/ --block-size 32 --capacity 2048 --json points.json --plot curves.png
  radixkv replay conversation_trace.jsonl --shapes shapes.jsonl
"""


def add(commands: Any) -> None:
    """Add the command."""
    replay = add_command(
        commands, "replay", _run, "replay a recorded load through the cache, by eviction policy and size"
    )
    replay.formatter_class = argparse.RawDescriptionHelpFormatter
    replay.epilog = EPILOG
    replay.add_argument("trace", metavar="TRACE", type=Path, help="a file or a folder; see below")
    replay.add_argument(
        "--policy",
        metavar="P[,P...]",
        default=f"{DEFAULT_POLICY},lru",
        help="policies, or all (default %(default)s)",
    )
    replay.add_argument(
        "--capacity", metavar="C[,C...]", default="1%,5%,10%,25%", help="of the cache (default 1%%,5%%,10%%,25%%)"
    )
    replay.add_argument(
        "--warm-up",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the requests that are served first and not counted (default %(default)s)",
    )
    replay.add_argument(
        "--block-size",
        type=int,
        default=16,
        metavar="TOKENS",
        help="of texts; Mooncake's format has its own (default %(default)s)",
    )
    replay.add_argument("--json", type=Path, metavar="FILE", help="write the points as JSON")
    replay.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="write only each request's arrival, length and shared prefix, as JSON lines for the gateway's page "
        "/fragmentation, and exit",
    )
    replay.add_argument("--plot", type=Path, metavar="PNG", help="draw hit rate over capacity (needs radixkv[plot])")


def _run(options: argparse.Namespace) -> int:
    from radixkv.simulate import LIMITS, check_policies, parse_capacities, read_trace

    names = list(POLICIES) if options.policy == "all" else [name.strip() for name in options.policy.split(",")]
    policies = [*(name for name in check_policies(names) if name not in LIMITS), *LIMITS]
    if not 0 <= options.warm_up < 1:
        raise InvalidArgumentError("--warm-up", options.warm_up, "at least 0 and below 1")
    for name, path in (("--json", options.json), ("--plot", options.plot), ("--shapes", options.shapes)):
        if path is not None and not path.absolute().parent.is_dir():
            raise InvalidArgumentError(name, str(path), "in a folder that is there")
    if options.plot is not None:
        import matplotlib  # noqa: F401  # fails here if missing, before the long work
    parse_capacities(options.capacity, 1)
    trace = read_trace(options.trace, options.block_size)
    if options.shapes is not None:
        return _write_shapes(options.shapes, trace)
    capacities = sorted(set(parse_capacities(options.capacity, trace.num_blocks)))
    started_s = time.monotonic()
    points = _points(trace, policies, capacities, options.warm_up)
    say(_table(trace, points, capacities, time.monotonic() - started_s))
    if options.json is not None:
        options.json.write_text(json.dumps(_as_dict(trace, points, options), indent=2) + "\n", encoding="utf-8")
        say(f"written: {options.json}")
    if options.plot is not None:
        from radixkv.cli.views.replay_plot import plot

        plot(options.plot, trace, points)
        say(f"written: {options.plot}")
    return 0


def _write_shapes(path: Path, trace: Trace) -> int:
    from radixkv.simulate import shapes_of

    shapes = shapes_of(trace)
    path.write_text("".join(json.dumps(shape._asdict()) + "\n" for shape in shapes), encoding="utf-8")
    say(f"written: {path}, {len(shapes):,} requests")
    return 0


def _points(trace: Trace, policies: list[str], capacities: list[int], warm_up: float) -> list[HitRate]:
    """A point for each policy and capacity; the cache that never evicts is computed once for all capacities."""
    from radixkv.simulate import replay

    jobs = [(policy, num_blocks) for policy in policies for num_blocks in capacities if policy != "infinite"]
    with _progress((len(jobs) + 1) * len(trace.requests)) as progress:
        points = []
        for policy, num_blocks in jobs:
            progress.say(f"{policy}, {num_blocks:,} blocks")
            points.append(replay(trace, policy, num_blocks, warm_up=warm_up, on_request=progress.advance))
        progress.say("infinite")
        infinite = replay(trace, "infinite", max(capacities), warm_up=warm_up, on_request=progress.advance)
    return points + [infinite._replace(num_blocks=num_blocks) for num_blocks in capacities]


class _Progress(Protocol):
    def say(self, what: str) -> None: ...

    def advance(self) -> None: ...


class _Silent:
    """Progress without a terminal, or without rich."""

    def say(self, what: str) -> None: ...

    def advance(self) -> None: ...


class _Bar:
    """A bar on standard error; advanced in hundreds, since drawing costs more than a request."""

    def __init__(self, progress: Any, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self._num_done = 0

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def advance(self) -> None:
        self._num_done += 1
        if self._num_done % 100 == 0:
            self._progress.update(self._task, completed=self._num_done)


@contextmanager
def _progress(total: int) -> Iterator[_Progress]:
    if not sys.stderr.isatty():
        yield _Silent()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _Silent()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress, total)


def _table(trace: Trace, points: list[HitRate], capacities: list[int], took_s: float) -> str:
    rates = {(point.policy, point.num_blocks): point.rate for point in points}
    policies = list(dict.fromkeys(point.policy for point in points))
    width = max(len("capacity"), *(len(policy) for policy in policies))
    lines = [
        f"{trace.name}: {len(trace.requests):,} requests, {trace.num_blocks:,} distinct blocks of "
        f"{trace.tokens_per_block} tokens; hit rate by policy and capacity, {took_s:.0f} s",
        "capacity".ljust(width) + "".join(f"{num_blocks / trace.num_blocks:>12.3g}" for num_blocks in capacities),
        "blocks".ljust(width) + "".join(f"{num_blocks:>12,}" for num_blocks in capacities),
    ]
    for policy in policies:
        lines.append(policy.ljust(width) + "".join(f"{rates[policy, num_blocks]:>12.4f}" for num_blocks in capacities))
    return "\n".join(lines)


def _as_dict(trace: Trace, points: list[HitRate], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "num_requests": len(trace.requests),
        "num_distinct_blocks": trace.num_blocks,
        "tokens_per_block": trace.tokens_per_block,
        "warm_up": options.warm_up,
        "points": [
            {
                **point._asdict(),
                "capacity": point.num_blocks / trace.num_blocks,
                "hit_rate": point.rate,
            }
            for point in points
        ],
    }
