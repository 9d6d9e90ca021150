"""A whole decode step on a GPU, of a model in the shape of Llama-3-8B with random weights, against the bytes it must read.

    check         a small model against transformers in fp32; a replayed graph against the same step launched; draws
    steps         1 to 256 sequences of 1k tokens: with and without graphs, and served, with tokens drawn and read each step
    prompts       a prompt next to 31 decodes in one step, with and without a graph
    drafts        1 to 15 tokens more of each of 1 to 128 sequences in a step, and the share that must be drawn for them to pay
    fan-out       64 branches on a prefix of 8k and of 32k: the prefix read once for all of them, and once for each
    breakdown     device time of products, attention and the rest, by torch's profiler
    transformers  its own attention over its dynamic and its static cache, with the same weights

The floor is weights and KV, once, at the bandwidth of a copy in the same run; of the embedding table only the used rows count.

    python -m bench.gpu.model            three minutes
    python -m bench.gpu.model --quantization int4    the same with weights in 4 bits
    python -m bench.gpu.model --tiny     all of its code on a tiny model and a CPU; no time means anything

Figures are written after every section, so that an aborted run keeps its measurements.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

_STARTED_S = time.monotonic()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from bench.common.report import RESULTS_DIR, Bar, Report, Table, write_json  # noqa: E402
from bench.gpu.common.clock import Clock, copy_bandwidth  # noqa: E402
from bench.gpu.common.inputs import MAX_ERROR, relative_error  # noqa: E402
from bench.gpu.model_cases import FULL, TINY, WARM_STEPS, Crowd, ModelSizes, make_model, time_ms  # noqa: E402
from bench.gpu.run import DeadContextError, device_record  # noqa: E402
from radixkv.generation.params import SamplingParams  # noqa: E402
from radixkv.worker.model.model import ForwardRow, ModelRunner  # noqa: E402
from radixkv.worker.sampling.device_sampler import LaunchedDraws  # noqa: E402
from radixkv.worker.sampling.sampler import Sampler, SamplerRow  # noqa: E402

SEED = 0
DEAD_CONTEXT = 3
MOST_OF_FLOOR = 1.3
MAX_TREE_ERROR = 8e-2
"""Of logits after 32 layers in bfloat16, whose attention or products were summed in two orders; `bench.gpu.attention` checks
attention alone.
"""
FREE_SHARE = 0.85
"""Share of the memory left by the weights that goes to the pool."""

KINDS = {
    "attention": ("_attend_items", "_merge_parts", "_write_kv", "_embed_heads", "_advance"),
    "products": ("gemm", "gemv", "cutlass", "nvjet", "xmma", "splitk", "cublas", "_multiply", "_sum_kernel"),
}
"""Parts of kernels' names, in lower case; kernels without any of them are glue."""


