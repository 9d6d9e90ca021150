"""A model's own replies: transformers' `generate`, greedy, fp32, in a process that imports nothing of radixkv.

``python -P bench/common/reference.py MODEL_FOLDER NUM_TOKENS < prompts.jsonl`` reads one JSON list of token ids per line and
writes one line for each: ``{"token_ids": [...], "gaps": [...]}``, where a gap is the difference of the two largest
logits at that token. The end-of-reply token does not end it, so that every reply has NUM_TOKENS tokens.

`ReferenceAnswers` keeps replies on disk, keyed by the model's content, the versions of torch and transformers, and the
prompt.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ReferenceAnswer", "ReferenceAnswers"]


class ReferenceAnswer(NamedTuple):
    """Greedy tokens, and at each the gap between the two largest logits."""

    token_ids: list[int]
    gaps: list[float]


class ReferenceAnswers:
    """The reference's replies to prompts, computed once and kept.

    Args:
        model: folder of the model.
        num_tokens: tokens per reply.
        folder: keeps replies between runs.
    """

    def __init__(self, model: str, num_tokens: int, folder: Path) -> None:
        self._model = model
        self._num_tokens = num_tokens
        self._path = folder / f"reference-{_fingerprint(Path(model), num_tokens)}.jsonl"
        self._answers: dict[str, ReferenceAnswer] = {}
        if self._path.is_file():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, KeyError):  # an interrupted run may end within a line
                    record = json.loads(line)
                    self._answers[record["prompt"]] = ReferenceAnswer(record["token_ids"], record["gaps"])

    def missing(self, prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Prompts without a kept reply."""
        return [prompt for prompt in prompts if _digest(prompt) not in self._answers]

    def compute(self, prompts: Sequence[Sequence[int]], advance: Callable[[], None]) -> None:
        """Compute replies to these prompts in a separate process and keep them; calls `advance` after each.

        Raises:
            RuntimeError: the process failed; its output is above.
        """
        if not prompts:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # By its path, with no project folder importable: transformers would find `kernels` there.
        command = [sys.executable, "-P", __file__, self._model, str(self._num_tokens)]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
            self._path.open("a", encoding="utf-8") as kept,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            kept.write("\n")  # an interrupted run may have ended within a line
            for prompt in prompts:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(json.dumps(list(prompt)) + "\n")
                    process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    break
                answer = ReferenceAnswer(**json.loads(line))
                self._answers[_digest(prompt)] = answer
                kept.write(json.dumps({"prompt": _digest(prompt), **answer._asdict()}) + "\n")
                kept.flush()
                advance()
            process.stdin.close()
        if process.returncode:
            raise RuntimeError(f"the reference process ended with exit code {process.returncode}")

    def __getitem__(self, prompt: Sequence[int]) -> ReferenceAnswer:
        return self._answers[_digest(prompt)]


def _digest(token_ids: Sequence[int]) -> str:
    packed = b"".join(token_id.to_bytes(4, "little") for token_id in token_ids)
    return hashlib.blake2b(packed, digest_size=16).hexdigest()


def _fingerprint(model: Path, num_tokens: int) -> str:
    """Fingerprint of the configuration and weights by content, and of the versions that compute with them."""
    digest = hashlib.blake2b(digest_size=12)
    if not model.is_dir():  # a hub id: the hub names its content
        digest.update(str(model).encode())
    for file in sorted(file for kind in ("json", "safetensors", "gguf") for file in model.glob(f"*.{kind}")):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            while chunk := content.read(1 << 22):
                digest.update(chunk)
    for package in ("torch", "transformers"):
        digest.update(f"{package}=={metadata.version(package)}".encode())
    digest.update(f"fp32, greedy, {num_tokens} tokens".encode())
    return digest.hexdigest()


def _answer(model: Any, prompt: list[int], num_tokens: int) -> ReferenceAnswer:
    import torch

    input_ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    token_ids = output.sequences[0, len(prompt) :].tolist()
    assert len(token_ids) == num_tokens, f"{len(token_ids)} tokens in place of {num_tokens}"
    top_two = torch.stack([logits[0] for logits in output.logits]).topk(2, dim=-1)
    assert top_two.indices[:, 0].tolist() == token_ids, "greedy tokens are the most likely ones"
    return ReferenceAnswer(token_ids, (top_two.values[:, 0] - top_two.values[:, 1]).tolist())


def load_plain(folder: str, **options: Any) -> Any:
    """The model in a folder as loaded by transformers, from the folder's GGUF file if it has the weights."""
    transformers: Any = importlib.import_module("transformers")
    for file in Path(folder).glob("*.gguf"):
        options |= {"gguf_file": file.name, "config": transformers.AutoConfig.from_pretrained(folder)}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("num_tokens", type=int)
    options = parser.parse_args()

    import torch

    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = load_plain(options.model, dtype=torch.float32).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)  # greedy, without an end token
    for line in sys.stdin:
        print(json.dumps(_answer(model, json.loads(line), options.num_tokens)._asdict()), flush=True)
    assert "radixkv" not in sys.modules, "the reference runs without radixkv"


if __name__ == "__main__":
    main()
