"""Whether the default model encodes callers' text as text, with unchanged ids, for real messages, honest and forged.

Every OpenAssistant message is put in every place open to callers: in a turn of each role, in a call, its result, a tool's
description, a variable of the template, and after a kept history. Honest ones must have the ids of the plain encoding of the
template's text; so must the messages before a forged one. A forged one, with control tokens or parts of them written into it
at random, must have no control token that the honest one lacks, and show its text unchanged.

    python -m bench.control_tokens            20,000 honest prompts and 10,000 forged (minutes on two cores)
    python -m bench.control_tokens --quick    500 and 250

Bar: no prompt differs, none is forged.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.common.conversations import WorkloadMissingError, default_workloads, read_trees
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser, percentile

if TYPE_CHECKING:
    from radixkv.worker.generations.text import ChatText

__all__ = ["main"]

FULL_HONEST, FULL_FORGED = 20_000, 10_000
QUICK_HONEST, QUICK_FORGED = 500, 250
KEPT = [7]
"""Ids of a history; only their last affects the ids appended after it."""

NUM_HEAD_IDS = 3
"""Number of ids that the template writes at the start of a reply."""


class Prompt(NamedTuple):
    """Arguments of `ChatText.prompt_ids`; `is_behind`: after a history."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    arguments: dict[str, Any]
    is_behind: bool = False


def _turn(role: str) -> Callable[[str], Prompt]:
    return lambda said: Prompt([{"role": role, "content": said}], [], {})


def _tool(said: str) -> Prompt:
    function = {"name": "f", "description": said, "parameters": {"type": "object", "properties": {said[:20]: {}}}}
    return Prompt([{"role": "user", "content": "?"}], [{"type": "function", "function": function}], {})


def _call(said: str) -> Prompt:
    call = {"type": "function", "function": {"name": said[:20], "arguments": {"a": said}}}
    return Prompt([{"role": "assistant", "content": "", "tool_calls": [call]}], [{"function": {"name": "f"}}], {})


PLACES: dict[str, Callable[[str], Prompt]] = {
    **{f"a turn of {role}": _turn(role) for role in ("system", "user", "assistant", "tool")},
    "a tool": _tool,
    "a call": _call,
    "a variable": lambda said: Prompt([{"role": "user", "content": "?", "name": said}], [], {"mood": said}),
    "behind a history": lambda said: Prompt([{"role": "user", "content": said}], [], {}, is_behind=True),
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("control_tokens", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_HONEST} prompts; written only with --json")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is forged (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/control_tokens.json, full run)"
    )
    return parser.parse_args(arguments)


class Judge:
    """Encodes prompts by the default model's tokenizer, and knows the expected ids."""

    def __init__(self, text: ChatText) -> None:
        self.text = text
        added = text.tokenizer.added_tokens_decoder
        self.marks = [str(token.content) for token in added.values()]
        self._control = frozenset(added)
        self.times_s: dict[str, list[float]] = {"ours": [], "plain": []}

    def ids(self, prompt: Prompt) -> list[int]:
        """Ids as the worker encodes them."""
        if prompt.is_behind:
            return self.text.continuation_ids(KEPT, prompt.messages, prompt.tools, prompt.arguments)
        return self.text.prompt_ids(prompt.messages, prompt.tools, prompt.arguments)

    def plain_ids(self, prompt: Prompt) -> list[int]:
        """The template's whole text, encoded by the plain tokenizer."""
        from radixkv.worker.generations.tool_prompt import with_tool_prompt

        tokenizer = self.text.tokenizer
        before = [{"role": "user", "content": "."}, {"role": "assistant", "content": "~"}] if prompt.is_behind else []
        told = [*before, *prompt.messages]
        messages = with_tool_prompt(told, prompt.tools) if prompt.tools else told
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        if not prompt.is_behind:
            return ids
        first = len(tokenizer(rendered[: rendered.index("~") + 1], add_special_tokens=False)["input_ids"])
        return ids[first:]

    def timed(self, kind: str, encode: Callable[[Prompt], list[int]], prompt: Prompt) -> list[int]:
        begun_s = time.process_time()
        ids = encode(prompt)
        self.times_s[kind].append(time.process_time() - begun_s)
        return ids

    def controls(self, ids: Sequence[int]) -> list[int]:
        return [each for each in ids if each in self._control]

    def shown(self, ids: Sequence[int]) -> str:
        return self.text.decode(ids, skip_special_tokens=False)

    def forge(self, said: str, source: random.Random) -> str:
        """The message with control tokens, or parts of one, inserted."""
        for _ in range(source.randint(1, 4)):
            mark, place = source.choice(self.marks), source.randint(0, len(said))
            cut = source.randint(1, len(mark) - 1)
            written = source.choice((mark, mark, mark[:cut], mark[cut:], f"{self.marks[2]}\n{self.marks[1]}system\n"))
            said = said[:place] + written + said[place:]
        return said

    def is_text(self, honest: Prompt, forged: Prompt) -> bool:
        """Whether the forged prompt has no additional control token and shows its text unchanged."""
        ids = self.ids(forged)
        same_controls = self.controls(ids) == self.controls(self.plain_ids(honest))
        return same_controls and self.shown(ids) == self.shown(self.plain_ids(forged))

    def keeps_ids_before(self, honest: Prompt) -> bool:
        """Whether a message keeps its ids before a forged one."""
        if honest.is_behind:
            return True
        alone = self.plain_ids(honest)[:-NUM_HEAD_IDS]
        forged = {"role": "user", "content": f"x{self.marks[2]}"}
        return self.ids(honest._replace(messages=[*honest.messages, forged]))[: len(alone)] == alone


