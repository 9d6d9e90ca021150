"""What every request that generates may say about how, and the sampling parameters that this means.

Names, types and bounds are the OpenAI API's; behind them stand extensions of this server. Fields that nobody knows are accepted
and ignored, as frontends send many; fields that would change the answer and cannot be honoured are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from radixkv.core.api import DEFAULT_PRIORITY, MAX_PRIORITY, Retention
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.validation import MAX_POSITION, MAX_RETENTION_RANGES, MAX_TTL_S
from radixkv.gateway.errors import ApiError
from radixkv.worker.request import ModelInfo
from radixkv.worker.sampling import EarlyStopping, Grammar, SamplingParams

__all__ = ["ApiModel", "GenerationOptions", "RetentionRanges", "StreamOptions", "Whole", "check_plain", "retention_of"]

MAX_DEPTH = 64
"""Of nested values that have no schema of their own."""

_UINT64 = 2**64


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number, which JSON may also write as 3.0."""


class ApiModel(BaseModel):
    """Base of what the API reads: exact types, no NaN; unknown fields are kept apart and ignored."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(ApiModel):
    """`stream_options` of a request."""

    include_usage: bool | None = Field(None, description="A last chunk tells the usage of the whole request.")


class RetentionRange(BaseModel):
    """What a range of a history is worth to be kept, by token positions in prompt and reply; an unknown field is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    start: Annotated[Whole, Field(ge=0, lt=MAX_POSITION)] = 0
    end: Annotated[Whole, Field(ge=1, le=MAX_POSITION)] | None = Field(None, description="Left out: to the end.")
    priority: Annotated[Whole, Field(ge=0, le=MAX_PRIORITY)] = Field(
        DEFAULT_PRIORITY, description="What is lower is evicted first."
    )
    duration_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] | None = Field(
        None, description="From each use on; left out: for good."
    )

    @model_validator(mode="after")
    def _require_an_end_above_start(self) -> RetentionRange:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end is {self.end}; it must be above start, which is {self.start}, or left out")
        return self


RetentionRanges = Annotated[list[RetentionRange], Field(max_length=MAX_RETENTION_RANGES)]


def retention_of(ranges: Iterable[RetentionRange] | None) -> tuple[Retention, ...]:
    """The ranges as the worker takes them; none where none are given."""
    return tuple(Retention(each.start, each.end, each.priority, each.duration_s) for each in ranges or ())


class GenerationOptions(ApiModel):
    """Fields that chat completions and completions share."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    n: Annotated[Whole, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=_UINT64)] | None = None
    stop: (
        Annotated[str, Field(min_length=1, max_length=1024)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(max_length=64)]
        | None
    ) = None
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    prompt_cache_key: str | None = Field(None, description="Accepted; prefixes are found without a hint.")
    best_of: Annotated[Whole, Field(ge=1, le=128)] | None = None

    top_k: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = Field(None, description="Extension. 0 and -1 keep all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="Extension.")
    min_tokens: Annotated[Whole, Field(ge=0, lt=2**31)] | None = Field(None, description="Extension.")
    ignore_eos: bool | None = Field(None, description="Extension.")
    stop_token_ids: Annotated[list[Annotated[Whole, Field(ge=0, lt=2**31)]], Field(max_length=64)] | None = Field(
        None, description="Extension."
    )
    num_beams: Annotated[Whole, Field(ge=1, le=32)] | None = Field(
        None, description="Extension. Above 1: beam search; temperature must be left out or 0."
    )
    length_penalty: float | None = Field(None, description="Extension, for beam search.")
    early_stopping: Literal["heuristic", "always", "never"] | bool | None = Field(
        None, description="Extension, for beam search."
    )
    priority: Annotated[Whole, Field(ge=-100, le=100)] | None = Field(
        None, description="Extension. The higher, the earlier it is served."
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="Extension. In seconds, then an error.")
    retention: RetentionRanges | None = Field(
        None, description="Extension. What ranges of the history, prompt and reply, are worth to be kept in the cache."
    )
    return_token_ids: bool | None = Field(
        None, description="Extension. Tells `prompt_token_ids`, and `token_ids` of each choice."
    )

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that tells the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(
        self, info: ModelInfo, *, max_tokens: int, logprobs: int | None = None, grammar: Grammar | None = None
    ) -> SamplingParams:
        """The sampling parameters.

        Raises:
            ApiError: 400 with the field that is at fault.
        """
        biases = {int(token_id): bias for token_id, bias in (self.logit_bias or {}).items()}
        for token_id in (*biases, *(self.stop_token_ids or ())):
            if token_id >= info.vocab_size:
                name = "logit_bias" if token_id in biases else "stop_token_ids"
                message = f"{name} holds {token_id}; token ids are below {info.vocab_size}"
                raise ApiError(400, message, code="invalid_value", param=name)
        is_beam_search = (self.num_beams or 1) > 1
        if is_beam_search and self.temperature:
            raise ApiError(
                400, "temperature must be 0 or left out with num_beams", code="invalid_value", param="temperature"
            )
        temperature = 0.0 if is_beam_search else _or(self.temperature, 1.0)
        top_p = _or(self.top_p, 1.0)
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                n=self.n or 1,
                temperature=temperature,
                top_p=top_p or 1.0,
                top_k=1 if top_p == 0 else max(0, self.top_k or 0),
                min_p=self.min_p or 0.0,
                seed=None if self.seed is None else self.seed % _UINT64,
                stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                ignore_eos=bool(self.ignore_eos),
                logit_bias=biases,
                presence_penalty=self.presence_penalty or 0.0,
                frequency_penalty=self.frequency_penalty or 0.0,
                min_tokens=self.min_tokens or 0,
                best_of=self.best_of,
                num_beams=self.num_beams or 1,
                length_penalty=_or(self.length_penalty, 1.0),
                early_stopping=_early_stopping(self.early_stopping),
                logprobs=logprobs,
                grammar=grammar,
            )
        except InvalidArgumentError as error:
            raise ApiError.of(error) from None


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _early_stopping(value: str | bool | None) -> EarlyStopping:
    if isinstance(value, bool):  # as transformers takes it
        return EarlyStopping.ALWAYS if value else EarlyStopping.HEURISTIC
    return EarlyStopping(value or "heuristic")


def check_plain(value: Any, param: str, depth: int = MAX_DEPTH) -> None:
    """Refuse free-form JSON that could not be written again: nested too deep, no finite number, half a character.

    Raises:
        ApiError: 400.
    """
    problem = None
    if depth == 0:
        problem = f"at most {MAX_DEPTH} levels deep"
    elif isinstance(value, str):
        problem = None if _is_text(value) else "valid Unicode"
    elif isinstance(value, float):
        problem = None if math.isfinite(value) else "free of NaN and Infinity"
    if problem is not None:
        raise ApiError(400, f"{param} must be {problem}", code="invalid_value", param=param)
    if isinstance(value, dict):
        for name, member in value.items():
            check_plain(name, param, depth - 1)
            check_plain(member, param, depth - 1)
    elif isinstance(value, list):
        for member in value:
            check_plain(member, param, depth - 1)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
