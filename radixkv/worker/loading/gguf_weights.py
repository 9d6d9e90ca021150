"""Weights of a GGUF file, memory mapped, to the formats that a model computes with.

    once            gguf.json: each tensor's name in the model, its type, shape and place
    at every start  a model without weights  <-  tensor after tensor, a slice of rows after the other, on all threads

The computed formats are never on disk. If a family's rows are only moved, as in most, no tensor is in fp32 as a whole either.
transformers has the names, and the families' layouts.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.kernels.cpu.int4_weight import INT4_KINDS, empty_int4, fill_int4, unpack_int4
from radixkv.kernels.cpu.rounded_linear import PANEL, RoundedWeight, empty_int8, fill_int8
from radixkv.kernels.gpu.grouped_weight import GroupedWeight, concatenate_grouped, group_codes, quantise_grouped
from radixkv.worker.errors import ModelError
from radixkv.worker.loading.gguf_file import GGUFFile, StoredTensor
from radixkv.worker.loading.model_store import progress_bars
from radixkv.worker.loading.packed_linear import RoundedLinear, can_round, takes_grouped

__all__ = [
    "INDEX",
    "WeightIndex",
    "empty_model",
    "fill_weights",
    "has_index",
    "layout_of",
    "load_gguf",
    "moves_heads",
    "only_moves_rows",
]

INDEX = "gguf.json"
_SLICE_ELEMENTS = 1 << 21
"""Of a slice, 8 MB in fp32; more if 32 rows have more."""

_Bytes = npt.NDArray[np.uint8]
_CPU = torch.device("cpu")
_Q4_1 = 3


@dataclass(frozen=True, slots=True)
class WeightIndex:
    """Locations of a model's weights.

    Attributes:
        path: of the file; relative to the index where both are kept together.
        size_bytes: of the file.
        architecture: the file's name for it.
        tensors: each with the name of the model's tensor that it is, or is part of.
    """

    path: str
    size_bytes: int
    architecture: str
    tensors: list[tuple[str, StoredTensor]]

    @classmethod
    def of(cls, file: GGUFFile, model: Any, kept_as: str | None = None) -> WeightIndex:
        """Index of the file's tensors that `model` has. `kept_as`: name of the file next to the index, if it is moved there."""
        names = _names_in(model, file.architecture)
        found = [
            (names.get(tensor.name) or names.get(tensor.name.removesuffix(".weight")), tensor)
            for tensor in file.tensors
        ]
        tensors = [(name, tensor) for name, tensor in found if name]
        return cls(kept_as or str(file.path), file.path.stat().st_size, file.architecture, tensors)

    @property
    def usual_quantization(self) -> str:
        """Of layers whose bits cannot be kept, as of families whose rows are not only moved: 4 bits if most matrices have 4."""
        matrices = [tensor for _, tensor in self.tensors if len(tensor.shape) > 1]
        return "int4" if 2 * sum(tensor.kind in INT4_KINDS for tensor in matrices) > len(matrices) else "int8"

    def save(self, folder: Path) -> None:
        """Write the index to a file in `folder`."""
        said = {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "architecture": self.architecture,
            "tensors": self.tensors,
        }
        (folder / INDEX).write_text(json.dumps(said), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> WeightIndex:
        """Read the index in `folder`."""
        said = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        tensors = [
            (name, StoredTensor(tensor, kind, tuple(shape), offset, num_bytes))
            for name, (tensor, kind, shape, offset, num_bytes) in said.pop("tensors")
        ]
        return cls(**said, tensors=tensors)

    def fills(self, name: str, wanted: Tensor) -> bool:
        """Whether the model's tensor `name` is complete, in one file tensor or several."""
        shapes = [tensor.shape for target, tensor in self.tensors if target == name]
        if len(shapes) == 1 and len(shapes[0]) == wanted.dim():
            return sorted(shapes[0]) == sorted(wanted.shape)  # some families' are transposed
        return sum(map(math.prod, shapes)) == wanted.numel()

    def open(self, folder: Path) -> _Bytes:
        """The file's bytes, memory mapped.

        Raises:
            ModelError: the file is missing or was changed.
        """
        path = folder / self.path
        try:
            data = np.asarray(np.memmap(path, np.uint8, "r"))
        except (OSError, ValueError) as error:
            raise ModelError(f"the weights in {path} cannot be read: {error}") from error
        if len(data) != self.size_bytes:
            raise ModelError(
                f"{path} has {len(data):,} bytes in place of {self.size_bytes:,}: it is another file by now"
            )
        return data


def has_index(folder: Path) -> bool:
    """Whether `load_gguf` can load the folder."""
    return (folder / INDEX).is_file()


def empty_model(config: Any, dtype: torch.dtype) -> Any:
    """The model of a configuration in `dtype`, with its buffers; its parameters take no memory."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    with init_empty_weights(include_buffers=False):
        model = make(config, dtype=dtype)
    model.tie_weights()
    return model


def load_gguf(
    folder: Path, dtype: torch.dtype, quantization: str, device: torch.device = _CPU, *, progress: bool = False
) -> Any:
    """The model whose index and configuration are in `folder`, on the CPU, but for rounded layers.

    Args:
        dtype: of weights that are not rounded.
        quantization: of linear layers whose shape the kernels take: ``"none"``; ``"int8"``; ``"auto"``: 4-bit weights stay,
            others become int8; ``"int4"``: they stay, others become Q4_1.
        device: of rounded layers.
        progress: show a progress bar on standard error.

    Raises:
        ModelError: the file was changed, or has a tensor of an unknown type.
    """
    from transformers import AutoConfig, GenerationConfig

    index = WeightIndex.load(folder)
    model = empty_model(AutoConfig.from_pretrained(folder, trust_remote_code=False), dtype)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    layout = layout_of(index.architecture, model.config)
    moves_rows = only_moves_rows(layout)
    fill_weights(model, index, folder, quantization, layout, moves_rows, device, progress=progress)
    return model


def fill_weights(
    model: Any,
    index: WeightIndex,
    folder: Path,
    quantization: str,
    layout: Any,
    moves_rows: bool = True,
    device: torch.device = _CPU,
    *,
    progress: bool,
) -> None:
    """Fill a model that takes no memory yet with the weights of an index in `folder`.

    Args:
        quantization, device, progress: as of `load_gguf`.
        layout: undoes the file's layout. moves_rows: whether that works on undecoded rows.

    Raises:
        ModelError: as `load_gguf`.
    """
    name = Path(index.path).name
    head = _tied_head(model, index) if quantization != "none" else []
    body = sorted(index.tensors, key=lambda item: len(item[1].shape))  # biases before the matrices that take them along
    num_bytes = sum(tensor.num_bytes for _, tensor in (*body, *head))
    with progress_bars(progress) as bars, ThreadPoolExecutor(torch.get_num_threads()) as threads:
        filling = _Filling(model, index, index.open(folder), quantization, threads, layout, moves_rows, device)
        task = bars.add_task(f"Loading {name}", total=num_bytes)
        for tensors in (body, head):
            for target, tensor in tensors:
                try:
                    for share in filling.fill(target, tensor):
                        bars.advance(task, share * tensor.num_bytes)
                except (ValueError, RuntimeError, NotImplementedError) as error:
                    raise ModelError(f"{name} cannot be loaded: its {tensor.name}: {error}") from error
            if tensors is body:
                model.tie_weights()  # before a tied head is rounded


def _tied_head(model: Any, index: WeightIndex) -> list[tuple[str, StoredTensor]]:
    """The output head's tensors, if they are the embeddings again: to be rounded in addition to them."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or embeddings is None or head.weight is not embeddings.weight:
        return []
    names = {module: name for name, module in model.named_modules()}
    source = f"{names[embeddings]}.weight"
    return [(f"{names[head]}.weight", tensor) for target, tensor in index.tensors if target == source]


def _names_in(model: Any, architecture: str) -> dict[str, str]:
    """The model's names of a file's tensors. Read from the whole model, without modules: each would take as long again."""
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    whole = SimpleNamespace(config=model.config, state_dict=model.state_dict, named_children=list)
    names: dict[str, str] = get_gguf_hf_weights_map(whole, layout_of(architecture, model.config))
    return names


def layout_of(architecture: str, config: Any) -> Any:
    """transformers' processor that undoes the layout of a family's files."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    make: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    return make(config=config.to_dict())


def only_moves_rows(layout: Any) -> bool:
    """Whether a layout can be undone on undecoded rows."""
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor, TensorProcessor

    return type(layout) in (TensorProcessor, LlamaTensorProcessor)


def moves_heads(layout: Any) -> bool:
    """Whether the layout moves rows of queries and keys."""
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    return type(layout) is LlamaTensorProcessor


def _blocks(data: _Bytes, tensor: StoredTensor) -> _Bytes:
    """[..., bytes of a row]: a tensor's bytes in the file."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    shape = (*tensor.shape[:-1], tensor.shape[-1] // block_size * block_bytes)
    return data[tensor.offset : tensor.offset + tensor.num_bytes].reshape(shape)


def _numbers(blocks: _Bytes, tensor: StoredTensor) -> npt.NDArray[np.float32]:
    """Decoded values of blocks, or of some rows of them."""
    from gguf import GGMLQuantizationType, dequantize

    numbers: npt.NDArray[np.float32] = dequantize(np.ascontiguousarray(blocks), GGMLQuantizationType(tensor.kind))
    return numbers


def _as_q4_1(numbers: npt.NDArray[np.float32]) -> _Bytes:
    from gguf import GGMLQuantizationType, quantize

    blocks: _Bytes = quantize(numbers, GGMLQuantizationType.Q4_1)
    return blocks


class _PanelRows:
    """A weight for a CPU's kernels, filled in slices of whole panels by several threads: blocks of a 4-bit kind, or numbers."""

    def __init__(
        self, num_rows: int, num_inputs: int, dtype: torch.dtype, kind: int | None, _device: torch.device
    ) -> None:
        self.kind = kind
        sizes = num_rows, num_inputs, dtype
        self.weight: RoundedWeight = empty_int8(*sizes) if kind is None else empty_int4(*sizes, kind)

    def fill(self, first: int, rows: npt.NDArray[Any]) -> None:
        if self.kind is None:
            fill_int8(self.weight, first, rows)
        else:
            fill_int4(self.weight, first, rows, self.kind)


class _GroupedRows:
    """As `_PanelRows`, for a GPU's kernel."""

    def __init__(
        self, _num_rows: int, _num_inputs: int, dtype: torch.dtype, kind: int | None, device: torch.device
    ) -> None:
        self.kind = kind
        self._dtype = dtype
        self._device = device
        self._parts: dict[int, GroupedWeight] = {}

    def fill(self, first: int, rows: npt.NDArray[Any]) -> None:
        if self.kind is None:
            part = quantise_grouped(torch.tensor(rows, device=self._device), 8)._replace(dtype=self._dtype)
        else:
            codes, scales, minimums = unpack_int4(rows, self.kind)
            lowest = -8 * scales if minimums is None else minimums
            moved = [torch.tensor(each, device=self._device) for each in (codes, scales, lowest)]
            part = group_codes(moved[0], moved[1], moved[2], self._dtype)
        self._parts[first] = part

    @property
    def weight(self) -> GroupedWeight:
        """Of all rows, once they are filled."""
        return concatenate_grouped([self._parts[first] for first in sorted(self._parts)])[0]


class _Filling:
    """The transfer of one model's weights from a file."""

    def __init__(
        self,
        model: Any,
        index: WeightIndex,
        data: _Bytes,
        quantization: str,
        threads: ThreadPoolExecutor,
        layout: Any,
        moves_rows: bool,
        device: torch.device,
    ) -> None:
        self._model = model
        self._data = data
        self._quantization = quantization
        self._threads = threads
        self._layout = layout
        self._moves_rows = moves_rows
        self._device = device
        self._names = {tensor.name.removesuffix(end): name for name, tensor in index.tensors for end in ("", ".weight")}
        self._parts: dict[str, Tensor] = {}  # of tensors made of several
        self._num_left = Counter[str]()  # values still missing
        for name, tensor in index.tensors:
            self._num_left[name] += tensor.num_elements

    def fill(self, target: str, tensor: StoredTensor) -> Iterator[float]:
        """Put a tensor into the model; yields the share done since the last yield."""
        blocks = _blocks(self._data, tensor)
        if len(tensor.shape) == 2 and self._moves_rows:
            yield from self._fill_rows(target, tensor, self._layout.process(blocks, tensor.name).weights)
            return
        known = {"tensor_key_mapping": self._names, "parsed_parameters": {"tensors": self._parts}}
        found = self._layout.process(_numbers(blocks, tensor), tensor.name, **known)
        self._num_left[target] -= tensor.num_elements
        if found.name is not None:
            self._put(target, torch.tensor(found.weights))
        elif not self._num_left[target]:
            self._put(target, self._parts.pop(target))
        yield 1.0

    def _fill_rows(self, target: str, tensor: StoredTensor, blocks: _Bytes) -> Iterator[float]:
        """As `fill`, in slices, two per thread at once."""
        num_rows, num_inputs = tensor.shape
        owner, leaf = self._owner(target)
        dtype: torch.dtype = getattr(owner, leaf).dtype
        rounded: _PanelRows | _GroupedRows | None = None
        bias: Tensor | None = None
        if type(owner) is torch.nn.Linear and self._rounds(num_inputs, dtype):
            keeps_bits = self._quantization != "int8" and tensor.kind in INT4_KINDS
            kind = tensor.kind if keeps_bits else _Q4_1 if self._quantization == "int4" else None
            make = _GroupedRows if takes_grouped(self._device) else _PanelRows
            rounded = make(num_rows, num_inputs, dtype, kind, self._device)
            bias = owner.bias
        plain = torch.empty(0 if rounded else num_rows, num_inputs, dtype=dtype)

        def read(rows: slice) -> npt.NDArray[np.float32] | None:
            if rounded is None:
                return _numbers(blocks[rows], tensor)
            if rounded.kind == tensor.kind:
                rounded.fill(rows.start, blocks[rows])
            elif rounded.kind is None:
                rounded.fill(rows.start, _numbers(blocks[rows], tensor))
            else:
                rounded.fill(rows.start, _as_q4_1(_numbers(blocks[rows], tensor)))
            return None

        step = max(1, _SLICE_ELEMENTS // num_inputs // PANEL) * PANEL
        slices = [slice(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]
        num_at_once = 2 * torch.get_num_threads()
        for first in range(0, len(slices), num_at_once):
            some = slices[first : first + num_at_once]
            for rows, numbers in zip(some, self._threads.map(read, some), strict=True):
                if numbers is not None:
                    plain[rows] = torch.tensor(numbers)
                yield (rows.stop - rows.start) / num_rows
        if rounded is None:
            self._put(target, plain)
        else:
            self._model.set_submodule(target.rpartition(".")[0], RoundedLinear(rounded.weight, bias))

    def _rounds(self, num_inputs: int, dtype: torch.dtype) -> bool:
        return self._quantization != "none" and can_round(num_inputs, dtype, self._device)

    def _owner(self, target: str) -> tuple[torch.nn.Module, str]:
        module, _, leaf = target.rpartition(".")
        return self._model.get_submodule(module), leaf

    def _put(self, target: str, values: Tensor) -> None:
        owner, leaf = self._owner(target)
        empty: Tensor = getattr(owner, leaf)
        if values.shape != empty.shape:
            raise ValueError(f"is {tuple(values.shape)} in place of {tuple(empty.shape)}")
        setattr(owner, leaf, torch.nn.Parameter(values.to(empty.dtype), requires_grad=False))