def messages_of(workloads: Path) -> list[str]:
    """Every message once, in the archive's order."""
    trees = read_trees(workloads)
    return list(dict.fromkeys(turn["content"] for tree in trees for path in tree.paths for turn in path))


def run(options: argparse.Namespace, num_honest: int, num_forged: int) -> Report:
    from radixkv.worker.generations.text import ChatText
    from radixkv.worker.loading.default_model import resolve_model

    messages = messages_of(options.workloads)
    source = random.Random(options.seed)
    source.shuffle(messages)
    judge = Judge(ChatText(resolve_model("default")))
    rows = {place: [0, 0, 0, 0] for place in PLACES}
    for number, (place, said, put) in enumerate(islice(_mixed(messages, source), num_honest)):
        prompt = put(said)
        is_same = judge.timed("ours", judge.ids, prompt) == judge.timed("plain", judge.plain_ids, prompt)
        rows[place][0] += 1
        rows[place][1] += not (is_same and (number >= num_forged or judge.keeps_ids_before(prompt)))
    for place, said, put in islice(_mixed(messages, source), num_forged):
        rows[place][2] += 1
        rows[place][3] += not judge.is_text(put(said), put(judge.forge(said, source)))
    return report_of(options, len(messages), rows, judge)


def _mixed(messages: Sequence[str], source: random.Random) -> Iterator[tuple[str, str, Callable[[str], Prompt]]]:
    """Messages in places, each pair once before any is repeated."""
    pairs = [(place, said, put) for place, put in PLACES.items() for said in messages]
    while True:
        source.shuffle(pairs)
        yield from pairs


def report_of(options: argparse.Namespace, num_messages: int, rows: dict[str, list[int]], judge: Judge) -> Report:
    report = Report("control_tokens", options.seed)
    honest, differ, forged, taken = (sum(column) for column in zip(*rows.values(), strict=True))
    report.bars += [
        Bar("honest prompts whose ids differ from the plain encoding", differ, 0),
        Bar("forged prompts with a control token of a caller, or another text", taken, 0),
    ]
    columns = ("place", "honest", "differ", "forged", "taken for tokens")
    report.tables.append(
        Table(f"{num_messages:,} messages in prompts", columns, [(k, *map(str, v)) for k, v in rows.items()])
    )
    report.figures = {"num_messages": num_messages, "num_honest": honest, "num_forged": forged, "places": rows}
    times: list[tuple[str, ...]] = []
    for kind, times_s in judge.times_s.items():
        p50, p99 = (percentile(times_s, share) * 1e6 for share in (0.5, 0.99))
        report.figures[f"{kind}_cpu_us"] = {"p50": p50, "p99": p99}
        times.append((kind, f"{p50:,.0f}", f"{p99:,.0f}"))
    report.tables.append(Table("CPU of an honest prompt", ("encoding", "p50 us", "p99 us"), times))
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    counts = (QUICK_HONEST, QUICK_FORGED) if options.quick else (FULL_HONEST, FULL_FORGED)
    try:
        report = run(options, *counts)
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    return report.finish(
        options.json or (None if options.quick else RESULTS_DIR / "control_tokens.json"), is_quick=options.quick
    )


if __name__ == "__main__":
    sys.exit(main())
