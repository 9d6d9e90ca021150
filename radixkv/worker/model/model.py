"""A transformers model, run by its own code over a pool of KV blocks: packed rows in, next-token logits out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from ctypes import c_int32
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.kernels import AttentionBatch, Scratch, plan_attention
from radixkv.kernels.draw_reference import DrawOptions
from radixkv.kernels.gpu.draw import draw
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.runtime.upload import upload
from radixkv.worker.errors import ModelError
from radixkv.worker.loading.gguf_weights import has_index
from radixkv.worker.loading.packed_linear import RoundedLinear, pack_linears, takes_grouped
from radixkv.worker.model.adapters.lora import load_adapters
from radixkv.worker.model.attention import AttentionSite, GivenUpError, ShapeProbe, StepAttention
from radixkv.worker.model.batch_invariant import (
    CHECK_BLOCK_SIZE,
    CHECK_BLOCKS,
    BatchInvariantModel,
    agreeing_sizes,
    use_steady_experts,
)
from radixkv.worker.model.cuda.capturable_experts import reads_group_sizes, use_capturable_experts
from radixkv.worker.model.cuda.cuda_graphs import StaticSteps, fits_steps
from radixkv.worker.model.cuda.fused_decoder import fuse_decoder
from radixkv.worker.model.cuda.rounded_experts import has_rounded_experts, use_rounded_experts
from radixkv.worker.model.known_model import KnownModel, can_be_known, find_known, keep_known, load_known
from radixkv.worker.model.kv_dtype import check_heads, choose_kv_format, dtype_name
from radixkv.worker.model.kv_pool import KVPool, longest_window, pool_token_bytes
from radixkv.worker.model.mla import absorb_latents
from radixkv.worker.model.model_facts import (
    eos_token_ids_of,
    max_model_len_of,
    num_parameters_of,
    sampling_defaults_of,
    shortened,
    widest_output_of,
)
from radixkv.worker.model.model_loading import load_model, one_line
from radixkv.worker.model.native_model import NativeModel, find_native_model, make_native_model
from radixkv.worker.model.rows import ForwardRow, cut_into_tiles, kept_tokens, step_inputs, with_drawn
from radixkv.worker.model.shares import share_of
from radixkv.worker.placement import choose_device, choose_dtype, wants_rounding

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ForwardRow", "ModelRunner"]


_WARM_TOKENS = 40
"""A prompt with tiles of both forms."""


class ModelRunner:
    """A loaded model and its pool.

    Attributes:
        vocab_size: width of the logits; every token id is below it.
        max_model_len: longest sequence that the model's positions allow, in tokens.
        eos_token_ids: ids with which the model ends a reply.
        widest_output: most elements computed for one position, without embeddings and logits.
        weight_bytes: of the model's tensors and the adapters'.
        quantization: of the linear layers' weights, ``"int4"`` (some may be in int8), ``"int8"`` or ``"none"``.
        weight_bits: all that the rounded layers have, least first.
        kv_format: of stored K and V, or latents; None: `dtype`.
        pool: the KV caches; `dtype` and `device` are the model's.
    """

    pool: KVPool

    def __init__(
        self,
        model: str | PreTrainedModel,
        *,
        num_blocks: int | None,
        block_size: int = 16,
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        quantization: str = "auto",
        kv_dtype: str = "auto",
        adapters: Mapping[str, Path] | None = None,
        deterministic: bool = False,
        cuda_graphs: bool = True,
        progress: bool = False,
        num_ranks: int = 1,
    ) -> None:
        """Load `model` (a folder or hub id as returned by `resolve_model`) and allocate its pool.

        Args:
            model: or a loaded model, which the runner may change; it keeps its dtype.
            num_blocks: blocks of the pool; None: `allocate_pool` is called before the first forward.
            block_size: token slots of a block.
            dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"auto"``: bfloat16 where the device computes in it.
            device: ``"cpu"``, ``"cuda"``, or ``"auto"``: cuda where there is one.
            max_model_len: longest sequence to be served; None: the model's bound.
            quantization: of the linear layers' weights: ``"none"``, ``"int8"`` (groups of 64), ``"int4"`` (groups of 32), or
                ``"auto"``. Auto keeps a GGUF file's 4-bit weights and rounds the file's others to int8, and on a CPU those of
                any model, but only where `dtype` is auto too and the model is not loaded yet.
            kv_dtype: of stored K and V: ``"fp8"``, ``"int8"``, ``"int4"``; ``"auto"`` or the name of the model's dtype: that
                dtype, as always for latents.
            adapters: folders of low-rank adapters by name; they are not rounded.
            deterministic: whether logits are bitwise independent of the rest of a step, of the cuts of a prompt, and of the
                cached part of it. With adapters the native decoder is then not used.
            cuda_graphs: on CUDA, whether steps of few tokens are captured as graphs and replayed; see `cuda_graphs`. Not with
                `deterministic`, whose steps are cut into tiles.
            progress: show a progress bar on standard error while reading a GGUF file's weights.
            num_ranks: processes that share the model, this one included; see `parallel`.

        Raises:
            InvalidArgumentError: an argument is out of bounds.
            ModelError: the model cannot be loaded, its architecture cannot be served from a block table, or an adapter does
                not fit it; or with `deterministic` its own code computes a row differently next to others.
        """
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device) if isinstance(model, str) else model.dtype
        kv_format = choose_kv_format(kv_dtype, self.dtype)
        self._num_ranks = num_ranks
        folder = Path(model) if isinstance(model, str) else None
        is_free = folder is not None and dtype == "auto" and num_ranks == 1
        keeps_bits = folder is not None and self.dtype == torch.bfloat16 and has_index(folder)
        rounds = wants_rounding(quantization, is_free and (self.device.type == "cpu" or keeps_bits))
        self._adapters = load_adapters(adapters or {})
        self._scratch = Scratch()
        self._steady: BatchInvariantModel | None = None
        self._native: NativeModel | None = None
        self._is_unwanted: c_int32 | None = None  # of the forward that runs
        may_be_known = rounds and not takes_grouped(self.device) and not self._adapters.names
        kept_in = folder if folder is not None and may_be_known and can_be_known(folder) else None
        if kept_in is not None and (known := find_known(kept_in, self.dtype, quantization)) is not None:
            self._take_known(known, kept_in, quantization, kv_format, max_model_len, progress)
        else:
            self._take(
                model,
                quantization,
                kv_format,
                max_model_len,
                rounds=rounds,
                is_steady=deterministic,
                progress=progress,
            )
            if kept_in is not None and self._native is not None:
                keep_known(self, self._model, self._layers, self._specs, kept_in, quantization)
        tensors = (*self._model.parameters(), *self._model.buffers())
        self.weight_bytes = sum(share_of(tensor).nbytes for tensor in tensors) + self._adapters.nbytes
        self._shares_reads = not deterministic
        self._uses_steps = cuda_graphs and not deterministic
        self._steps: StaticSteps | None = None
        if deterministic and (self._native is None or self._adapters.names):
            self._native = None
            self._tile_sizes = self._find_tile_sizes()
        if num_blocks is not None:
            self.allocate_pool(num_blocks, block_size)

    def _take(
        self,
        model: str | PreTrainedModel,
        quantization: str,
        kv_format: KVFormat | None,
        max_model_len: int | None,
        *,
        rounds: bool,
        is_steady: bool,
        progress: bool,
    ) -> None:
        """Load the model with its own code, and the native decoder where both compute the same."""
        self._model = self._load(model, quantization if rounds else "none", progress)
        if has_rounded_experts(self._model):
            use_rounded_experts(self._model)
        elif reads_group_sizes(self.device, self.dtype):
            use_capturable_experts(self._model)
        self.num_parameters = num_parameters_of(self._model)
        self._adapters.check(self._model)
        if not self._adapters.changes("kv_b_proj"):  # absorbed projections do not run, so no update can be added
            absorb_latents(self._model)
        config = self._model.config.get_text_config()
        head = self._model.get_output_embeddings()
        self.vocab_size = int(head.out_features if isinstance(head, RoundedLinear) else head.weight.shape[0])
        self.max_model_len = shortened(max_model_len_of(config), max_model_len)
        self.eos_token_ids = eos_token_ids_of(self._model)
        self.sampling_defaults = sampling_defaults_of(self._model)
        widest_output = widest_output_of(self._model, self.vocab_size)
        self.quantization = self._pack_weights(quantization if rounds else "none")
        self._adapters.attach(self._model, self.dtype, self.device, is_steady=is_steady)
        probe = self._probe()
        self.widest_output = max(widest_output, probe.widest_query)
        self._layers = probe.layer_shapes(int(config.num_hidden_layers))
        if kv_format is not None:
            check_heads(kv_format, self._layers)
        self.kv_format = kv_format
        self._specs = [probe.specs[layer] for layer in range(len(self._layers))]
        if self.quantization != "none" and not takes_grouped(self.device):
            self._native = find_native_model(self._model, self._layers, self._specs, self._run, self.kv_format)
        elif self.device.type == "cuda" and not is_steady and self._num_ranks == 1:
            joins = not self._adapters.names
            fuse_decoder(self._model, self._layers, self._specs, self._run, self.device, joins=joins)

    def _load(self, model: str | PreTrainedModel, quantization: str, progress: bool) -> Any:
        return load_model(model, self.dtype, self.device, quantization, progress, self._num_ranks)

    def _take_known(
        self,
        known: KnownModel,
        folder: Path,
        quantization: str,
        kv_format: KVFormat | None,
        max_model_len: int | None,
        progress: bool,
    ) -> None:
        """Load the weights and the native decoder alone, with facts from an earlier start."""
        self._model = load_known(known, folder, self.dtype, quantization, progress=progress)
        self.num_parameters = known.num_parameters
        self.vocab_size, self.widest_output = known.vocab_size, known.widest_output
        self.max_model_len = shortened(known.max_model_len, max_model_len)
        self.eos_token_ids, self.sampling_defaults = frozenset(known.eos_token_ids), known.sampling
        self.quantization = self._pack_weights("none")
        self._layers = known.layers
        if kv_format is not None:
            check_heads(kv_format, self._layers)
        self.kv_format = kv_format
        self._native = make_native_model(self._model, known.layers, known.specs, self.kv_format)

    @property
    def num_layers(self) -> int:
        """Attention layers."""
        return len(self._layers)

    @property
    def is_native(self) -> bool:
        """Whether the native decoder runs the model instead of its own code."""
        return self._native is not None

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Adapters that rows may name."""
        return self._adapters.names

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in the pool, over all layers."""
        return pool_token_bytes(self._layers, self.dtype, self.kv_format)

    @property
    def window(self) -> int | None:
        """The longest of the layers' sliding windows, in tokens; None: there is none."""
        return longest_window(self._layers)

    @property
    def windowed_token_bytes(self) -> int:
        """The part of `token_bytes` in layers with a sliding window."""
        layers = [layer for layer in self._layers if layer.window is not None]
        return pool_token_bytes(layers, self.dtype, self.kv_format)

    @property
    def gathered_token_bytes(self) -> int:
        """Average bytes of one token's K and V in a layer once gathered; codes are expanded to fp32."""
        return pool_token_bytes(self._layers, torch.float32 if self.kv_format else self.dtype) // self.num_layers

    @property
    def kv_dtype(self) -> str:
        """Name of the storage of K and V."""
        return self.kv_format.value if self.kv_format else dtype_name(self.dtype)

    def allocate_pool(
        self, num_blocks: int, block_size: int, num_host_blocks: int = 0, num_window_blocks: int | None = None
    ) -> None:
        """Make a new pool of the model's layers, replacing the current one; see `KVPool`.

        Raises:
            InvalidArgumentError, ModelError: as `KVPool`; or the native decoder cannot read such blocks.
        """
        sizes = (num_blocks, block_size, self.dtype, self.device, num_host_blocks)
        how = {"kv_format": self.kv_format, "num_window_blocks": num_window_blocks}
        pool = self._make_pool(self._layers, *sizes, **how)
        if self._native is not None:
            self._native.check_pool(pool)
        self.pool = pool
        self._batch: AttentionBatch | None = None  # of the last step outside the static steps
        self._windowed: AttentionBatch | None = None  # the same, over rows of windows

    def _make_pool(self, *sizes: Any, **format: Any) -> KVPool:
        return KVPool(*sizes, **format)

    @property
    def num_uncaptured_sizes(self) -> int:
        """Sizes of steps that could not be captured as CUDA graphs."""
        return len(self._steps.failed_sizes) if self._steps else 0

    @property
    def fault(self) -> str:
        """Why it cannot go on; empty while it can."""
        return ""

    def close(self) -> None:
        """End what it has outside this process. May be repeated."""

    def carry_out(self, ops: Sequence[Copy]) -> None:
        """Carry out the block ops of one answer, in order; see `KVPool.carry_out`."""
        self.pool.carry_out(ops)

    def release_pool(self) -> None:
        """Free the pool and all that depends on it; `allocate_pool` makes another."""
        self._batch = self._windowed = self._steps = None
        del self.pool

    def prepare(self, num_tokens: int) -> None:
        """Capture the CUDA graphs of steps of up to so many tokens now, not at first use; compile longer ones and draws."""
        if steps := self._take_steps():
            steps.prepare(num_tokens)
            length = min(_WARM_TOKENS, self.max_model_len)
            table = array("i", bytes(4 * -(-length // self.pool.block_size)))
            logits = self._compute(
                [ForwardRow([0] * length, 0, table, num_stored=length, num_logits=1)]
            )  # writes nothing
            for top_p in (0.9, 1.0):
                draw(logits, [DrawOptions(0, -1, 1.0, 0, top_p, 0.0, 0.0)])

    @property
    def takes_drawn_ids(self) -> bool:
        """Whether `forward` can take token ids that the host has not read."""
        return self._steady is None and self._num_ranks == 1

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        """Compute all rows in one pass over the weights. On CUDA the host does not wait for it.

        Args:
            rows: at least one.
            drawn_ids: int64 token ids on the device, chosen by earlier work there; rows name them by `drawn_id`. Only if
                `takes_drawn_ids`.

        Returns:
            float32 [sum of `num_logits`, vocab_size], in the order of `rows` and positions; valid until the next call.
        """
        if self._steady is not None:
            tiles = cut_into_tiles(rows, self._tile_sizes, self.pool.block_size)
            self._take_rows(rows)  # of all tiles: none takes what a later one reads
            return torch.cat([self._step_in_rows(tile) for tile in tiles])
        return self._step(rows, drawn_ids)

    def forward_unless(
        self, is_unwanted: c_int32, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None
    ) -> Tensor | None:
        """See `Interruptible`; given up between two layers. Ranks that share the model go on to the end."""
        self._is_unwanted = is_unwanted if self._num_ranks == 1 else None
        try:
            return self.forward(rows, drawn_ids)
        except GivenUpError:
            return None
        finally:
            self._is_unwanted = None

    def _step(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        """As `forward`, in one pass."""
        self._take_rows(rows)
        return self._step_in_rows(rows, drawn_ids)

    def _take_rows(self, rows: Sequence[ForwardRow]) -> None:
        if self.pool.windows is not None:
            self.pool.windows.take(rows)

    def _step_in_rows(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        """As `_step`, after `_take_rows` of these rows at least."""
        windows = self.pool.windows
        steps = self._take_steps() if fits_steps(rows) else None
        logits = None
        if steps is not None:
            batch = self._plan(rows, None)
            windowed = self._over_windows(rows, batch, None)
            inputs, kept = step_inputs(rows, self.pool.block_size), kept_tokens(rows)
            logits = steps.run(inputs, batch, kept, drawn_ids, windowed)
        if logits is None:
            logits = self._compute(rows, drawn_ids)
        if windows is not None:
            windows.written(rows)
        return logits

    def _compute(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        """As `_step`, planned for these rows only."""
        inputs = step_inputs(rows, self.pool.block_size)
        self._batch = batch = self._plan(rows, self._batch)
        windowed = self._over_windows(rows, batch, self._windowed)
        self._windowed = windowed and windowed[0]
        kept = kept_tokens(rows)
        row_adapters = [row.adapter for row in rows]
        if self._native is not None and not any(row_adapters):  # it has no adapters
            if drawn_ids is not None:
                inputs[0] = with_drawn(torch.from_numpy(inputs[0]), drawn_ids).numpy()
            return self._native.forward(inputs, kept, self.pool, batch, self._is_unwanted, windowed)
        ids, at, written = upload(inputs, self.device)
        if drawn_ids is not None:
            ids = with_drawn(ids, drawn_ids)
        wanted = upload(kept, self.device, torch.int64)
        on_device = windowed and (windowed[0], upload(windowed[1], self.device))
        site = StepAttention(self.pool, batch, written, self._is_unwanted, on_device)
        row_lens = [len(row.token_ids) for row in rows]
        if self._steady is None or not kept:
            with self._adapters.step(row_adapters, row_lens, kept, self.device):
                return self._run(ids, at, wanted, site)
        everything = torch.arange(batch.num_tokens, device=self.device)
        with self._adapters.step(row_adapters, row_lens, range(batch.num_tokens), self.device):
            return self._run(ids, at, everything, site)[wanted]

    def _plan(self, rows: Sequence[ForwardRow], before: AttentionBatch | None) -> AttentionBatch:
        query_lens = [len(row.token_ids) for row in rows]
        return plan_attention(
            query_lens,
            [row.start + length for row, length in zip(rows, query_lens, strict=True)],
            [row.block_table for row in rows],
            self.pool.block_size,
            self.device,
            scratch=self._scratch,
            shares=self._shares_reads,
            before=before,
        )

    def _over_windows(
        self, rows: Sequence[ForwardRow], batch: AttentionBatch, before: AttentionBatch | None
    ) -> tuple[AttentionBatch, npt.NDArray[np.int64]] | None:
        """The batch over rows of windows, and [T] slots there; None: all blocks have windows."""
        windows = self.pool.windows
        if windows is None:
            return None
        return batch.over(windows.tables(batch.host_tables), before), windows.slots(rows)

    def _take_steps(self) -> StaticSteps | None:
        """Static steps over the current pool; None if its caches are not for the device's kernels."""
        if not self._uses_steps or self.pool.caches[0].layout is not Layout.HEAD_MAJOR:
            return None
        if self._steps is None or self._steps.pool is not self.pool:
            sizes = {"vocab_size": self.vocab_size, "max_model_len": self.max_model_len}
            self._steps = StaticSteps(self.pool, self._answer, **sizes)
        return self._steps

    def _pack_weights(self, quantization: str) -> str:
        """Pack the linear layers' weights for a CPU's kernels. Returns the resulting `quantization`."""
        if not takes_grouped(self.device) and self._num_ranks == 1:
            pack_linears(self._model, quantization)
        rounded = [layer for layer in self._model.modules() if isinstance(layer, RoundedLinear)]
        self.weight_bits = tuple(sorted({layer.quantised.bits for layer in rounded}))
        if quantization in ("int8", "int4") and not rounded:
            raise ModelError(
                f"{quantization} weights: the model has no linear layer of a multiple of 64 inputs, or there are no compiled "
                "kernels here (no C++ compiler, or RADIXKV_CPU_KERNELS is torch); ask for none"
            )
        return f"int{self.weight_bits[0]}" if rounded else "none"

    def _find_tile_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens per step for which the model's own code computes a row alike."""
        if not has_rounded_experts(self._model):
            use_steady_experts(self._model)
        self._steady = BatchInvariantModel(self._model)
        self.allocate_pool(CHECK_BLOCKS, CHECK_BLOCK_SIZE)
        sizes = agreeing_sizes(self.device, self.vocab_size, self.adapter_names, self._steady, self._step)
        del self.pool
        return sizes

    def _run(self, token_ids: Tensor, positions: Tensor, kept: Tensor, site: AttentionSite) -> Tensor:
        """Run the model's own code; float32."""
        with torch.inference_mode():
            return self._answer(token_ids, positions, kept, site).float()

    def _answer(self, token_ids: Tensor, positions: Tensor, kept: Tensor, site: AttentionSite) -> Tensor:
        """As `_run`, in the model's output dtype."""
        with torch.inference_mode(), self._steady.scope() if self._steady else nullcontext():
            logits: Tensor = self._model(
                input_ids=token_ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=kept,
                radixkv_site=site,
            ).logits[0]
            return logits

    def _probe(self) -> ShapeProbe:
        probe = ShapeProbe()
        token_ids, positions, kept = (torch.tensor(values, device=self.device) for values in ([0, 0], [0, 1], [1]))
        try:
            with self._adapters.probing():
                logits = self._run(token_ids, positions, kept, probe)
        except (TypeError, ValueError) as error:  # the model's forward does not accept our keywords
            raise ModelError(f"the model cannot be run from a block table: {one_line(error)}") from error
        if logits.shape != (1, self.vocab_size):
            raise ModelError("the model does not answer logits for chosen positions alone, so it cannot be served")
        return probe
