"""Options shared by all generating requests, and the sampling parameters built from them.

Names, types and bounds are the OpenAI API's; extensions of this server follow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from radixkv.core.api import DEFAULT_PRIORITY, MAX_PRIORITY, Retention
from radixkv.core.namespaces import MAX_SALT_CHARS
from radixkv.core.validation import MAX_POSITION, MAX_RETENTION_RANGES, MAX_TTL_S
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.protocol.fields import (
    FAIL_FAST,
    MAX_PLAIN_VALUES,
    ClosedModel,
    Name,
    Whole,
    check_fits,
    plain_problem,
)
from radixkv.generation.params import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_PREDICTION_CHARACTERS,
    MAX_REPETITION_PENALTY,
    MAX_STOPS,
    MIN_REPETITION_PENALTY,
    EarlyStopping,
    Grammar,
    SamplingDefaults,
    SamplingParams,
)
from radixkv.generation.request import ModelInfo

__all__ = [
    "CacheSalt",
    "GenerationOptions",
    "MaxTokens",
    "ModelName",
    "RetentionRanges",
    "Sharing",
    "Stop",
    "StopTexts",
    "StreamOptions",
    "Unbounded",
    "check_plain",
    "drawing",
    "retention_of",
    "stop_texts",
]

MAX_STOP_CHARACTERS = 1024
_UINT64 = 2**64


def _no_empty_stop(value: Any) -> Any:
    return None if value == "" else value


_StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopTexts = Annotated[list[_StopText], Field(max_length=MAX_STOPS), FAIL_FAST]
Stop = Annotated[_StopText | StopTexts | None, BeforeValidator(_no_empty_stop)]
"""One stop text or several."""


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return all stop texts."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


class StreamOptions(ApiModel):
    """`stream_options` of a request."""

    include_usage: bool | None = Field(None, description="A last chunk holds the usage of the whole request.")
    continuous_usage_stats: bool | None = Field(
        None, description="Extension. With `include_usage`: every chunk holds the usage of its choice so far."
    )


class RetentionRange(ClosedModel):
    """Retention priority of a token range of prompt and reply; unknown fields are rejected."""

    start: Annotated[Whole, Field(ge=0, lt=MAX_POSITION)] = 0
    end: Annotated[Whole, Field(ge=1, le=MAX_POSITION)] | None = Field(None, description="Default: to the end.")
    priority: Annotated[Whole, Field(ge=0, le=MAX_PRIORITY)] = Field(
        DEFAULT_PRIORITY, description="Among your own blocks, lower priorities are evicted first."
    )
    duration_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] | None = Field(
        None, description="Counted from each use; default: no end."
    )

    @model_validator(mode="after")
    def _require_an_end_above_start(self) -> RetentionRange:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end is {self.end}; it must be above start, which is {self.start}, or left out")
        return self


CacheSalt = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None,
    Field(
        description="Extension. Prefixes computed under one salt match only requests with the same salt. They still count "
        "against your quota. A secret: only its hash is kept."
    ),
]

Sharing = Annotated[
    Literal["on", "own", "off"] | None,
    Field(
        description="Extension. How far cached prefixes are shared: within your namespace, within one conversation (of a "
        "`cache_salt`, a stored conversation or stored responses), or not at all. Default: your tenant's; a looser one is "
        "rejected."
    ),
]


class PredictedPart(ApiModel):
    """A part of a predicted text."""

    type: Literal["text"]
    text: str


class Prediction(ApiModel):
    """`prediction` of a request: text that the reply is expected to repeat. It changes no token."""

    type: Literal["content"]
    content: (
        Annotated[str, Field(max_length=MAX_PREDICTION_CHARACTERS)]
        | Annotated[list[PredictedPart], Field(max_length=64), FAIL_FAST]
    )

    @property
    def text(self) -> str:
        """The whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


ModelName = Annotated[str, Field(min_length=1, max_length=512)]
"""Name of the model or an adapter; default: the served model."""


def _unbounded(value: Any) -> Any:
    return None if value == -1 else value


