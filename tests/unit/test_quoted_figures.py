"""What the README quotes of measurements is what `bench/results` holds: in tables each figure of three digits or more."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.report import percentile

ROOT = Path(__file__).resolve().parents[2]
SCALES = (1, 1e3, 1e-3, 1e6, 1e-6, 1e-9, 100, 1 / 2**20, 1 / 60)
"""Seconds as milliseconds, bytes as MB or MiB, shares as per cent."""
FURTHER = {"isolation": ["neighbour.json", "neighbour_before.json"]}


def leaves(figures: Any) -> Iterator[float]:
    if isinstance(figures, dict):
        for key, value in figures.items():
            yield from leaves(key)
            yield from leaves(value)
    elif isinstance(figures, list):
        for value in figures:
            yield from leaves(value)
    elif isinstance(figures, str):
        yield from (read(number) for number in re.findall(NUMBER, figures))
    elif isinstance(figures, (int, float)):
        yield float(figures)


def ratios(figures: Any) -> Iterator[float]:
    """Of the medians that stand beside each other."""
    if isinstance(figures, list):
        for value in figures:
            yield from ratios(value)
    elif isinstance(figures, dict):
        medians = [value["p50"] for value in figures.values() if isinstance(value, dict) and "p50" in value]
        yield from (above / below for above in medians for below in medians if below)
        for value in figures.values():
            yield from ratios(value)


def by_fault(figures: Any) -> Iterator[float]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for each in figures["injuries"]:
        groups[each["target"], each["action"]].append(each)
    for group in groups.values():
        yield sum(each["num_failed_tries"] for each in group)
        for name in ("first_answer_s", "all_clients_s"):
            yield from (percentile([each[name] for each in group], share) for share in (0.5, 0.99))


DERIVED: dict[str, Callable[[Any], Iterator[float]]] = {
    "churn": lambda figures: (
        each["all calls"]["p99.99"] / each["control"]["p99.99"] for each in figures.values() if isinstance(each, dict)
    ),
    "events": ratios,
    "faults": by_fault,
    "layouts": ratios,
    "serving": lambda figures: (
        each["radixkv"]["num_prompt_limit"] + each["radixkv"]["num_decode"] for each in figures["workloads"]
    ),
    "step_time": lambda figures: (int(chats) * 1e3 / each["token_ms"] for chats, each in figures["steps"].items()),
}
NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?"


def read(number: str) -> float:
    return float(number.replace(",", ""))


def quoted() -> list[tuple[str, list[str]]]:
    """Per bench whose command the README has, the figures in the tables below it, but for the first column."""
    text = (ROOT / "README.md").read_text()
    measured = text[text.index("\n## Measured") : text.index("\n## Changing it")]
    parts = re.split(r"^```sh\npython -m bench\.(\w+).*\n```\n", measured, flags=re.M)
    found = []
    for bench, below in zip(parts[1::2], parts[2::2], strict=True):
        rows = [
            row.split("|")[2:]
            for row in re.findall(r"^\|.*\n\|-.*\n((?:\|.*\n?)*)", below, re.M)
            for row in row.splitlines()
        ]
        numbers = re.findall(NUMBER, " ".join(cell for row in rows for cell in row))
        found.append((bench, [number for number in numbers if len(re.sub(r"[,.]", "", number).lstrip("0")) >= 3]))
    return found


@pytest.mark.parametrize(("bench", "numbers"), quoted(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_figure_in_a_table_is_the_benchs_own(bench: str, numbers: list[str]) -> None:
    results = ROOT / "bench" / "results"
    files = [*sorted(results.glob(f"{bench}*.json")), *(results / name for name in FURTHER.get(bench, ()))]
    known: list[float] = []
    for file in files:
        figures = json.loads(file.read_text())["figures"]
        known += [
            *leaves(figures),
            *(DERIVED[bench](figures) if bench in DERIVED and "_" not in file.stem.removeprefix(bench) else ()),
        ]
    for number in numbers:
        value, half = read(number), 0.5001 * 10.0 ** -len(number.partition(".")[2])
        assert any(abs(each * scale - value) <= half for each in known for scale in SCALES), f"{number} is not measured"


def test_the_tables_are_found() -> None:
    assert sum(len(numbers) for _, numbers in quoted()) > 300
