"""Conversions between the callers' types and the messages of the Generation service, both ways.

Only the form of a message is checked here; bounds are checked where the values are made and used.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import Any, TypeVar

from radixkv.core.errors import InvalidArgumentError, RadixKVError
from radixkv.core.tokens import num_tokens, pack_tokens, unpack_tokens
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
from radixkv.util.json_text import MAX_VALUES, SHORT_CHARACTERS, num_values, read_json
from radixkv.v1 import generation_pb2 as pb
from radixkv.wire.reads import block_times_from_proto
from radixkv.wire.reads import stats_from_proto as cache_from_proto
from radixkv.wire.reads import stats_to_proto as cache_to_proto
from radixkv.wire.values import retention_from_proto, retention_to_proto

__all__ = [
    "event_from_proto",
    "event_to_proto",
    "fork_from_proto",
    "fork_to_proto",
    "generate_from_proto",
    "generate_to_proto",
    "ids_from_proto",
    "model_from_proto",
    "model_to_proto",
    "prompt_from_proto",
    "prompt_to_proto",
    "stats_from_proto",
    "stats_to_proto",
    "verification_from_proto",
    "verification_to_proto",
]

_Response = TypeVar("_Response", pb.GenerateResponse, pb.ForkGenerationResponse)

_REASON_TO_PROTO = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
_VERDICT_TO_PROTO = {
    BlockVerdict.AGREES: pb.BLOCK_VERDICT_AGREES,
    BlockVerdict.DIFFERS: pb.BLOCK_VERDICT_DIFFERS,
    BlockVerdict.GONE: pb.BLOCK_VERDICT_GONE,
    BlockVerdict.NO_ROOM: pb.BLOCK_VERDICT_NO_ROOM,
}
_VERDICT_FROM_PROTO = {value: verdict for verdict, value in _VERDICT_TO_PROTO.items()}
_REASON_FROM_PROTO = {value: reason for reason, value in _REASON_TO_PROTO.items()}

_STOPPING_TO_PROTO = {
    EarlyStopping.HEURISTIC: pb.EARLY_STOPPING_HEURISTIC,
    EarlyStopping.ALWAYS: pb.EARLY_STOPPING_ALWAYS,
    EarlyStopping.NEVER: pb.EARLY_STOPPING_NEVER,
}
_STOPPING_FROM_PROTO = {value: stopping for stopping, value in _STOPPING_TO_PROTO.items()}

_WITH_PRESENCE = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "n",
    "logprobs",
    "prompt_logprobs",
    "best_of",
    "num_beams",
    "length_penalty",
    "repetition_penalty",
)
_WITHOUT_PRESENCE = (
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "include_stop",
    "keep_special_tokens",
    "prompt_logprobs_start",
)
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
    match proto.WhichOneof("form"):
        case "token_ids":
            return Prompt(token_ids=proto.token_ids)
        case "text":
            return Prompt(text=proto.text)
        case "messages":
            chat = proto.messages
            _check_json_of(chat)
            return Prompt(
                messages=[_message_from_proto(message) for message in chat.messages],
                tools=_read_json("messages.tools_json", chat.tools_json, list),
                template_arguments=_read_json("messages.template_arguments_json", chat.template_arguments_json, dict),
                continue_final_message=chat.continue_final_message,
            )
        case _:
            return Prompt()


def _sampling_to_proto(sampling: SamplingParams) -> pb.SamplingParams:
    proto = pb.SamplingParams(
        stop=sampling.stop,
        stop_token_ids=pack_tokens(sampling.stop_token_ids),
        early_stopping=_STOPPING_TO_PROTO[sampling.early_stopping],
        logit_bias=dict(sampling.logit_bias),
        forced_token_ids=pack_tokens(sampling.forced_token_ids),
        bad_words=sampling.bad_words,
    )
    if sampling.allowed_token_ids is not None:
        proto.allowed_token_ids = pack_tokens(sampling.allowed_token_ids)
    if sampling.grammar is not None:
        text: str | bool = sampling.grammar.text or True
        proto.grammar.CopyFrom(pb.Grammar(**{sampling.grammar.kind: text}))  # type: ignore[arg-type]  # of its field
    for name in (*_WITH_PRESENCE, *_WITHOUT_PRESENCE):
        value = getattr(sampling, name)
        if value is not None:
            try:
                setattr(proto, name, value)
            except ValueError:
                raise InvalidArgumentError(name, value, "small enough for its field") from None
    return proto


def _ids(argument: str, token_ids: bytes, max_ids: int) -> tuple[int, ...]:
    return tuple(unpack_tokens(ids_from_proto(argument, token_ids, max_ids)))


def _sampling_from_proto(proto: pb.SamplingParams, defaults: SamplingDefaults) -> SamplingParams:
    given = {name: getattr(proto, name) for name in _WITH_PRESENCE if proto.HasField(name)}
    given |= {name: getattr(proto, name) for name in _WITHOUT_PRESENCE}
    if proto.num_beams <= 1:
        given |= defaults.fill(*map(given.get, SamplingDefaults._fields))
    kind = proto.grammar.WhichOneof("form")
    return SamplingParams(
        stop=tuple(proto.stop),
        stop_token_ids=_ids("stop_token_ids", proto.stop_token_ids, MAX_STOPS),
        early_stopping=_STOPPING_FROM_PROTO.get(proto.early_stopping, EarlyStopping.HEURISTIC),
        logit_bias=dict(proto.logit_bias),
        forced_token_ids=_ids("forced_token_ids", proto.forced_token_ids, MAX_IDS),
        bad_words=tuple(islice(proto.bad_words, MAX_BAD_WORDS + 1)),
        allowed_token_ids=_ids("allowed_token_ids", proto.allowed_token_ids, MAX_ALLOWED_IDS)
        if proto.HasField("allowed_token_ids")
        else None,
        grammar=Grammar(kind, "" if kind == "json_object" else getattr(proto.grammar, kind)) if kind else None,
        **given,
    )


def generate_to_proto(params: GenerateParams) -> pb.GenerateRequest:
    """The request for these parameters."""
    request = pb.GenerateRequest(
        prompt=prompt_to_proto(params),
        history=pack_tokens(params.history),
        sampling=_sampling_to_proto(params.sampling),
        namespace=params.namespace,
        priority=params.priority,
        timeout_s=params.timeout_s,
        request_id=params.request_id,
        no_prefix_sharing=not params.shares_prefix,
        adapter=params.adapter,
        cache_salt=params.cache_salt,
        truncate_prompt_tokens=params.truncate_prompt_tokens,
    )
    retention_to_proto(params.retention, request.retention)
    for pin in params.pins:
        request.pins.add(num_tokens=pin.num_tokens, ttl_s=pin.ttl_s)
    return request


def generate_from_proto(proto: pb.GenerateRequest, defaults: SamplingDefaults = NO_DEFAULTS) -> GenerateParams:
    """The parameters of a request; `defaults`: sampling parameters that it leaves out."""
    prompt = prompt_from_proto(proto.prompt)
    return GenerateParams(
        token_ids=prompt.token_ids,
        text=prompt.text,
        messages=prompt.messages,
        tools=prompt.tools,
        template_arguments=prompt.template_arguments,
        continue_final_message=prompt.continue_final_message,
        history=proto.history,
        sampling=_sampling_from_proto(proto.sampling, defaults),
        namespace=proto.namespace if proto.HasField("namespace") else None,
        priority=proto.priority,
        timeout_s=proto.timeout_s if proto.HasField("timeout_s") else None,
        request_id=proto.request_id,
        shares_prefix=not proto.no_prefix_sharing,
        retention=retention_from_proto(proto.retention),
        adapter=proto.adapter,
        cache_salt=proto.cache_salt,
        truncate_prompt_tokens=proto.truncate_prompt_tokens,
        pins=tuple(PrefixPin(pin.num_tokens, pin.ttl_s) for pin in islice(proto.pins, MAX_PINS + 1)),
    )


def fork_to_proto(params: ForkParams) -> pb.ForkGenerationRequest:
    """The request for these parameters."""
    request = pb.ForkGenerationRequest(
        generation_id=params.generation_id,
        branch=params.branch,
        position=params.position,
        prompt=prompt_to_proto(params),
        sampling=_sampling_to_proto(params.sampling),
        priority=params.priority,
        timeout_s=params.timeout_s,
        request_id=params.request_id,
    )
    retention_to_proto(params.retention, request.retention)
    return request


def fork_from_proto(proto: pb.ForkGenerationRequest, defaults: SamplingDefaults = NO_DEFAULTS) -> ForkParams:
    """The parameters of a request; `defaults`: sampling parameters that it leaves out."""
    prompt = prompt_from_proto(proto.prompt)
    return ForkParams(
        generation_id=proto.generation_id,
        branch=proto.branch,
        position=proto.position if proto.HasField("position") else None,
        token_ids=prompt.token_ids,
        text=prompt.text,
        messages=prompt.messages,
        tools=prompt.tools,
        template_arguments=prompt.template_arguments,
        continue_final_message=prompt.continue_final_message,
        sampling=_sampling_from_proto(proto.sampling, defaults),
        priority=proto.priority,
        timeout_s=proto.timeout_s if proto.HasField("timeout_s") else None,
        request_id=proto.request_id,
        retention=retention_from_proto(proto.retention),
    )


def event_to_proto(event: GenerationEvent, response: type[_Response]) -> _Response:
    """An event as a message of its stream."""
    match event:
        case Started():
            return response(started=pb.Started(generation_id=event.generation_id, prompt=event.prompt))
        case PromptLogprobs():
            return response(
                prompt_logprobs=pb.PromptLogprobs(
                    start=event.start,
                    logprobs=event.logprobs,
                    ranks=event.ranks,
                    top_token_ids=pack_tokens(event.top_ids),
                    top_logprobs=event.top_logprobs,
                )
            )
        case Delta():
            logprobs = [_logprobs_to_proto(sampled) for sampled in event.logprobs]
            token_ids = pack_tokens(event.token_ids)
            delta = pb.Delta(branch=event.branch, token_ids=token_ids, text=event.text, logprobs=logprobs)
            if event.num_cached_tokens is not None:
                delta.num_cached_tokens = event.num_cached_tokens
            return response(delta=delta)
        case BranchFinished():
            finished = pb.BranchFinished(branch=event.branch, reason=_REASON_TO_PROTO[event.reason], score=event.score)
            if isinstance(event.stop, str):
                finished.stop_text = event.stop
            elif event.stop is not None:
                finished.stop_token_id = event.stop
            return response(branch_finished=finished)
        case Completed():
            usage = pb.Usage(**event.usage._asdict())
            return response(completed=pb.Completed(usage=usage, pinned_tokens=event.pinned))


def _logprobs_to_proto(sampled: SampledToken) -> pb.TokenLogprobs:
    top = [pb.TokenLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in sampled.top]
    return pb.TokenLogprobs(token_id=sampled.token_id, logprob=sampled.logprob or 0.0, top=top)


def event_from_proto(proto: pb.GenerateResponse | pb.ForkGenerationResponse) -> GenerationEvent | None:
    """The event of a message; None for an event unknown to this version.

    Raises:
        InvalidArgumentError: a reason of a later version, or truncated token ids.
    """
    match proto.WhichOneof("event"):
        case "started":
            return Started(proto.started.generation_id, proto.started.prompt)
        case "prompt_logprobs":
            told = proto.prompt_logprobs
            top_ids = tuple(unpack_tokens(told.top_token_ids))
            return PromptLogprobs(
                told.start, tuple(told.logprobs), tuple(told.ranks), top_ids, tuple(told.top_logprobs)
            )
        case "delta":
            logprobs = tuple(
                SampledToken(p.token_id, p.logprob, tuple((t.token_id, t.logprob) for t in p.top))
                for p in proto.delta.logprobs
            )
            delta = proto.delta
            num_cached = delta.num_cached_tokens if delta.HasField("num_cached_tokens") else None
            return Delta(delta.branch, tuple(unpack_tokens(delta.token_ids)), delta.text, logprobs, num_cached)
        case "branch_finished":
            finished = proto.branch_finished
            kind = finished.WhichOneof("stop")
            stop = getattr(finished, kind) if kind else None
            if finished.reason not in _REASON_FROM_PROTO:
                raise InvalidArgumentError("reason", finished.reason, "a reason of an end that this version knows")
            score = finished.score if finished.HasField("score") else None
            return BranchFinished(finished.branch, _REASON_FROM_PROTO[finished.reason], stop, score)
        case "completed":
            usage = proto.completed.usage
            pinned = tuple(proto.completed.pinned_tokens)
            return Completed(Usage(**{name: getattr(usage, name) for name in Usage._fields}), pinned)
        case _:
            return None


def verification_to_proto(found: Verification) -> pb.VerifyBlockResponse:
    """A verification, as a message."""
    message = pb.VerifyBlockResponse(verdict=_VERDICT_TO_PROTO[found.verdict], block_id=found.block_id)
    if found.difference is not None:
        message.difference.CopyFrom(pb.BlockDifference(**found.difference._asdict()))
    return message


def verification_from_proto(proto: pb.VerifyBlockResponse) -> Verification:
    """The verification of a message.

    Raises:
        RadixKVError: a verdict unknown to this version.
    """
    verdict = _VERDICT_FROM_PROTO.get(proto.verdict)
    if verdict is None:
        raise RadixKVError(f"the worker answered with verdict {proto.verdict}, which is not known here")
    told = proto.difference
    difference = BlockDifference(told.layer, told.relative, told.largest) if proto.HasField("difference") else None
    return Verification(verdict, proto.block_id, difference)


def model_to_proto(info: ModelInfo) -> pb.GetModelResponse:
    """A model's facts, as a message."""
    sampling = pb.SamplingDefaults(**info.sampling._asdict())
    told: dict[str, Any] = {"eos_token_ids": pack_tokens(info.eos_token_ids), "sampling": sampling}
    if info.thinking is not None:
        opens, closes, close_ids = info.thinking
        told["thinking"] = pb.ThinkingMarks(opens=opens, closes=closes, close_ids=pack_tokens(close_ids))
    return pb.GetModelResponse(**{**info._asdict(), **told})