Unbounded = BeforeValidator(_unbounded)
"""Of a number of tokens: -1 is no bound."""

MaxTokens = Annotated[Annotated[Whole, Field(ge=0, lt=2**31)] | None, Unbounded]
"""Of a reply; -1, as some frontends send it, is no bound. 0: the prompt is computed, and no token is sampled."""

RetentionRanges = Annotated[list[RetentionRange], Field(max_length=MAX_RETENTION_RANGES), FAIL_FAST]

LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES),
    FAIL_FAST,
    BeforeValidator(partial(check_fits, bound=MAX_BIASES)),
]


def retention_of(ranges: Iterable[RetentionRange] | None) -> tuple[Retention, ...]:
    """Return the ranges in the worker's form; empty where none are given."""
    return tuple(Retention(each.start, each.end, each.priority, each.duration_s) for each in ranges or ())


_AS_THEY_ARE = {
    *("n", "ignore_eos", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "best_of", "num_beams", "length_penalty"),
}
"""Options that are sampling parameters of the same name, with the same default."""


class GenerationOptions(ApiModel):
    """Fields that chat completions and completions share."""

    draws = True

    model: ModelName | None = None
    n: Annotated[Whole, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=_UINT64)] | None = None
    stop: Stop = None
    logit_bias: LogitBias | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Name | None = Field(None, description="Accepted and ignored.")
    prompt_cache_key: Name | None = Field(None, description="Accepted; prefixes are found without a hint.")
    best_of: Annotated[Whole, Field(ge=1, le=128)] | None = None
    cache_salt: CacheSalt = None
    sharing: Sharing = None
    prediction: Prediction | None = None
    speculation: bool | None = Field(
        None, description="Extension. False: no token is guessed ahead. The reply is the same, and may take longer."
    )

    top_k: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = Field(None, description="Extension. 0 and -1 keep all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="Extension.")
    min_tokens: Annotated[Whole, Field(ge=0, lt=2**31)] | None = Field(None, description="Extension.")
    ignore_eos: bool | None = Field(None, description="Extension.")
    stop_token_ids: (
        Annotated[list[Annotated[Whole, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOPS), FAIL_FAST] | None
    ) = Field(None, description="Extension.")
    num_beams: Annotated[Whole, Field(ge=1, le=32)] | None = Field(
        None, description="Extension. Above 1: beam search; temperature must be left out or 0."
    )
    length_penalty: float | None = Field(None, description="Extension, for beam search.")
    early_stopping: Literal["heuristic", "always", "never"] | bool | None = Field(
        None, description="Extension, for beam search."
    )
    priority: Annotated[Whole, Field(ge=-100, le=100)] | None = Field(
        None,
        description="Extension. Higher priorities are served first among your own requests; -100: only when no other waits.",
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="Extension. In seconds, then an error.")
    retention: RetentionRanges | None = Field(
        None, description="Extension. Retention priorities of ranges of the history (prompt and reply) in the cache."
    )
    prompt_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None,
        description="Extension, as in vLLM. Returns log probabilities of prompt tokens and the most likely ones; not streamed.",
    )
    return_token_ids: bool | None = Field(
        None, description="Extension. Returns `prompt_token_ids`, and `token_ids` of each choice."
    )
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = Field(
        None,
        description="Extension. Logits of tokens in prompt and reply are divided by it where above 0, else multiplied.",
    )
    repeat_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = Field(
        None, description="Extension. Another name of `repetition_penalty`."
    )
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]],
            Field(max_length=MAX_BAD_WORDS),
            FAIL_FAST,
        ]
        | None
    ) = Field(None, description="Extension. Texts that the reply must not contain.")
    allowed_token_ids: (
        Annotated[
            list[Annotated[Whole, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=MAX_ALLOWED_IDS), FAIL_FAST
        ]
        | None
    ) = Field(None, description="Extension. The only tokens that may be sampled, end tokens included.")
    skip_special_tokens: bool | None = Field(
        None, description="Extension. False: special tokens appear in the text, by name."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="Extension. The text includes the stop string or token that ended the reply."
    )
    truncate_prompt_tokens: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = Field(
        None,
        description="Extension. Only the last so many tokens of the prompt are read; -1: as many as fit the model.",
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Extension. Log probabilities name tokens as `token_id:17`."
    )

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def tells_running_usage(self) -> bool:
        """Whether every chunk of a stream holds the usage so far."""
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def sampling(
        self,
        info: ModelInfo,
        *,
        max_tokens: int,
        logprobs: int | None = None,
        echoed_logprobs: int | None = None,
        grammar: Grammar | None = None,
    ) -> SamplingParams:
        """Return the sampling parameters. `echoed_logprobs`: number of most likely tokens per prompt token of an echo.

        Raises:
            ApiError: 400 with the faulty field. InvalidArgumentError: a value is out of its bounds.
        """
        if self.stream and self.prompt_logprobs is not None:
            message = "prompt_logprobs are not told in a stream: leave one of them out"
            raise ApiError(400, message, code="unsupported_parameter", param="prompt_logprobs")
        scores = [each for each in (self.prompt_logprobs, echoed_logprobs) if each is not None]
        if (
            None not in (self.repetition_penalty, self.repeat_penalty)
            and self.repetition_penalty != self.repeat_penalty
        ):
            message = "repeat_penalty is another name of repetition_penalty; leave one of them out"
            raise invalid(message, "repeat_penalty")
        if self.truncate_prompt_tokens == 0:
            raise invalid("truncate_prompt_tokens is 0; it must be -1 or at least 1", "truncate_prompt_tokens")
        biases = {int(token_id): bias for token_id, bias in (self.logit_bias or {}).items()}
        named = {
            "logit_bias": biases,
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids,
        }
        for name, ids in named.items():
            if (token_id := max(ids or (), default=0)) >= info.vocab_size:
                raise invalid(f"{name} holds {token_id}; token ids are below {info.vocab_size}", name)
        is_beam_search = (self.num_beams or 1) > 1
        if is_beam_search and self.temperature:
            raise invalid("temperature must be 0 or left out with num_beams", "temperature")
        defaults = SamplingDefaults(temperature=0.0) if is_beam_search else info.sampling
        return SamplingParams(
            max_tokens=max_tokens,
            **self.model_dump(include=_AS_THEY_ARE, exclude_none=True),
            **drawing(defaults, self.temperature, self.top_p, self.top_k, self.min_p),
            seed=None if self.seed is None else self.seed % _UINT64,
            stop=stop_texts(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logit_bias=biases,
            early_stopping=_early_stopping(self.early_stopping),
            logprobs=logprobs,
            prompt_logprobs=max(scores, default=None),
            grammar=grammar,
            repetition_penalty=self.repetition_penalty or self.repeat_penalty or 1.0,
            bad_words=tuple(self.bad_words or ()),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            include_stop=bool(self.include_stop_str_in_output),
            keep_special_tokens=self.skip_special_tokens is False,
            speculation="none" if self.speculation is False else "all",
            prediction=self.prediction.text if self.prediction else "",
        )


def drawing(
    defaults: SamplingDefaults,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None = None,
) -> dict[str, Any]:
    """Return the drawing parameters; None: the model's default. A `top_p` of 0 keeps one token, a `top_k` below 0 all."""
    if top_p == 0:
        top_p, top_k = 1.0, 1
    return defaults.fill(temperature, None if top_k is None else max(0, top_k), top_p, min_p)


def _early_stopping(value: str | bool | None) -> EarlyStopping:
    if isinstance(value, bool):  # as in transformers
        return EarlyStopping.ALWAYS if value else EarlyStopping.HEURISTIC
    return EarlyStopping(value or "heuristic")


def check_plain(value: Any, param: str, max_values: int = MAX_PLAIN_VALUES) -> None:
    """Reject free-form JSON that is too large or cannot be serialized again: too deep, not finite, half a character.

    Raises:
        ApiError: 400.
    """
    problem = plain_problem(value, max_values)
    if problem is not None:
        raise invalid(f"{param} must be {problem}", param)
