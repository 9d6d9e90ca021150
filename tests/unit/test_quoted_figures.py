"""What README, SECURITY and protos quote is so: figures in tables, of three digits or more, and bounds."""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.common.report import percentile
from radixkv.cli.program import COMMANDS
from radixkv.client import reader, stream
from radixkv.core import validation
from radixkv.gateway.api.conversations.replies.live import MAX_WAITING_BYTES
from radixkv.gateway.api.conversations.replies.pricing import MAX_READ_CHARACTERS
from radixkv.gateway.api.conversations.schema import (
    MAX_APPENDED_CHARACTERS,
    MAX_ASKED,
    MAX_IN_BULK,
    MAX_TAG_CHARACTERS,
    MAX_TAGS,
)
from radixkv.gateway.api.conversations.settings import MAX_STOP_TEXT_CHARACTERS, MAX_STOP_TEXTS
from radixkv.gateway.api.conversations.store.search import MAX_HITS
from radixkv.gateway.api.conversations.store.trash_store import TRASH_S
from radixkv.gateway.api.conversations.writing import MAX_CONVERSATION_BYTES, MAX_MESSAGES
from radixkv.gateway.api.responses.item_lists import MAX_ITEMS, MAX_LIST_BYTES
from radixkv.gateway.http import connections
from radixkv.gateway.http.middleware import SMALL_BODY_BYTES
from radixkv.gateway.http.recording import MAX_REQUESTS
from radixkv.gateway.http.request_context import MAX_LEFT_OUT
from radixkv.gateway.protocol import fields
from radixkv.gateway.turns.json_schemas import FORMATS
from radixkv.gateway.turns.tools import MAX_TOOLS
from radixkv.generation import params as sampling
from radixkv.generation import request
from radixkv.net.calls import health
from radixkv.net.calls.field_count import MAX_FIELDS
from radixkv.net.metrics import MAX_NAMESPACES
from radixkv.service.config import MAX_NAME_CHARACTERS
from radixkv.util import json_text
from radixkv.v1.prefix_cache_pb2 import PoolStats
from radixkv.wire import errors as status
from radixkv.worker.sampling import grammar_trial
from radixkv.worker.server import MAX_STREAMS

ROOT = Path(__file__).resolve().parents[2]
NUM_HEADLINES = 8
SCALES = (1, 1e3, 1e-3, 1e6, 1e-6, 1e-9, 100, 1 / 2**20, 1 / 60)
"""Seconds as milliseconds, bytes as MB or MiB, shares as per cent."""
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("[bk]*/README.md"), *(ROOT / "radixkv").rglob("README.md"))
    if "vendor" not in path.parts and "kernels" not in path.relative_to(ROOT).parts[1:]
)
FURTHER = {
    "all": ["gpu.json"],
    "isolation": ["neighbour.json", "neighbour_before.json"],
    "peers": ["speculation_peers.json"],
    "recorded": ["speculation_recorded.json"],
    "serving": ["serving_workers.json"],
}


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
        groups[each["target"].rstrip(" 0123456789"), each["action"]].append(each)
    for group in groups.values():
        yield sum(each["num_failed_tries"] for each in group)
        for name in ("first_answer_s", "all_clients_s"):
            yield from (percentile([each[name] for each in group], share) for share in (0.5, 0.99))


DERIVED: dict[str, Callable[[Any], Iterator[float]]] = {
    "all": lambda figures: (
        each["roofline_us"] / each["us"]["as it is"] for each in figures["cases"]["figures"]["cases"]
    ),
    "churn": lambda figures: (
        each["all calls"]["p99.99"] / each["control"]["p99.99"] for each in figures.values() if isinstance(each, dict)
    ),
    "events": ratios,
    "faults": by_fault,
    "faults_cluster": by_fault,
    "lines": ratios,
    "serving": lambda figures: (
        each["radixkv"]["num_prompt_limit"] + each["radixkv"]["num_decode"] for each in figures["workloads"]
    ),
    "step_time": lambda figures: (int(chats) * 1e3 / each["token_ms"] for chats, each in figures["steps"].items()),
}
NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?"


def read(number: str) -> float:
    return float(number.replace(",", ""))


def quoted() -> list[tuple[str, list[str]]]:
    """Per bench whose command its README has, the figures in the tables below it, but for the first column; and those of the
    README's own table, whose last column names the bench.
    """
    measured = (ROOT / "bench" / "README.md").read_text()
    parts = re.split(r"^```sh\npython -m bench\.(?:\w+\.)*(\w+).*\n```\n", measured, flags=re.M)
    text = (ROOT / "README.md").read_text()
    headlines = text[text.index("\n## Measured") : text.index("\n## Layout")]
    found = [
        (bench, long_numbers(figures))
        for figures, bench in re.findall(r"^\| [^|]*\|(.*)\| `(\w+)` \|$", headlines, re.M)
    ]
    assert len(found) == NUM_HEADLINES
    for bench, below in zip(parts[1::2], parts[2::2], strict=True):
        rows = [
            row.split("|")[2:]
            for row in re.findall(r"^\|.*\n\|-.*\n((?:\|.*\n?)*)", below, re.M)
            for row in row.splitlines()
        ]
        found.append((bench, long_numbers(" ".join(cell for row in rows for cell in row))))
    return found


