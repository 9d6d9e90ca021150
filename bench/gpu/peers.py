"""Other attention kernels over the inputs of a `Case`: torch's SDPA and flex_attention, FlashInfer. Missing ones have a reason.

    SDPA, cuDNN     contiguous copies per sequence; decode with a kv head's query heads packed as queries, prefill causal
    flex            compiled, over pages of 128 in a separate copy; a block mask names each sequence's pages
    FI decode       FlashInfer's paged decode, on CUDA cores
    FI tensor       the same by its prefill kernel, on tensor cores
    FI cascade      FlashInfer's cascade, a level of it per level of the tree
    FI prefill      FlashInfer's paged prefill

FlashInfer compiles at first use: `python -m bench.gpu.peers` uses each kernel once, so that another process compiles it during
this one's measurements. It reads our blocks in place ("HND").
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.gpu.common.clock import Calls
from bench.gpu.common.inputs import Case, Pool, relative_error
from bench.gpu.workloads import BLOCK_SIZE, DTYPE, LLAMA, Tree, blocks_of, branches_of, sequences

__all__ = ["PEERS", "FlashInferBuild", "Peer", "PeerError", "flashinfer_peers", "peer_calls"]

MAX_PEER_ERROR = 2e-2
MAX_SETS = 8
FLEX_PAGE = 128
WORKSPACE_BYTES = 512 << 20
BUILD_JOBS = 10


class PeerError(Exception):
    """The reason why a peer has no time."""


Peer = Callable[[Case], Calls]


def peer_calls(name: str, case: Case, expected: Tensor) -> Calls:
    """The peer's calls over the case's sets, if its result over the first agrees with ours.

    Raises:
        PeerError: any error that keeps it from running, or a wrong result.
    """
    try:
        calls = PEERS[name](case)[:MAX_SETS]
        error = relative_error(calls[0]().view(expected.shape), expected)
    except PeerError:
        raise
    except Exception as failure:  # a peer may fail in any way; ours are measured all the same
        raise PeerError(
            f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"
        ) from failure
    if not error < MAX_PEER_ERROR:
        raise PeerError(f"answers differ from ours by {error:.1e}")
    return calls


def _contiguous(case: Case, tables: Tensor, *, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """Copies of K and V [B, Hkv x repeats, L, D]."""
    return tuple(
        tensor[tables.long()].transpose(1, 2).flatten(2, 3)[:, :, : case.tree.context].repeat_interleave(repeats, dim=1)
        for tensor in (case.pool.cache.k, case.pool.cache.v)
    )  # type: ignore[return-value]  # two of them


def _sdpa(case: Case) -> Calls:
    layer, tree = case.pool.layer, case.tree
    scale = case.spec.scale
    if tree.queries == 1:
        packed = case.q.view(tree.branches, layer.num_kv_heads, layer.group, layer.head_dim)

        def decode(k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(packed, k, v, scale=scale)

        copies = [_contiguous(case, tables) for tables in case.tables[:MAX_SETS]]
        return [partial(decode, k, v) for k, v in copies]
    from torch.nn.attention.bias import causal_lower_right

    q = case.q.view(tree.branches, tree.queries, layer.num_heads, layer.head_dim).transpose(1, 2)
    k, v = _contiguous(case, case.tables[0], repeats=layer.group)
    mask: dict[str, Any] = {"is_causal": True}
    if tree.queries != tree.context:
        mask = {"attn_mask": causal_lower_right(tree.queries, tree.context)}

    def prefill() -> Tensor:
        out = functional.scaled_dot_product_attention(q, k, v, scale=scale, **mask)
        return out.transpose(1, 2).flatten(0, 1)

    return [prefill]


def _cudnn(case: Case) -> Calls:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if case.pool.device.type != "cuda":
        raise PeerError("needs CUDA")
    if case.tree.queries not in (1, case.tree.context):
        raise PeerError("its causal mask begins at the first key")

    def wrap(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def limited() -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return call()

        return limited

    return [wrap(call) for call in _sdpa(case)]


def _flex(case: Case) -> Calls:
    from torch.nn.attention.flex_attention import flex_attention

    if case.pool.device.type != "cuda":
        raise PeerError("needs CUDA")
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)  # otherwise it would run uncompiled
    return [flex_call(case, tables, compiled) for tables in case.tables[:MAX_SETS]]


def flex_call(case: Case, tables: Tensor, attend: Any) -> Callable[[], Tensor]:
    """Decode over a copy of a set in pages of 128, with shared blocks in shared pages. `attend`: flex_attention."""
    from torch.nn.attention.flex_attention import BlockMask

    layer, tree, device = case.pool.layer, case.tree, case.pool.device
    if tree.queries != 1 or any(tokens % FLEX_PAGE for _, tokens in tree.levels):
        raise PeerError(f"made for decode and lengths that are multiples of {FLEX_PAGE}")
    per_page = FLEX_PAGE // BLOCK_SIZE
    firsts = tables[:, ::per_page].contiguous()  # lengths of all levels are whole pages
    names, pages = firsts.unique(return_inverse=True)  # [pages], [B, pages of a branch]
    num_pages, num_each = len(names), pages.shape[1]
    blocks = torch.empty(num_pages, per_page, dtype=torch.int64, device=device)
    blocks[pages.flatten()] = tables.long().reshape(-1, per_page)
    k, v = (tensor[blocks.flatten()].transpose(0, 1).flatten(1, 2)[None] for tensor in case.pool.cache.tensors)
    is_member = torch.zeros(tree.branches, num_pages, dtype=torch.bool, device=device)
    is_member.scatter_(1, pages, True)
    indices = torch.zeros(tree.branches, 1, 1, num_pages, dtype=torch.int32, device=device)
    indices[:, 0, 0, :num_each] = pages
    counts = torch.full((tree.branches, 1, 1), num_each, dtype=torch.int32, device=device)

    def sees(branch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001  # flex names them
        return is_member[branch, key // FLEX_PAGE]

    mask = BlockMask.from_kv_blocks(
        torch.zeros_like(counts),
        torch.zeros_like(indices),
        counts,
        indices,
        BLOCK_SIZE=(FLEX_PAGE, FLEX_PAGE),
        mask_mod=sees,
        seq_lengths=(1, num_pages * FLEX_PAGE),
    )
    q = case.q[:, :, None]
    return lambda: attend(q, k, v, block_mask=mask, scale=case.spec.scale, enable_gqa=layer.group > 1)[:, :, 0]


@cache
def _flashinfer() -> Any:
    if not torch.cuda.is_available():
        raise PeerError("needs CUDA")
    try:
        return importlib.import_module("flashinfer")
    except ImportError as missing:
        raise PeerError(f"cannot be imported: {missing}") from missing


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _starts(sizes: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *sizes], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)


def _pages(case: Case, tables: Tensor, level: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """FlashInfer's first pages, page ids and lengths of last pages: of whole branches, or of a level's nodes."""
    levels = case.tree.levels
    if level is None:
        nodes, tokens, column = case.tree.branches, case.tree.context, 0
    else:
        nodes, tokens = levels[level]
        column = sum(blocks_of(length) for _, length in levels[:level])
    size = blocks_of(tokens)
    ids = tables[:: case.tree.branches // nodes, column : column + size].flatten().contiguous()
    last = torch.full((nodes,), (tokens - 1) % BLOCK_SIZE + 1, dtype=torch.int32, device=tables.device)
    return _starts([size] * nodes, tables.device), ids, last


def _heads(case: Case) -> tuple[int, int, int, int]:
    layer = case.pool.layer
    return layer.num_heads, layer.num_kv_heads, layer.head_dim, BLOCK_SIZE


def _types(case: Case) -> dict[str, Any]:
    return {"q_data_type": DTYPE, "kv_data_type": DTYPE, "sm_scale": case.spec.scale}


def _run(wrapper: Any, case: Case) -> Callable[[], Tensor]:
    kv = case.pool.cache.k, case.pool.cache.v
    return lambda: wrapper.run(case.q, kv)


def _fi_decode(case: Case, *, on_tensor_cores: bool = False) -> Calls:
    library, calls = _flashinfer(), []
    for tables in case.tables[:MAX_SETS]:
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            _workspace(case.pool.device), "HND", use_tensor_cores=on_tensor_cores
        )
        wrapper.plan(*_pages(case, tables), *_heads(case), **_types(case))
        calls.append(_run(wrapper, case))
    return calls


def _fi_tensor(case: Case) -> Calls:
    return _fi_decode(case, on_tensor_cores=True)


def _fi_cascade(case: Case) -> Calls:
    library, calls, tree = _flashinfer(), [], case.tree
    for tables in case.tables[:MAX_SETS]:
        wrapper = library.MultiLevelCascadeAttentionWrapper(len(tree.levels), _workspace(case.pool.device), "HND")
        rows = [_starts([tree.branches // nodes] * nodes, tables.device) for nodes, _ in tree.levels]
        pages = [_pages(case, tables, level) for level in range(len(tree.levels))]
        wrapper.plan(rows, *map(list, zip(*pages, strict=True)), *_heads(case), **_types(case))
        calls.append(_run(wrapper, case))
    return calls


def _fi_prefill(case: Case) -> Calls:
    wrapper = _flashinfer().BatchPrefillWithPagedKVCacheWrapper(_workspace(case.pool.device), "HND")
    rows = _starts([case.tree.queries] * case.tree.branches, case.pool.device)
    wrapper.plan(rows, *_pages(case, case.tables[0]), *_heads(case), causal=True, **_types(case))
    return [_run(wrapper, case)]


PEERS: dict[str, Peer] = {
    "SDPA": _sdpa,
    "cuDNN": _cudnn,
    "flex": _flex,
    "FI decode": _fi_decode,
    "FI tensor": _fi_tensor,
    "FI cascade": _fi_cascade,
    "FI prefill": _fi_prefill,
}


def flashinfer_peers() -> dict[str, Tree]:
    """FlashInfer's peers, with a small tree that each supports."""
    small = sequences(4, 256)
    return {
        "FI decode": small,
        "FI cascade": branches_of(4, 256, 64),
        "FI tensor": small,
        "FI prefill": sequences(1, 256, 128),
    }


