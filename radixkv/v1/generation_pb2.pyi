from radixkv.v1 import prefix_cache_pb2 as _prefix_cache_pb2
from radixkv.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlockVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_VERDICT_UNSPECIFIED: _ClassVar[BlockVerdict]
    BLOCK_VERDICT_AGREES: _ClassVar[BlockVerdict]
    BLOCK_VERDICT_DIFFERS: _ClassVar[BlockVerdict]
    BLOCK_VERDICT_GONE: _ClassVar[BlockVerdict]
    BLOCK_VERDICT_NO_ROOM: _ClassVar[BlockVerdict]

class BreakerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BREAKER_STATE_UNSPECIFIED: _ClassVar[BreakerState]
    BREAKER_STATE_CLOSED: _ClassVar[BreakerState]
    BREAKER_STATE_OPEN: _ClassVar[BreakerState]
    BREAKER_STATE_TRIAL: _ClassVar[BreakerState]

class Sharing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARING_UNSPECIFIED: _ClassVar[Sharing]
    SHARING_OFF: _ClassVar[Sharing]
    SHARING_OWN: _ClassVar[Sharing]
    SHARING_ON: _ClassVar[Sharing]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class EarlyStopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EARLY_STOPPING_UNSPECIFIED: _ClassVar[EarlyStopping]
    EARLY_STOPPING_HEURISTIC: _ClassVar[EarlyStopping]
    EARLY_STOPPING_ALWAYS: _ClassVar[EarlyStopping]
    EARLY_STOPPING_NEVER: _ClassVar[EarlyStopping]
BLOCK_VERDICT_UNSPECIFIED: BlockVerdict
BLOCK_VERDICT_AGREES: BlockVerdict
BLOCK_VERDICT_DIFFERS: BlockVerdict
BLOCK_VERDICT_GONE: BlockVerdict
BLOCK_VERDICT_NO_ROOM: BlockVerdict
BREAKER_STATE_UNSPECIFIED: BreakerState
BREAKER_STATE_CLOSED: BreakerState
BREAKER_STATE_OPEN: BreakerState
BREAKER_STATE_TRIAL: BreakerState
SHARING_UNSPECIFIED: Sharing
SHARING_OFF: Sharing
SHARING_OWN: Sharing
SHARING_ON: Sharing
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
EARLY_STOPPING_UNSPECIFIED: EarlyStopping
EARLY_STOPPING_HEURISTIC: EarlyStopping
EARLY_STOPPING_ALWAYS: EarlyStopping
EARLY_STOPPING_NEVER: EarlyStopping

