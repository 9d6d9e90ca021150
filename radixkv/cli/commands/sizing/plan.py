"""`radixkv plan`: memory of a served model, without loading it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import add_command, say
from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.planner import Device, MemoryPlan, ModelShape

__all__ = ["add"]

EPILOG = """\
examples:
  radixkv plan llama-3-8b --memory 24GiB
  radixkv plan deepseek-v3 --memory 141GB --tp 8 --dtype fp8 --max-model-len 131072
  radixkv plan qwen3-30b-a3b --memory 32GB --table
  radixkv plan ./my-model --memory 16GiB --max-num-seqs 32 --json
"""

_LENGTHS = (4096, 32768, 131072)


def add(commands: Any) -> None:
    """Add the command."""
    plan = add_command(commands, "plan", _run, "print a model's memory and how much fits, without loading it")
    plan.formatter_class = argparse.RawDescriptionHelpFormatter
    plan.epilog = EPILOG
    plan.add_argument(
        "model",
        metavar="MODEL",
        help="a folder, a config.json, a Hugging Face id, or a published model such as llama-3-8b (--list prints them)",
        nargs="?",
        default="default",
    )
    plan.add_argument("--list", action="store_true", help="list the published models known by name")
    plan.add_argument(
        "--table",
        action="store_true",
        help="print weights and KV in fewer bits, by batch and context: what fits, and what the full pool holds; --dtype and "
        "--kv-dtype choose one",
    )
    plan.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    _add_device_flags(plan)
    _add_load_flags(plan)


def _add_device_flags(plan: argparse.ArgumentParser) -> None:
    flags = plan.add_argument_group("device")
    flags.add_argument(
        "--memory", metavar="SIZE", help="of one device, e.g. 80GiB; without it only the model's own needs are printed"
    )
    flags.add_argument(
        "--utilisation", type=float, default=0.90, metavar="SHARE", help="share of it to take (default %(default)s)"
    )
    flags.add_argument(
        "--workspace",
        default="512MiB",
        metavar="SIZE",
        help="for the driver, libraries and fragments (default %(default)s)",
    )
    flags.add_argument(
        "--tp", type=int, default=1, metavar="N", help="devices that share the layers (default %(default)s)"
    )


def _add_load_flags(plan: argparse.ArgumentParser) -> None:
    flags = plan.add_argument_group("load")
    flags.add_argument(
        "--max-model-len", type=int, metavar="TOKENS", help="longest sequence (default: the model's length)"
    )
    flags.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences at once (default: as many as fit)")
    flags.add_argument(
        "--max-batch-tokens",
        type=int,
        default=320,
        metavar="TOKENS",
        help="per forward; a worker on a GPU takes 8192 by default (default %(default)s)",
    )
    flags.add_argument(
        "--rope-scaling",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="plan for positions stretched to so many times the model's own length (default %(default)s)",
    )
    flags.add_argument("--batches", metavar="N,N", help="sequences, with --table (default 1,8,32,128)")
    flags.add_argument(
        "--contexts",
        metavar="N,N",
        help="tokens of a sequence, with --table (default 1024 and up to the model's length)",
    )
    flags.add_argument("--block-size", type=int, default=16, metavar="TOKENS", help="8 to 128 (default %(default)s)")
    flags.add_argument(
        "--dtype", default="auto", help="of weights: auto (as published), float32, bfloat16, fp8, int8, int4"
    )
    flags.add_argument(
        "--kv-dtype",
        default="auto",
        help="of KV: auto (as the weights), float32, bfloat16, float16, fp8, int8, int4; a worker's --kv-dtype takes the same, "
        "but of plain dtypes only its own",
    )
    flags.add_argument(
        "--kv-layout",
        default="least",
        choices=["least", "stored"],
        help="least: the least that attention must keep, with latents unexpanded and only the windows; stored: this version's "
        "worker (default %(default)s)",
    )


def _run(options: argparse.Namespace) -> int:
    from radixkv.planner import PUBLISHED, Device, Load, ModelShape, parse_bytes, plan_memory, read_config

    if options.list:
        say("\n".join(PUBLISHED))
        return 0
    device = None
    if options.memory:
        memory, workspace = parse_bytes(options.memory, "--memory"), parse_bytes(options.workspace, "--workspace")
        device = Device(memory, options.utilisation, workspace)
    shape = ModelShape.of(read_config(options.model))
    if options.table:
        return _print_table(options, shape, device)
    for flag in ("batches", "contexts"):
        if getattr(options, flag) is not None:
            raise InvalidArgumentError(f"--{flag}", getattr(options, flag), "given along with --table")
    plan = plan_memory(
        shape,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
        block_size=options.block_size,
        load=Load(options.max_model_len, options.max_num_seqs, options.max_batch_tokens, options.rope_scaling),
        device=device,
        tp=options.tp,
        layout=options.kv_layout,
    )
    if options.json:
        say(json.dumps(plan.as_dict(), indent=2))
        return 0
    for label, value in _rows(plan):
        say(f"{label:<28} {value}")
    for note in _notes(shape, plan):
        say(f"note: {note}")
    return 0


def _print_table(options: argparse.Namespace, shape: ModelShape, device: Device | None) -> int:
    from radixkv.planner.table import BATCHES, contexts_of, plan_table, table_lines

    if device is None:
        raise InvalidArgumentError("--memory", None, "given along with --table")
    for flag, value in (("--max-model-len", options.max_model_len), ("--max-num-seqs", options.max_num_seqs)):
        if value is not None:
            raise InvalidArgumentError(flag, value, "left out with --table, which has --contexts and --batches")
    batches = _numbers("--batches", options.batches) or BATCHES
    contexts = contexts_of(shape, _numbers("--contexts", options.contexts), options.rope_scaling)
    configurations = plan_table(
        shape,
        device,
        contexts,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
        block_size=options.block_size,
        max_batch_tokens=options.max_batch_tokens,
        rope_scaling=options.rope_scaling,
        tp=options.tp,
        layout=options.kv_layout,
    )
    if options.json:
        say(json.dumps([each.as_dict(contexts, batches) for each in configurations], indent=2))
    else:
        say("\n".join(table_lines(shape.name, device, contexts, batches, configurations)))
    return 0


def _numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise InvalidArgumentError(flag, text, "whole numbers of at least 1 with commas between them")
    return tuple(map(int, parts))


def _rows(plan: MemoryPlan) -> list[tuple[str, str]]:
    from radixkv.planner import format_bytes

    shape = plan.shape
    share = f", 1 of {plan.tp} devices" if plan.tp > 1 else ""
    rows = [
        ("model", f"{shape.name} ({shape.model_type}, {len(shape.layers)} layers)"),
        ("parameters", f"{shape.num_parameters:,} ({_in_short(shape.num_parameters)})"),
        ("weights", f"{format_bytes(plan.weight_bytes)} in {plan.dtype}{share}"),
        ("activations, about", f"{format_bytes(plan.activation_bytes)}"),
        ("KV per token", f"{plan.token_bytes:,} bytes ({format_bytes(plan.token_bytes)}) in {plan.kv_dtype}{share}"),
        ("KV per block", f"{format_bytes(plan.block_bytes)} ({plan.block_size} tokens)"),
    ]
    lengths = sorted({length for length in _LENGTHS if length < plan.max_model_len} | {plan.max_model_len})
    rows += [(f"KV of {length:,} tokens", format_bytes(plan.bytes_at(length))) for length in lengths]
    device = plan.device
    if device is None or plan.kv_bytes is None:
        return rows
    usable = int(device.memory_bytes * device.utilisation)
    return [
        *rows,
        ("memory taken", f"{format_bytes(usable)}, {device.utilisation:g} of {format_bytes(device.memory_bytes)}"),
        ("workspace", format_bytes(device.workspace_bytes)),
        ("left for KV", format_bytes(plan.kv_bytes)),
        ("blocks", f"{plan.num_blocks:,}"),
        ("tokens", f"{plan.num_tokens:,}"),
        (f"sequences of {plan.max_model_len:,}", f"{plan.num_full_sequences:,} at once"),
        ("block size advised", _advice(plan)),
    ]


def _advice(plan: MemoryPlan) -> str:
    size = plan.advised_block_size
    if plan.max_num_seqs is None or plan.num_tokens is None:
        return f"{size}, for chats and few-shot questions; with --max-num-seqs by the length of so many sequences"
    length = min(plan.max_model_len, plan.num_tokens // plan.max_num_seqs)
    return f"{size}: half a block is {size / 2 / length:.1%} of {length:,} tokens, the room of each of {plan.max_num_seqs:,}"


def _in_short(count: int) -> str:
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


def _notes(shape: ModelShape, plan: MemoryPlan) -> list[str]:
    if plan.layout == "stored":
        return []
    from radixkv.planner import plan_memory

    stored = plan_memory(shape, dtype=plan.dtype, kv_dtype=plan.kv_dtype, tp=plan.tp, layout="stored")
    if stored.token_bytes != plan.token_bytes:
        kept = f"expanded to every head, {stored.token_bytes:,} bytes a token"
    elif shape.layers != shape.stored_layers:
        kept = "for all tokens, also where a layer looks back through a window only (but see its --window-share)"
    else:
        return []
    return [f"this version's worker keeps KV {kept}; --kv-layout stored plans for that"]
