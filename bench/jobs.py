"""A batch of few-shot requests while one person chats: the effect on the person, and the cost of the batch.

Each round, with new prompts:

    alone      the person sends turn after turn, without other load
    batch      some of the requests as a batch of /v1/batches; the person continues until it has ended
    by hand    equally many others, sent at once over separate connections; the person continues

    python -m bench.jobs             5,000 requests each way, in 5 rounds
    python -m bench.jobs --quick     2 rounds of 48 requests, a smoke test

Time to the first token is from sending the person's request to the first text; between tokens it is the mean of a reply. Tokens
computed are prompt tokens that were not found in the cache; their limit is the number of distinct ones, each common prefix
counted once. Every request must have one reply. Exit code of a full run: 0 if the bars are met, otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import httpx

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, summarise
from bench.common.stacks import separate_services
from bench.gateway import WORDS, free_address
from radixkv.worker.loading.default_model import resolve_model

if TYPE_CHECKING:
    from radixkv.generation.client import GenerationClient

__all__ = ["main"]

ALONE, BATCH, BY_HAND = "alone", "batch", "by hand"
FIRST_TOKEN_BOUND, COMPUTED_BOUND = 1.3, 1.1
AT_ONCE = 32
REPLY_TOKENS, TURN_TOKENS = 8, 24
LEAST_TURNS = 6
PAUSE_S = 0.2
ENDPOINT = "/v1/completions"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("jobs", __doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; written only with --json")
    parser.add_argument("--rounds", type=int, help="how many (default: 5, with --quick 2)")
    parser.add_argument("--requests", type=int, help="of a round and way (default: 1000, with --quick 48)")
    parser.add_argument(
        "--shared", type=int, default=50, help="requests with one few-shot prefix (default: %(default)s)"
    )
    parser.add_argument("--shot-words", type=int, default=300, help="length of such a prefix (default: %(default)s)")
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="auto", help="as of radixkv worker (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/jobs.json on a full run)")
    return parser.parse_args(arguments)


def distinct_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of all prompts, each common prefix counted once. O(tokens · log prompts)."""
    total = 0
    before: Sequence[int] = ()
    for prompt in sorted(prompts):
        pairs = zip(prompt, before, strict=False)
        shared = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(before)))
        total += len(prompt) - shared
        before = prompt
    return total


