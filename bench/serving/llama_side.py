"""llama.cpp's server, in a separate process, over HTTP with streamed token ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.serving.llama_files import LlamaFiles
from bench.serving.plan import Outcome, ReadyCall, Workload
from bench.serving.system import KV_TOKENS, Counts

__all__ = ["LlamaCpp", "LlamaSession", "llama_server"]

SERVER = Path(__file__).with_name("llama_server.py")
MAX_SLOTS = 8
STOP_S = 10.0


class LlamaCpp:
    """A fresh server for every session, with the best settings for its workload.

    Args:
        files: its package and models.
        kv_token_bytes: of one token slot, in its fp16.
    """

    def __init__(self, files: LlamaFiles, kv_token_bytes: int) -> None:
        self.kv_token_bytes = kv_token_bytes
        self._files = files

    def describe(self) -> dict[str, Any]:
        return {"models": [self._files.q4.name, self._files.q8.name], "max_slots": MAX_SLOTS}

    @contextmanager
    def session(self, workload: Workload) -> Iterator[LlamaSession]:
        """Run a server with an empty cache."""
        with llama_server(self._files.package, best_settings(self._files, workload)) as address:
            # It closes a connection after a streamed response.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            with httpx.Client(base_url=address, timeout=None, limits=limits) as client:
                yield LlamaSession(client)


@contextmanager
def llama_server(package: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Run a server with an empty cache; its address, for the duration of the block.

    Args:
        package: folder to import its package from, empty if it is installed.
        settings: by dotted name of the parameter, in addition to those that all benches share.

    Raises:
        RuntimeError: it ended during its start.
    """
    num_threads = len(os.sched_getaffinity(0))
    shared = {
        "cont_batching": True,
        "cache_prompt": True,
        "cpuparams.n_threads": num_threads,
        "cpuparams_batch.n_threads": num_threads,
        "fit_params": False,
        "verbosity": 0,
        "port": 0,
    }
    command = [sys.executable, "-P", str(SERVER), package, json.dumps(shared | dict(settings))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"llama.cpp's server ended with exit code {process.wait()}")
            yield address
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def best_settings(files: LlamaFiles, workload: Workload) -> dict[str, Any]:
    """Settings by dotted name of the parameter, found by trials.

    Plain conversations decode faster from the 4-bit file, everything else from the 8-bit one. Several replies to one prompt
    share its cells only if the slots share one cache, whose cells every token then searches; otherwise each slot has its own,
    and the fewest slots worth batching compute a common prefix the fewest times.
    """
    shares = workload.max_replies > 1
    num_slots = max(workload.max_replies, min(MAX_SLOTS, workload.max_at_once))
    return {
        "model.path": str(files.q8 if workload.branches else files.q4),
        "n_ctx": KV_TOKENS,
        "n_parallel": num_slots,
        "kv_unified": shares,
        "n_threads_http": workload.max_at_once + 4,
    }


def _complete(reply: list[int], num_predicted: int) -> None:
    """Add tokens that end within a character: they are held back and, at a reply's end, never sent, though generated."""
    reply += reply[-1:] * (num_predicted - len(reply))


class LlamaSession:
    """Calls of one server, by a client that keeps no connection."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._num_computed = 0

    def ask(self, call: ReadyCall) -> Outcome:
        body: dict[str, Any] = {
            "prompt": call.prompt,
            "n_predict": call.num_tokens,
            "n_cmpl": call.n,
            "stream": True,
            "return_tokens": True,
            "ignore_eos": True,
            "cache_prompt": True,
            "temperature": 0.0 if call.seed is None else 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": call.seed or 0,
        }
        replies: list[list[int]] = [[] for _ in range(call.n)]
        num_computed = 0
        start_s = time.monotonic()
        first_s = 0.0
        with self._client.stream("POST", "/completion", json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise RuntimeError(f"llama.cpp answered {response.status_code}: {response.read()[:500]!r}")
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("tokens"):
                    first_s = first_s or time.monotonic()
                    replies[event["index"]] += event["tokens"]
                if event.get("stop"):
                    _complete(replies[event["index"]], event["timings"]["predicted_n"])
                    # Every reply reports the prompt as its own, but later ones reuse the first one's cells.
                    num_computed += event["timings"]["predicted_n"] - 1
                    num_computed += event["timings"]["prompt_n"] if event["index"] == 0 else 0
        end_s = time.monotonic()
        with self._lock:
            self._num_computed += num_computed
        return Outcome(call.prompt, replies, start_s, first_s, end_s, num_computed)

    def counts(self) -> Counts:
        return Counts(self._num_computed, KV_TOKENS)  # allocated and cleared whole at its start
