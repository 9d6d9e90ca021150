"""Made once of a GGUF file: a folder of configuration, tokenizer and an index of the weights, which stay in the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.worker.errors import ModelError
from radixkv.worker.loading.model_store import quiet_transformers

if TYPE_CHECKING:
    from rich.progress import Progress

    from radixkv.worker.loading.gguf_file import GGUFFile
    from radixkv.worker.loading.gguf_weights import WeightIndex

__all__ = [
    "convert_gguf",
]

_NUM_STEPS = 3


def convert_gguf(file: GGUFFile, folder: Path, bars: Progress, kept_as: str | None = None) -> None:
    """Write configurations, tokenizer and index of a GGUF file into the new `folder`: megabytes, for weights of any size.

    Args:
        bars: shows the progress.
        kept_as: name of the file in the folder, if it will be moved there; None: it stays where it is.

    Raises:
        ModelError: transformers cannot read the file, or would read less than its content.
    """
    from transformers import AutoTokenizer

    splits_digits = file.splits_digits()  # before the long work
    task = bars.add_task(f"Reading {file.path.name}, once", total=_NUM_STEPS)
    with quiet_transformers():
        config = _read_config(file)
        bars.advance(task)
        model, index = _index_weights(file, config, kept_as)
        bars.advance(task)
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(
                file.path.parent, gguf_file=file.path.name, trust_remote_code=False
            )
        except Exception as error:  # of many kinds, as for the configuration
            raise _not_converted(file, error) from error
        if splits_digits:
            _split_digits(tokenizer)
        tokenizer.model_max_length = config.get_text_config().max_position_embeddings
        folder.mkdir()
        config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        index.save(folder)
        bars.advance(task)


def _read_config(file: GGUFFile) -> Any:
    from transformers import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(file.path.parent, gguf_file=file.path.name, trust_remote_code=False)
        file.complete(config)
    except ModelError:
        raise
    except Exception as error:  # the reader trusts the file, so a bad one raises any type
        raise _not_converted(file, error) from error
    return config


def _index_weights(file: GGUFFile, config: Any, kept_as: str | None) -> tuple[Any, WeightIndex]:
    """The model without its weights, and an index with all of them and nothing else."""
    import torch

    from radixkv.worker.loading.gguf_weights import WeightIndex, empty_model

    try:
        model = empty_model(config, torch.float32)
        index = WeightIndex.of(file, model, kept_as)
    except Exception as error:
        raise _not_converted(file, error) from error
    kept = model.state_dict()
    wanted = dict(model.named_parameters()) | {name: each for name, each in model.named_buffers() if name in kept}
    missing = sorted(name for name, tensor in wanted.items() if not index.fills(name, tensor))
    if missing:
        raise ModelError(f"{file.path.name} cannot be converted: it holds no {missing[0]} of the right shape")
    num_taken = sum(tensor.numel() for tensor in wanted.values())
    num_elements = sum(tensor.num_elements for tensor in file.tensors)
    if num_taken != num_elements:
        raise ModelError(
            f"{file.path.name} cannot be converted: transformers has a place for {num_taken:,} of its "
            f"{num_elements:,} weights, so that it would be another model"
        )
    _add_end_of_turn(model, file.end_of_turn_id)
    return model, index


def _not_converted(file: GGUFFile, error: BaseException) -> ModelError:
    return ModelError(f"{file.path.name} cannot be converted: {' '.join(str(error).split())[:400]}")


def _add_end_of_turn(model: Any, token_id: int | None) -> None:
    eos = model.config.eos_token_id
    ends = [eos] if isinstance(eos, int) else list(eos or ())
    if token_id is not None and token_id not in ends:
        model.generation_config.eos_token_id = [*ends, token_id]


def _split_digits(tokenizer: Any) -> None:
    """Install digit splitting, where the reader installs plain byte-level splitting but the file names a digit split."""
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
