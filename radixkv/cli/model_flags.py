"""Flags of a model and its pool, for every command that loads a model, and the `WorkerConfig` made from them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radixkv.cli.flags import say_stage
from radixkv.cli.store_flags import add_store_flags, store_settings
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import is_derived
from radixkv.core.validation import check_namespace
from radixkv.planner.dtypes import KV_DTYPES
from radixkv.planner.fit import BLOCK_SIZES
from radixkv.planner.sizes import parse_bytes

if TYPE_CHECKING:
    from radixkv.worker.run import Worker, WorkerConfig
    from radixkv.worker.scheduling.limits import LimitsWish

__all__ = ["add_model_flags", "describe", "worker_config"]

_AUTO = "auto"


def add_model_flags(command: argparse.ArgumentParser, *, has_disk: bool = False) -> None:
    """Flags of the model, its device, its pool, its block store, and its scheduling. `has_disk`: see `add_store_flags`."""
    _add_model(command)
    _add_sampling(command)
    _add_memory(command)
    add_store_flags(command, has_disk=has_disk)
    _add_scheduling(command)


def _add_model(command: argparse.ArgumentParser) -> None:
    flags = command.add_argument_group("model")
    flags.add_argument(
        "--model",
        default="default",
        metavar="NAME",
        help="a Hugging Face id, a folder, or a GGUF file, which every start reads again; default: SmolLM2-135M-Instruct, "
        "fetched on first use (93 MB)",
    )
    flags.add_argument(
        "--adapter",
        type=_adapter,
        metavar="NAME=FOLDER",
        action="append",
        default=[],
        help="a low-rank adapter of the model, as peft saves it, by its name in requests; may be given several times",
    )
    flags.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="of weights and activations; auto takes the fast one on this device (default %(default)s)",
    )
    flags.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default %(default)s")
    flags.add_argument(
        "--quantization",
        default="auto",
        choices=["auto", "none", "int8", "int4"],
        help="of weights: int8 rounds them as the model is loaded, in groups of 64, int4 in groups of 32; auto keeps a GGUF "
        "file's Q4_0, Q4_1 and Q4_K at their 4 bits and rounds its others to int8, and on a CPU any model's, unless --dtype "
        "names one (default %(default)s)",
    )
    flags.add_argument(
        "--deterministic",
        action="store_true",
        help="bitwise the same reply for the same seed, whatever else runs, however prompts are cut into chunks, and whatever "
        "of them is cached; on machines of one kind. Branches then read a common prefix one by one. Models without the native "
        "decoder run in tiles of a few sizes, and need as many threads each time: with fewer or more, a block store finds "
        "nothing of theirs. A "
        "model whose logits still depend on the rest of a batch is rejected",
    )
    flags.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="processes that share the model's heads, weights and KV: one for each GPU, or on a CPU with its memory and cores "
        "shared out; without rounded weights and without a block store (default %(default)s)",
    )
    flags.add_argument(
        "--no-cuda-graphs",
        action="store_true",
        help="on a GPU, launch every step's kernels one by one instead of replaying a graph captured per number of tokens, up "
        "to 1024: slower, but errors then name their place",
    )
    flags.add_argument(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="longest sequence, prompt and reply together; the pool must hold one (default: the model's bound, or the "
        "pool's)",
    )


def _add_sampling(command: argparse.ArgumentParser) -> None:
    flags = command.add_argument_group("sampling", "defaults of requests, through every API and the page")
    own = "(default: the model's generation_config"
    flags.add_argument("--temperature", type=float, metavar="T", help=f"0 is greedy {own}, else 0.7)")
    flags.add_argument("--top-p", type=float, metavar="P", help=f"nucleus {own}, else 0.9)")


def _add_memory(command: argparse.ArgumentParser) -> None:
    flags = command.add_argument_group(
        "memory",
        "The pool holds the KV of running requests and of reusable prefixes. By default it takes the device's free memory: "
        "on a GPU --utilisation of its memory, less weights and a forward's activations; on a CPU, shared with other "
        "programs, a quarter of the available memory and 2 GiB at most. It never takes more than --max-num-seqs sequences of "
        "--max-model-len tokens could use. `radixkv plan` prints sizes without loading a model.",
    )
    flags.add_argument(
        "--num-blocks",
        type=_num_blocks,
        default=_AUTO,
        metavar="N",
        help="KV blocks in the pool, or auto: as many as the memory allows (default %(default)s)",
    )
    flags.add_argument(
        "--block-size",
        type=int,
        default=16,
        choices=BLOCK_SIZES,
        help="tokens per block: small ones waste less at the end of a branch, large ones move faster (default %(default)s)",
    )
    flags.add_argument(
        "--kv-dtype",
        default=_AUTO,
        choices=[_AUTO, *KV_DTYPES],
        help="of KV: auto, the model's dtype, rounds nothing; int8 and fp8 take about half of bfloat16's memory, int4 less, at "
        "some cost in quality and, on a CPU, time (bench/README.md has figures) (default %(default)s)",
    )
    flags.add_argument(
        "--layout",
        default=_AUTO,
        choices=["paged", "arena", _AUTO],
        help="placement of KV: paged, all in the pool's blocks; arena, histories that have never branched in one contiguous "
        "span each, for which up to half of the memory is set aside, and in blocks from their first fork on; auto is paged: "
        "by measurement, a block table costs one chat a few percent at most (default %(default)s)",
    )
    flags.add_argument(
        "--window-share",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of the blocks that have KV of layers with a sliding window at a time. With less more blocks fit, for long "
        "histories: 2.7 times as many with 0.25 if five of six layers have a window. Histories shorter than some windows are "
        "found less often (bench/README.md has figures) (default %(default)s: all blocks)",
    )
    flags.add_argument("--kv-memory", metavar="SIZE", help="memory for the pool, e.g. 2GiB (default: see above)")
    flags.add_argument(
        "--utilisation",
        type=float,
        metavar="SHARE",
        help="share of the device's memory to take in all (default 0.9; 0.85 with --layout arena)",
    )
    flags.add_argument(
        "--pool", default="default", metavar="NAME", help="the pool's name at the service (default %(default)s)"
    )


def _add_scheduling(command: argparse.ArgumentParser) -> None:
    flags = command.add_argument_group("scheduling and sharing")
    flags.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="branches that run at once (default 64, on a GPU 256)"
    )
    flags.add_argument(
        "--max-batch-tokens",
        type=int,
        metavar="TOKENS",
        help="positions per forward, decodes and prompt chunks together: more computes prompts faster, fewer keeps the gaps "
        "between the tokens of running replies short (default 320, on a GPU 8192)",
    )
    flags.add_argument(
        "--max-wait",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="after this wait no request of its tenant overtakes a request, whatever prefix is cached (default %(default)s)",
    )
    flags.add_argument(
        "--admission",
        default="estimate",
        choices=["estimate", "worst-case"],
        help="a request starts once there are blocks for its prompt and the output that replies before it lead to expect "
        "(estimate), or for its longest output, and is never preempted (worst-case) (default %(default)s)",
    )
    flags.add_argument(
        "--preemption",
        default="recompute",
        choices=["recompute", "swap"],
        help="preemption of a branch: recompute drops its blocks and recomputes the uncached part, swap moves them to "
        "--host-cache (default %(default)s)",
    )
    flags.add_argument(
        "--speculation",
        default=_AUTO,
        choices=[_AUTO, "off"],
        help="auto guesses tokens of a reply from its own text and from recent replies of its namespace, runs them in one "
        "step, and keeps those that are drawn: the same replies sooner, where measured times say that it pays. Not on a GPU "
        "or several ranks, for beams, adapters and lines of --layout arena, while branches read a long common prefix at once, "
        "for a model without the native decoder unless in float32, nor with --deterministic where the bits differ at the start "
        "(default %(default)s)",
    )
    flags.add_argument(
        "--draft-tokens",
        type=int,
        default=16,
        metavar="TOKENS",
        help="most tokens guessed for a branch in a step, up to 64 (default %(default)s)",
    )
    flags.add_argument(
        "--draft-memory",
        default="64MiB",
        metavar="SIZE",
        help="memory of the texts that guesses come from: half for running replies, half for recent ones, of these at most a "
        "quarter per namespace (default %(default)s)",
    )
    flags.add_argument(
        "--no-prefix-sharing",
        action="store_true",
        help="no request reuses another's prefix; for comparison, or where even timing must reveal nothing",
    )
    flags.add_argument(
        "--no-prefix-sharing-for",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="the same within one namespace; may be given several times",
    )
    flags.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="price list: TOML with a currency and the prices of a million tokens computed, found, generated, and held for an "
        "hour; each usage then has a cost",
    )


def _num_blocks(text: str) -> int | None:
    """argparse puts the flag before the message."""
    if text == _AUTO:
        return None
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither {_AUTO} nor a number of at least 1")
    return int(text)


def _adapter(text: str) -> tuple[str, Path]:
    name, given, folder = text.partition("=")
    if not (name and given and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=FOLDER")
    return name, Path(folder)


def _adapters(pairs: list[tuple[str, Path]]) -> dict[str, Path]:
    adapters = dict(pairs)
    if len(adapters) < len(pairs):
        raise InvalidArgumentError("--adapter", [name for name, _ in pairs], "a name of its own for each")
    return adapters


def worker_config(
    options: argparse.Namespace, service: str | None, listen: str | None, drain_s: float = 0.0
) -> WorkerConfig:
    """The worker's settings from the flags. Call it before torch is imported: it sets the wait policy of torch's threads."""
    from radixkv.worker.threads import configure_threads

    configure_threads()
    say_stage("code of the worker")
    from radixkv.generation.params import SamplingDefaults, SamplingParams
    from radixkv.worker.run import WorkerConfig

    sampling = SamplingDefaults(temperature=options.temperature, top_p=options.top_p)
    SamplingParams(**sampling.fill(None, None, None, None))  # rejects a bad one before the model is loaded
    return WorkerConfig(
        model=options.model,
        sampling=sampling,
        service=service,
        listen=listen,
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        utilisation=options.utilisation,
        layout=options.layout,
        window_share=options.window_share,
        kv_bytes=_size(options.kv_memory, "--kv-memory"),
        host_bytes=_size(options.host_cache, "--host-cache"),
        dtype=options.dtype,
        device=options.device,
        quantization=options.quantization,
        kv_dtype=options.kv_dtype,
        adapters=_adapters(options.adapter),
        deterministic=options.deterministic,
        cuda_graphs=not options.no_cuda_graphs,
        tensor_parallel=options.tensor_parallel,
        max_model_len=options.max_model_len,
        pool_name=options.pool,
        drain_s=drain_s,
        limits=_limits(options),
        share_prefixes=not options.no_prefix_sharing,
        unshared_namespaces=_unshared(options.no_prefix_sharing_for),
        store=store_settings(options),
        prices_file=options.prices,
        speculation=options.speculation,
        draft_tokens=_draft_tokens(options.draft_tokens),
        draft_bytes=parse_bytes(options.draft_memory, "--draft-memory"),
        on_stage=say_stage,
    )


def _draft_tokens(number: int) -> int:
    from radixkv.worker.speculation.settings import MAX_TOKENS

    if not 1 <= number <= MAX_TOKENS:
        raise InvalidArgumentError("--draft-tokens", number, f"between 1 and {MAX_TOKENS}")
    return number


def _unshared(namespaces: Sequence[str]) -> frozenset[str]:
    for namespace in namespaces:
        check_namespace(namespace)
        if is_derived(namespace):
            raise InvalidArgumentError("--no-prefix-sharing-for", namespace, "the owner of the derived ones")
    return frozenset(namespaces)


def _limits(options: argparse.Namespace) -> LimitsWish:
    from radixkv.worker.scheduling.limits import LimitsWish

    for flag, value in (("--max-num-seqs", options.max_num_seqs), ("--max-batch-tokens", options.max_batch_tokens)):
        if value is not None and value < 1:
            raise InvalidArgumentError(flag, value, "at least 1")
    if options.admission == "worst-case" and options.preemption == "swap":
        bound = "recompute with --admission worst-case, by which nothing is preempted"
        raise InvalidArgumentError("--preemption", options.preemption, bound)
    if not 0 <= options.max_wait < float("inf"):
        raise InvalidArgumentError("--max-wait", options.max_wait, "at least 0 and finite")
    return LimitsWish(
        max_running=options.max_num_seqs,
        max_batch_tokens=options.max_batch_tokens,
        max_wait_s=options.max_wait,
        preemption=options.preemption,
        admission=options.admission,
    )


def _size(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_bytes(text, flag)


def describe(worker: Worker) -> str:
    """A worker's model and its use of memory, one line each."""
    model, plan = worker.engine.model(), worker.plan
    rounded = {"int8": ", weights in int8", "int4": ", weights in 4 bits"}.get(worker.runner.quantization, "")
    if worker.runner.kv_format is not None:
        rounded += f", KV in {worker.runner.kv_dtype}"
    if worker.config.deterministic:
        rounded += ", deterministic"
    lines = f", {plan.num_lines} lines" if plan.num_lines else ""
    adapted = f", adapters {', '.join(model.adapters)}" if model.adapters else ""
    return (
        f"{model.name} on {worker.runner.device} in {worker.runner.dtype}{rounded}{adapted}: "
        f"{model.max_length:,} tokens of context, {plan.num_blocks:,} blocks of {plan.block_size} tokens{lines}\n"
        f"  memory         {worker.plan}"
    )
