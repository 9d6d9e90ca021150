"""Names that other programs have for our arguments: an unknown one is answered with the name that it has here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

__all__ = ["hint"]

_OTHER_NAMES = {
    "--alias": "--model-name",
    "--allowed-origins": "--cors",
    "--api-key": "--keys",
    "--batch-size": "--max-batch-tokens",
    "--context-length": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "--gpu-memory-utilization": "--utilisation",
    "--host": "--http",
    "--kv-cache-dtype": "--kv-dtype",
    "--lora-modules": "--adapter",
    "--lora-paths": "--adapter",
    "--max-num-batched-tokens": "--max-batch-tokens",
    "--max-running-requests": "--max-num-seqs",
    "--mem-fraction-static": "--utilisation",
    "--model-path": "--model",
    "--parallel": "--max-num-seqs",
    "--port": "--http",
    "--random-seed": "--seed",
    "--served-model-name": "--model-name",
    "--swap-space": "--host-cache",
    "--tensor-parallel-size": "--tensor-parallel",
    "--tp": "--tensor-parallel",
    "--tp-size": "--tensor-parallel",
    "--utilization": "--utilisation",
    "-c": "--max-model-len",
    "-m": "--model",
    "-np": "--max-num-seqs",
    "-tp": "--tensor-parallel",
}
"""vLLM's, SGLang's and llama.cpp's."""

_ADDRESSES = ("--host", "--port")


def hint(unknown: Sequence[str], known: Collection[str]) -> str:
    """What to write in place of the first of these arguments, which a command that has the options `known` does not know; empty
    where nothing is like it.
    """
    name, _, value = unknown[0].partition("=")
    value = value or next(iter(unknown[1:]), "")
    if not name.startswith("-"):
        return f"use --model {name}" if "--model" in known else ""
    ours = _OTHER_NAMES.get(name, "")
    if name in _ADDRESSES:
        ours = "--http" if "--http" in known else "--listen"
        value = f"127.0.0.1:{value or 'PORT'}" if name == "--port" else f"{value or 'HOST'}:PORT"
    elif ours == "--keys":
        value = "FILE"
    if ours in known:
        return f"use {ours} {value}".rstrip()
    close = get_close_matches(name, known, 1, 0.75)
    return f"did you mean {close[0]}?" if close else ""
