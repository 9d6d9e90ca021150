"""`python -m bench.isolation --neighbour`: the effects of one tenant's attacks on another.

Service, worker and gateway run in a process each; a neighbour sends requests steadily over every way in; each attack in turn
comes from a separate process, which yields the processors to all others. The table has for each attack the neighbour's time to
the first token undisturbed and from the attack's start to a second after its end, its failed requests, the responses to the
attacker, and the growth of memory; next to them the figures that `--label before` has written for an earlier commit.

    python -m bench.isolation --neighbour                   all attacks at their full size (a quarter of an hour)
    python -m bench.isolation --neighbour --quick           smaller ones, a few seconds each; judges nothing
    python -m bench.isolation --neighbour --only WORD       those whose names contain a word
    python -m bench.isolation --neighbour --label before    written as the column "before" of later runs
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.hostile.attacker import ATTACKS, SIBLINGS
from bench.hostile.neighbour import WAYS
from bench.hostile.stack import DRAIN_S, Ending, HostileStack, save_small_model
from bench.hostile.trial import Field, Trial, bound_s, first_token_s
from radixkv.worker.loading.default_model import resolve_model

__all__ = ["END_S", "main"]

AFTER, BEFORE = "after", "before"
QUICK_SCALE = 1 / 16
FULL_TIMES = 2.5
"""Factor of an attack's duration in a full run."""
MOST_S = 20.0
END_S = DRAIN_S + 5.0
"""From SIGTERM to the end of a process: the drain, then clean-up, and Python's own exit."""
JUDGED_SHARE, QUICK_SHARE = 0.99, 0.9
MIDST = (
    "slow grammars, response_format",
    "bodies that never come, tenant without limits",
    "health streams at the worker",
)
"""Attacks during which the stack gets SIGTERM, all at once."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = bench_parser("isolation --neighbour", __doc__)
    parser.add_argument("--quick", action="store_true", help="smaller attacks; written only with --json")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="attacks whose name contains it")
    parser.add_argument("--label", default=AFTER, choices=(AFTER, BEFORE), help="default: %(default)s")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/neighbour.json on a full run)"
    )
    return parser.parse_args(arguments)


def told(trial: Trial) -> dict[str, Any]:
    """One attack for the JSON; seconds and bytes."""
    ways = {
        way: {
            "num_undisturbed": sum(sample.way == way for sample in trial.undisturbed),
            "undisturbed_p50_s": first_token_s(trial.undisturbed, way, 0.5),
            "undisturbed_p99_s": first_token_s(trial.undisturbed, way, 0.99),
            "num_disturbed": sum(sample.way == way for sample in trial.disturbed),
            "p50_s": first_token_s(trial.disturbed, way, 0.5),
            "p90_s": first_token_s(trial.disturbed, way, 0.9),
            "p99_s": first_token_s(trial.disturbed, way, 0.99),
            "bound_s": bound_s(trial.undisturbed, way),
            "num_failed": sum(sample.way == way for sample in trial.failures),
        }
        for way in WAYS
    }
    return {
        "ways": ways,
        "answers": dict(trial.outcomes),
        "start_bytes": trial.start_bytes,
        "peak_bytes": trial.peak_bytes,
        "recovered": trial.has_recovered,
        "failures": sorted({sample.failure[:200] for sample in trial.failures})[:5],
        "faults": [fault[:400] for fault in trial.faults(JUDGED_SHARE)],
    }


def _worst(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of the way in that is farthest above its bound."""
    return max(figures["ways"].values(), key=lambda way: way["p99_s"] / way["bound_s"] if way["bound_s"] else 0.0)


def _row(name: str, figures: dict[str, Any], before: dict[str, Any] | None) -> tuple[str, ...]:
    cells = [name]
    for each in (before, figures):
        if each is None:
            cells += ["-"] * 4
            continue
        worst = _worst(each)
        failed = sum(way["num_failed"] for way in each["ways"].values())
        growth = max((each["peak_bytes"].get(role, 0) - start) >> 20 for role, start in each["start_bytes"].items())
        cells.append(f"{1000 * worst['undisturbed_p50_s']:.0f} / {1000 * worst['undisturbed_p99_s']:.0f}")
        cells.append(f"{1000 * worst['p50_s']:.0f} / {1000 * worst['p99_s']:.0f}")
        cells.append(f"{failed}" if each["recovered"] else f"{failed}, for good")
        cells.append(f"{growth:+d}")
    cells.append(", ".join(f"{what} {count:,}" for what, count in sorted(figures["answers"].items())))
    return tuple(cells)


