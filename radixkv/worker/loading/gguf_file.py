"""Facts of a GGUF file that transformers' reader drops: added to the configuration, or rejected.

The reader takes an architecture's sizes. The facts it drops would give a model that runs, but not as it was trained: scaled
rotary frequencies, windows, soft caps, widths of heads, ends of a turn, ways to split text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from radixkv.worker.errors import ModelError

__all__ = ["GGUFFile", "StoredTensor"]

MAX_ARRAY_ITEMS = 2_000_000
"""In all arrays of a file: twice the tokens, scores, kinds and merges of the largest vocabularies."""

_SCALINGS = ("none", "linear", "yarn")
_ROPE_FACTORS = "rope_freqs.weight"
_YARN_EXTRAS = ("rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor")
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_EXPERT_WIDTHS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_UNSCALED_HEADS = {"gemma2": 46, "gemma3_text": 62}
"""Layers of each family's one size (27B) with queries scaled by hidden size over heads; all others by a head's width."""

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of every Llama 3.1 to 3.3; the factor differs."""

_PLAIN_SPLITS = (None, "default", "gpt-2", "mpt", "olmo", "jais", "trillion", "granite-docling")
"""Names of the byte-level splitting that the reader falls back to."""

_DIGIT_SPLITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Names of the same splitting after a split at every digit."""


class StoredTensor(NamedTuple):
    """A tensor of `shape`, rows first, in `num_bytes` of the file from `offset` on, in blocks of gguf's type `kind`."""

    name: str
    kind: int
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


