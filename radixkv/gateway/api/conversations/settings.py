"""Sampling settings of replies: as requested, as stored in a conversation, and as applied."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any

from pydantic import Field

from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.fields import FAIL_FAST, Whole
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.options import GenerationOptions, ModelName
from radixkv.generation.params import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY, SamplingParams

__all__ = ["MAX_STOP_TEXTS", "MAX_STOP_TEXT_CHARACTERS", "Settings", "told_settings"]

MAX_STOP_TEXTS = 16
MAX_STOP_TEXT_CHARACTERS = 256
"""Stop texts are stored with each reply."""

_SEED_BITS = 32
"""Bits of a random seed: a JSON reader with doubles keeps it exact."""

StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_TEXT_CHARACTERS)]


class Settings(ApiModel):
    """Settings of replies. Missing or null fields come from the conversation's settings, else from the model."""

    model: ModelName | None = Field(None, description="The model, or an adapter of it.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = Field(None, description="0 and -1 keep all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[list[StopText], Field(max_length=MAX_STOP_TEXTS), FAIL_FAST] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None

    def given(self) -> dict[str, Any]:
        """Return the fields that are set, by name."""
        return self.model_dump(include=set(Settings.model_fields), exclude_none=True)

    def over(self, kept: dict[str, Any] | None) -> Settings:
        """Return these settings over a conversation's."""
        return Settings.model_validate({**(kept or {}), **self.given()})

    def dump(self) -> str | None:
        """Serialize for storage; None: no field is set."""
        given = self.given()
        return json.dumps(given, ensure_ascii=False) if given else None

    def sampling(self, model: ServedModel, n: int, max_tokens: int) -> SamplingParams:
        """Return the sampling parameters of `n` replies, with a random seed where none is set.

        Raises:
            ApiError: 400 with the faulty field.
        """
        given = {**self.given(), "model": model.name, "n": n}
        given.setdefault("seed", secrets.randbits(_SEED_BITS))
        given.pop("max_tokens", None)
        return GenerationOptions.model_validate(given).sampling(model.info, max_tokens=max_tokens)


def told_settings(model: ServedModel, sampling: SamplingParams) -> dict[str, Any]:
    """Return the applied settings of replies, by the names of `Settings`: with them, the same tokens are sampled again."""
    names = set(Settings.model_fields) - {"model", "stop"}
    held = {name: getattr(sampling, name) for name in Settings.model_fields if name in names}
    return {"model": model.name, **held, "stop": list(sampling.stop)}