_COLUMNS = (
    "attack",
    *("before: alone p50 / p99 ms", "attacked", "failed", "MiB"),
    *("now: alone p50 / p99 ms", "attacked", "failed", "MiB"),
    "answered to the attacker",
)


def _before(path: Path) -> dict[str, Any]:
    """Figures by attack of the earlier commit; empty if they were not written."""
    if not path.exists():
        return {}
    figures: dict[str, Any] = json.loads(path.read_text())["figures"]["attacks"]
    return figures


def _run(options: argparse.Namespace, stack: HostileStack, made: Report) -> dict[str, Ending]:
    scale = QUICK_SCALE if options.quick else 1.0
    chosen = [each for each in ATTACKS if any(word in each.name for word in options.only)]
    chosen = chosen or [each for each in ATTACKS if not options.quick or each.name not in SIBLINGS]
    progress = Progress("attacks", len(chosen))
    before = {} if options.label == BEFORE else _before(RESULTS_DIR / "neighbour_before.json")
    rows: list[tuple[str, ...]] = []
    found: dict[str, Any] = made.figures.setdefault("attacks", {})
    with Field(stack) as field:
        for attack in chosen:
            seconds = attack.seconds if options.quick else min(MOST_S, FULL_TIMES * attack.seconds)
            trial = field.try_attack(attack, seconds, scale)
            found[attack.name] = told(trial)
            rows.append(_row(attack.name, found[attack.name], before.get(attack.name)))
            for fault in trial.faults(QUICK_SHARE if options.quick else JUDGED_SHARE):
                print(f"{attack.name}: {fault[:300]}", flush=True)
            if trial.is_lasting:
                field.renew()
            progress.advance()
        endings = field.interrupt([attack for attack in ATTACKS if attack.name in MIDST], 2.0, scale)
    made.tables.append(
        Table("a neighbour's first token beside one tenant's attacks, the worst of four ways in", _COLUMNS, rows)
    )
    return endings


def _judge(made: Report, endings: dict[str, Ending]) -> None:
    attacks = made.figures["attacks"].values()
    worst = max(way["p99_s"] / way["bound_s"] for each in attacks for way in each["ways"].values() if way["bound_s"])
    failed = sum(way["num_failed"] for each in attacks for way in each["ways"].values())
    hurt = [name for name, each in made.figures["attacks"].items() if each["faults"]]
    made.figures["endings"] = {name: ending._asdict() for name, ending in endings.items()}
    slowest_s = max(ending.seconds for ending in endings.values())
    made.bars += [
        Bar("attacks that hurt", len(hurt), 0, reason="; ".join(hurt)[:600]),
        Bar("worst p99 of the first token / its bound", worst, 1.0, "x"),
        Bar("requests of the neighbour that failed", failed, 0),
        Bar("SIGTERM in the midst of attacks to the end of the last process", slowest_s, END_S, " s"),
        Bar("processes that did not end by themselves", sum(each.exit_code != 0 for each in endings.values()), 0),
    ]


def main(arguments: Sequence[str]) -> int:
    """Run it; the exit code."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that none of our processes is left
    made = Report("neighbour", 0)
    made.figures["label"] = options.label
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as name:
        folder = Path(name)
        model = save_small_model(folder / "model", resolve_model(None))
        with HostileStack(folder, model) as stack:
            _judge(made, _run(options, stack, made))
    path = RESULTS_DIR / ("neighbour_before.json" if options.label == BEFORE else "neighbour.json")
    is_kept = not options.only and (not options.quick or options.label == BEFORE)
    return made.finish(options.json or (path if is_kept else None), is_quick=options.quick)
