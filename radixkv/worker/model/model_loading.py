"""From a folder or hub id to a model that attends through our function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from radixkv.worker.errors import ModelError
from radixkv.worker.loading.gguf_weights import WeightIndex, has_index, load_gguf
from radixkv.worker.loading.model_store import quiet_transformers
from radixkv.worker.loading.packed_linear import pack_linears, takes_grouped
from radixkv.worker.model.attention import ATTENTION_NAME, register_attention
from radixkv.worker.model.shares import plan_shares, shares_asked

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["load_model", "one_line", "read_config"]

_LOADING_ERRORS = (OSError, ValueError, KeyError, ImportError)


def load_model(
    model: str | PreTrainedModel,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str,
    progress: bool,
    num_ranks: int = 1,
) -> Any:
    """The model in eval mode on `device`, with its attention calling the registered function.

    No code that comes with a model is run: none of its repository, no pickle. Its weights are safetensors or in GGUF.

    Args:
        model: a folder or hub id as returned by `resolve_model`, or a loaded model.
        dtype: of weights that are not rounded.
        quantization: of a GGUF file's weights, see `load_gguf`; on a GPU of any model's, rounded one by one on their way there.
        progress: of a GGUF file's weights, see `load_gguf`.
        num_ranks: ranks of the process group that share the weights, if above 1.

    Raises:
        ModelError: the model cannot be loaded, has an encoder, or cannot be shared out to so many ranks.
    """
    if not isinstance(model, str):
        register_attention()
        given: Any = model
        given.set_attn_implementation(ATTENTION_NAME)
        return _placed(given, quantization, device)
    config = read_config(model)
    with quiet_transformers():
        from transformers import AutoModelForCausalLM

        register_attention()
        try:
            loaded: Any
            if num_ranks > 1 and has_index(Path(model)):
                raise ModelError("a GGUF file is not shared out to ranks: give a folder with safetensors")
            if num_ranks > 1:
                plan_shares(config.get_text_config(), num_ranks)
                loaded = AutoModelForCausalLM.from_pretrained(
                    model,
                    config=config,
                    dtype=dtype,
                    use_safetensors=True,
                    trust_remote_code=False,
                    **shares_asked(num_ranks),
                )
            elif has_index(Path(model)):
                loaded = load_gguf(Path(model), dtype, quantization, device, progress=progress)
                quantization = (
                    WeightIndex.load(Path(model)).usual_quantization if quantization == "auto" else quantization
                )
            else:
                loaded = AutoModelForCausalLM.from_pretrained(
                    model, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False
                )
            loaded.set_attn_implementation(ATTENTION_NAME)
        except _LOADING_ERRORS as error:
            raise ModelError(f"the model {model} cannot be loaded: {one_line(error)}") from error
    return _placed(loaded, quantization, device)


def _placed(model: Any, quantization: str, device: torch.device) -> Any:
    model.eval().requires_grad_(False)
    if takes_grouped(device) and quantization != "none":
        pack_linears(model, quantization, device)
    return model.to(device)


def read_config(model: str) -> Any:
    """The configuration of a decoder-only model.

    Raises:
        ModelError: it cannot be read, or the model has an encoder.
    """
    with quiet_transformers():
        from transformers import AutoConfig

        try:
            config: Any = AutoConfig.from_pretrained(model, trust_remote_code=False)
        except _LOADING_ERRORS as error:
            raise ModelError(f"the model {model} cannot be loaded: {one_line(error)}") from error
    if config.is_encoder_decoder:
        raise ModelError(f"{model} has an encoder; only decoder-only models can be served")
    return config


def one_line(error: BaseException) -> str:
    """The error's text in one line, cut to 400 characters."""
    return " ".join(str(error).split())[:400]
