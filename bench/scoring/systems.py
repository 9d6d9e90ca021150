"""What scores a choice: radixkv and llama.cpp over HTTP, and transformers in this process."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx

from bench.common.reference import load_plain
from bench.common.stacks import running
from bench.serving.llama_files import LlamaFiles
from bench.serving.llama_side import llama_server

__all__ = ["CONCURRENCY", "Choice", "Plain", "Score", "llama", "radixkv"]

CONCURRENCY = 8
BATCH = 8


class Choice(NamedTuple):
    """Token ids: the shots and the question, and one of its choices."""

    context: list[int]
    continuation: list[int]


class Score(NamedTuple):
    """Of a continuation: its log probability, and the number of positions computed for it, if the system reports it."""

    logprob: float
    num_computed: int | None


Ask = Callable[[Choice], Score]


@contextmanager
def radixkv(model: str, *arguments: str) -> Iterator[Ask]:
    """Run a service and a worker with its gateway, each in a separate process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder, ExitStack() as stack:
        service = f"unix:{folder}/service"
        stack.enter_context(running("serve", "--listen", service))
        served = ("--service", service, "--listen", f"unix:{folder}/worker", "--http", address, "--state", "none")
        stack.enter_context(running("worker", *served, "--model", model, *arguments))
        client = stack.enter_context(httpx.Client(base_url=f"http://{address}", timeout=None))
        yield lambda choice: _by_echo(client, choice)


def _by_echo(client: httpx.Client, choice: Choice) -> Score:
    body = {
        "prompt": [choice.context + choice.continuation],
        "echo": True,
        "logprobs": 1,
        "max_tokens": 1,
        "temperature": 0,
        "seed": 1234,
    }
    response = client.post("/v1/completions", json=body)
    response.raise_for_status()
    answer = response.json()
    start, length = len(choice.context), len(choice.context) + len(choice.continuation)
    usage, [told] = answer["usage"], answer["choices"]
    num_computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return Score(sum(told["logprobs"]["token_logprobs"][start:length]), num_computed)


@contextmanager
def llama(files: LlamaFiles) -> Iterator[Ask]:
    """Run llama.cpp's server with its best settings for branches; see `bench.serving.llama_side`."""
    settings = {
        "model.path": str(files.q8),
        "n_ctx": 16_384,
        "n_parallel": CONCURRENCY,
        "kv_unified": False,
        "n_threads_http": CONCURRENCY + 4,
    }
    with (
        llama_server(files.package, settings) as address,
        httpx.Client(base_url=address, timeout=None) as client,
    ):
        yield lambda choice: _by_grammar(client, choice)


def _by_grammar(client: httpx.Client, choice: Choice) -> Score:
    body = {
        "prompt": choice.context,
        "n_predict": len(choice.continuation),
        "n_probs": 1,
        "grammar": f"root ::= {' '.join(f'<[{token_id}]>' for token_id in choice.continuation)}",
        "temperature": 0.0,
        "cache_prompt": True,
        "return_tokens": True,
    }
    response = client.post("/completion", json=body)
    response.raise_for_status()
    answer = response.json()
    told = answer["completion_probabilities"]
    if [token["id"] for token in told] != choice.continuation:
        raise RuntimeError(f"llama.cpp generated {told} where the grammar allowed {choice.continuation}")
    num_computed = answer["timings"]["prompt_n"] + len(told) - 1
    return Score(sum(token["logprob"] for token in told), num_computed)


class Plain:
    """transformers, by padded batches of whole sequences."""

    def __init__(self, model: str, dtype: str) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._torch = torch
        self._model: Any = load_plain(model, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()

    def score(self, choices: Sequence[Choice]) -> list[Score]:
        """Score all of them, `BATCH` at a time."""
        return [score for at in range(0, len(choices), BATCH) for score in self._batch(choices[at : at + BATCH])]

    def _batch(self, choices: Sequence[Choice]) -> list[Score]:
        torch = self._torch
        rows = [choice.context + choice.continuation for choice in choices]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        keep = max(len(choice.continuation) for choice in choices) + longest - min(map(len, rows)) + 1
        with torch.inference_mode():
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=keep).logits
        scores = []
        for row, choice, told in zip(rows, choices, torch.log_softmax(logits.float(), -1), strict=True):
            first = len(choice.context) - 1 - (longest - keep)
            wanted = torch.tensor(choice.continuation)[:, None]
            own = told[first : first + len(choice.continuation)].gather(1, wanted)
            scores.append(Score(float(own.sum()), len(row)))
        return scores
