"""Configuration of a model: from a folder, a file, the hub, or the published ones in this package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixkv.planner.errors import PlanError
from radixkv.planner.published import PUBLISHED

__all__ = ["ModelConfig", "read_config"]

_DEFAULT_MODEL = "default"
_HUB_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Content of a model's ``config.json``.

    Attributes:
        name: as the user gave it.
        values: the file's content, unchanged; for a multimodal model, all of it.
    """

    name: str
    values: Mapping[str, Any]


def read_config(name: str) -> ModelConfig:
    """The configuration of `name`: a folder in Hugging Face's layout, a ``config.json``, a published model's name in any
    case (see `PUBLISHED`; ``"default"`` is the default model), or a Hugging Face id, of which only this file is fetched.

    Raises:
        PlanError: there is none, it cannot be fetched, or it is not a model's configuration.
    """
    published = PUBLISHED.get("smollm2-135m" if name == _DEFAULT_MODEL else name.lower())
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelConfig(name, _read_file(path / "config.json"))
    if path.is_file():
        return ModelConfig(name, _read_file(path))
    if published is not None:
        return ModelConfig(name, published)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise PlanError(
            f"no model {name!r}: give a folder, a config.json, a Hugging Face id, or one of {', '.join(PUBLISHED)}"
        )
    return ModelConfig(name, _read_file(_fetch(name)))


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read as a model's configuration: {error}") from None
    if not isinstance(values, dict) or "model_type" not in values:
        raise PlanError(f"{path} is no model's configuration: it names no model_type")
    return values


def _fetch(name: str) -> Path:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    advice = f"give a folder, a config.json, or one of {', '.join(PUBLISHED)}"
    try:
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)  # fails at once where a download would retry
        return Path(hf_hub_download(name, "config.json"))
    except (HFValidationError, RepositoryNotFoundError):
        raise PlanError(f"no model {name!r}: no such folder, and the Hugging Face hub has none; {advice}") from None
    except Exception:  # any error of the hub's client or its transport: try the local copy
        try:
            return Path(hf_hub_download(name, "config.json", local_files_only=True))
        except Exception:
            raise PlanError(
                f"no model {name!r}: no such folder, and the Hugging Face hub cannot be reached; {advice}"
            ) from None
