"""llama.cpp's server on the prompts of a replay, as token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import httpx

from bench.serving.llama_side import llama_server

__all__ = ["Llama", "LlamaAnswer", "llama"]

NUM_SLOTS = 4
_SURELY = 100.0


class LlamaAnswer(NamedTuple):
    """Number of prompt tokens computed, and seconds to the first token of the reply."""

    num_computed: int
    first_s: float


class Llama:
    """A server that starts with an empty cache."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, prompt: Sequence[int], token_id: int, num_tokens: int) -> LlamaAnswer:
        """Request a reply of one token, repeated."""
        body = {
            "prompt": list(prompt),
            "n_predict": num_tokens,
            "stream": True,
            "return_tokens": True,
            "ignore_eos": True,
            "cache_prompt": True,
            "temperature": 0.0,
            "logit_bias": [[token_id, _SURELY]],
        }
        first_s, num_computed = None, None
        replied: list[int] = []
        started_s = perf_counter()
        with self._client.stream("POST", "/completion", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"llama.cpp answered {answer.status_code}: {answer.read()[:500]!r}")
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("tokens"):
                    first_s = first_s or perf_counter() - started_s
                    replied += event["tokens"]
                if event.get("stop"):
                    num_computed = event["timings"]["prompt_n"]
        if first_s is None or num_computed is None or replied != [token_id] * num_tokens:
            raise RuntimeError(f"llama.cpp generated {replied} where {num_tokens} times {token_id} was asked for")
        return LlamaAnswer(num_computed, first_s)


@contextmanager
def llama(package: str, model: Path, longest: int) -> Iterator[Llama]:
    """Run a server with slots of `longest` tokens each.

    A request takes the slot with the most similar tokens, and the server keeps copies of tokens that it removes from slots: a
    few slots are enough for consecutive requests.
    """
    settings = {
        "model.path": str(model),
        "n_ctx": NUM_SLOTS * longest,
        "n_parallel": NUM_SLOTS,
        "kv_unified": False,
        "n_threads_http": NUM_SLOTS,
    }
    limits = httpx.Limits(max_keepalive_connections=0)  # it closes a connection after a streamed response
    with (
        llama_server(package, settings) as address,
        httpx.Client(base_url=address, timeout=None, limits=limits) as client,
    ):
        yield Llama(client)