def long_numbers(text: str) -> list[str]:
    return [number for number in re.findall(NUMBER, text) if len(re.sub(r"[,.]", "", number).lstrip("0")) >= 3]


@pytest.mark.parametrize(("bench", "numbers"), quoted(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_figure_in_a_table_is_the_benchs_own(bench: str, numbers: list[str]) -> None:
    results = ROOT / "bench" / "results"
    files = [*sorted(results.glob(f"{bench}*.json")), *(results / name for name in FURTHER.get(bench, ()))]
    known: list[float] = []
    for file in files:
        figures = json.loads(file.read_text())["figures"]
        derive = DERIVED.get(bench if "_" not in file.stem.removeprefix(bench) else file.stem)
        known += [*leaves(figures), *(derive(figures) if derive else ())]
    for number in numbers:
        value, half = read(number), 0.5001 * 10.0 ** -len(number.partition(".")[2])
        assert any(abs(each * scale - value) <= half for each in known for scale in SCALES), f"{number} is not measured"


def test_the_tables_are_found() -> None:
    assert sum(len(numbers) for _, numbers in quoted()) > 300


def test_the_machine_of_each_table_is_the_one_that_is_named_above_them() -> None:
    text = (ROOT / "bench" / "README.md").read_text()
    ((with_two, with_four),) = re.findall(
        r"two cores of an AMD EPYC, but for (.*?), which had two of an\sIntel Xeon, and (.*?), which had four of one",
        text,
        re.S,
    )
    quoted_benches = {bench for bench, _ in quoted()} & {
        file.stem for file in (ROOT / "bench" / "results").glob("*.json")
    }
    for bench in quoted_benches:
        environment = json.loads((ROOT / "bench" / "results" / f"{bench}.json").read_text())["environment"]
        num_cpus = 4 if f"`{bench}`" in with_four else 2
        is_intel = num_cpus == 4 or f"`{bench}`" in with_two
        assert (environment["cpu"].startswith("Intel"), environment["num_cpus"]) == (is_intel, num_cpus), bench


BOUNDS = {
    "README.md": [f"a namespace at most {validation.MAX_NAMESPACE_CHARS} characters"],
    "radixkv/service/README.md": [f"of {MAX_NAMESPACES} at most"],
    "radixkv/client/README.md": [
        f"opened again after {1000 * stream._FIRST_BACKOFF_S:g} ms, then twice as long each time, up to "
        f"{stream._LONGEST_BACKOFF_S:g} s",
        *(f"(`{name}` {value})" for name, value in reader._CHANNEL_OPTIONS if "max_rec" in name),
    ],
    "radixkv/gateway/README.md": [
        f"{fields.MAX_MESSAGES:,} messages, {MAX_TOOLS} tools",
        f"JSON of {json_text.MAX_NESTING} levels and {json_text.MAX_VALUES:,} values",
        f"stop strings of {sampling.MAX_STOP_CHARACTERS:,} characters",
        f"A body above {SMALL_BODY_BYTES >> 10} KiB is read on a thread",
        f"with {grammar_trial.MAX_CPU_S:g} s of CPU, {grammar_trial.MAX_MEMORY_BYTES >> 20} MiB and "
        f"{grammar_trial.MAX_MASK_S * 1e3:g} ms for a mask",
        f"A head has {connections.MAX_HEAD_BYTES >> 10} KiB, {connections.MAX_HEADERS} headers (431) and "
        f"{connections.HEAD_S:g} s; a body has {connections.BODY_S:g} s and a further second for each "
        f"{connections.BODY_BYTES_PER_S >> 10} KiB",
        f"the last {MAX_REQUESTS:,} requests",
        f"half of the worker's {MAX_STREAMS} streams",
        f"one conversation up to {MAX_MESSAGES:,} messages and {MAX_CONVERSATION_BYTES >> 20} MiB",
        f"its {MAX_HITS} newest messages",
        f"{MAX_STOP_TEXTS} texts of {MAX_STOP_TEXT_CHARACTERS} characters",
        f"any text of up to {MAX_APPENDED_CHARACTERS:,} characters",
        f"up to {MAX_TAGS} `tags` of {MAX_TAG_CHARACTERS} characters",
        f"on up to {MAX_IN_BULK} `ids`",
        f"ends for good {TRASH_S / 86400:g} days",
        f"`costs` takes {MAX_ASKED} messages",
        f"beyond {MAX_READ_CHARACTERS:,} characters in all",
        f"One has at most {MAX_ITEMS:,} items and {MAX_LIST_BYTES >> 20} MiB",
        f"One that lets {MAX_WAITING_BYTES >> 20} MiB wait is ended",
        f"at most {MAX_LEFT_OUT} names",
        f"formats other than {', '.join(f'`{each}`' for each in FORMATS)}",
    ],
    "SECURITY.md": [
        f"of nesting ({json_text.MAX_NESTING} levels)",
        f"more than {MAX_FIELDS:,} fields is refused unparsed",
        f"{grammar_trial.MAX_CPU_S:g} s of CPU and {grammar_trial.MAX_MEMORY_BYTES >> 20} MiB each",
        f"heads have {connections.MAX_HEAD_BYTES >> 10} KiB and {connections.HEAD_S:g} s, bodies {connections.BODY_S:g} s",
        f"Health has {health.MAX_WATCHERS} watchers, at most {health.MAX_WATCHERS // 2} of one address",
        f"at most {connections.MAX_STRANGERS_OF_ADDRESS} connections without a request of a tenant, and all together "
        f"{connections.MAX_STRANGERS:,}",
    ],
    "protos/radixkv/v1/generation.proto": [
        f"At most {sampling.MAX_STOPS}, each of 1 to {sampling.MAX_STOP_CHARACTERS:,} characters",
        f"this many most likely ones, 0 to {sampling.MAX_LOGPROBS}",
        f"which is computed once; 1 to {sampling.MAX_BRANCHES}",
        f"once the search has ended; 1 to {sampling.MAX_BEAMS}",
        f"is divided, in [-{sampling.MAX_LENGTH_PENALTY:g}, {sampling.MAX_LENGTH_PENALTY:g}]",
        f"in [-{sampling.MAX_BIAS:g}, {sampling.MAX_BIAS:g}]. At most {sampling.MAX_BIASES:,} entries",
        f"-{request.MAX_PRIORITY} to {request.MAX_PRIORITY}",
        f"above 0, at most {request.MAX_TIMEOUT_S:,.0f} (30 days)",
        f"for logs. At most {request.MAX_REQUEST_ID_CHARACTERS} characters",
    ],
    "protos/radixkv/v1/prefix_cache.proto": [
        f"those of another salt, adapter or model. At most {validation.MAX_OTHER_NAMESPACES}",
        f"above 0, at most {validation.MAX_TTL_S:,.0f} (7 days)",
        f"what none covers stays as it is. At most {validation.MAX_RETENTION_RANGES}",
    ],
    "protos/radixkv/v1/types.proto": [
        f"Never token content. At most {status.MAX_MESSAGE_BYTES:,} bytes",
        f"cut to {status.MAX_VALUE_BYTES} bytes",
        f"1 to {MAX_NAME_CHARACTERS} characters",
    ],
}


@pytest.mark.parametrize("file", BOUNDS)
def test_the_bounds_that_are_told_are_those_that_hold(file: str) -> None:
    text = " ".join(re.sub(r"^\s*//", "", (ROOT / file).read_text(), flags=re.M).split())
    assert [bound for bound in BOUNDS[file] if bound not in text] == []


@pytest.mark.parametrize("file", DOCUMENTS)
def test_files_that_are_named_are_there(file: str) -> None:
    text, folder = (ROOT / file).read_text(), (ROOT / file).parent
    named = re.findall(r"`((?:tests|radixkv|bench|protos|kernels)/[\w./-]+|[\w./]+\.py)`", text)
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [
        path
        for path in named
        if path not in tests and not any((base / path).exists() for base in (ROOT, folder, ROOT / "radixkv"))
    ] == []


def known_flags() -> set[str]:
    """Of every command of `radixkv`, and what the sources of the benches, the simulation and the kit for holders name."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for command in COMMANDS:
        command.add(commands)
    found = {flag for each in commands.choices.values() for action in each._actions for flag in action.option_strings}
    sources = [*(ROOT / "bench").rglob("*.py"), *(ROOT / "tests" / "simulation").rglob("*.py")]
    sources += (ROOT / "radixkv" / "testing").glob("*.py")
    return found | {flag for path in sources for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())}


@pytest.mark.parametrize("file", DOCUMENTS)
def test_flags_that_are_named_are_there(file: str) -> None:
    text = re.sub(r"`?(?:curl|openssl|smg|vllm|\.venv/bin/pytest|pytest) .*", "", (ROOT / file).read_text())
    text = text.replace("pytest -n auto --dist loadfile", "")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named - known_flags() == set()


def test_the_metrics_table_names_figures_of_a_pool() -> None:
    text = (ROOT / "radixkv" / "service" / "README.md").read_text()
    names = set(re.findall(r"`(num_\w+)`", text[text.index("\n## Metrics") : text.index("\n## Security")]))
    assert len(names) > 15
    assert names - {field.name for field in PoolStats.DESCRIPTOR.fields} == set()
