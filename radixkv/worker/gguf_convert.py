"""A GGUF file turned once into a folder of safetensors, config and tokenizer that loads in a moment."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.worker.errors import ModelError

if TYPE_CHECKING:
    from radixkv.worker.gguf_file import GGUFFile

__all__ = ["convert_gguf", "quiet_transformers"]


def convert_gguf(file: GGUFFile, folder: Path) -> None:
    """Dequantise a GGUF file to fp32 and save model, generation config and tokenizer into the new `folder`.

    Raises:
        ModelError: transformers cannot read the file, or would read less than there is in it.
    """
    from transformers import AutoTokenizer

    splits_digits = file.splits_digits()  # before the long work
    with (
        quiet_transformers(),
        contextlib.redirect_stderr(io.StringIO()),
    ):  # the reader draws a bar that nothing turns off
        model = _load(file)
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(
                file.path.parent, gguf_file=file.path.name, trust_remote_code=False
            )
        except Exception as error:  # of many kinds, as for the model
            raise _not_converted(file, error) from error
        if splits_digits:
            _split_digits(tokenizer)
        tokenizer.model_max_length = model.config.get_text_config().max_position_embeddings
        folder.mkdir()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _load(file: GGUFFile) -> Any:
    """The model, all of its weights and nothing but them from the file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    where: dict[str, Any] = {
        "pretrained_model_name_or_path": file.path.parent,
        "gguf_file": file.path.name,
        "trust_remote_code": False,
    }
    try:
        config: Any = AutoConfig.from_pretrained(**where)
        file.complete(config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            **where, config=config, dtype=torch.float32, output_loading_info=True
        )
    except ModelError:
        raise
    except Exception as error:  # the reader trusts the file: what it stumbles over has no type of its own
        raise _not_converted(file, error) from error
    model, told = loaded
    missing = sorted(str(name) for name in (*told["missing_keys"], *told["mismatched_keys"]))
    if missing:
        raise ModelError(f"{file.path.name} cannot be converted: it holds no {missing[0]} of the right shape")
    num_taken = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    if num_taken != file.num_elements:
        raise ModelError(
            f"{file.path.name} cannot be converted: transformers has a place for {num_taken:,} of its "
            f"{file.num_elements:,} weights, so that it would be another model"
        )
    # The weights are plain fp32 now, but the model still calls itself quantised, which saving refuses.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    _add_end_of_turn(model, file.end_of_turn_id)
    return model


def _not_converted(file: GGUFFile, error: BaseException) -> ModelError:
    return ModelError(f"{file.path.name} cannot be converted: {' '.join(str(error).split())[:400]}")


def _add_end_of_turn(model: Any, token_id: int | None) -> None:
    eos = model.config.eos_token_id
    ends = [eos] if isinstance(eos, int) else list(eos or ())
    if token_id is not None and token_id not in ends:
        model.generation_config.eos_token_id = [*ends, token_id]


def _split_digits(tokenizer: Any) -> None:
    """The reader installs plain byte-level splitting where the file names one that splits every digit off first."""
    from tokenizers import pre_tokenizers

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