class ModelBench:
    """One run. Failed sections are recorded, and the run continues."""

    def __init__(
        self, sizes: ModelSizes, device: torch.device, minutes: float, path: Path | None, quantization: str = "auto"
    ) -> None:
        self.sizes, self.device, self.path = sizes, device, path
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.clock = Clock(device, 0.1, minutes, _STARTED_S)
        self.report = Report("gpu_model", SEED)
        self.report.figures = {"device": device_record(device), "minutes": minutes}
        self.wrong: list[str] = []
        self.skipped: list[str] = []
        self.bandwidth = 1.0
        self.weight_bytes = 0
        self._quantization = quantization

    def run(self) -> None:
        """Run all sections."""
        self.section("copy", self.measure_copy)
        self.section("small model", self.check_small)
        self.model = make_model(self.sizes, self.device, self.dtype)
        embedding = self.model.get_input_embeddings().weight
        how = {"device": str(self.device), "dtype": self._dtype_name, "quantization": self._quantization}
        load = partial(ModelRunner, self.model, num_blocks=None, **how)
        self.graphs = load()
        self.weight_bytes = self.graphs.weight_bytes - embedding.nbytes
        # On a CPU there are no graphs, and weights whose layout one runner has changed cannot be given to another.
        self.eager = load(cuda_graphs=False) if self.device.type == "cuda" else self.graphs
        self.allocate()
        self.section("check", self.check)
        self.section("steps", self.measure_steps)
        self.section("prompts", self.measure_prompts)
        self.section("drafts", self.measure_drafts)
        self.section("fan-out", self.measure_fan_out)
        self.section("breakdown", self.measure_breakdown)
        for runner in {self.graphs, self.eager}:
            runner.release_pool()
        self.section("transformers", self.measure_transformers)
        self.tell_steps()

    @property
    def _dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def section(self, name: str, work: Callable[[], None]) -> None:
        """Run a section; an error in it ends the section, not the run."""
        start_s = time.monotonic()
        if self.clock.left_s <= 0:
            self.skipped.append(name)
            return
        try:
            work()
        except Exception as failure:
            traceback.print_exception(failure)
            self.note_wrong(name, f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:200]}")
            if "CUDA error" in str(failure):
                self.save()
                raise DeadContextError(name) from failure
        self.release()
        self.report.figures.setdefault("section_s", {})[name] = round(time.monotonic() - start_s, 1)
        print(f"{name}: {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        """Write the figures so far."""
        self.report.figures |= {"wrong": self.wrong, "skipped": self.skipped}
        if self.path is not None:
            write_json(self.path, self.report.as_dict())

    def release(self) -> None:
        """Return unused memory to the device."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def note_wrong(self, name: str, text: str) -> None:
        """Record an error that affects the exit code."""
        self.wrong.append(f"{name}: {text}")
        print(f"WRONG {self.wrong[-1]}", file=sys.stderr, flush=True)

    def allocate(self) -> None:
        """Allocate one pool of random KV for both runners, for as many of the planned sequences as fit."""
        sizes, room = self.sizes, sys.maxsize
        block_bytes = self.graphs.token_bytes * 16
        if self.device.type == "cuda":
            room = int(torch.cuda.mem_get_info(self.device)[0] * FREE_SHARE) // block_bytes
        more = WARM_STEPS + sizes.steps
        longest = more + max(sizes.drafted)
        needs = {batch: Crowd.num_blocks(batch, 0, sizes.context, longest) for batch in sizes.batches}
        self.batches = [batch for batch, blocks in needs.items() if blocks <= room]
        self.prefixes = [p for p in sizes.prefixes if Crowd.num_blocks(sizes.branches, p, sizes.own, more) <= room]
        most = [needs[batch] for batch in self.batches]
        most += [Crowd.num_blocks(sizes.branches, p, sizes.own, more) for p in self.prefixes]
        self.skipped += [f"batch {batch}, no memory" for batch in sizes.batches if batch not in self.batches]
        self.graphs.allocate_pool(max(most), 16)
        if self.eager is not self.graphs:
            self.eager.allocate_pool(1, 16)
            self.eager.pool = self.graphs.pool
        for cache in self.graphs.pool.caches:
            for tensor in cache.tensors:
                tensor.normal_()

    # -- sections

    def measure_copy(self) -> None:
        """Bandwidth, read and written."""
        self.bandwidth = copy_bandwidth(self.clock, self.sizes.copy_bytes)
        self.report.figures["copy_bandwidth"] = self.bandwidth

    def check_small(self) -> None:
        """Compare logits of a tiny model in fp32, of prompt and greedy steps, with transformers."""
        model = make_model(TINY, self.device, torch.float32)
        generator = torch.Generator().manual_seed(SEED)
        histories = [torch.randint(3, TINY.vocab, (length,), generator=generator).tolist() for length in (37, 18, 5)]
        runner = ModelRunner(model, num_blocks=32, device=str(self.device), dtype="float32")
        tables = [Crowd(runner, 3, 0, 48, 0).rows(0)[index].block_table for index in range(3)]
        for history, table in zip(histories, tables, strict=True):
            runner.forward([ForwardRow(history[:-1], 0, table, 0, False)])
        answers = []
        for _ in range(8):
            pairs = list(zip(histories, tables, strict=True))
            answers.append(runner.forward([ForwardRow(h[-1:], len(h) - 1, t, 0, True) for h, t in pairs]).clone())
            for history, row in zip(histories, answers[-1], strict=True):
                history.append(int(row.argmax()))
        model.set_attn_implementation("sdpa")
        for index, history in enumerate(histories):
            with torch.inference_mode():
                expected = model(torch.tensor([history[:-1]], device=self.device)).logits[0, -len(answers) :]
            error = relative_error(torch.stack([answer[index] for answer in answers]), expected)
            self._judge(f"small model, sequence {index}", error, 1e-3)

    def check(self) -> None:
        """Compare graphs with launches at each size, and draws on the device with the sampler's."""
        errors = {}
        for batch in self.batches:
            crowd = Crowd(self.graphs, batch, 0, self.sizes.context, WARM_STEPS + self.sizes.steps)
            for step in range(2):  # the graph has advanced the lists of the second one
                replayed = crowd.forward(self.graphs, step).clone()
                errors[batch] = relative_error(replayed, crowd.forward(self.eager, step))
                self._judge(f"graph of {batch} sequences, step {step}", errors[batch], MAX_ERROR)
        self.report.figures["graph_errors"] = errors
        rows = _sampler_rows(len(replayed), SamplingParams(temperature=0.7, top_p=0.9, logprobs=2))
        drawn = LaunchedDraws(replayed, rows, range(len(rows))).tokens()
        others = Sampler().sample(replayed, rows)
        parted = sum(one.token_id != other.token_id for one, other in zip(drawn, others, strict=True))
        self._judge("draws that differ from the sampler's", parted / len(rows), 0.01)

    def _judge(self, name: str, error: float, most: float) -> None:
        if not error <= most:
            self.note_wrong(name, f"{error:.1e}, at most {most:g}")

    def measure_steps(self) -> None:
        """Milliseconds of a step by way to run it."""
        figures = self.report.figures["steps"] = {}
        for batch in self.batches:
            if self.clock.left_s <= 0:
                self.skipped.append(f"batch {batch}")
                continue
            crowd = Crowd(self.graphs, batch, 0, self.sizes.context, WARM_STEPS + self.sizes.steps)
            figures[batch] = self._times(crowd)
            self.save()

    def _times(self, crowd: Crowd) -> dict[str, float]:
        count = self.sizes.steps
        params = SamplingParams(temperature=0.7)
        serve = partial(_serve, crowd, self.graphs, _sampler_rows(crowd.count, params))
        found = {"floor": self.floor_ms(crowd.num_tokens + crowd.count * (WARM_STEPS + count // 2))}
        found["graph"], found["graph_host"] = time_ms(partial(crowd.forward, self.graphs), count, self.device)
        found["eager"], found["eager_host"] = time_ms(partial(crowd.forward, self.eager), count, self.device)
        found["served"], _ = time_ms(serve, count, self.device)
        return found

    def measure_prompts(self) -> None:
        """A prompt next to decodes, replayed and launched: compare it and the decodes after it, and time both."""
        batch, count, rows = min(32, max(self.batches)), self.sizes.steps, []
        figures = self.report.figures["prompts"] = {}
        crowd = Crowd(self.graphs, batch, 0, self.sizes.context, WARM_STEPS + count)
        for length in self.sizes.prompts:
            for step, prompt in enumerate((length, 0, 0)):
                replayed = crowd.forward(self.graphs, step, prompt).clone()
                error = relative_error(replayed, crowd.forward(self.eager, step, prompt))
                self._judge(f"step {step} from a prompt of {length} on", error, MAX_TREE_ERROR)
            found = figures[length] = {}
            for name, runner in (("graph", self.graphs), ("eager", self.eager)):
                forward = partial(crowd.forward, runner, prompt=length)
                found[name], found[f"{name}_host"] = time_ms(forward, count, self.device)
            rows.append((str(length), *(f"{ms:.2f}" for ms in found.values())))
        columns = ("prompt", "graph", "its host", "launched", "its host")
        self.report.tables.append(Table(f"a prompt next to {batch - 1} decodes, ms", columns, rows))

    def measure_drafts(self) -> None:
        """Steps with drafted tokens, compared with one token at a time, and the share of drafted tokens that must be drawn."""
        count, rows = self.sizes.steps, []
        figures = self.report.figures["drafts"] = {}
        for batch in (each for each in self.batches if each <= 128):
            crowd = Crowd(self.graphs, batch, 0, self.sizes.context, WARM_STEPS + count + max(self.sizes.drafted))
            plain_ms, _ = time_ms(partial(crowd.forward, self.graphs), count, self.device)
            found = figures[batch] = {0: plain_ms}
            for drafted in self.sizes.drafted:
                one_by_one = torch.stack([crowd.forward(self.graphs, at).clone() for at in range(1 + drafted)], dim=1)
                together = crowd.forward(self.graphs, 0, drafted=drafted)
                error = relative_error(together, one_by_one.flatten(0, 1))
                self._judge(f"{drafted} drafted tokens of {batch} sequences", error, MAX_TREE_ERROR)
                found[drafted], _ = time_ms(partial(crowd.forward, self.graphs, drafted=drafted), count, self.device)
            shares = (f"{ms:.2f} ({(ms / plain_ms - 1) / drafted:.0%})" for drafted, ms in found.items() if drafted)
            rows.append((str(batch), f"{plain_ms:.2f}", *shares))
        columns = ("B", "plain", *(f"{drafted} drafted" for drafted in self.sizes.drafted))
        table = Table("a step with drafted tokens, ms, and the share that must be drawn to pay", columns, rows)
        self.report.tables.append(table)

    def floor_ms(self, num_tokens: int) -> float:
        """Time to read weights and so many tokens' KV once."""
        return (self.weight_bytes + num_tokens * self.graphs.token_bytes) / self.bandwidth * 1e3

    def measure_fan_out(self) -> None:
        """Branches on one prefix, read once and read by each."""
        sizes, rows = self.sizes, []
        figures = self.report.figures["fan_out"] = {}
        for prefix in self.prefixes:
            crowd = Crowd(self.graphs, sizes.branches, prefix, sizes.own, WARM_STEPS + sizes.steps)
            found = {"floor": self.floor_ms(crowd.num_tokens)}
            answers = {}
            for name, shares in (("tree", True), ("paged", False)):
                self.graphs._shares_reads = shares
                answers[name] = crowd.forward(self.graphs, 0).clone()
                found[name], _ = time_ms(partial(crowd.forward, self.graphs), sizes.steps, self.device)
            self.graphs._shares_reads = True
            error = relative_error(answers["tree"], answers["paged"])
            self._judge(f"tree of {prefix}", error, MAX_TREE_ERROR)
            figures[prefix] = found | {"error": error}
            cells = (f"{found[name]:.2f}" for name in ("floor", "tree", "paged"))
            rows.append((f"{sizes.branches} on {prefix:,}", *cells, f"{found['paged'] / found['tree']:.2f}"))
        columns = ("branches on tokens", "floor ms", "tree ms", "paged ms", "paged/tree")
        self.report.tables.append(Table("fan-out, a whole step", columns, rows))
        gain = min((found["paged"] / found["tree"] for found in figures.values()), default=None)
        self.report.bars.append(Bar("fan-out, paged over tree, the least", gain, 1.0, at_least=True))

    def measure_breakdown(self) -> None:
        """Device time of a launched step by kind of kernel."""
        figures = self.report.figures["breakdown"] = {}
        rows = []
        for batch in (each for each in self.sizes.profiled if each in self.batches):
            crowd = Crowd(self.graphs, batch, 0, self.sizes.context, WARM_STEPS + self.sizes.steps)
            crowd.forward(self.eager, 0)
            found = figures[batch] = _device_ms(lambda crowd=crowd: crowd.forward(self.eager, 1), self.device)
            total = sum(found["kinds"].values()) or 1.0
            rows.append((str(batch), *(f"{ms:.2f} ({ms / total:.0%})" for ms in found["kinds"].values())))
        columns = ("B", *KINDS, "glue")
        self.report.tables.append(Table("device ms of a launched step", columns, rows))

    def measure_transformers(self) -> None:
        """Time its own forward over its own caches, with random KV."""
        from transformers import DynamicCache, StaticCache

        figures = self.report.figures["transformers"] = {}
        self.model.set_attn_implementation("sdpa")
        config, sizes = self.model.config, self.sizes
        more = WARM_STEPS + sizes.steps
        caches: dict[str, Callable[[], Any]] = {
            "dynamic": lambda: DynamicCache(config=config),
            "static": lambda: StaticCache(config=config, max_cache_len=sizes.context + more),
        }
        for batch in self.batches:
            found = figures[batch] = {}
            for name, make in caches.items():
                if self.clock.left_s <= 0:
                    self.skipped.append(f"transformers {name} {batch}")
                    continue
                try:
                    found[name] = self._transformers_ms(make(), batch)
                except Exception as failure:  # too little memory, or another interface in this version
                    self.skipped.append(f"transformers {name} {batch}, {type(failure).__name__}: {str(failure)[:100]}")
                self.release()

    def _transformers_ms(self, cache: Any, batch: int) -> float:
        sizes = self.sizes
        shape = batch, sizes.kv_heads, sizes.context, sizes.head_dim
        at = {"cache_position": torch.arange(sizes.context, device=self.device)}
        for layer in range(sizes.layers):
            keys, values = (torch.randn(shape, dtype=self.dtype, device=self.device) for _ in range(2))
            cache.update(keys, values, layer, at)
        ids = torch.zeros((batch, 1), dtype=torch.int64, device=self.device)

        def step(number: int) -> Tensor:
            position = torch.full((batch, 1), sizes.context + number, device=self.device)
            with torch.inference_mode():
                logits: Tensor = self.model(
                    ids, position_ids=position, past_key_values=cache, cache_position=position[0], use_cache=True
                ).logits
            return logits

        return time_ms(step, sizes.steps, self.device)[0]

    # -- report

    def tell_steps(self) -> None:
        """Add the table of steps, and the bars."""
        rows, ratios, slower = [], {}, {}
        theirs = self.report.figures.get("transformers", {})
        for batch, found in self.report.figures.get("steps", {}).items():
            ratios[batch] = found["graph"] / found["floor"]
            slower[batch] = found["served"] / found["graph"]
            cells = [f"{found[name]:.2f}" for name in ("floor", "graph", "graph_host", "served", "eager")]
            peers = [theirs.get(batch, {}).get(name) for name in ("dynamic", "static")]
            cells += ["-" if ms is None else f"{ms:.2f}" for ms in peers]
            rows.append((str(batch), *cells, f"{ratios[batch]:.2f}"))
        columns = ("B", "floor", "graph", "its host", "served", "eager", "transformers", "static", "graph/floor")
        self.report.tables.insert(0, Table(f"a decode step at {self.sizes.context} tokens, ms", columns, rows))
        worst = max(ratios, key=ratios.__getitem__, default=None)
        reason = "" if worst is None else f"at {worst}"
        value = None if worst is None else ratios[worst]
        self.report.bars.insert(0, Bar("a step over its floor, the most", value, MOST_OF_FLOOR, reason=reason))
        lost = max(slower.values(), default=None)
        self.report.bars.insert(1, Bar("a served step over its forward, the most", lost, 1.15))


def _sampler_rows(count: int, params: SamplingParams) -> list[SamplerRow]:
    return [SamplerRow(params, SEED, 0, position) for position in range(count)]


def _serve(crowd: Crowd, runner: ModelRunner, rows: list[SamplerRow], step: int) -> None:
    """Run a step like the engine: forward, draws, and one wait for the tokens."""
    LaunchedDraws(crowd.forward(runner, step), rows, range(len(rows))).tokens()


def _device_ms(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Times by kind, and of the ten most expensive kernels."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    attribute = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times_ms = {event.key: getattr(event, attribute) / 1e3 for event in profiler.key_averages()}
    kinds = dict.fromkeys((*KINDS, "glue"), 0.0)
    for name, spent_ms in times_ms.items():
        lower = name.lower()
        kinds[next((kind for kind, parts in KINDS.items() if any(part in lower for part in parts)), "glue")] += spent_ms
    most = sorted(times_ms.items(), key=lambda each: -each[1])[:10]
    return {"kinds": kinds, "kernels": [(name[:100], spent_ms) for name, spent_ms in most]}


def main() -> int:
    """Run, print the tables, and write the JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.model", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU: runs all code, times nothing")
    parser.add_argument(
        "--quantization", default="auto", choices=["auto", "int8", "int4"], help="as of a worker (default: %(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="no section starts after (default: %(default)s)")
    parser.add_argument(
        "--batches", type=lambda text: [int(each) for each in text.split(",")], help="only these batch sizes"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures (default: of a full run, bench/results)")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--tiny runs the code without one)")
        return 2
    torch.manual_seed(SEED)
    device = torch.device("cpu") if options.tiny else torch.device("cuda", torch.cuda.current_device())
    rounded = "" if options.quantization == "auto" else f"_{options.quantization}"
    path = options.json or (None if options.tiny else RESULTS_DIR / f"gpu_model{rounded}.json")
    sizes = TINY if options.tiny else FULL
    if options.batches:
        sizes = replace(sizes, batches=tuple(options.batches), profiled=tuple(options.batches))
    bench = ModelBench(sizes, device, options.minutes, path, options.quantization)
    is_dead = False
    try:
        bench.run()
    except DeadContextError:
        is_dead = True
    except Exception as failure:  # measurements until then are reported all the same
        bench.note_wrong("the run", f"{type(failure).__name__}: {failure}")
    report = bench.report
    bench.save()
    if options.tiny:
        report.bars.clear()
        print("tiny: the code runs and its answers are right; no time means anything")
    report.bars.append(Bar("sections with a wrong answer or none", len(bench.wrong), 0))
    code = report.finish(path, is_quick=options.tiny)
    if bench.skipped:
        print(f"not measured: {', '.join(bench.skipped)}")
    for line in bench.wrong:
        print(f"WRONG {line}")
    print(f"{time.monotonic() - _STARTED_S:.0f} s")
    return DEAD_CONTEXT if is_dead else 1 if bench.wrong else code


if __name__ == "__main__":
    sys.exit(main())
