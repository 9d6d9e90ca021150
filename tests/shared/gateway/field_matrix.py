"""The fields that clients of each API send, and what becomes of them: the table in the gateway's README.

`PYTHONPATH=. python tests/shared/gateway/field_matrix.py` writes it there, from the schemas as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from radixkv.gateway.api.anthropic.schema import MessagesRequest
from radixkv.gateway.api.openai.chat import ChatRequest
from radixkv.gateway.api.openai.completions import CompletionRequest
from radixkv.gateway.api.responses.schema import ResponseRequest
from radixkv.gateway.protocol.api_model import ApiModel, unknown_fields
from radixkv.gateway.protocol.errors import ApiError

__all__ = ["ENDPOINTS", "KNOWN", "README", "fate", "known_names", "table"]

README = Path(__file__).resolve().parents[3] / "radixkv" / "gateway" / "README.md"
BEGIN, END = "<!-- fields: begin -->\n", "<!-- fields: end -->\n"

ENDPOINTS: Mapping[str, type[ApiModel]] = {
    "chat/completions": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponseRequest,
    "messages": MessagesRequest,
}

_OPENAI_SAMPLING = (
    "frequency_penalty logit_bias logprobs max_tokens model n presence_penalty seed stop stream stream_options \
    temperature top_p user"
)
_VLLM = "add_special_tokens allowed_token_ids bad_words best_of cache_salt echo guided_choice guided_decoding_backend \
    guided_grammar guided_json guided_regex guided_whitespace_pattern ignore_eos include_stop_str_in_output kv_transfer_params \
    length_penalty logits_processors logprob_token_ids min_p min_tokens priority prompt_logprobs repetition_detection \
    repetition_penalty request_id return_token_ids return_tokens_as_token_ids skip_special_tokens \
    spaces_between_special_tokens stop_token_ids structured_outputs top_k truncate_prompt_tokens use_beam_search vllm_xargs"
_VLLM_CHAT = (
    "add_generation_prompt chat_template chat_template_kwargs continue_final_message documents include_reasoning \
    media_io_kwargs mm_processor_kwargs structural_tag thinking_token_budget"
)
_SGLANG = (
    "bootstrap_host bootstrap_port bootstrap_room cache_salt custom_logit_processor custom_params data_parallel_rank ebnf \
    extra_key ignore_eos json_schema lora_path min_p min_tokens no_stop_trim priority regex repetition_penalty \
    return_hidden_states rid session_params skip_special_tokens stop_regex stop_token_ids top_k"
)
_SGLANG_CHAT = "chat_template_kwargs continue_final_message separate_reasoning stream_reasoning use_audio_in_video"
_LLAMA_CPP = (
    "backend_sampling cache_prompt dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers \
    dynatemp_exponent dynatemp_range grammar grammar_lazy grammar_triggers id_slot ignore_eos json_schema lora min_keep min_p \
    mirostat mirostat_eta mirostat_tau n_discard n_indent n_keep n_predict n_probs post_sampling_probs preserved_tokens \
    repeat_last_n repeat_penalty response_fields return_progress return_tokens samplers t_max_predict_ms timings_per_token \
    top_k top_n_sigma typ_p typical_p xtc_probability xtc_threshold"
)
_OTHERS = (
    "banned_strings banned_tokens custom_token_bans dynamic_temperature encoder_repetition_penalty epsilon_cutoff eta_cutoff \
    grammar_string guidance_scale max_new_tokens min_p mirostat_mode negative_prompt no_repeat_ngram_size nsigma penalty_alpha \
    repetition_penalty rep_pen smoothing_factor tfs tfs_z top_a top_k typical typical_p xtc_probability"
)
_LLAMA_CPP_CHAT = "add_generation_prompt chat_template_kwargs parse_tool_calls reasoning_budget reasoning_format \
    thinking_forced_open"

KNOWN: Mapping[str, Mapping[str, str]] = {
    "chat/completions": {
        "OpenAI": f"{_OPENAI_SAMPLING} audio function_call functions max_completion_tokens messages metadata modalities \
            moderation parallel_tool_calls prediction prompt_cache_key prompt_cache_options prompt_cache_retention \
            reasoning_effort response_format safety_identifier service_tier store tool_choice tools \
            top_logprobs verbosity web_search_options",
        "vLLM": f"{_VLLM} {_VLLM_CHAT}",
        "SGLang": f"{_SGLANG} {_SGLANG_CHAT}",
        "llama.cpp": f"{_LLAMA_CPP} {_LLAMA_CPP_CHAT}",
        "text-generation-webui, TabbyAPI, KoboldCpp": _OTHERS,
    },
    "completions": {
        "OpenAI": f"{_OPENAI_SAMPLING} best_of echo prompt suffix",
        "vLLM": f"{_VLLM} prompt_embeds response_format",
        "SGLang": _SGLANG,
        "llama.cpp": _LLAMA_CPP,
        "text-generation-webui, TabbyAPI, KoboldCpp": _OTHERS,
    },
    "responses": {
        "OpenAI": "background context_management conversation include input instructions max_output_tokens max_tool_calls \
            metadata model moderation parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options \
            prompt_cache_retention reasoning safety_identifier service_tier store stream stream_options temperature text \
            tool_choice tools top_logprobs top_p truncation user",
        "vLLM": "cache_salt enable_response_messages include_stop_str_in_output mm_processor_kwargs previous_input_messages \
            priority repetition_penalty request_id seed skip_special_tokens stop structured_outputs top_k vllm_xargs",
        "SGLang": "extra_key frequency_penalty ignore_eos min_p presence_penalty priority repetition_penalty stop top_k",
    },
    "messages": {
        "Anthropic": "betas cache_control compaction container context_management diagnostics fallbacks inference_geo \
            max_tokens mcp_servers messages metadata model output_config output_format service_tier speed stop_sequences \
            stream system temperature thinking thread tool_choice tools top_k top_p user_profile_id",
        "vLLM": "chat_template_kwargs kv_transfer_params",
    },
}
"""Names of fields by endpoint and by the server whose clients send them, from SDKs' types and public documentation."""

