"""The OpenAI API over HTTP against the gRPC `Generate` below it, on one worker, in turns within one run.

Each round sends the same requests both ways, the first way alternating:

    fresh        a chat never seen before, streamed
    regenerated  the same chat again, four times: all but one token of the prompt is cached, so little hides the way's cost
    together     eight fresh chats at once, each on a separate connection

    python -m bench.gateway             15 rounds (7 minutes on two cores)
    python -m bench.gateway --quick     2 rounds, a smoke test

Time to the first token is from sending the request to the first text at the caller; tokens per second are of a whole reply,
from its request on. Figures are medians; the worker runs in a separate process. Number of tokens and text of the replies must
be the same both ways. Exit code of a full run: 0 if the bars are met, otherwise 1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, summarise
from bench.common.stacks import BLOCK_SIZE, separate_services
from radixkv.worker.loading.default_model import resolve_model

if TYPE_CHECKING:
    from radixkv.generation.client import GenerationClient

__all__ = ["WORDS", "Timed", "ask_http", "free_address", "main"]

BOUND = 1.05
FULL_ROUNDS, QUICK_ROUNDS = 15, 2
NUM_TOGETHER = 8
NUM_REGENERATED = 4  # per round: it takes one step, which other load disturbs the most
WORDS = ("river", "stone", "lamp", "window", "garden", "music", "paper", "winter", "bread", "silver", "letter", "horse")
FRESH, REGENERATED, TOGETHER = "fresh", "regenerated", f"{NUM_TOGETHER} together"
KINDS = (FRESH, REGENERATED, TOGETHER)
GRPC, HTTP = "gRPC", "HTTP"


class Timed(NamedTuple):
    """One reply: seconds to its first text and to its end, the text, and prompt tokens: all, and those that were cached."""

    first_s: float
    total_s: float
    text: str
    num_prompt: int
    num_cached: int


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("gateway", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds; written only with --json")
    parser.add_argument("--rounds", type=int, help=f"how many rounds (default: {FULL_ROUNDS})")
    parser.add_argument("--prompt-words", type=int, default=200, help="length of a chat (default: %(default)s)")
    parser.add_argument("--reply-tokens", type=int, default=48, help="length of a reply (default: %(default)s)")
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="auto", help="as of radixkv worker (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the chats (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/gateway.json on a full run)")
    return parser.parse_args(arguments)


def ask_grpc(client: GenerationClient, content: str, num_tokens: int) -> Timed:
    """One chat over `Generate`."""
    from radixkv.generation.params import SamplingParams
    from radixkv.generation.request import GenerateParams
    from radixkv.generation.stream import Delta

    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    started_s = perf_counter()
    first_s = None
    pieces: list[str] = []
    stream = client.generate(GenerateParams(messages=[{"role": "user", "content": content}], sampling=sampling))
    for event in stream:
        if isinstance(event, Delta) and event.text:
            first_s = first_s or perf_counter()
            pieces.append(event.text)
    ended_s = perf_counter()
    if first_s is None or stream.usage is None or stream.usage.num_generated_tokens != num_tokens:
        raise AssertionError(f"{num_tokens} tokens were asked for: {stream.usage}")
    usage = stream.usage
    text = "".join(pieces)
    return Timed(first_s - started_s, ended_s - started_s, text, usage.num_prompt_tokens, usage.num_cached_tokens)


def ask_http(
    connection: http.client.HTTPConnection, model: str, contents: Sequence[str], num_tokens: int, cache_salt: str = ""
) -> Timed:
    """One chat over `/v1/chat/completions`, on an open connection, like those of a frontend.

    `contents`: of its messages, the user's and the assistant's in turns.
    """
    body = {
        "model": model,
        "messages": [
            {"role": role, "content": content}
            for role, content in zip(cycle(("user", "assistant")), contents, strict=False)
        ],
        "cache_salt": cache_salt or None,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection.close()  # the server closes an idle one after a while
    connection.request("GET", "/health")  # before this reply the server has not accepted the connection
    connection.getresponse().read()
    started_s = perf_counter()
    first_s = None
    pieces: list[str] = []
    usage = None
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise AssertionError(f"HTTP {answer.status}: {answer.read()[:500]!r}")
    while (line := answer.readline()) and not line.startswith(b"data: [DONE]"):
        if not line.startswith(b"data: "):
            continue
        chunk = json.loads(line[6:])
        text = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
        if text:
            first_s = first_s or perf_counter()
            pieces.append(text)
        usage = chunk["usage"] or usage
    ended_s = perf_counter()
    answer.read()
    if first_s is None or usage is None or usage["completion_tokens"] != num_tokens:
        raise AssertionError(f"{num_tokens} tokens were asked for: {usage}")
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Timed(first_s - started_s, ended_s - started_s, "".join(pieces), usage["prompt_tokens"], num_cached)


class Bench:
    """Rounds of chats both ways."""

    def __init__(self, client: GenerationClient, address: str, options: argparse.Namespace) -> None:
        model = client.model().name
        self._options = options
        self._source = random.Random(options.seed)
        self._threads = ThreadPoolExecutor(NUM_TOGETHER)
        connections = [http.client.HTTPConnection(address) for _ in range(NUM_TOGETHER)]
        self._ways: dict[str, Callable[[int, str], Timed]] = {
            GRPC: lambda _slot, content: ask_grpc(client, content, options.reply_tokens),
            HTTP: lambda slot, content: ask_http(connections[slot], model, [content], options.reply_tokens),
        }
        self.first: dict[tuple[str, str], list[float]] = {}
        self.rates: dict[tuple[str, str], list[float]] = {}

    def _chat(self) -> str:
        return " ".join(self._source.choices(WORDS, k=self._options.prompt_words))

    def warm_up(self) -> None:
        """Set up once: connections, threads, the first steps of every shape."""
        for ask in self._ways.values():
            ask(0, self._chat())
            list(self._threads.map(ask, range(NUM_TOGETHER), [self._chat() for _ in range(NUM_TOGETHER)]))

    def round(self, number: int) -> None:
        """Send everything once, both ways in turn."""
        ways = list(self._ways)[:: 1 if number % 2 else -1]
        chats = {way: self._chat() for way in ways}
        for way in ways:
            self._note(FRESH, way, [self._ways[way](0, chats[way])])
        again = [(way, self._ways[way](0, chats[ways[0]])) for way in NUM_REGENERATED * ways]
        for way, timed in again:
            self._note(REGENERATED, way, [timed])
        if len({timed.text for _, timed in again}) != 1:
            raise AssertionError(f"one chat was answered in two ways: {again}")
        for way in ways:
            contents = [self._chat() for _ in range(NUM_TOGETHER)]
            self._note(TOGETHER, way, list(self._threads.map(self._ways[way], range(NUM_TOGETHER), contents)))

    def _note(self, kind: str, way: str, replies: Sequence[Timed]) -> None:
        self.first.setdefault((kind, way), []).extend(reply.first_s for reply in replies)
        num_tokens = self._options.reply_tokens * len(replies)
        self.rates.setdefault((kind, way), []).append(num_tokens / max(reply.total_s for reply in replies))


def make_report(bench: Bench, options: argparse.Namespace, model: str) -> Report:
    rows: list[tuple[str, ...]] = []
    bars: list[Bar] = []
    figures: dict[str, object] = {}
    for kind in KINDS:
        first = {way: summarise(bench.first[kind, way], 1e3) for way in (GRPC, HTTP)}
        rates = {way: summarise(bench.rates[kind, way]) for way in (GRPC, HTTP)}
        slower = first[HTTP].p50 / first[GRPC].p50
        fewer = rates[GRPC].p50 / rates[HTTP].p50
        for way in (GRPC, HTTP):
            times = (f"{first[way].p50:.1f}", f"{first[way].p99:.1f}", f"{rates[way].p50:.1f}")
            rows.append((kind, way, *times))
        bars.append(Bar(f"{kind}: time to first token, HTTP / gRPC", slower, BOUND, "x"))
        bars.append(Bar(f"{kind}: tokens per second, gRPC / HTTP", fewer, BOUND, "x"))
        figures[kind] = {
            "first_token_ms": {way: summary._asdict() for way, summary in first.items()},
            "tokens_per_s": {way: summary._asdict() for way, summary in rates.items()},
        }
    title = f"chats of {options.prompt_words} words, replies of {options.reply_tokens} tokens"
    columns = ("chats", "way", "ms to first token p50", "p99", "tokens/s")
    report = Report("gateway", options.seed, tables=[Table(title, columns, rows)], bars=bars)
    report.figures = {
        "model": Path(model).name,
        "dtype": options.dtype,
        "prompt_words": options.prompt_words,
        "reply_tokens": options.reply_tokens,
        "kinds": figures,
    }
    return report


def free_address() -> str:
    """A free address of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    model = resolve_model(options.model)
    per_round = 2 * (NUM_TOGETHER + 2) * (4 * options.prompt_words + options.reply_tokens)
    num_blocks = max(1024, (num_rounds + 2) * per_round // BLOCK_SIZE)
    address = free_address()
    with separate_services(model, num_blocks, options.dtype, ["--http", address]) as (client, _reader):
        bench = Bench(client, address, options)
        bench.warm_up()
        progress = Progress("rounds", num_rounds)
        for number in range(num_rounds):
            bench.round(number)
            progress.advance()
    is_full = not options.quick and options.rounds is None
    path = options.json or (RESULTS_DIR / "gateway.json" if is_full else None)
    return make_report(bench, options, model).finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
