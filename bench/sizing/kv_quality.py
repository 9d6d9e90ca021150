"""The quality of quantised KV: error of one attention layer, change of perplexity, changed greedy tokens.

SmolLM2-135M-Instruct in fp32, over real text in windows of 2,048 tokens: OpenAssistant conversations in the chat template, and
prompts of a coding agent. Every window is run with exact KV and then in each format; each position predicts the next token.

    python -m bench.sizing.kv_quality            8 windows, 16,376 predictions (half an hour on one core)
    python -m bench.sizing.kv_quality --quick    1 window of 512 tokens; judges nothing

Bars: perplexity within 0.1% for int8 and 0.5% for fp8. Exit code of a full run: 0 if both are met, otherwise 1; 2 if the
workloads are missing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tarfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bench.common.conversations import WorkloadMissingError, default_workloads, read_trees
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from radixkv.kernels import plan_attention
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.spec import AttentionSpec
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model.attention import AttentionSite, StepAttention
from radixkv.worker.model.kv_pool import KVPool, pool_token_bytes
from radixkv.worker.model.model import ModelRunner

__all__ = ["main"]

AGENT_ARCHIVE, AGENT_FILE_SUFFIX = "miniswe.tar.xz", ".jsonl"
AGENT_CHARACTERS = 20_000
WINDOW_TOKENS, QUICK_WINDOW_TOKENS = 2048, 512
FULL_WINDOWS = 8


BOUNDS_PERCENT = {KVFormat.INT8: 0.1, KVFormat.FP8: 0.5}
"""Percent by which perplexity may change."""


@dataclass(slots=True)
class LayerErrors:
    """An attention site that continues with exact KV, and records the difference of each format's output, layer by layer."""

    exact: StepAttention
    sites: dict[KVFormat, StepAttention]
    errors: dict[KVFormat, list[float]] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        return self._compare(lambda site: site.attend(layer, query, key, value, spec))

    def attend_latents(self, layer: int, query: Tensor, latents: Tensor, value_dim: int, spec: AttentionSpec) -> Tensor:
        return self._compare(lambda site: site.attend_latents(layer, query, latents, value_dim, spec))

    def _compare(self, attend: Callable[[AttentionSite], Tensor]) -> Tensor:
        output = attend(self.exact)
        for kv_format, site in self.sites.items():
            difference = attend(site) - output
            self.errors.setdefault(kv_format, []).append(float(difference.norm() / output.norm()))
        return output


@dataclass(slots=True)
class Predictions:
    """One format over all windows, against exact KV: per prediction, in nats."""

    losses: list[Tensor] = field(default_factory=list)
    exact_losses: list[Tensor] = field(default_factory=list)
    divergences: list[Tensor] = field(default_factory=list)
    agreements: list[Tensor] = field(default_factory=list)

    def add(self, log_probabilities: Tensor, exact: Tensor, token_ids: Tensor) -> None:
        """Add one window: log-probabilities [T, vocabulary] of both, and the actual next tokens [T]."""
        following = token_ids[1:, None]
        self.losses.append(-log_probabilities[:-1].gather(1, following).flatten())
        self.exact_losses.append(-exact[:-1].gather(1, following).flatten())
        self.divergences.append((exact.exp() * (exact - log_probabilities)).sum(-1)[:-1])
        self.agreements.append((exact.argmax(-1) == log_probabilities.argmax(-1))[:-1].float())

    def figures(self) -> dict[str, float]:
        """Perplexity's change with its standard error, mean Kullback-Leibler divergence, share of equal greedy tokens."""
        exact = torch.cat(self.exact_losses).double()
        differences = torch.cat(self.losses).double() - exact
        return {
            "perplexity": math.exp((exact + differences).mean()),
            "perplexity_change_percent": 100 * math.expm1(differences.mean()),
            "standard_error_percent": 100 * float(differences.std() / len(differences) ** 0.5),
            "divergence_nats": float(torch.cat(self.divergences).double().mean()),
            "greedy_agreement_percent": 100 * float(torch.cat(self.agreements).double().mean()),
        }