def model_from_proto(proto: pb.GetModelResponse) -> ModelInfo:
    """The model's facts of a message."""
    values = {name: getattr(proto, name) for name in ModelInfo._fields}
    values["eos_token_ids"] = tuple(unpack_tokens(proto.eos_token_ids))
    values["adapters"] = tuple(proto.adapters)
    values["template_variables"] = tuple(proto.template_variables)
    marks = proto.thinking
    close_ids = tuple(unpack_tokens(marks.close_ids))
    values["thinking"] = ThinkingMarks(marks.opens, marks.closes, close_ids) if marks.opens and marks.closes else None
    names = [field.name for field, _ in proto.sampling.ListFields()]
    values["sampling"] = SamplingDefaults(**{name: getattr(proto.sampling, name) for name in names})
    return ModelInfo(**values)


def stats_to_proto(stats: WorkerStats) -> pb.GetStatsResponse:
    """A worker's stats, as a message."""
    values = {
        name: pb.Percentiles(**value._asdict()) if isinstance(value, Percentiles) else value
        for name, value in stats.engine._asdict().items()
    }
    engine = pb.EngineStats(**values)  # type: ignore[arg-type]  # each of its field's type
    response = pb.GetStatsResponse(engine=engine)
    if stats.cache is not None:
        response.cache.CopyFrom(cache_to_proto("", stats.cache, stats.block_times))
    return response


def stats_from_proto(proto: pb.GetStatsResponse) -> WorkerStats:
    """The worker's stats of a message."""
    values: dict[str, Any] = {name: getattr(proto.engine, name) for name in EngineStats._fields}
    for name, value in values.items():
        if isinstance(value, pb.Percentiles):
            values[name] = Percentiles(value.p50_s, value.p90_s, value.p99_s)
    engine = EngineStats(**values)
    if not proto.HasField("cache"):
        return WorkerStats(engine, None)
    return WorkerStats(engine, cache_from_proto(proto.cache), block_times_from_proto(proto.cache))