_FATES = (("Accepted", "accepted"), ("Left out", "left out"), ("Not supported", "refused"))


def known_names(endpoint: str) -> dict[str, list[str]]:
    """Every name that some client sends to an endpoint, or that it has itself, and by which servers' words."""
    names: dict[str, list[str]] = {}
    for server, listed in KNOWN[endpoint].items():
        for name in listed.split():
            names.setdefault(name, []).append(server)
    for name, field in ENDPOINTS[endpoint].model_fields.items():
        names.setdefault(field.alias or name, [])
    return names


def fate(endpoint: str, name: str) -> str:
    """What becomes of a field that says something: honoured, accepted, left out or refused."""
    model = ENDPOINTS[endpoint]
    field = next((each for own, each in model.model_fields.items() if name == (each.alias or own)), None)
    if field is not None:
        said = field.description or ""
        return next((fate for start, fate in _FATES if said.startswith(start)), "honoured")
    try:
        left_out = unknown_fields(model.model_construct(), {name: "x"})
    except ApiError:
        return "refused"
    assert left_out == [name]
    return "left out"


def table() -> str:
    """All of it in Markdown, a row per name."""
    return "".join(_rows())


def _rows() -> Iterator[str]:
    of_endpoints = {endpoint: known_names(endpoint) for endpoint in ENDPOINTS}
    yield f"| field | known to | {' | '.join(f'`{endpoint}`' for endpoint in ENDPOINTS)} |\n"
    yield f"|---|---|{'---|' * len(ENDPOINTS)}\n"
    for name in sorted(set[str]().union(*of_endpoints.values())):
        servers = sorted({server for names in of_endpoints.values() for server in names.get(name, ())})
        fates = [fate(endpoint, name) if name in names else "" for endpoint, names in of_endpoints.items()]
        yield f"| `{name}` | {', '.join(servers) or 'radixkv'} | {' | '.join(fates)} |\n"


def main() -> None:
    """Write the table into the README."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}{table()}{END}{after}")


if __name__ == "__main__":
    main()
