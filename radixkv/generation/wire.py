"""Conversions between the callers' types and the messages of the Generation service, both ways.

Only the form of a message is checked here; bounds are checked where the values are made and used.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, TypeVar

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import num_tokens, pack_tokens, unpack_tokens
from radixkv.generation.block_file import ImportedBlocks
from radixkv.generation.erasure import ErasedLevel, StoredPrefix
from radixkv.generation.params import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORDS,
    MAX_STOPS,
    NO_DEFAULTS,
    EarlyStopping,
    Grammar,
    SampledToken,
    SamplingDefaults,
    SamplingParams,
)
from radixkv.generation.prices import Prices
from radixkv.generation.request import MAX_PINS, ForkParams, GenerateParams, Message, ModelInfo, PrefixPin, Prompt
from radixkv.generation.stats import EngineStats, Percentiles, WorkerStats
from radixkv.generation.stream import (
    BranchFinished,
    Completed,
    Delta,
    FinishReason,
    GenerationEvent,
    PromptLogprobs,
    Started,
    Usage,
)
from radixkv.generation.thinking import ThinkingMarks
from radixkv.generation.verification import BlockDifference, BlockVerdict, Verification
from radixkv.stores.breaker import BreakerState
from radixkv.stores.stats import LevelStats
from radixkv.util.json_text import MAX_VALUES, SHORT_CHARACTERS, num_values, read_json
from radixkv.v1 import generation_pb2 as pb
from radixkv.wire.codec import Codec, Form, OneOf
from radixkv.wire.reads import BLOCK_TIMES, STATS
from radixkv.wire.reads import stats_to_proto as cache_to_proto
from radixkv.wire.values import RETENTION

__all__ = [
    "ERASED_LEVEL",
    "IMPORTED",
    "MODEL",
    "STORED_PREFIX",
    "VERIFICATION",
    "event_from_proto",
    "event_to_proto",
    "fork_from_proto",
    "fork_to_proto",
    "generate_from_proto",
    "generate_to_proto",
    "ids_from_proto",
    "prompt_from_proto",
    "prompt_to_proto",
    "stats_from_proto",
    "stats_to_proto",
]

_Response = TypeVar("_Response", pb.GenerateResponse, pb.ForkGenerationResponse)

MAX_IDS = 500_000
"""Most token ids of a call that are converted one by one."""

_TURN_FIELDS = ("role", "content")


def prompt_to_proto(prompt: Prompt) -> pb.Prompt:
    """A prompt in its form; none is set if it is empty."""
    if prompt.token_ids is not None:
        return pb.Prompt(token_ids=pack_tokens(prompt.token_ids))
    if prompt.text is not None:
        return pb.Prompt(text=prompt.text)
    if prompt.messages is None:
        return pb.Prompt()
    chat = pb.ChatMessages(
        messages=[_message_to_proto(message) for message in prompt.messages],
        continue_final_message=prompt.continue_final_message,
    )
    if prompt.tools:
        chat.tools_json = json.dumps(list(prompt.tools))
    if prompt.template_arguments:
        chat.template_arguments_json = json.dumps(dict(prompt.template_arguments))
    return pb.Prompt(messages=chat)


def _message_to_proto(message: Message) -> pb.ChatMessage:
    for name in _TURN_FIELDS:
        if not isinstance(message.get(name), str):
            raise InvalidArgumentError("messages", dict(message), "a role and a content each, both texts")
    further = {name: value for name, value in message.items() if name not in _TURN_FIELDS}
    fields_json = json.dumps(further) if further else ""
    return pb.ChatMessage(role=message["role"], content=message["content"], fields_json=fields_json)


def _message_from_proto(proto: pb.ChatMessage) -> Message:
    further = _read_json("messages.fields_json", proto.fields_json, dict)
    return {**further, "role": proto.role, "content": proto.content}


def _read_json(field: str, text: str, kind: type) -> Any:
    if not text:
        return kind()
    try:
        value = read_json(text)
    except ValueError as error:
        raise InvalidArgumentError(field, text[:256], f"JSON: {error}") from None
    if not isinstance(value, kind):
        raise InvalidArgumentError(field, text[:256], "a JSON object" if kind is dict else "a JSON array")
    return value


def _check_json_of(chat: pb.ChatMessages) -> None:
    """Bound the total: each text has its own bounds, which thousands of short texts together would evade."""
    texts = [chat.tools_json, chat.template_arguments_json, *(message.fields_json for message in chat.messages)]
    if sum(map(len, texts)) > SHORT_CHARACTERS and sum(map(num_values, texts)) > MAX_VALUES + len(texts):
        raise InvalidArgumentError("messages", "their JSON", f"of at most {MAX_VALUES:,} values together")


def ids_from_proto(argument: str, token_ids: bytes, max_ids: int = MAX_IDS) -> bytes:
    """Packed token ids, unchanged, after a check of their number.

    Raises:
        InvalidArgumentError: there are more than `max_ids`.
    """
    if num_tokens(token_ids) > max_ids:
        raise InvalidArgumentError(argument, f"{num_tokens(token_ids):,} token ids", f"at most {max_ids:,}")
    return token_ids


def prompt_from_proto(proto: pb.Prompt) -> Prompt:
    """The prompt of a message."""
    return Prompt(**_read_prompt(proto))


def _read_prompt(proto: pb.Prompt) -> dict[str, Any]:
    """The fields of a prompt that its message gives."""
    match proto.WhichOneof("form"):
        case "token_ids":
            return {"token_ids": proto.token_ids}
        case "text":
            return {"text": proto.text}
        case "messages":
            chat = proto.messages
            _check_json_of(chat)
            return {
                "messages": [_message_from_proto(message) for message in chat.messages],
                "tools": _read_json("messages.tools_json", chat.tools_json, list),
                "template_arguments": _read_json(
                    "messages.template_arguments_json", chat.template_arguments_json, dict
                ),
                "continue_final_message": chat.continue_final_message,
            }
        case _:
            return {}


def _token_ids(argument: str, max_ids: int) -> Form:
    """The form of unpacked token ids, of which a message may have at most `max_ids`."""
    return Form(pack_tokens, lambda packed: tuple(unpack_tokens(ids_from_proto(argument, packed, max_ids))))


_UNPACKED = Form(pack_tokens, lambda packed: tuple(unpack_tokens(packed)))

_STOPPING = {getattr(pb, f"EARLY_STOPPING_{stopping.name}"): stopping for stopping in EarlyStopping}
_STOPPING_NUMBERS = {stopping: number for number, stopping in _STOPPING.items()}

_SAMPLING = Codec(
    SamplingParams,
    pb.SamplingParams,
    left_out=(*SamplingDefaults._fields, "grammar"),
    bound="small enough for its field",
    stop_token_ids=_token_ids("stop_token_ids", MAX_STOPS),
    early_stopping=Form(_STOPPING_NUMBERS.__getitem__, lambda number: _STOPPING.get(number, EarlyStopping.HEURISTIC)),
    forced_token_ids=_token_ids("forced_token_ids", MAX_IDS),
    bad_words=Form(most=MAX_BAD_WORDS + 1),
    allowed_token_ids=_token_ids("allowed_token_ids", MAX_ALLOWED_IDS),
)
_DRAWS = Codec(SamplingDefaults, pb.SamplingParams, bound="small enough for its field")
"""The parameters of a request for which a model may have defaults."""


def _write_sampling(sampling: SamplingParams, proto: pb.SamplingParams) -> None:
    _SAMPLING.write(sampling, proto)
    _DRAWS.write(SamplingDefaults(*(getattr(sampling, name) for name in SamplingDefaults._fields)), proto)
    if sampling.grammar is not None:
        setattr(proto.grammar, sampling.grammar.kind, sampling.grammar.text or True)


def _read_sampling(proto: pb.SamplingParams, defaults: SamplingDefaults) -> SamplingParams:
    given = _DRAWS.read(proto)
    draws = {name: value for name, value in given._asdict().items() if value is not None}
    if proto.num_beams <= 1:
        draws = defaults.fill(*given)
    kind = proto.grammar.WhichOneof("form")
    grammar = Grammar(kind, "" if kind == "json_object" else getattr(proto.grammar, kind)) if kind else None
    return _SAMPLING.read(proto, grammar=grammar, **draws)


_PIN = Codec(PrefixPin, pb.PrefixPin)
_ELSEWHERE = (*(field.name for field in fields(Prompt)), "sampling")
"""Fields of a request that a message has in `prompt`, and those that depend on the model's defaults."""