class Bench:
    """Rounds of all ways on one gateway."""

    def __init__(self, client: GenerationClient, address: str, options: argparse.Namespace, num_requests: int) -> None:
        self._client = client
        self._http = httpx.Client(base_url=f"http://{address}", timeout=600, trust_env=False)
        self._options = options
        self._num_requests = num_requests
        self._source = random.Random(options.seed)
        self._threads = ThreadPoolExecutor(AT_ONCE + 1)
        self._turns: list[dict[str, str]] = []
        self.first: dict[str, list[float]] = {ALONE: [], BATCH: [], BY_HAND: []}
        self.between: dict[str, list[float]] = {ALONE: [], BATCH: [], BY_HAND: []}
        self.rates: dict[str, list[float]] = {BATCH: [], BY_HAND: []}
        self.computed: dict[str, list[float]] = {BATCH: [], BY_HAND: []}

    def _words(self, number: int) -> str:
        return " ".join(self._source.choices(WORDS, k=number))

    def _prompts(self) -> list[str]:
        """Few-shot prompts in random order."""
        number, shared = self._num_requests, self._options.shared
        shots = [self._words(self._options.shot_words) for _ in range(0, number, shared)]
        prompts = [f"{shots[place // shared]}\nQuestion {place}: {self._words(12)}\nAnswer:" for place in range(number)]
        self._source.shuffle(prompts)
        return prompts

    def _ask(self) -> tuple[float, float]:
        """Send the person's next turn. Returns seconds to its first text, and from there to each further token."""
        if len(self._turns) > 12:
            self._turns = []
        self._turns.append({"role": "user", "content": self._words(20)})
        body = {
            "messages": self._turns,
            "max_tokens": TURN_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        first_s, text = None, []
        started_s = perf_counter()
        with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {") and (choices := json.loads(line[6:])["choices"]):
                    piece = choices[0]["delta"].get("content")
                    if piece:
                        first_s = first_s or perf_counter() - started_s
                        text.append(piece)
        ended_s = perf_counter() - started_s
        self._turns.append({"role": "assistant", "content": "".join(text)})
        if first_s is None:
            raise AssertionError("the person was told nothing")
        return first_s, (ended_s - first_s) / (TURN_TOKENS - 1)

    def _chat_until(self, way: str, has_ended: Callable[[], bool]) -> None:
        num_turns = 0
        while not has_ended() and (way != ALONE or num_turns < LEAST_TURNS):
            first_s, between_s = self._ask()
            self.first[way].append(first_s)
            self.between[way].append(between_s)
            num_turns += 1
            sleep(PAUSE_S)

    def round(self, number: int) -> None:
        """Run all ways once, in changing order."""
        self._chat_until(ALONE, lambda: False)
        ways = [(BATCH, self._run_batch), (BY_HAND, self._run_by_hand)][:: 1 if number % 2 else -1]
        for way, run in ways:
            prompts = self._prompts()
            started_s = perf_counter()
            job: Future[tuple[float, list[Any]]] = self._threads.submit(run, prompts)
            self._chat_until(way, job.done)
            ended_s, answers = job.result()
            self.rates[way].append(len(prompts) / (ended_s - started_s))
            if len(answers) != len(prompts):
                raise AssertionError(f"{len(prompts)} requests have {len(answers)} answers")
            usages = [answer["usage"] for answer in answers]
            found = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
            computed = sum(usage["prompt_tokens"] for usage in usages) - sum(found)
            self.computed[way].append(computed / self._limit(prompts))

    def _limit(self, prompts: Sequence[str]) -> int:
        from radixkv import unpack_tokens
        from radixkv.generation.request import Prompt

        return distinct_tokens([list(unpack_tokens(self._client.tokenize(Prompt(text=text)))) for text in prompts])

    @staticmethod
    def _body(prompt: str) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": REPLY_TOKENS, "temperature": 0, "ignore_eos": True}

    def _run_by_hand(self, prompts: Sequence[str]) -> tuple[float, list[Any]]:
        def post(prompt: str) -> Any:
            answer = self._http.post(ENDPOINT, json=self._body(prompt))
            answer.raise_for_status()
            return answer.json()

        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(post, prompts))
        return perf_counter(), answers

    def _run_batch(self, prompts: Sequence[str]) -> tuple[float, list[Any]]:
        lines = [
            {"custom_id": str(number), "method": "POST", "url": ENDPOINT, "body": self._body(prompt)}
            for number, prompt in enumerate(prompts)
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
        file = self._told(self._http.post("/v1/files", **form))  # type: ignore[arg-type]
        asked = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        batch = self._told(self._http.post("/v1/batches", json=asked))
        while batch["status"] in ("validating", "in_progress"):
            sleep(PAUSE_S)
            batch = self._told(self._http.get(f"/v1/batches/{batch['id']}"))
        ended_s = perf_counter()
        if batch["status"] != "completed" or batch["error_file_id"] is not None:
            raise AssertionError(f"the batch has failed: {batch}")
        told = self._http.get(f"/v1/files/{batch['output_file_id']}/content").text
        return ended_s, list(_bodies(told))

    @staticmethod
    def _told(answer: httpx.Response) -> Any:
        answer.raise_for_status()
        return answer.json()


def _bodies(told: str) -> Iterator[Any]:
    for line in told.splitlines():
        yield json.loads(line)["response"]["body"]


def make_report(bench: Bench, options: argparse.Namespace, model: str, num_requests: int) -> Report:
    rows: list[tuple[str, ...]] = []
    first = {way: summarise(samples, 1e3) for way, samples in bench.first.items()}
    between = {way: summarise(samples, 1e3) for way, samples in bench.between.items()}
    for way, times in first.items():
        rate = f"{summarise(bench.rates[way]).p50:.2f}" if way in bench.rates else "-"
        computed = f"{summarise(bench.computed[way]).p50:.3f}" if way in bench.computed else "-"
        first_ms, between_ms = (f"{times.p50:.1f}", f"{times.p99:.1f}"), f"{between[way].p50:.1f}"
        rows.append((way, *first_ms, between_ms, str(times.n), rate, computed))
    bars = [
        Bar(
            "the person's first token, beside a batch / alone",
            first[BATCH].p50 / first[ALONE].p50,
            FIRST_TOKEN_BOUND,
            "x",
        ),
        Bar("prompt tokens computed by a batch / limit", summarise(bench.computed[BATCH]).p50, COMPUTED_BOUND, "x"),
    ]
    title = f"{num_requests} requests a round, {options.shared} with one prefix of {options.shot_words} words"
    columns = ("beside", "ms to first token p50", "p99", "between tokens", "turns", "requests/s", "computed / limit")
    report = Report("jobs", options.seed, tables=[Table(title, columns, rows)], bars=bars)
    report.figures = {
        "model": Path(model).name,
        "dtype": options.dtype,
        "requests": num_requests,
        "shared": options.shared,
        "shot_words": options.shot_words,
        "first_token_ms": {way: summary._asdict() for way, summary in first.items()},
        "between_tokens_ms": {way: summary._asdict() for way, summary in between.items()},
        "requests_per_s": {way: summarise(rates)._asdict() for way, rates in bench.rates.items()},
        "computed_to_limit": {way: summarise(shares)._asdict() for way, shares in bench.computed.items()},
    }
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_rounds = options.rounds or (2 if options.quick else 5)
    num_requests = options.requests or (48 if options.quick else 1000)
    model = resolve_model(options.model)
    address = free_address()
    with separate_services(model, 4096, options.dtype, ["--http", address, "--state", "none"]) as (client, _reader):
        bench = Bench(client, address, options, num_requests)
        progress = Progress("rounds", num_rounds)
        for number in range(num_rounds):
            bench.round(number)
            progress.advance()
    is_full = not options.quick and options.rounds is None and options.requests is None
    path = options.json or (RESULTS_DIR / "jobs.json" if is_full else None)
    return make_report(bench, options, model, num_requests).finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