class FlashInferBuild:
    """FlashInfer's kernels compiled by another process; after its end `failures` has unusable peers, and the reasons."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = dict.fromkeys(flashinfer_peers(), "not compiled in time")
        self.seconds: dict[str, float] = {}
        self._process: subprocess.Popen[bytes] | None = None
        reason = None
        if not torch.cuda.is_available():
            reason = "needs CUDA"
        elif importlib.util.find_spec("flashinfer") is None:
            reason = "not installed"
        if reason is not None:
            self.failures = dict.fromkeys(flashinfer_peers(), reason)
            return
        self._folder = tempfile.TemporaryDirectory()
        self._outcomes = Path(self._folder.name) / "outcomes.json"
        # FlashInfer runs ninja even if all is compiled; it may be next to this interpreter, outside the path.
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        with (Path(self._folder.name) / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.gpu.peers", str(self._outcomes)],
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, "MAX_JOBS": os.environ.get("MAX_JOBS", str(BUILD_JOBS))},
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # so that its compilers end with it
            )

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds`; kernels compiled by then may be used."""
        if self._process is None:
            return
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and self._process.poll() is None:
            time.sleep(0.2)
        if self._outcomes.exists():
            outcomes = json.loads(self._outcomes.read_text(encoding="utf-8"))
            self.seconds = {name: seconds for name, (_, seconds) in outcomes.items()}
            self.failures.update({name: reason for name, (reason, _) in outcomes.items()})
            self.failures = {name: reason for name, reason in self.failures.items() if reason}
        elif self._process.poll() is not None:
            self.failures = dict.fromkeys(self.failures, f"its process ended with {self._process.returncode}")

    def stop(self) -> None:
        """End the process, if it still runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
            self._folder.cleanup()
            self._process = None


def main() -> int:
    """Use each of FlashInfer's kernels once; after each, write its error, or "", and its seconds to the given path."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    outcomes: dict[str, tuple[str, float]] = {}
    pool = Pool(LLAMA, 128, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for name, tree in flashinfer_peers().items():
        start_s, reason = time.monotonic(), ""
        try:
            case = Case(pool, tree)
            peer_calls(name, case, case.attend(case.tables[0]))
        except PeerError as failure:
            reason = str(failure)
        outcomes[name] = reason, time.monotonic() - start_s
        print(f"{name}: {reason or 'ready'}, {outcomes[name][1]:.0f} s", flush=True)
        if path is not None:
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(outcomes), encoding="utf-8")
            temporary.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