_GENERATE = Codec(
    GenerateParams,
    pb.GenerateRequest,
    left_out=_ELSEWHERE,
    retention=RETENTION,
    pins=Form(_PIN.write, _PIN.read, most=MAX_PINS + 1),
)
_FORK = Codec(ForkParams, pb.ForkGenerationRequest, left_out=(*_ELSEWHERE, "sees", "sharing"), retention=RETENTION)


def generate_to_proto(params: GenerateParams) -> pb.GenerateRequest:
    """The request for these parameters."""
    request = _GENERATE.to_proto(params, prompt=prompt_to_proto(params))
    _write_sampling(params.sampling, request.sampling)
    return request


def generate_from_proto(proto: pb.GenerateRequest, defaults: SamplingDefaults = NO_DEFAULTS) -> GenerateParams:
    """The parameters of a request; `defaults`: sampling parameters that it leaves out."""
    return _GENERATE.read(proto, **_read_prompt(proto.prompt), sampling=_read_sampling(proto.sampling, defaults))


def fork_to_proto(params: ForkParams) -> pb.ForkGenerationRequest:
    """The request for these parameters."""
    request = _FORK.to_proto(params, prompt=prompt_to_proto(params))
    _write_sampling(params.sampling, request.sampling)
    return request


def fork_from_proto(proto: pb.ForkGenerationRequest, defaults: SamplingDefaults = NO_DEFAULTS) -> ForkParams:
    """The parameters of a request; `defaults`: sampling parameters that it leaves out."""
    return _FORK.read(proto, **_read_prompt(proto.prompt), sampling=_read_sampling(proto.sampling, defaults))


