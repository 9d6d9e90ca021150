"""K and V of a transformers model in blocks."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation.utils import GenerationMixin

from radixkv.core.api import CacheHolder, Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.validation import check_int
from radixkv.kernels import KVCache, allocate_kv, write_kv
from radixkv.kernels.checks import KERNEL_DTYPES, check_tensor
from radixkv.kernels.kv.block_copy import carry_out, copied_together
from radixkv.kernels.kv.kv_cache import Layout

__all__ = ["CACHE_ARGUMENT", "GREEDY", "PagedKV", "run_model"]

GREEDY = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
"""Options of transformers. The last three are its defaults: those of a model would be warned about."""

_ARGUMENTS = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE_ARGUMENT = "cache" if "cache" in _ARGUMENTS else "past_key_values"
"""The argument's name changed within transformers 5."""

_KEPT_LAYERS = {DynamicLayer, DynamicSlidingWindowLayer}
_LAYERS_WITHOUT_STATE = {"DummyLayer"}  # of layers that use another's K and V; not in every transformers 5
_KEPT = "a decoder whose layers keep K and V per token, and nothing else"

_Shape = tuple[int, int, int, torch.dtype, torch.device]
"""KV heads, width of K, width of V, dtype, device."""


class PagedKV:
    """K and V of every layer of a model, for `num_blocks` blocks of `block_size` token slots.

    Shapes, dtype and device of each layer are those that the model computes: one token is run to see them. Layers may differ
    in heads and widths, K and V too. Layers that use another layer's K and V take no memory. Layers with a sliding window keep
    all tokens, since a branch may go on anywhere.

    Raises:
        InvalidArgumentError: a size below 1; a model with an encoder, with another state than K and V per token (as linear
            attention has), or of a dtype that no kernel takes.
    """

    def __init__(self, model: Any, num_blocks: int, block_size: int = 16) -> None:
        check_int("num_blocks", num_blocks, 1)
        check_int("block_size", block_size, 1)
        self.num_blocks, self.block_size = num_blocks, block_size
        self._model = weakref.ref(model)
        self._shapes = _probe(model)
        with torch.inference_mode(False):  # a tensor made in inference mode cannot be written outside it
            self._caches = [shape and _allocate(shape, num_blocks, block_size) for shape in self._shapes]
        self._copied_together = copied_together([cache for cache in self._caches if cache])

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole pool."""
        return sum(tensor.nbytes for caches in self._copied_together for cache in caches for tensor in cache.tensors)

    def carry_out(self, ops: Sequence[Copy]) -> None:
        """Carry out block ops, with the result of doing one after the other.

        Raises:
            InvalidArgumentError: an op names a block outside the pool or more tokens than a block has; nothing was copied.
        """
        carry_out(self._copied_together, ops)

    def gather(self, block_table: Sequence[int], num_tokens: int) -> DynamicCache:
        """Copy the first `num_tokens` tokens of a sequence into a transformers cache, [1, heads, num_tokens, width] per layer.

        All layers of this cache keep all tokens; the model's mask applies a sliding window.

        Raises:
            InvalidArgumentError: more tokens than the table has slots, or a block outside the pool.
        """
        check_int("num_tokens", num_tokens, 0, len(block_table) * self.block_size)
        blocks = self._block_ids(block_table)[: -(-num_tokens // self.block_size)]
        past = DynamicCache()
        for index, cache in enumerate(self._caches):
            if cache and num_tokens:
                ids = blocks.to(cache.device)
                keys, values = (tensor.index_select(0, ids).flatten(0, 1)[:num_tokens] for tensor in cache.tensors)
                past.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], index)
        return past

    def scatter(self, past_key_values: Any, block_table: Sequence[int], start: int, end: int, *, row: int = 0) -> None:
        """Store the tokens at [`start`, `end`) of one row of a transformers cache in the blocks of a table.

        Raises:
            InvalidArgumentError: another number of layers; a layer of another shape, dtype or device, or without these
                positions; more tokens than the table has slots; a block outside the pool. Nothing was stored.
        """
        check_int("end", end, 0, len(block_table) * self.block_size)
        check_int("start", start, 0, end)
        layers = getattr(past_key_values, "layers", ())
        if len(layers) < len(self._caches):
            raise InvalidArgumentError(
                "len(past_key_values.layers)", len(layers), f"{len(self._caches)}, as in the pool"
            )
        position = torch.arange(start, end)
        slots = self._block_ids(block_table)[position // self.block_size] * self.block_size + position % self.block_size
        stored: list[tuple[Tensor, Tensor, KVCache]] = []
        for index, cache in enumerate(self._caches):
            if cache:
                name = f"past_key_values.layers[{index}]"
                keys, values = _held(name, layers[index], cache, start, end)
                check_int("row", row, 0, keys.shape[0] - 1)
                stored.append((keys[row].transpose(0, 1), values[row].transpose(0, 1), cache))
        for keys, values, cache in stored:
            write_kv(keys, values, cache, slots.to(cache.device))

    def check(self, model: Any, cache: CacheHolder) -> None:
        """Check that the pool has the size of a prefix cache and the layers of a model.

        Raises:
            InvalidArgumentError: another block size or number of blocks, or a layer whose K and V differ.
        """
        stats = cache.stats()
        for name in ("num_blocks", "block_size"):
            if getattr(self, name) != getattr(stats, name):
                bound = f"{getattr(stats, name)}, as in the prefix cache"
                raise InvalidArgumentError(f"kv.{name}", getattr(self, name), bound)
        if self._model() is model:
            return
        shapes = _probe(model)
        if len(shapes) != len(self._shapes):
            raise InvalidArgumentError(
                "number of the model's layers", len(shapes), f"{len(self._shapes)}, as in the pool"
            )
        for index, (shape, own) in enumerate(zip(shapes, self._shapes, strict=True)):
            if shape != own:
                raise InvalidArgumentError(
                    f"model's layer {index}", _in_words(shape), f"{_in_words(own)}, as in the pool"
                )
        self._model = weakref.ref(model)

    def _block_ids(self, block_table: Sequence[int]) -> Tensor:
        for block_id in (min(block_table, default=0), max(block_table, default=0)):
            check_int("block_table", block_id, 0, self.num_blocks - 1)
        return torch.tensor(block_table, dtype=torch.int64)


@torch.no_grad()
def run_model(
    model: Any, input_ids: Tensor, past_key_values: DynamicCache, max_new_tokens: int, **options: Any
) -> Tensor:
    """The model's own `generate`: continues [rows, length] token ids, of which `past_key_values` holds the first."""
    histories: Tensor = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        **{CACHE_ARGUMENT: past_key_values},
        max_new_tokens=max_new_tokens,
        use_cache=True,
        cache_implementation=None,
        num_beams=1,
        num_return_sequences=1,
        return_dict_in_generate=False,
        **options,
    )
    return histories


