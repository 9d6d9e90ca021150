"""Batch invariance of a model's own code: a row's logits do not depend on the rest of the step.

    linear layers       a library chooses its summation by shape, so tiles of one size are summed in one way
    experts             have as many rows as tokens that chose them: they are run in tiles of `EXPERT_ROWS`
    activations         torch computes some of them differently where a thread's share ends within a vector: on a CPU they
                        are computed in whole vectors, in pieces that one thread takes

Norms, softmax, rotary embeddings and exact operations (sums, products, roundings) treat a row alike at any place. The model
itself is tested as it is loaded: which sizes agree, and that a row's place does not matter; see `agreeing_sizes`.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from radixkv.worker.errors import ModelError
from radixkv.worker.model.rows import ForwardRow

__all__ = ["CHECK_BLOCKS", "CHECK_BLOCK_SIZE", "BatchInvariantModel", "agreeing_sizes", "use_steady_experts"]

_SIZES = {"cpu": (8, 16, 32, 64, 128), "cuda": (128,)}
"""Sizes of tiles. A tile with few rows costs a CPU the products of a full one, and a GPU the reading of the weights."""
_USUAL_SIZE = {"cpu": 32, "cuda": 128}
"""The size whose logits are the reference."""

EXPERT_ROWS = 16
_EXPERTS_NAME = "radixkv_steady"

_ACTIVATIONS = frozenset(
    {"celu", "elu", "gelu", "hardswish", "logsigmoid", "mish", "rsqrt", "selu", "sigmoid", "silu", "softplus"}
)
_ACTIVATION_MODULES = ("torch.nn.modules.activation", "transformers.activations")
_PRODUCTS = frozenset({"linear", "_linear_pointwise"})
_PIECE = 16384
"""Elements: half of what torch shares among threads, and whole vectors of any machine."""
_VECTORS = 64

CHECK_BLOCK_SIZE = 16
CHECK_BLOCKS = 128
_NUM_HISTORIES, _HISTORY_TOKENS = 3, 4
_CHECKED_TOKENS = 64


class BatchInvariantModel(TorchFunctionMode):
    """A scope in which activations are computed in whole vectors.

    Each of torch's functions takes some microseconds more in it. So the scope is entered around a model's activation modules,
    and around a whole forward only where the model calls activations elsewhere too.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.product_rows: set[int] | None = None
        """Numbers of rows seen by linear layers; None: not recorded."""
        self._is_in_module = self._has_strays = False
        for module in model.modules():
            if type(module).__module__ in _ACTIVATION_MODULES:
                module.forward = self._around(module.forward)

    @property
    def is_everywhere(self) -> bool:
        """Whether the scope is entered around the whole forward."""
        return self._has_strays or self.product_rows is not None

    def scope(self) -> AbstractContextManager[Any]:
        """Context to run a forward in."""
        return self if self.is_everywhere else nullcontext()

    def _around(self, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*args: Any, **options: Any) -> Tensor:
            self._is_in_module = True
            try:
                with nullcontext() if self.is_everywhere else self:
                    return forward(*args, **options)
            finally:
                self._is_in_module = False

        return run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called instead of each of torch's functions."""
        name, options = getattr(func, "__name__", ""), kwargs or {}
        if name in _ACTIVATIONS:
            if not args:
                args, options = (options["input"],), {key: value for key, value in options.items() if key != "input"}
            if args[0].device.type == "cpu" and not (name == "rsqrt" and args[0].dtype == torch.float32):  # exact
                self._has_strays |= not self._is_in_module
                return _in_whole_vectors(func, args[0], args[1:], options)
        elif self.product_rows is not None and name in _PRODUCTS:
            self.product_rows.add(args[0].numel() // args[0].shape[-1])
        return func(*args, **options)


def _in_whole_vectors(function: Any, x: Tensor, others: Sequence[Any], options: dict[str, Any]) -> Tensor:
    flat = x.reshape(-1).contiguous()  # of a strided vector the first is a view
    if flat.numel() % _VECTORS:
        flat = functional.pad(flat, (0, -flat.numel() % _VECTORS))
    pieces = [function(piece, *others, **options) for piece in torch.split(flat, _PIECE)]
    whole: Tensor = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return whole[: x.numel()].view(x.shape)


def use_steady_experts(model: Any) -> None:
    """Have stacked experts that transformers can run in several ways run by `_run_experts`.

    Raises:
        ModelError: some experts cannot be.
    """
    experts = [module for module in model.modules() if hasattr(module, "is_transposed")]
    if not experts:
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_EXPERTS_NAME, _run_experts)
    model.set_experts_implementation(_EXPERTS_NAME)
    if any(module.config._experts_implementation != _EXPERTS_NAME for module in experts):
        raise ModelError("deterministic mode: the model's experts cannot be run in tiles; choose another model")


