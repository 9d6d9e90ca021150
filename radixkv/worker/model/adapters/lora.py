"""Low-rank adapters (LoRA, arXiv 2106.09685) of one model, chosen per row of a batch.

    a batch    [ rows of no adapter | rows of a | rows of b ]
    a module   y = W x               y += B_a (A_a x)   y += B_b (A_b x)      each on its own rows alone

Every module changed by some adapter gets a hook after its forward, for any kernel. A step without adapters costs a check per
hook, a model without adapters nothing. KV of an adapter's requests is cached in separate `namespaces`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.runtime.upload import upload
from radixkv.worker.errors import ModelError
from radixkv.worker.loading.packed_linear import RoundedLinear
from radixkv.worker.model.adapters.lora_file import AdapterFile, read_adapter

__all__ = ["Adapters", "load_adapters"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def load_adapters(folders: Mapping[str, Path]) -> Adapters:
    """Read the adapters in these folders, by name.

    Raises:
        InvalidArgumentError: an invalid name.
        ModelError: as `read_adapter`.
    """
    for name in folders:
        if not _NAME.fullmatch(name):
            bound = "1 to 64 letters, digits, dots, dashes and underscores, the first of them a letter or digit"
            raise InvalidArgumentError("adapter", name, bound)
    return Adapters([read_adapter(name, folder.expanduser()) for name, folder in folders.items()])


class _Update(NamedTuple):
    """A `LowRank` ready to multiply: `down` [inputs, rank], `up` [rank, outputs]. `is_partial`: the products with `down` are
    added up over the ranks.
    """

    down: Tensor
    up: Tensor
    is_partial: bool = False


class Adapters:
    """Adapters of one model. One thread runs steps.

    Attributes:
        names: as used in requests.
        nbytes: of the tensors added to the model.
    """

    def __init__(self, files: Sequence[AdapterFile] = ()) -> None:
        self.names = tuple(file.name for file in files)
        self.nbytes = 0
        self._files = files
        self._is_steady = False
        self._updates: dict[str, dict[str, _Update]] = {}  # by module, by adapter, on the model's device
        self._rows: Mapping[str, Tensor | None] = {}  # of the step: positions by adapter, None for all
        self._kept: Mapping[str, Tensor | None] = {}  # the same, of positions with logits
        self._seen: dict[str, list[bool]] | None = None  # while probing: per run of a module, whether on all rows

    def changes(self, module: str) -> bool:
        """Whether an adapter changes modules with this name."""
        return any(path.rpartition(".")[2] == module for file in self._files for path in file.updates)

    def check(self, model: torch.nn.Module) -> None:
        """Check that every changed module exists, before layers are replaced.

        Raises:
            ModelError: a module does not exist, is not a linear layer, or has other widths.
        """
        modules = dict(model.named_modules())
        for file in self._files:
            for path, update in file.updates.items():
                widths = _widths(modules.get(path))
                if widths is None:
                    what = "is no linear layer" if path in modules else "does not exist"
                    raise ModelError(f"the adapter {file.name!r} does not fit the model: its module {path} {what}")
                if (update.down.shape[1], update.up.shape[0]) != widths:
                    raise ModelError(
                        f"the adapter {file.name!r} does not fit the model: {path} takes {widths[0]} inputs to {widths[1]} "
                        f"outputs, and the adapter {update.down.shape[1]} to {update.up.shape[0]}"
                    )

    def attach(self, model: Any, dtype: torch.dtype, device: torch.device, *, is_steady: bool = False) -> None:
        """Attach the updates to the model's modules as they are now: in `dtype`, or in fp32 on a CPU.

        With `is_steady` a step's products have its number of rows, however many of them have the adapter.

        A product of so few columns takes 2 to 6 us on a CPU in fp32, and 17 to 21 us through the bf16 kernels.
        """
        self._is_steady = is_steady
        dtype = torch.float32 if device.type == "cpu" else dtype
        for file in self._files:
            for path, update in file.updates.items():
                down, up = (side.to(device, dtype).T.contiguous() for side in update)
                placed = _Update(down, up)
                self._updates.setdefault(path, {})[file.name] = placed
                self.nbytes += placed.down.nbytes + placed.up.nbytes
        head = model.get_output_embeddings()
        for path in self._updates:
            module = model.get_submodule(path)
            module.register_forward_hook(self._hook(path, gives_logits=module is head))
        self._files = ()

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Check, in a forward of two rows with logits of one, that every module runs once and on all rows.

        Raises:
            ModelError: a module does not, so that its rows cannot be separated.
        """
        self._seen = {path: [] for path in self._updates}
        yield
        odd = [path for path, runs in self._seen.items() if runs != [True]]
        self._seen = None
        if odd:
            raise ModelError(f"adapters on {odd[0]} cannot be served: the model does not run it once on every token")

    @contextmanager
    def step(
        self, row_adapters: Sequence[str], row_lens: Sequence[int], kept: Sequence[int], device: torch.device
    ) -> Iterator[None]:
        """Apply each row's adapter within. `row_lens`: tokens of each row of the batch; `kept`: tokens with logits."""
        named = [name for name in dict.fromkeys(row_adapters) if name]
        if not named:
            yield
            return
        of_token = np.repeat(np.array(row_adapters, dtype=object), row_lens)
        of_kept = of_token[np.asarray(kept, dtype=np.int64)]
        self._rows = {name: _positions(of_token == name, device) for name in named}
        self._kept = {name: _positions(of_kept == name, device) for name in named}
        try:
            yield
        finally:
            self._rows, self._kept = {}, {}

    def _hook(self, path: str, *, gives_logits: bool) -> Any:
        updates = self._updates[path]

        def add_updates(_module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if self._seen is not None:
                for name, whole in updates.items():
                    updates[name] = _share(whole, inputs[0].shape[-1], output.shape[-1])
                num_rows = output.numel() // output.shape[-1]
                self._seen[path].append(num_rows == (1 if gives_logits else 2))
            for name, positions in (self._kept if gives_logits else self._rows).items():
                update = updates.get(name)
                if update is not None:
                    _add(update, inputs[0], output, positions, computes_all=self._is_steady)

        return add_updates


def _add(update: _Update, inputs: Tensor, output: Tensor, positions: Tensor | None, *, computes_all: bool) -> None:
    x, y = inputs.reshape(-1, inputs.shape[-1]), output.view(-1, output.shape[-1])
    if positions is not None and not computes_all:
        x = x.index_select(0, positions)
    narrowed = x.to(update.down.dtype) @ update.down
    if update.is_partial:
        distributed.all_reduce(narrowed)
    growth = (narrowed @ update.up).to(y.dtype)
    if positions is None:
        y.add_(growth)
    else:
        y.index_add_(0, positions, growth.index_select(0, positions) if computes_all else growth)


def _share(update: _Update, num_inputs: int, num_outputs: int) -> _Update:
    """This rank's share of an update, where its module takes or gives a share only."""
    down, up = update.down, update.up
    if num_inputs < down.shape[0]:
        first = distributed.get_rank() * num_inputs
        return _Update(down[first : first + num_inputs].contiguous(), up, is_partial=True)
    if num_outputs < up.shape[1]:
        first = distributed.get_rank() * num_outputs
        return _Update(down, up[:, first : first + num_outputs].contiguous())
    return update


def _positions(mask: Any, device: torch.device) -> Tensor | None:
    return None if mask.all() else upload(np.flatnonzero(mask), device)


def _widths(module: torch.nn.Module | None) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer; None for another module."""
    from transformers.pytorch_utils import Conv1D

    if type(module) is torch.nn.Linear or isinstance(module, RoundedLinear):
        return module.in_features, module.out_features
    if isinstance(module, Conv1D):
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    return None
