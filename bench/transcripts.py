"""Share of a conversation's prompt that is found in the cache when it returns over HTTP, on real conversation trees.

OpenAssistant's trees are walked path by path: turns continue, replies are regenerated, early turns are edited. The model is a
random one of two small layers with the default model's tokenizer and template: its replies are gibberish, most of which
tokenises differently than it was generated. Half-way the gateway is restarted, while the worker lives.

    python -m bench.transcripts            100 trees, through responses and through chat completions (minutes on two cores)
    python -m bench.transcripts --quick    3 trees

Bar: of each request everything is found except the new part, and at most one token more; before the restart and after it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.common.chat_trees import Answer, Api, ByChat, ByResponses, Question, questions_of, shortfall
from bench.common.conversations import WorkloadMissingError, default_workloads, read_trees
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.common.stacks import engine_in_process
from radixkv.worker.loading.default_model import resolve_model

if TYPE_CHECKING:
    from radixkv.generation.request import Generator

__all__ = ["main"]

FULL_TREES, QUICK_TREES = 100, 3
NUM_AT_ONCE = 8
MODEL = "small"
REPLY_TOKENS = 24
NUM_BLOCKS = 40_000
RESPONSES, CHAT = "responses", "chat completions"
APIS = (RESPONSES, CHAT)
BEFORE, AFTER = "before the restart", "after it"


class Sample(NamedTuple):
    """One request that continues or repeats an earlier one."""

    way: str
    half: str
    num_short: int
    answer: Answer


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("transcripts", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TREES} trees; written only with --json")
    parser.add_argument("--trees", type=int, help=f"how many trees (default: {FULL_TREES})")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of requests (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/transcripts.json on a full run)"
    )
    return parser.parse_args(arguments)


def small_model(folder: Path) -> str:
    """A random model with the default one's tokenizer and template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    source = Path(resolve_model("default"))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(
        source, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    config.head_dim = 16
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@contextmanager
def served(model: str) -> Iterator[Any]:
    """A worker's Generation service, and a gateway's client of it."""
    from radixkv.generation.client import GenerationClient
    from radixkv.worker.server import GenerationServer

    with (
        engine_in_process(model, NUM_BLOCKS, "float32") as stack,
        GenerationServer(stack.generator, "127.0.0.1:0") as server,
        GenerationClient(server.address) as client,
    ):
        yield client


def api_of(way: str, worker: Generator) -> Api:
    from radixkv.core.tokens import unpack_tokens
    from radixkv.generation.request import Prompt

    if way == RESPONSES:
        return ByResponses(MODEL, REPLY_TOKENS)
    return ByChat(MODEL, REPLY_TOKENS, lambda messages: unpack_tokens(worker.tokenize(Prompt(messages=messages))))


async def walk(url: str, way: str, half: str, api: Api, trees: Sequence[Walk], into: list[Sample]) -> None:
    """Send half of each tree's questions, several trees at once."""
    from openai import AsyncOpenAI

    gate = asyncio.Semaphore(NUM_AT_ONCE)
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:

        async def one(tree: Walk) -> None:
            async with gate:
                middle = len(tree.questions) // 2
                for question in tree.questions[:middle] if half == BEFORE else tree.questions[middle:]:
                    parent = tree.answers[question.parent] if question.parent is not None else None
                    answer = tree.answers[question] = await api.ask(client, question, parent)
                    if parent is not None or question.is_repeated:
                        into.append(Sample(way, half, shortfall(question, answer, parent), answer))
                tree.progress.advance()

        await asyncio.gather(*(one(tree) for tree in trees))


class Walk:
    """One tree in progress."""

    def __init__(self, questions: list[Question], progress: Progress) -> None:
        self.questions = questions
        self.answers: dict[Question, Answer] = {}
        self.progress = progress


def run(options: argparse.Namespace, num_trees: int) -> list[Sample]:
    """Run all requests of both APIs, in two halves with a restart of the gateway between them."""
    from radixkv.gateway.config import GatewayConfig
    from radixkv.gateway.server import GatewayServer

    trees = read_trees(options.workloads)[:num_trees]
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder:
        model = small_model(Path(folder))
        with served(model) as worker:
            for way in APIS:
                api = api_of(way, worker)
                source, progress = random.Random(options.seed), Progress(way, 2 * len(trees))
                walks = [Walk(questions_of(tree, source), progress) for tree in trees]
                config = GatewayConfig(
                    listen="127.0.0.1:0", model_name=MODEL, state_file=Path(folder) / f"{way}.sqlite"
                )
                for half in (BEFORE, AFTER):
                    with GatewayServer(worker, config) as server:
                        asyncio.run(walk(server.url, way, half, api, walks, samples))
    return samples


def report_of(options: argparse.Namespace, num_trees: int, samples: Sequence[Sample]) -> Report:
    report = Report("transcripts", options.seed)
    rows: list[tuple[str, ...]] = []
    for way in APIS:
        for half in (BEFORE, AFTER):
            chosen = [sample for sample in samples if (sample.way, sample.half) == (way, half)]
            worst = max((sample.num_short for sample in chosen), default=None)
            report.bars.append(Bar(f"{way}, {half}: tokens computed again, worst request", worst, 1))
            num_prompt = sum(sample.answer.num_prompt for sample in chosen)
            num_cached = sum(sample.answer.num_cached for sample in chosen)
            losses = [sample.answer.num_lost for sample in chosen if sample.answer.num_lost is not None]
            num_lost = f"{sum(losses):,} in {sum(lost > 1 for lost in losses):,} requests" if losses else ""
            counts = (len(chosen), num_prompt, num_cached)
            rows.append((way, half, *(f"{count:,}" for count in counts), str(worst), num_lost))
            report.figures[f"{way}, {half}"] = {
                "num_requests": len(chosen),
                "num_prompt_tokens": num_prompt,
                "num_cached_tokens": num_cached,
                "worst_shortfall_tokens": worst,
                "num_tokens_lost_as_text": sum(losses) if losses else None,
            }
    report.figures |= {"num_trees": num_trees, "reply_tokens": REPLY_TOKENS}
    columns = ("API", "half", "requests", "prompt", "cached", "computed again, worst", "lost if tokenised as text")
    report.tables.append(Table("requests that go on or repeat, in tokens", columns, rows))
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_trees = options.trees or (QUICK_TREES if options.quick else FULL_TREES)
    try:
        samples = run(options, num_trees)
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    is_full = num_trees >= FULL_TREES
    report = report_of(options, num_trees, samples)
    return report.finish(
        options.json or (RESULTS_DIR / "transcripts.json" if is_full else None), is_quick=options.quick
    )


if __name__ == "__main__":
    sys.exit(main())
