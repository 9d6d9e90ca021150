"""The base of request bodies, and the handling of unknown fields.

Frontends send many unknown fields: harmless ones are ignored and named in a response header. Fields that would change the
reply and are not supported are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from radixkv.gateway.protocol.errors import ApiError

__all__ = ["CHANGES_THE_ANSWER", "ApiModel", "unknown_fields"]

_OFF: Sequence[Any] = (None, False, 0, "", [], {})

_OF_OTHER_ENDPOINTS = "\
    allowed_token_ids bad_words cache_salt chat_template_kwargs continue_final_message conversation documents ebnf \
    echo frequency_penalty function_call functions grammar guided_choice guided_grammar guided_json guided_regex \
    ignore_eos include_stop_str_in_output input instructions json_schema logit_bias max_completion_tokens \
    max_output_tokens max_tokens messages min_p min_tokens output_config output_format presence_penalty \
    previous_response_id prompt regex return_tokens_as_token_ids stop stop_sequences stop_token_ids \
    structured_outputs system text tool_choice tools truncate_prompt_tokens"
_OF_OTHER_SERVERS = "\
    banned_strings banned_tokens chat_template compaction custom_logit_processor custom_token_bans dry_multiplier \
    dynamic_temperature dynatemp_range epsilon_cutoff eta_cutoff extra_key grammar_string logits_processors \
    logprob_token_ids lora lora_path max_new_tokens mirostat mirostat_mode n_indent n_probs negative_prompt \
    no_repeat_ngram_size no_stop_trim nsigma penalty_alpha prompt_embeds repetition_detection return_hidden_states \
    session_params smoothing_factor stop_regex store structural_tag thread top_a use_beam_search xtc_probability"
_OFF_AT_ONE = "\
    best_of encoder_repetition_penalty guidance_scale n num_beams rep_pen repeat_penalty repetition_penalty tfs \
    tfs_z typ_p typical typical_p"
_OFF_AT_TRUE = "add_generation_prompt add_special_tokens skip_special_tokens"
_OF_THE_PROMPT = "\
    add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs continue_final_message \
    conversation documents functions input instructions messages previous_response_id prompt prompt_embeds system \
    thread tools truncate_prompt_tokens"

CHANGES_THE_ANSWER: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(_OF_OTHER_ENDPOINTS.split(), _OFF),
    **dict.fromkeys(_OF_OTHER_SERVERS.split(), _OFF),
    **dict.fromkeys(_OFF_AT_ONE.split(), (None, 1)),
    **dict.fromkeys(_OFF_AT_TRUE.split(), (None, True)),
    "n_predict": (None, -1),
    "prompt_logprobs": (None,),
    "response_format": (None, {"type": "text"}),
    "top_n_sigma": (None, -1, 0),
}
"""Fields that are rejected where a model does not have them, unless their value equals leaving them out."""

_LENGTHS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
_OTHER_NAMES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys((*_LENGTHS, "max_new_tokens", "n_predict"), _LENGTHS),
    **dict.fromkeys(("stop", "stop_sequences"), ("stop", "stop_sequences")),
    **dict.fromkeys(("messages", "input", "prompt"), ("messages", "input", "prompt")),
    **dict.fromkeys(("system", "instructions"), ("system", "instructions", "messages")),
    **dict.fromkeys(("functions", "function_call"), ("tools",)),
    **dict.fromkeys(("response_format", "output_config"), ("response_format", "output_config", "text")),
    "rep_pen": ("repetition_penalty",),
}
"""By a field of another endpoint or server, fields for the same; the refusal names the first that its endpoint has."""

_PROMPT = frozenset(_OF_THE_PROMPT.split())
"""Fields that change a prompt; the others have no effect where no reply is drawn."""


class ApiModel(BaseModel):
    """Base of request bodies: exact types, no NaN; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    draws: ClassVar[bool] = False
    """Whether the request generates a reply."""

    def check(self) -> None:
        """Reject what the schema cannot express. Called once, where the body is parsed; expensive checks belong here.

        Raises:
            ApiError: 400 with the faulty field.
        """

    @property
    def is_read(self) -> bool:
        """Whether any part of it is used; a part that is ignored as a whole is reported by its own place."""
        return True


def unknown_fields(model: ApiModel, told: Mapping[str, Any]) -> list[str]:
    """Return the fields of a body, nested objects included, that its model does not have and that say something. O(fields).

    A value that equals leaving the field out is not returned.

    Of members of lists (messages, tools), the first place of each name is returned.

    Raises:
        ApiError: 400: a field would change the reply.
    """
    found: dict[str, str] = {}
    _look(model, told, found, model.draws)
    return list(found.values())


@cache
def _fields(kind: type[ApiModel]) -> Mapping[str, str]:
    """Return the model's attributes by their names in bodies."""
    return {field.alias or name: name for name, field in kind.model_fields.items()}


def _look(
    model: ApiModel, told: Mapping[str, Any], found: dict[str, str], draws: bool, place: str = "", path: str = ""
) -> None:
    """Add to `found` the places of unknown fields, by path: the place without its numbers."""
    in_list = place != path
    fields, takes_all = _fields(type(model)), model.model_config.get("extra") == "allow"
    for name, value in told.items():
        if name not in fields:
            if takes_all or value is None or (in_list and not value):
                continue
            if not in_list and value in CHANGES_THE_ANSWER.get(name, ()):
                continue
            if not in_list and name in CHANGES_THE_ANSWER and (draws or name in _PROMPT):
                known = next((other for other in _OTHER_NAMES.get(name, ()) if other in fields and not place), None)
                message = f"{place}{name} is not supported here; {f'use {known}' if known else 'leave it out'}"
                raise ApiError(400, message, code="unsupported_parameter", param=f"{place}{name}")
            found.setdefault(f"{path}{name}", f"{place}{name}")
        elif isinstance(value, dict | list):
            inner = getattr(model, fields[name])
            if isinstance(inner, ApiModel) and isinstance(value, dict):
                _look(inner, value, found, draws, f"{place}{name}.", f"{path}{name}.")
            elif isinstance(inner, list) and isinstance(value, list) and inner and isinstance(inner[0], ApiModel):
                for index, (each, its_fields) in enumerate(zip(inner, value, strict=True)):
                    if each.is_read:
                        _look(each, its_fields, found, draws, f"{place}{name}.{index}.", f"{path}{name}.")