def _run_experts(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """[T, H] of hidden states [T, H], the experts [T, K] that each token chose, and their weights [T, K]."""
    answer = torch.zeros_like(hidden)
    for expert in torch.unique(chosen).tolist():
        tokens, ranks = torch.where(chosen == expert)
        for some, own in zip(torch.split(tokens, EXPERT_ROWS), torch.split(ranks, EXPERT_ROWS), strict=True):
            rows = functional.pad(hidden[some], (0, 0, 0, EXPERT_ROWS - len(some)))
            found = _run_expert(experts, expert, rows)[: len(some)] * weights[some, own, None]
            answer.index_add_(0, some, found.to(answer.dtype))
    return answer


def _run_expert(experts: Any, expert: int, rows: Tensor) -> Tensor:
    def multiply(x: Tensor, name: str) -> Tensor:
        weight = getattr(experts, name)[expert]
        y = functional.linear(x, weight.T if experts.is_transposed else weight)
        return y + getattr(experts, f"{name}_bias")[expert] if experts.has_bias else y

    if experts.has_gate:
        inner = experts._apply_gate(multiply(rows, "gate_up_proj"))
    else:
        inner = experts.act_fn(multiply(rows, "up_proj"))
    found = multiply(inner, "down_proj")
    normed: Tensor = experts.post_expert_norm(found) if getattr(experts, "has_post_expert_norm", False) else found
    return normed


def agreeing_sizes(
    device: torch.device,
    vocab_size: int,
    adapters: Sequence[str],
    code: BatchInvariantModel,
    run: Callable[[Sequence[ForwardRow]], Tensor],
) -> tuple[int, ...]:
    """Sizes of tiles in which a row has bitwise equal logits, at any place and among any others.

    Args:
        code: scope in which `run` runs the model.
        run: returns logits of rows that fill a tile; over a pool of `CHECK_BLOCKS` of `CHECK_BLOCK_SIZE`.

    Raises:
        ModelError: a row's place, or the other rows, change its logits.
    """
    source = random.Random(0)
    histories = [
        (source.choices(range(vocab_size), k=_HISTORY_TOKENS), adapter)
        for adapter in ("", *adapters)
        for _ in range(_NUM_HISTORIES)
    ]
    usual = _USUAL_SIZE[device.type]
    expected: dict[tuple[int, int], Tensor] = {}

    def agrees(size: int) -> bool:
        code.product_rows = set()
        same = all(_run_tile(size, histories, source, expected, run) for _ in range(-(-_CHECKED_TOKENS // size)))
        odd = [count for count in code.product_rows if count % size and count != EXPERT_ROWS]
        code.product_rows = None
        if odd:
            raise ModelError(
                f"deterministic mode: the model runs a linear layer on {odd[0]} rows of a step of {size}, which may be summed "
                "otherwise; choose another model"
            )
        return same

    if not agrees(usual):
        raise ModelError(
            "deterministic mode: who else is in a step changes the logits that the model's own code gives; choose another model"
        )
    return tuple(size for size in _SIZES[device.type] if size == usual or agrees(size))


def _run_tile(
    size: int,
    histories: Sequence[tuple[list[int], str]],
    source: random.Random,
    expected: dict[tuple[int, int], Tensor],
    run: Callable[[Sequence[ForwardRow]], Tensor],
) -> bool:
    """Whether a tile of random histories, cut at random, has the expected logits; new ones are expected from then on."""
    rows: list[ForwardRow] = []
    keys: list[tuple[int, int]] = []
    left = size
    while left:
        index, length = source.randrange(len(histories)), source.randint(1, min(left, _HISTORY_TOKENS))
        ids, adapter = histories[index]
        rows.append(ForwardRow(ids[:length], 0, array("i", [len(rows)]), 0, True, adapter))
        keys.append((index, length))
        left -= length
    return all(torch.equal(expected.setdefault(key, found), found) for key, found in zip(keys, run(rows), strict=True))
