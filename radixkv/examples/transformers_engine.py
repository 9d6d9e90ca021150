"""A branching chat with plain transformers: three turns, a reply again, and an edited turn, with the tokens that were cached.

python -m radixkv.examples.transformers_engine                    # the default model, on a CPU
python -m radixkv.examples.transformers_engine --compare          # next to transformers without a cache
python -m radixkv.examples.transformers_engine --model FOLDER     # any model that transformers loads
python -m radixkv.examples.transformers_engine --service unix:/run/radixkv.sock    # the tree in a cache service
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from radixkv import CacheHolder, PoolShape, PrefixCache, RadixKVError, connect

BLOCK_SIZE = 16
SYSTEM = "You are a guide to the rivers of Europe. Answer in one or two short sentences."
QUESTIONS = ("Name a river in France.", "Which sea does it flow into?", "And a river in Spain?")
EDITED = "Which towns lie on it?"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the flags, load the model, and print one row per reply."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="default", help="a folder, a GGUF file or a Hugging Face id")
    parser.add_argument("--dtype", default="float32", help="of weights, K and V")
    parser.add_argument("--device", default="cpu", help="for the model and its pool")
    parser.add_argument("--num-blocks", type=int, default=512, help=f"of {BLOCK_SIZE} tokens")
    parser.add_argument("--max-new-tokens", type=int, default=24, help="per reply")
    parser.add_argument(
        "--service", metavar="ADDRESS", help="hold the pool of a cache service, in place of a tree in here"
    )
    parser.add_argument("--compare", action="store_true", help="generate each reply without a cache, too")
    flags = parser.parse_args(arguments)
    try:
        model, tokenizer = load(flags.model, flags.dtype, flags.device)
        with tree(flags.service, flags.num_blocks) as cache:
            chat(model, tokenizer, cache, flags)
    except RadixKVError as error:
        parser.exit(1, f"{error}\n")


def load(name: str, dtype: str, device: str) -> tuple[Any, Any]:
    """A plain transformers model and its tokenizer. The default model comes as GGUF, whose weights are read into it."""
    from pathlib import Path

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from radixkv.worker.loading.default_model import resolve_model
    from radixkv.worker.loading.gguf_weights import has_index, load_gguf

    folder = resolve_model(name)
    if has_index(Path(folder)):
        model: Any = load_gguf(Path(folder), getattr(torch, dtype), "none")
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), trust_remote_code=False)
    return model.eval().to(device), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@contextmanager
def tree(address: str | None, num_blocks: int) -> Iterator[CacheHolder]:
    """The radix tree: in this process, or in a cache service that holds this pool for as long as the body runs."""
    if address is None:
        yield PrefixCache(num_blocks, BLOCK_SIZE)
        return
    with connect(address, PoolShape(num_blocks, BLOCK_SIZE, "transformers")) as holder:
        yield holder


def chat(model: Any, tokenizer: Any, cache: CacheHolder, flags: argparse.Namespace) -> None:
    """Three turns, the last reply again, and the second question edited: each a row of the table."""
    from radixkv.paged import PagedKV, generate

    kv = PagedKV(model, flags.num_blocks, BLOCK_SIZE)
    options: dict[str, Any] = {"max_new_tokens": flags.max_new_tokens, "temperature": 0}
    print(f"{'':<12}{'prompt':>8}{'cached':>8}{'seconds':>9}{'without' if flags.compare else '':>9}  reply")

    def reply(title: str, messages: list[dict[str, str]], **changes: Any) -> dict[str, str]:
        start = time.perf_counter()
        found = generate(model, tokenizer, messages, cache, kv, **options | changes)
        seconds = time.perf_counter() - start
        without = f"{without_cache(model, found.prompt_token_ids, flags.max_new_tokens):9.2f}" if flags.compare else ""
        tokens = f"{len(found.prompt_token_ids):>8}{found.num_cached_tokens:>8}"
        print(f"{title:<12}{tokens}{seconds:9.2f}{without:>9}  {' '.join(found.text.split())[:60]}")
        return {"role": "assistant", "content": found.text}

    messages = [{"role": "system", "content": SYSTEM}]
    for number, question in enumerate(QUESTIONS, 1):
        messages.append({"role": "user", "content": question})
        messages.append(reply(f"turn {number}", messages))
    reply("regenerated", messages[:-1], temperature=0.8, seed=1)
    reply("edited", [*messages[:3], {"role": "user", "content": EDITED}])


def without_cache(model: Any, prompt: list[int], max_new_tokens: int) -> float:
    """Seconds of transformers alone, greedily."""
    import torch

    inputs = torch.tensor([prompt], device=model.device)
    start = time.perf_counter()
    model.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_new_tokens, do_sample=False)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