class Prompt(_message.Message):
    __slots__ = ("token_ids", "text", "messages")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    text: str
    messages: ChatMessages
    def __init__(self, token_ids: _Optional[bytes] = ..., text: _Optional[str] = ..., messages: _Optional[_Union[ChatMessages, _Mapping]] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages", "tools_json", "template_arguments_json", "continue_final_message")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools_json: str
    template_arguments_json: str
    continue_final_message: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools_json: _Optional[str] = ..., template_arguments_json: _Optional[str] = ..., continue_final_message: _Optional[bool] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "fields_json")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_JSON_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    fields_json: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., fields_json: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "n", "stop", "stop_token_ids", "ignore_eos", "logprobs", "best_of", "num_beams", "length_penalty", "early_stopping", "logit_bias", "forced_token_ids", "min_tokens", "presence_penalty", "frequency_penalty", "grammar", "repetition_penalty", "bad_words", "allowed_token_ids", "keep_special_tokens", "include_stop", "speculation", "prediction", "prompt_logprobs", "prompt_logprobs_start")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    KEEP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_START_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    n: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: bytes
    ignore_eos: bool
    logprobs: int
    best_of: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    logit_bias: _containers.ScalarMap[int, float]
    forced_token_ids: bytes
    min_tokens: int
    presence_penalty: float
    frequency_penalty: float
    grammar: Grammar
    repetition_penalty: float
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    allowed_token_ids: bytes
    keep_special_tokens: bool
    include_stop: bool
    speculation: str
    prediction: str
    prompt_logprobs: int
    prompt_logprobs_start: int
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., n: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[bytes] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[int] = ..., best_of: _Optional[int] = ..., num_beams: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[EarlyStopping, str]] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., forced_token_ids: _Optional[bytes] = ..., min_tokens: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., repetition_penalty: _Optional[float] = ..., bad_words: _Optional[_Iterable[str]] = ..., allowed_token_ids: _Optional[bytes] = ..., keep_special_tokens: _Optional[bool] = ..., include_stop: _Optional[bool] = ..., speculation: _Optional[str] = ..., prediction: _Optional[str] = ..., prompt_logprobs: _Optional[int] = ..., prompt_logprobs_start: _Optional[int] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("json_object", "json_schema", "regex", "lark")
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    json_object: bool
    json_schema: str
    regex: str
    lark: str
    def __init__(self, json_object: _Optional[bool] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., lark: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "history", "sampling", "namespace", "priority", "timeout_s", "request_id", "sharing", "retention", "adapter", "pins", "cache_salt", "truncate_prompt_tokens", "tokenizer")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    history: bytes
    sampling: SamplingParams
    namespace: str
    priority: int
    timeout_s: float
    request_id: str
    sharing: Sharing
    retention: _containers.RepeatedCompositeFieldContainer[_types_pb2.Retention]
    adapter: str
    pins: _containers.RepeatedCompositeFieldContainer[PrefixPin]
    cache_salt: str
    truncate_prompt_tokens: int
    tokenizer: str
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., history: _Optional[bytes] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., namespace: _Optional[str] = ..., priority: _Optional[int] = ..., timeout_s: _Optional[float] = ..., request_id: _Optional[str] = ..., sharing: _Optional[_Union[Sharing, str]] = ..., retention: _Optional[_Iterable[_Union[_types_pb2.Retention, _Mapping]]] = ..., adapter: _Optional[str] = ..., pins: _Optional[_Iterable[_Union[PrefixPin, _Mapping]]] = ..., cache_salt: _Optional[str] = ..., truncate_prompt_tokens: _Optional[int] = ..., tokenizer: _Optional[str] = ...) -> None: ...