class GGUFFile:
    """A GGUF file's key-value pairs and tensor locations.

    Attributes:
        path: of the file.
        facts: its scalars and texts by key; arrays are left out.
        tensors: of the model.
        architecture: the file's name for it.
    """

    def __init__(self, path: Path) -> None:
        """Read the file's head.

        Raises:
            ModelError: the file is not a whole GGUF file, or one of several parts.
        """
        from gguf import GGUFValueType

        self.path = path
        try:
            reader = _bounded_reader()(path)
            self.facts: Mapping[str, Any] = {
                key: field.contents()
                for key, field in reader.fields.items()
                if field.types and field.types[0] != GGUFValueType.ARRAY
            }
            self.tensors = tuple(
                StoredTensor(
                    tensor.name,
                    int(tensor.tensor_type),
                    tuple(int(size) for size in reversed(tensor.shape)),
                    int(tensor.data_offset),
                    int(tensor.n_bytes),
                )
                for tensor in reader.tensors
                if tensor.name != _ROPE_FACTORS
            )
            self._rope_factors: list[float] | None = next(
                ([float(value) for value in tensor.data] for tensor in reader.tensors if tensor.name == _ROPE_FACTORS),
                None,
            )
        except Exception as error:  # any error that a damaged file causes in the reader
            raise ModelError(f"{path} is not a whole GGUF file: {_one_line(error)}") from error
        if int(self.facts.get("split.count", 1)) > 1:
            raise ModelError(f"{path} is one of several parts of a model; merge them with llama-gguf-split --merge")
        self.architecture = str(self.facts.get("general.architecture"))

    @property
    def split_name(self) -> str | None:
        """Name of the tokenizer's split of text before merging bytes; None if the file has none."""
        pre = self.facts.get("tokenizer.ggml.pre")
        return None if pre is None else str(pre)

    @property
    def end_of_turn_id(self) -> int | None:
        """The token that ends a turn, if the model has one in addition to its end of text."""
        token_id = self.facts.get("tokenizer.ggml.eot_token_id")
        return None if token_id is None else int(token_id)

    def complete(self, config: Any) -> None:
        """Add to transformers' configuration of the model the facts that its reader left out.

        Raises:
            ModelError: the file has a setting that transformers' configuration cannot express.
        """
        self._complete_sizes(config)
        self._complete_attention(config)
        if self._rope_factors is not None:
            self._scale_as_llama3(config, self._rope_factors)
        elif config.model_type != "gpt_oss":  # the only one whose scaling the reader takes
            self._scale(config)

    def splits_digits(self) -> bool:
        """Whether text is split at every digit, and otherwise as the reader's fallback.

        Raises:
            ModelError: the split is unknown.
        """
        if self.facts.get("tokenizer.ggml.model") != "gpt2":  # no byte-level pairs, so no split before them
            return False
        name = self.split_name
        if name in _DIGIT_SPLITS:
            return True
        if name not in _PLAIN_SPLITS and name not in _known_splits():
            raise self._refusal(f"its tokenizer splits text as {name!r}, which is not known here")
        return False

    def _fact(self, name: str) -> Any:
        return self.facts.get(f"{self.architecture}.{name}")

    def _refusal(self, why: str) -> ModelError:
        return ModelError(f"{self.path.name} cannot be served: {why}")

    def _complete_sizes(self, config: Any) -> None:
        key_length = self._fact("attention.key_length")
        if key_length and config.model_type in ("llama", "mistral", "qwen3"):
            config.head_dim = int(key_length)
        if config.model_type == "gpt2":
            config.n_positions = int(self._fact("context_length"))
            config.n_inner = int(self._fact("feed_forward_length"))

        for fact, name in _EXPERT_WIDTHS.items():
            width = self._fact(fact)
            if width and hasattr(config, name):
                setattr(config, name, int(width))

    def _complete_attention(self, config: Any) -> None:
        window = self._fact("attention.sliding_window")
        if window and config.model_type == "phi3":
            config.sliding_window = int(window)
        if window and getattr(config, "sliding_window", None) != int(window):
            raise self._refusal(
                f"its layers see {window} tokens, which transformers does not read of this architecture"
            )
        for name in _SOFT_CAPS:
            cap = self._fact(name)
            if cap and not hasattr(config, name):
                raise self._refusal(f"its {name} is {cap}, which transformers has not for this architecture")
            if cap:
                setattr(config, name, float(cap))
        if config.model_type in _UNSCALED_HEADS:
            is_unscaled = config.num_hidden_layers == _UNSCALED_HEADS[config.model_type]
            config.query_pre_attn_scalar = (
                config.hidden_size // config.num_attention_heads if is_unscaled else config.head_dim
            )
        local_base = self._fact("rope.freq_base_swa")
        if local_base and "sliding_attention" in (getattr(config, "rope_parameters", None) or {}):
            config.rope_parameters["sliding_attention"]["rope_theta"] = float(local_base)

    def _scale(self, config: Any) -> None:
        kind = str(self._fact("rope.scaling.type") or ("linear" if self._fact("rope.scale_linear") else "none"))
        factor = float(self._fact("rope.scaling.factor") or self._fact("rope.scale_linear") or 1.0)
        if kind == "none" or factor == 1.0:
            return
        extras = [name for name in _YARN_EXTRAS if self._fact(name) not in (None, 1.0)]
        if kind not in _SCALINGS or extras:
            raise self._refusal(f"its rotary frequencies are scaled as {', '.join([kind, *extras])!r}")
        scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            length = self._fact("rope.scaling.original_context_length")
            if not length:
                raise self._refusal("its rotary frequencies are scaled by yarn, and the original length is not told")
            scaling["original_max_position_embeddings"] = int(length)
        self._rope_of(config).update(scaling)

    def _rope_of(self, config: Any) -> dict[str, Any]:
        """Rotary parameters of the layers that scaling applies to: the full ones, if others have their own frequencies."""
        rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
        rope = rope.get("full_attention", rope)
        if "rope_theta" not in rope:
            raise self._refusal("its rotary frequencies are scaled, which is not known of its architecture")
        return rope

    def _scale_as_llama3(self, config: Any, divisors: list[float]) -> None:
        """Set Llama 3 scaling: the file has the divisors of all frequencies, transformers their rule."""
        import torch
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rope = self._rope_of(config)
        rope.update(_LLAMA3, rope_type="llama3", factor=max(divisors))
        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        steps = torch.arange(len(frequencies), dtype=torch.float64) / len(frequencies)
        expected = float(rope["rope_theta"]) ** -steps / torch.tensor(divisors, dtype=torch.float64)
        if len(frequencies) != len(divisors) or not torch.allclose(frequencies.double(), expected, rtol=1e-4, atol=0):
            raise self._refusal(
                f"its rotary frequencies are divided by {_ROPE_FACTORS} in a way that is not known here"
            )


def _bounded_reader() -> Any:
    """gguf's reader with a bound: by itself it reads past the end of the file as far as the file's header claims."""
    from gguf import GGUFReader, GGUFValueType

    class BoundedReader(GGUFReader):
        num_items = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **orders: Any) -> Any:
            num_bytes = int(count) * np.dtype(dtype).itemsize
            if offset + num_bytes > len(self.data):
                raise ValueError(f"{num_bytes:,} bytes at {offset:,} end behind the file's {len(self.data):,}")
            return super()._get(offset, dtype, count, *order, **orders)

        def _get_field_parts(self, offset: int, kind: int) -> Any:
            if kind == GGUFValueType.ARRAY:
                self.num_items += int(self._get(offset + 4, np.uint64)[0])
                if self.num_items > MAX_ARRAY_ITEMS:
                    raise ValueError(f"{self.num_items:,} items in arrays; at most {MAX_ARRAY_ITEMS:,} are read")
            return super()._get_field_parts(offset, kind)

    return BoundedReader


def _known_splits() -> frozenset[str]:
    """Names known to transformers' reader."""
    try:
        from transformers.integrations.gguf import gguf_tokenizer_mapping
    except ImportError:  # an earlier version, without names
        return frozenset()
    return frozenset(gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
