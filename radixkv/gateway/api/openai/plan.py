"""A parsed request to complete something, and the fields that all its responses and chunks share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from radixkv.gateway.turns.constraints import ConstrainedOptions
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.options import retention_of
from radixkv.generation.params import SamplingParams

__all__ = ["Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A parsed request. `completion_id`: of its response."""

    body: ConstrainedOptions
    model: ServedModel
    sampling: SamplingParams
    completion_id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names_ids(self) -> bool:
        """Whether log probabilities name tokens by their ids."""
        return bool(self.body.return_tokens_as_token_ids)

    def head(self, kind: str) -> dict[str, Any]:
        """Return the first fields of a response or chunk of that kind."""
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
        }

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of `GenerateParams` that both APIs take from the body."""
        return {
            "cache_salt": self.body.cache_salt or "",
            "truncate_prompt_tokens": self.body.truncate_prompt_tokens or 0,
            "priority": self.body.priority or 0,
            "timeout_s": self.body.timeout,
            "retention": retention_of(self.body.retention),
        }