def _probe(model: Any) -> list[_Shape | None]:
    """Shapes of each layer's K and V, or None if it has none of its own. Runs one token."""
    if model.config.is_encoder_decoder:
        raise InvalidArgumentError("model", type(model).__name__, _KEPT)
    for index, layer in enumerate(DynamicCache(config=model.config).layers):
        if type(layer) not in _KEPT_LAYERS and type(layer).__name__ not in _LAYERS_WITHOUT_STATE:
            raise InvalidArgumentError("model", f"one whose layer {index} has a {type(layer).__name__}", _KEPT)
    past = DynamicCache()
    run_model(model, torch.zeros((1, 1), dtype=torch.int64, device=model.device), past, 1, pad_token_id=0, **GREEDY)
    shapes: list[_Shape | None] = []
    for index, layer in enumerate(past.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None:
            shapes.append(None)
            continue
        if keys.dim() != 4 or keys.shape[:3] != values.shape[:3] or keys.dtype not in KERNEL_DTYPES:
            found = f"K {tuple(keys.shape)} and V {tuple(values.shape)} of {keys.dtype}"
            raise InvalidArgumentError("model", f"one whose layer {index} has {found}", _KEPT)
        shapes.append((keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device))
    if not shapes or shapes[0] is None:  # transformers takes the length of a history from its first layer
        raise InvalidArgumentError("model", type(model).__name__, _KEPT)
    return shapes


def _allocate(shape: _Shape, num_blocks: int, block_size: int) -> KVCache:
    heads, key_dim, value_dim, dtype, device = shape
    sizes = (num_blocks, block_size, heads, key_dim, dtype, device)
    return allocate_kv(*sizes, v_head_dim=value_dim, layout=Layout.TOKEN_MAJOR)


def _held(name: str, layer: Any, cache: KVCache, start: int, end: int) -> tuple[Tensor, Tensor]:
    """K and V at [`start`, `end`), [rows, heads, end - start, width], of a layer that may have dropped its first positions."""
    for part, width in (("keys", cache.head_dim), ("values", cache.v_head_dim)):
        if getattr(layer, part, None) is None:
            raise InvalidArgumentError(f"{name}.{part}", None, "a tensor")
        shape = (None, cache.num_kv_heads, None, width)
        check_tensor(f"{name}.{part}", getattr(layer, part), shape, (cache.dtype,), cache.device)
    length = layer.get_seq_length()
    first = length - layer.keys.shape[-2]
    if not first <= start <= end <= length:
        raise InvalidArgumentError(name, f"positions {first} to {length}", f"positions {start} to {end}, or more")
    return layer.keys[:, :, start - first : end - first], layer.values[:, :, start - first : end - first]


def _in_words(shape: _Shape | None) -> str:
    if shape is None:
        return "no K and V"
    heads, key_dim, value_dim, dtype, device = shape
    return f"{heads} KV heads, K of width {key_dim}, V of width {value_dim}, {dtype} on {device}"
