"""Coding agents on the gateway: prompt tokens computed per request, and the time to its first token, compared with llama.cpp.

The real Claude Code and Codex hold ten conversations each: three messages about a small project of files, six requests with
the tools' results, and Claude Code's request for a title. Their replies are scripted. The agents' requests are recorded at the
first run, which fetches the agents from npm (640 MB), and kept in the cache folder. Then they are replayed, one at a time: the
first one of every conversation, the second one of each, and so on.

    tokens    a tiny model with the default model's tokenizer and template, which draws the recorded replies in odd tokens
    times     SmolLM2-135M in 8 bits from one file for both, its context set to 131,072 tokens; replies of 4 tokens

The *new* tokens of a request are its prompt's after the longest prefix shared with an earlier prompt of the replay, or with
that prompt and its reply. They are counted on token ids from the tokenizer, without the cache; parts cut from a prompt by the
gateway, such as Claude Code's billing line, are in neither. For every request the gateway's usage must report at most its new
tokens and one more as computed: the last token of a prompt is run for its logits, that of a reply has no KV yet. A line or an
order that separates prompts which should share a prefix makes their tokens new, so that bar cannot detect it: a second bar is
the share of all prompt tokens that is found.

llama.cpp's server gets every prompt as token ids, so that both compute the same tokens however each handles tools. radixkv gets
the agent's own request, so that its time includes JSON, template and tokenizer. Each request goes to radixkv and then to
llama.cpp, with four open slots.

    python -m bench.agents --peer fetch      everything, llama.cpp fetched if missing
    python -m bench.agents --no-times        tokens only: a busy machine computes the longest prompts for many minutes
    python -m bench.agents --projects 4      fewer conversations
    python -m bench.agents --quick           the tokens of two conversations each: less than a minute once they are recorded

Exit code of a full run: 0 if the bars are met, otherwise 1. A quick run judges the tokens. If the agents are neither recorded
nor available, the run reports that and exits with 1. Its downloads are too large for continuous integration, which omits it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.agents.clients import AgentMissingError
from bench.agents.llama import LlamaAnswer, llama
from bench.agents.models import NUM_CONTEXT, tiny_engine
from bench.agents.recording import AGENTS, Conversation, recorded
from bench.agents.replay import Played, Turn, interleaved, replaying
from bench.agents.scripts import SCRIPTS
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, summarise
from bench.common.stacks import BLOCK_SIZE, separate_services
from bench.serving.llama_files import LLAMA_PACKAGE, LlamaFiles, find_llama, longer_context
from bench.tree.wheel import PeerMissingError
from radixkv import unpack_tokens
from radixkv.generation.request import Prompt

__all__ = ["main"]

MOST_BEYOND = 1
LEAST_FOUND = 0.9
"""At full size: conversations that do not find each other's tools would have to compute more than the rest."""

FIRST_TOKEN_BOUND = 1.0
REPLY_TOKENS = 4
QUICK_PROJECTS = 2
COLD, BEGUN, NEXT, TITLE = "first of all", "new conversation", "next request", "title"
KINDS = (COLD, BEGUN, NEXT, TITLE)


class Timed(NamedTuple):
    """A request with both systems' results."""

    ours: Played
    llama: LlamaAnswer


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("agents", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PROJECTS} projects, no times")
    parser.add_argument("--no-times", action="store_true", help="tokens alone, without llama.cpp")
    parser.add_argument("--projects", type=int, help=f"conversations of each agent (default: {len(SCRIPTS)})")
    parser.add_argument("--peer", choices=("use", "fetch"), default="use", help="whether llama.cpp may be fetched")
    parser.add_argument("--seed", type=int, default=0, help="of the odd tokens (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/agents.json on a full run)")
    return parser.parse_args(arguments)


def kind_of(turn: Turn) -> str:
    """Kind of a request, by its cacheable part."""
    if turn.place < 0:
        return TITLE
    if turn.place > 0:
        return NEXT
    return COLD if turn.project == SCRIPTS[0].name else BEGUN


def play_tokens(conversations: Sequence[Conversation], seed: int) -> list[Played]:
    """Play all requests, with the recorded replies."""
    from bench.agents.dictation import odd_ids

    source = random.Random(seed)
    turns = list(interleaved(conversations))
    progress = Progress("requests counted", len(turns))
    with tiny_engine() as (engine, text), replaying(engine) as replay:
        for turn in turns:
            replay.dictated.dictate(odd_ids(text, turn.request.reply, source))
            replay.play(turn)
            progress.advance()
    return replay.played