class Model:
    """The model, and a pool for one window in each format."""

    def __init__(self, folder: str, window_tokens: int, block_size: int) -> None:
        num_blocks = -(-window_tokens // block_size)
        self.block_size = block_size
        self.window_tokens = window_tokens
        self.runner = ModelRunner(
            folder, num_blocks=num_blocks, block_size=block_size, dtype="float32", device="cpu", quantization="none"
        )
        exact = self.runner.pool
        sizes = (exact.layers, num_blocks, block_size, exact.dtype, exact.device)
        self._pools = {kv_format: KVPool(*sizes, kv_format=kv_format) for kv_format in KVFormat}
        self._table = array("i", range(num_blocks))

    def site(self, kv_format: KVFormat | None = None) -> StepAttention:
        """A site with KV in this format, or exact."""
        batch = plan_attention([self.window_tokens], [self.window_tokens], [self._table], self.block_size, "cpu")
        pool = self.runner.pool if kv_format is None else self._pools[kv_format]
        return StepAttention(pool, batch, torch.arange(self.window_tokens))

    def sites(self) -> dict[KVFormat, StepAttention]:
        """A site per format."""
        return {kv_format: self.site(kv_format) for kv_format in KVFormat}

    def log_probabilities(self, token_ids: Tensor, site: AttentionSite) -> Tensor:
        """[T, vocabulary] of each position's next token."""
        positions = torch.arange(len(token_ids))
        return torch.log_softmax(self.runner._run(token_ids, positions, positions, site), dim=-1)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("sizing.kv_quality", __doc__)
    parser.add_argument("--quick", action="store_true", help="one short window; written only with --json")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--block-size", type=int, default=16, help="tokens of a block (default: 16)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random layer (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/kv_quality.json on a full run)"
    )
    return parser.parse_args(arguments)


def read_agent_prompts(folder: Path) -> Iterator[str]:
    """The end of each session's longest prompt, for long ones.

    Raises:
        WorkloadMissingError: the archive is missing.
    """
    archive = folder / AGENT_ARCHIVE
    if not archive.is_file():
        raise WorkloadMissingError(f"no {AGENT_ARCHIVE} in {folder}; name its folder by --workloads")
    with tarfile.open(archive, "r:xz") as files:
        for member in files:
            content = files.extractfile(member) if member.name.endswith(AGENT_FILE_SUFFIX) else None
            if content is not None:
                longest = max((json.loads(call)["input"] for call in content), key=len)
                if len(longest) >= AGENT_CHARACTERS:
                    yield longest[-AGENT_CHARACTERS:]


