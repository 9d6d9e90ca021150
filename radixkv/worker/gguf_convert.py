"""A GGUF file turned once into a folder of safetensors, config and tokenizer that loads in a moment."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radixkv.worker.errors import ModelError

__all__ = ["convert_gguf", "quiet_transformers"]


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Dequantise the GGUF at `gguf` to fp32 and save model, generation config and tokenizer into the new `folder`.

    Raises:
        ModelError: transformers cannot read the file.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with (
        quiet_transformers(),
        contextlib.redirect_stderr(io.StringIO()),
    ):  # the reader draws a bar that nothing turns off
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
            tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            raise ModelError(f"{gguf.name} cannot be converted: {' '.join(str(error).split())}") from error
        # The weights are plain fp32 now, but both still call themselves quantised, which saving refuses.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        _mend_pre_tokenizer(tokenizer, _gguf_text(gguf, "tokenizer.ggml.pre"))
        tokenizer.model_max_length = model.config.get_text_config().max_position_embeddings
        folder.mkdir()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _gguf_text(gguf: Path, key: str) -> str | None:
    from gguf import GGUFReader

    field = GGUFReader(gguf).get_field(key)
    return None if field is None else str(field.contents())


def _mend_pre_tokenizer(tokenizer: Any, pre: str | None) -> None:
    """The reader installs plain byte-level splitting whatever the file names; `smollm` splits every digit off first."""
    from tokenizers import pre_tokenizers

    if pre == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice from transformers within: errors only."""
    from transformers import utils

    logging: Any = utils.logging  # its functions have no types
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