class PrefixPin(_message.Message):
    __slots__ = ("num_tokens", "ttl_s")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    ttl_s: float
    def __init__(self, num_tokens: _Optional[int] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "branch_finished", "completed", "prompt_logprobs")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FINISHED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    branch_finished: BranchFinished
    completed: Completed
    prompt_logprobs: PromptLogprobs
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., branch_finished: _Optional[_Union[BranchFinished, _Mapping]] = ..., completed: _Optional[_Union[Completed, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class ForkGenerationRequest(_message.Message):
    __slots__ = ("generation_id", "branch", "position", "prompt", "sampling", "priority", "timeout_s", "request_id", "retention")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    branch: int
    position: int
    prompt: Prompt
    sampling: SamplingParams
    priority: int
    timeout_s: float
    request_id: str
    retention: _containers.RepeatedCompositeFieldContainer[_types_pb2.Retention]
    def __init__(self, generation_id: _Optional[str] = ..., branch: _Optional[int] = ..., position: _Optional[int] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., timeout_s: _Optional[float] = ..., request_id: _Optional[str] = ..., retention: _Optional[_Iterable[_Union[_types_pb2.Retention, _Mapping]]] = ...) -> None: ...

class ForkGenerationResponse(_message.Message):
    __slots__ = ("started", "delta", "branch_finished", "completed", "prompt_logprobs")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FINISHED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    branch_finished: BranchFinished
    completed: Completed
    prompt_logprobs: PromptLogprobs
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., branch_finished: _Optional[_Union[BranchFinished, _Mapping]] = ..., completed: _Optional[_Union[Completed, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("generation_id", "prompt", "sharing")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    prompt: bytes
    sharing: Sharing
    def __init__(self, generation_id: _Optional[str] = ..., prompt: _Optional[bytes] = ..., sharing: _Optional[_Union[Sharing, str]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("start", "logprobs", "ranks", "top_token_ids", "top_logprobs")
    START_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    start: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    top_token_ids: bytes
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, start: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ..., top_token_ids: _Optional[bytes] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("branch", "token_ids", "text", "logprobs", "num_cached_tokens")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    branch: int
    token_ids: bytes
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    num_cached_tokens: int
    def __init__(self, branch: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., num_cached_tokens: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_id", "logprob", "top")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class BranchFinished(_message.Message):
    __slots__ = ("branch", "reason", "stop_text", "stop_token_id", "score")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    branch: int
    reason: FinishReason
    stop_text: str
    stop_token_id: int
    score: float
    def __init__(self, branch: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_text: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class Completed(_message.Message):
    __slots__ = ("usage", "pinned_tokens")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    pinned_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., pinned_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_cached_tokens", "num_generated_tokens", "num_computed_tokens", "time_to_first_token_s", "num_loaded_tokens", "num_accepted_tokens", "num_rejected_tokens", "cost")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    NUM_LOADED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_REJECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    time_to_first_token_s: float
    num_loaded_tokens: int
    num_accepted_tokens: int
    num_rejected_tokens: int
    cost: float
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., time_to_first_token_s: _Optional[float] = ..., num_loaded_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_rejected_tokens: _Optional[int] = ..., cost: _Optional[float] = ...) -> None: ...

class Prices(_message.Message):
    __slots__ = ("currency", "computed", "found", "generated", "held")
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    currency: str
    computed: float
    found: float
    generated: float
    held: float
    def __init__(self, currency: _Optional[str] = ..., computed: _Optional[float] = ..., found: _Optional[float] = ..., generated: _Optional[float] = ..., held: _Optional[float] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("name", "max_length", "vocab_size", "block_size", "eos_token_ids", "has_chat_template", "adapters", "sampling", "thinking", "template_variables", "num_parameters", "prices", "tokenizer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PRICES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_length: int
    vocab_size: int
    block_size: int
    eos_token_ids: bytes
    has_chat_template: bool
    adapters: _containers.RepeatedScalarFieldContainer[str]
    sampling: SamplingDefaults
    thinking: ThinkingMarks
    template_variables: _containers.RepeatedScalarFieldContainer[str]
    num_parameters: int
    prices: Prices
    tokenizer: str
    def __init__(self, name: _Optional[str] = ..., max_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., block_size: _Optional[int] = ..., eos_token_ids: _Optional[bytes] = ..., has_chat_template: _Optional[bool] = ..., adapters: _Optional[_Iterable[str]] = ..., sampling: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingMarks, _Mapping]] = ..., template_variables: _Optional[_Iterable[str]] = ..., num_parameters: _Optional[int] = ..., prices: _Optional[_Union[Prices, _Mapping]] = ..., tokenizer: _Optional[str] = ...) -> None: ...

class ThinkingMarks(_message.Message):
    __slots__ = ("opens", "closes", "close_ids")
    OPENS_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_IDS_FIELD_NUMBER: _ClassVar[int]
    opens: str
    closes: str
    close_ids: bytes
    def __init__(self, opens: _Optional[str] = ..., closes: _Optional[str] = ..., close_ids: _Optional[bytes] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("prompt", "history", "namespace")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    history: bytes
    namespace: str
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., history: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    def __init__(self, token_ids: _Optional[bytes] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    def __init__(self, token_ids: _Optional[bytes] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class SpellTokensRequest(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    def __init__(self, token_ids: _Optional[bytes] = ...) -> None: ...

class SpellTokensResponse(_message.Message):
    __slots__ = ("spellings",)
    SPELLINGS_FIELD_NUMBER: _ClassVar[int]
    spellings: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, spellings: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FindStoredRequest(_message.Message):
    __slots__ = ("token_ids", "namespace", "num_cached_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    namespace: str
    num_cached_tokens: int
    def __init__(self, token_ids: _Optional[bytes] = ..., namespace: _Optional[str] = ..., num_cached_tokens: _Optional[int] = ...) -> None: ...

class FindStoredResponse(_message.Message):
    __slots__ = ("num_tokens", "load_s", "compute_s", "way")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    load_s: float
    compute_s: float
    way: str
    def __init__(self, num_tokens: _Optional[int] = ..., load_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., way: _Optional[str] = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("levels",)
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[ErasedLevel]
    def __init__(self, levels: _Optional[_Iterable[_Union[ErasedLevel, _Mapping]]] = ...) -> None: ...

class ErasedLevel(_message.Message):
    __slots__ = ("level", "is_erased")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    IS_ERASED_FIELD_NUMBER: _ClassVar[int]
    level: str
    is_erased: bool
    def __init__(self, level: _Optional[str] = ..., is_erased: _Optional[bool] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("token_ids", "namespace")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    namespace: str
    def __init__(self, token_ids: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class ExportResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class ImportRequest(_message.Message):
    __slots__ = ("namespace", "chunk")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    chunk: bytes
    def __init__(self, namespace: _Optional[str] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ImportResponse(_message.Message):
    __slots__ = ("num_tokens", "num_stored_tokens")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    num_stored_tokens: int
    def __init__(self, num_tokens: _Optional[int] = ..., num_stored_tokens: _Optional[int] = ...) -> None: ...

class VerifyBlockRequest(_message.Message):
    __slots__ = ("token_ids", "namespace")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    namespace: str
    def __init__(self, token_ids: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class VerifyBlockResponse(_message.Message):
    __slots__ = ("verdict", "block_id", "difference")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    verdict: BlockVerdict
    block_id: int
    difference: BlockDifference
    def __init__(self, verdict: _Optional[_Union[BlockVerdict, str]] = ..., block_id: _Optional[int] = ..., difference: _Optional[_Union[BlockDifference, _Mapping]] = ...) -> None: ...

class BlockDifference(_message.Message):
    __slots__ = ("layer", "relative", "largest")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    layer: int
    relative: float
    largest: float
    def __init__(self, layer: _Optional[int] = ..., relative: _Optional[float] = ..., largest: _Optional[float] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("engine", "cache", "levels")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    engine: EngineStats
    cache: _prefix_cache_pb2.PoolStats
    levels: _containers.RepeatedCompositeFieldContainer[LevelStats]
    def __init__(self, engine: _Optional[_Union[EngineStats, _Mapping]] = ..., cache: _Optional[_Union[_prefix_cache_pb2.PoolStats, _Mapping]] = ..., levels: _Optional[_Iterable[_Union[LevelStats, _Mapping]]] = ...) -> None: ...

class LevelStats(_message.Message):
    __slots__ = ("level", "size_bytes", "used_bytes", "num_blocks", "num_hits", "misses", "num_written", "unwritten", "faults", "num_evicted", "read_bytes", "written_bytes", "read_s", "write_s", "breaker")
    class MissesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UnwrittenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    NUM_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    UNWRITTEN_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_S_FIELD_NUMBER: _ClassVar[int]
    WRITE_S_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    level: str
    size_bytes: int
    used_bytes: int
    num_blocks: int
    num_hits: int
    misses: _containers.ScalarMap[str, int]
    num_written: int
    unwritten: _containers.ScalarMap[str, int]
    faults: _containers.ScalarMap[str, int]
    num_evicted: int
    read_bytes: int
    written_bytes: int
    read_s: float
    write_s: float
    breaker: BreakerState
    def __init__(self, level: _Optional[str] = ..., size_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_hits: _Optional[int] = ..., misses: _Optional[_Mapping[str, int]] = ..., num_written: _Optional[int] = ..., unwritten: _Optional[_Mapping[str, int]] = ..., faults: _Optional[_Mapping[str, int]] = ..., num_evicted: _Optional[int] = ..., read_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., read_s: _Optional[float] = ..., write_s: _Optional[float] = ..., breaker: _Optional[_Union[BreakerState, str]] = ...) -> None: ...

class EngineStats(_message.Message):
    __slots__ = ("num_generations", "num_running_branches", "num_queued_branches", "num_pending_branches", "num_parked_branches", "num_remembered", "num_preemptions", "num_saved_blocks", "num_loaded_blocks", "num_forwards", "num_prompt_tokens", "num_cached_tokens", "num_computed_tokens", "num_generated_tokens", "num_finished", "num_cancelled", "num_failed", "num_expired", "time_to_first_token", "inter_token", "waited", "num_lines", "num_moved_lines", "num_prefilled_tokens", "prefill_s", "num_loaded_tokens", "num_store_loaded_blocks", "num_store_unsaved_blocks", "num_saves_left_out", "num_draws", "drafted_tokens", "accepted_tokens", "drafted_by_depth", "accepted_by_depth", "draft_s", "num_uncaptured_sizes")
    class DraftedTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AcceptedTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_PENDING_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_PARKED_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_REMEMBERED_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOADED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FINISHED_FIELD_NUMBER: _ClassVar[int]
    NUM_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INTER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    NUM_LINES_FIELD_NUMBER: _ClassVar[int]
    NUM_MOVED_LINES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    NUM_LOADED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STORE_LOADED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_STORE_UNSAVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAVES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAWS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_S_FIELD_NUMBER: _ClassVar[int]
    NUM_UNCAPTURED_SIZES_FIELD_NUMBER: _ClassVar[int]
    num_generations: int
    num_running_branches: int
    num_queued_branches: int
    num_pending_branches: int
    num_parked_branches: int
    num_remembered: int
    num_preemptions: int
    num_saved_blocks: int
    num_loaded_blocks: int
    num_forwards: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_generated_tokens: int
    num_finished: int
    num_cancelled: int
    num_failed: int
    num_expired: int
    time_to_first_token: Percentiles
    inter_token: Percentiles
    waited: Percentiles
    num_lines: int
    num_moved_lines: int
    num_prefilled_tokens: int
    prefill_s: float
    num_loaded_tokens: int
    num_store_loaded_blocks: int
    num_store_unsaved_blocks: int
    num_saves_left_out: int
    num_draws: int
    drafted_tokens: _containers.ScalarMap[str, int]
    accepted_tokens: _containers.ScalarMap[str, int]
    drafted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    accepted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    draft_s: float
    num_uncaptured_sizes: int
    def __init__(self, num_generations: _Optional[int] = ..., num_running_branches: _Optional[int] = ..., num_queued_branches: _Optional[int] = ..., num_pending_branches: _Optional[int] = ..., num_parked_branches: _Optional[int] = ..., num_remembered: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_saved_blocks: _Optional[int] = ..., num_loaded_blocks: _Optional[int] = ..., num_forwards: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., num_finished: _Optional[int] = ..., num_cancelled: _Optional[int] = ..., num_failed: _Optional[int] = ..., num_expired: _Optional[int] = ..., time_to_first_token: _Optional[_Union[Percentiles, _Mapping]] = ..., inter_token: _Optional[_Union[Percentiles, _Mapping]] = ..., waited: _Optional[_Union[Percentiles, _Mapping]] = ..., num_lines: _Optional[int] = ..., num_moved_lines: _Optional[int] = ..., num_prefilled_tokens: _Optional[int] = ..., prefill_s: _Optional[float] = ..., num_loaded_tokens: _Optional[int] = ..., num_store_loaded_blocks: _Optional[int] = ..., num_store_unsaved_blocks: _Optional[int] = ..., num_saves_left_out: _Optional[int] = ..., num_draws: _Optional[int] = ..., drafted_tokens: _Optional[_Mapping[str, int]] = ..., accepted_tokens: _Optional[_Mapping[str, int]] = ..., drafted_by_depth: _Optional[_Iterable[int]] = ..., accepted_by_depth: _Optional[_Iterable[int]] = ..., draft_s: _Optional[float] = ..., num_uncaptured_sizes: _Optional[int] = ...) -> None: ...

class Percentiles(_message.Message):
    __slots__ = ("p50_s", "p90_s", "p99_s")
    P50_S_FIELD_NUMBER: _ClassVar[int]
    P90_S_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    p50_s: float
    p90_s: float
    p99_s: float
    def __init__(self, p50_s: _Optional[float] = ..., p90_s: _Optional[float] = ..., p99_s: _Optional[float] = ...) -> None: ...
