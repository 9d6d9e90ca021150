"""One system serving one GGUF file, alone in a process: ``python -m bench.gguf.side WHAT JSON``; prints a line of JSON.

radixkv    start, a prompt of 64 tokens, `num_tokens` after it, then prompts of 512
llama      the same with llama.cpp's server
quality    difference of each `--quantization`'s predictions from those of the file's exact numbers in fp32
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["main"]

PROMPT_TOKENS, LONG_PROMPT_TOKENS = 64, 512
LOWEST_ID, HIGHEST_ID = 300, 4000
NUM_PROMPTS = 2

Generate = Callable[[list[int], int], Iterator[int]]
"""Token after token of a greedy reply of a given length to a prompt."""


def _measure(generate: Generate, spawned_s: float, num_tokens: int) -> dict[str, float]:
    """Seconds to the first token since the process was spawned; the median gap of more tokens, and a long prompt's time."""
    source = random.Random(0)

    def prompt(length: int) -> list[int]:
        return source.choices(range(LOWEST_ID, HIGHEST_ID), k=length)

    times_s = [time.time() for _ in generate(prompt(PROMPT_TOKENS), num_tokens)]
    first_token_s = times_s[0] - spawned_s
    if num_tokens == 1:
        return {"first_token_s": first_token_s}
    prompts_s = []
    for _ in range(NUM_PROMPTS):
        long, start_s = prompt(LONG_PROMPT_TOKENS), time.time()
        next(generate(long, 1))
        prompts_s.append(time.time() - start_s)
    return {
        "first_token_s": first_token_s,
        "token_ms": 1e3 * statistics.median(after - before for before, after in pairwise(times_s)),
        "prompt_s": min(prompts_s),
    }


def run_radixkv(told: dict[str, Any]) -> dict[str, Any]:
    from radixkv.worker.threads import configure_threads

    configure_threads()
    from radixkv.generation.params import SamplingParams
    from radixkv.generation.request import GenerateParams
    from radixkv.generation.stream import Delta
    from radixkv.worker.run import Worker, WorkerConfig

    config = WorkerConfig(
        speculation="off",
        model=told["path"],
        listen=None,
        num_blocks=128,
        quantization=told["quantization"],
        show_progress=False,
    )
    with Worker(config) as worker:

        def generate(prompt: list[int], num_tokens: int) -> Iterator[int]:
            sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
            for event in worker.engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)):
                if isinstance(event, Delta):
                    yield from event.token_ids

        measured = _measure(generate, told["spawned_s"], told["num_tokens"])
        runner = worker.runner
        peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        weights = {
            "weight_bytes": runner.weight_bytes,
            "quantization": runner.quantization,
            "is_native": runner.is_native,
        }
    return measured | weights | {"peak_bytes": peak_bytes}


def run_llama(told: dict[str, Any]) -> dict[str, Any]:
    import httpx

    settings = {
        "model.path": told["path"],
        "n_ctx": 2048,
        "n_parallel": 1,
        "cpuparams.n_threads": told["num_threads"],
        "cpuparams_batch.n_threads": told["num_threads"],
        "fit_params": False,
        "verbosity": 0,
        "port": 0,
    }
    server = Path(__file__).parents[1] / "serving" / "llama_server.py"
    command = [sys.executable, "-P", str(server), told["package"], json.dumps(settings)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()

        def generate(prompt: list[int], num_tokens: int) -> Iterator[int]:
            body = {"prompt": prompt, "n_predict": num_tokens, "temperature": 0.0, "ignore_eos": True}
            body |= {"stream": True, "return_tokens": True, "cache_prompt": False}
            with httpx.stream("POST", f"{address}/completion", json=body, timeout=None) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        yield from json.loads(line[6:]).get("tokens", ())

        measured = _measure(generate, told["spawned_s"], told["num_tokens"])
        peak = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in line)
        process.stdin.close()
    return measured | {"peak_bytes": 1024 * int(peak.split()[1])}


def run_quality(told: dict[str, Any]) -> dict[str, Any]:
    from radixkv.worker.threads import configure_threads

    configure_threads()
    from radixkv.worker.generations.text import ChatText
    from radixkv.worker.loading.default_model import resolve_model
    from radixkv.worker.model.model import ForwardRow, ModelRunner

    folder = resolve_model(told["path"], progress=False)
    token_ids = ChatText(folder).encode(Path(__file__).parents[2].joinpath("README.md").read_text("utf-8"))[:512]
    table = array("i", range(1, 35))

    def predictions(**options: str) -> Any:
        runner = ModelRunner(folder, num_blocks=40, device="cpu", **options)
        rows = [ForwardRow([token], at, table, 0, True) for at, token in enumerate(token_ids)]
        runner.forward([ForwardRow(token_ids[:-1], 0, table, 0, False)])  # then each again, over the kept KV
        parts = [runner.forward(rows[first : first + 64]).log_softmax(-1) for first in range(0, len(rows), 64)]
        return [row for part in parts for row in part]

    exact = predictions(dtype="float32", quantization="none")
    found = {}
    for quantization in ("auto", "int8", "none"):
        pairs = list(zip(exact, predictions(dtype="auto", quantization=quantization), strict=True))
        found[quantization] = {
            "divergence_nats": statistics.mean(float((a.exp() * (a - b)).sum()) for a, b in pairs),
            "greedy_alike": statistics.mean(float(a.argmax() == b.argmax()) for a, b in pairs),
        }
    return found


def main() -> None:
    """Run the requested measurement."""
    runs = {"radixkv": run_radixkv, "llama": run_llama, "quality": run_quality}
    print(json.dumps(runs[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