def read_windows(folder: Path, text: ChatText, num_windows: int, window_tokens: int) -> list[Tensor]:
    """Token ids of `num_windows` windows: conversations end to end in the first half, one agent prompt each in the rest."""
    num_chats = -(-num_windows // 2)
    chats: list[int] = []
    for tree in read_trees(folder):
        if len(chats) >= num_chats * window_tokens:
            break
        longest: list[int] = max((text.prompt_ids(path) for path in tree.paths), key=len)
        chats += longest
    windows = [chats[start * window_tokens : (start + 1) * window_tokens] for start in range(num_chats)]
    if num_windows > num_chats:
        for prompt in read_agent_prompts(folder):
            windows.append(list(text.encode(prompt))[:window_tokens])
            if len(windows) == num_windows:
                break
    if len(windows) < num_windows or any(len(window) < window_tokens for window in windows):
        raise WorkloadMissingError(f"the texts in {folder} fill no {num_windows} windows of {window_tokens} tokens")
    return [torch.tensor(window) for window in windows]


def random_layer_errors(model: Model, seed: int) -> dict[KVFormat, float]:
    """Relative error of one attention layer's output on normal q, k and v."""
    layer = model.runner.pool.layers[0]
    generator = torch.Generator().manual_seed(seed)
    num_heads = [3 * layer.num_kv_heads, layer.num_kv_heads, layer.num_kv_heads]
    q, k, v = (torch.randn(model.window_tokens, heads, layer.key_dim, generator=generator) for heads in num_heads)
    site = LayerErrors(model.site(), model.sites())
    with torch.inference_mode():
        site.attend(0, q, k, v, AttentionSpec(layer.key_dim**-0.5))
    return {kv_format: errors[0] for kv_format, errors in site.errors.items()}


def real_layer_errors(model: Model, token_ids: Tensor) -> dict[KVFormat, list[float]]:
    """The same for every layer on one window's own q, k and v."""
    site = LayerErrors(model.site(), model.sites())
    model.log_probabilities(token_ids, site)
    return site.errors


def predict(model: Model, windows: Sequence[Tensor]) -> dict[KVFormat, Predictions]:
    """Run every window with exact KV and in each format."""
    predictions = {kv_format: Predictions() for kv_format in KVFormat}
    progress = Progress("windows", len(windows) * len(predictions))
    for token_ids in windows:
        exact = model.log_probabilities(token_ids, model.site())
        for kv_format, predicted in predictions.items():
            predicted.add(model.log_probabilities(token_ids, model.site(kv_format)), exact, token_ids)
            progress.advance()
    return predictions


def report_of(options: argparse.Namespace, model: Model, windows: Sequence[Tensor]) -> Report:
    random_errors = random_layer_errors(model, options.seed)
    real_errors = real_layer_errors(model, windows[0])
    predictions = predict(model, windows)
    pool = model.runner.pool
    report = Report("kv_quality", options.seed)
    report.figures = {
        "dtype": "float32",
        "num_windows": len(windows),
        "window_tokens": model.window_tokens,
        "block_size": model.block_size,
        "formats": {},
    }
    error_rows: list[tuple[str, ...]] = []
    rows: list[tuple[str, ...]] = [("bfloat16", f"{pool_token_bytes(pool.layers, torch.bfloat16):,}", "", "", "", "")]
    for kv_format in KVFormat:
        name, layers, figures = kv_format.value, real_errors[kv_format], predictions[kv_format].figures()
        mean_error = sum(layers) / len(layers)
        error_rows.append((name, *(f"{x:.3%}" for x in (random_errors[kv_format], mean_error, max(layers)))))
        change = figures["perplexity_change_percent"]
        token_bytes = pool_token_bytes(pool.layers, pool.dtype, kv_format)
        rows.append(
            (
                name,
                f"{token_bytes:,}",
                f"{figures['perplexity']:.4f}",
                f"{change:+.3f}% ± {figures['standard_error_percent']:.3f}",
                f"{figures['divergence_nats']:.5f}",
                f"{figures['greedy_agreement_percent']:.2f}%",
            )
        )
        report.figures["formats"][name] = {
            "token_bytes": token_bytes,
            "random_layer_error": random_errors[kv_format],
            "real_layer_errors": layers,
            **figures,
        }
        if kv_format in BOUNDS_PERCENT:
            report.bars.append(Bar(f"{name}: perplexity's change", abs(change), BOUNDS_PERCENT[kv_format], "%"))
    report.tables = [
        Table(
            "relative error of attention's output", ("KV", "random", "model's layers, mean", "worst layer"), error_rows
        ),
        Table(
            f"predictions over {len(windows)} windows of {model.window_tokens:,} tokens",
            ("KV", "bytes of a token", "perplexity", "change", "divergence, nats", "greedy tokens alike"),
            rows,
        ),
    ]
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_windows, window_tokens = (1, QUICK_WINDOW_TOKENS) if options.quick else (FULL_WINDOWS, WINDOW_TOKENS)
    folder = resolve_model(None)
    try:
        windows = read_windows(options.workloads, ChatText(folder), num_windows, window_tokens)
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    report = report_of(options, Model(folder, window_tokens, options.block_size), windows)
    path = options.json or (None if options.quick else RESULTS_DIR / "kv_quality.json")
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