def play_times(conversations: Sequence[Conversation], counted: Sequence[Played], files: LlamaFiles) -> list[Timed]:
    """Play all requests to both, with replies of a few tokens."""
    model = longer_context(files, NUM_CONTEXT)
    longest = max(played.answer.num_prompt for played in counted) + 2 * BLOCK_SIZE
    num_blocks = sum(played.num_new // BLOCK_SIZE + 2 for played in counted) + 4 * longest // BLOCK_SIZE
    turns = list(interleaved(conversations))
    progress = Progress("requests timed", len(turns))
    timed = []
    with (
        separate_services(str(model), num_blocks, "auto") as (worker, reader),
        replaying(worker) as replay,
        llama(files.package, model, longest) as peer,
    ):
        [token_id] = unpack_tokens(worker.tokenize(Prompt(text=" the")))
        for turn in turns:
            replay.dictated.repeat(token_id, REPLY_TOKENS)
            played = replay.play(turn)
            timed.append(Timed(played, peer.ask(replay.prompt, token_id, REPLY_TOKENS)))
            progress.advance()
        if reader.stats().num_evicted_blocks:
            raise AssertionError("blocks were evicted: the pool is too small for this run")
    return timed


def token_table(counted: Sequence[Played]) -> Table:
    rows = []
    for agent in AGENTS:
        own = [played for played in counted if played.turn.agent == agent.name]
        turns = [played for played in own if played.turn.place >= 0]
        rows.append(
            (
                agent.name,
                str(len(own)),
                f"{summarise([played.answer.num_prompt for played in turns]).p50:,.0f}",
                f"{sum(played.answer.num_prompt for played in own):,}",
                f"{sum(played.num_new for played in own):,}",
                f"{sum(played.num_computed for played in own):,}",
                str(max(played.num_beyond for played in own)),
            )
        )
    columns = ("agent", "requests", "prompt p50", "prompt tokens", "new", "computed", "most beyond the new ones")
    return Table("prompt tokens", columns, rows)


def time_rows(timed: Sequence[Timed]) -> dict[str, dict[str, dict[str, Any]]]:
    """By agent and kind: medians of milliseconds to the first token and of prompt tokens computed."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for agent in AGENTS:
        for kind in KINDS:
            own = [each for each in timed if each.ours.turn.agent == agent.name and kind_of(each.ours.turn) == kind]
            if own:
                found.setdefault(agent.name, {})[kind] = {
                    "radixkv_ms": summarise([each.ours.answer.first_s for each in own], 1e3)._asdict(),
                    "llama_ms": summarise([each.llama.first_s for each in own], 1e3)._asdict(),
                    "radixkv_computed": summarise([each.ours.num_computed for each in own]).p50,
                    "llama_computed": summarise([each.llama.num_computed for each in own]).p50,
                }
    return found


def time_table(rows: dict[str, dict[str, dict[str, Any]]]) -> Table:
    columns = ("request", "n", "computed", "llama.cpp", "ms to first token p50", "llama.cpp", "ratio")
    cells = [
        (
            f"{agent}: {kind}",
            str(row["radixkv_ms"]["n"]),
            f"{row['radixkv_computed']:,.0f}",
            f"{row['llama_computed']:,.0f}",
            f"{row['radixkv_ms']['p50']:,.0f}",
            f"{row['llama_ms']['p50']:,.0f}",
            f"{row['radixkv_ms']['p50'] / row['llama_ms']['p50']:.2f}",
        )
        for agent, kinds in rows.items()
        for kind, row in kinds.items()
    ]
    return Table("first token, in turns with llama.cpp", columns, cells)


def make_report(counted: Sequence[Played], timed: Sequence[Timed], seed: int, why_missing: str) -> Report:
    both = [*counted, *(each.ours for each in timed)]
    bars = [
        Bar(
            "prompt tokens computed beyond the new ones, most of a request",
            max(p.num_beyond for p in both),
            MOST_BEYOND,
        )
    ]
    num_prompt = sum(played.answer.num_prompt for played in counted)
    num_computed = sum(played.num_computed for played in counted)
    bars.append(Bar("prompt tokens found, of all", 1 - num_computed / num_prompt, LEAST_FOUND, at_least=True))
    rows = time_rows(timed)
    for agent in AGENTS:
        for kind in (BEGUN, NEXT):
            row = rows.get(agent.name, {}).get(kind)
            ratio = row["radixkv_ms"]["p50"] / row["llama_ms"]["p50"] if row is not None else None
            name = f"first token of {agent.name}, {kind}, by llama.cpp's"
            bars.append(Bar(name, ratio, FIRST_TOKEN_BOUND, "x", reason=why_missing))
    tables = [token_table(counted), *([time_table(rows)] if timed else [])]
    figures = {
        "requests": len(counted),
        "prompt_tokens": num_prompt,
        "new_tokens": sum(played.num_new for played in counted),
        "computed_tokens": num_computed,
        "most_beyond": {
            "tokens": max(p.num_beyond for p in counted),
            "times": max((t.ours.num_beyond for t in timed), default=None),
        },
        "llama": LLAMA_PACKAGE,
        "first_token": rows,
    }
    return Report("agents", seed, figures, bars, tables)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_projects = options.projects or (QUICK_PROJECTS if options.quick else len(SCRIPTS))
    files, why_missing = None, "left out by --quick or --no-times"
    if not (options.quick or options.no_times):
        try:
            files, why_missing = find_llama(options.peer == "fetch"), ""
        except PeerMissingError as error:
            why_missing = str(error)
            print(f"without llama.cpp: {error}", file=sys.stderr)
    try:
        conversations = recorded(num_projects)
    except AgentMissingError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    counted = play_tokens(conversations, options.seed)
    timed = play_times(conversations, counted, files) if files is not None else []
    report = make_report(counted, timed, options.seed, why_missing)
    is_full = not options.quick and num_projects == len(SCRIPTS)
    code = report.finish(options.json or (RESULTS_DIR / "agents.json" if is_full else None), is_quick=options.quick)
    return code if report.bars[0].passed else 1


if __name__ == "__main__":
    sys.exit(main())