_PERCENTILES = Codec(Percentiles, pb.Percentiles)
_ENGINE = Codec(
    EngineStats,
    pb.EngineStats,
    time_to_first_token=_PERCENTILES,
    inter_token=_PERCENTILES,
    waited=_PERCENTILES,
)
_LEVEL = Codec(LevelStats, pb.LevelStats, breaker=BreakerState)
_MARKS = Codec(ThinkingMarks, pb.ThinkingMarks, close_ids=_UNPACKED)

MODEL = Codec(
    ModelInfo,
    pb.GetModelResponse,
    eos_token_ids=_UNPACKED,
    sampling=Codec(SamplingDefaults, pb.SamplingDefaults),
    thinking=Form(_MARKS.write, lambda proto: _MARKS.read(proto) if proto.opens and proto.closes else None),
    prices=Codec(Prices, pb.Prices),
)
VERIFICATION = Codec(
    Verification,
    pb.VerifyBlockResponse,
    verdict=BlockVerdict,
    difference=Codec(BlockDifference, pb.BlockDifference),
)
STORED_PREFIX = Codec(StoredPrefix, pb.FindStoredResponse)
ERASED_LEVEL = Codec(ErasedLevel, pb.ErasedLevel)
IMPORTED = Codec(ImportedBlocks, pb.ImportResponse)


def stats_to_proto(stats: WorkerStats) -> pb.GetStatsResponse:
    """A worker's stats, as a message."""
    response = pb.GetStatsResponse(engine=_ENGINE.to_proto(stats.engine), levels=map(_LEVEL.to_proto, stats.levels))
    if stats.cache is not None:
        response.cache.CopyFrom(cache_to_proto("", stats.cache, stats.block_times))
    return response


def stats_from_proto(proto: pb.GetStatsResponse) -> WorkerStats:
    """The worker's stats of a message."""
    has_cache = proto.HasField("cache")
    return WorkerStats(
        _ENGINE.read(proto.engine),
        STATS.read(proto.cache) if has_cache else None,
        BLOCK_TIMES.read(proto.cache) if has_cache else None,
        tuple(map(_LEVEL.read, proto.levels)),
    )


def _write_ranked(ranked: tuple[int, float], proto: pb.TokenLogprob) -> None:
    proto.token_id, proto.logprob = ranked


_SAMPLED = Codec(
    SampledToken,
    pb.TokenLogprobs,
    logprob=Form(lambda logprob: logprob or 0.0),
    top=Form(_write_ranked, lambda proto: (proto.token_id, proto.logprob)),
)
_EVENTS = OneOf(
    pb.GenerateResponse,
    Codec(Started, pb.Started),
    Codec(PromptLogprobs, pb.PromptLogprobs, top_ids=_UNPACKED._replace(name="top_token_ids")),
    Codec(Delta, pb.Delta, token_ids=_UNPACKED, logprobs=_SAMPLED),
    Codec(BranchFinished, pb.BranchFinished, left_out=("stop",), reason=FinishReason),
    Codec(Completed, pb.Completed, usage=Codec(Usage, pb.Usage), pinned=Form(name="pinned_tokens")),
)


def event_to_proto(event: GenerationEvent, response: type[_Response]) -> _Response:
    """An event as a message of its stream."""
    message = response()
    _EVENTS.write(event, message)
    if isinstance(event, BranchFinished) and event.stop is not None:
        name = "stop_text" if isinstance(event.stop, str) else "stop_token_id"
        setattr(message.branch_finished, name, event.stop)
    return message


def event_from_proto(proto: pb.GenerateResponse | pb.ForkGenerationResponse) -> GenerationEvent | None:
    """The event of a message; None for an event unknown to this version.

    Raises:
        InvalidArgumentError: a reason of a later version, or truncated token ids.
    """
    if proto.WhichOneof("event") is None:
        return None
    event: GenerationEvent = _EVENTS.read(proto)
    kind = proto.branch_finished.WhichOneof("stop") if isinstance(event, BranchFinished) else None
    return replace(event, stop=getattr(proto.branch_finished, kind)) if kind else event
