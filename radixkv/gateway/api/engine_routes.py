"""Endpoints of vLLM, SGLang and llama.cpp apart from generation: tokens, model, version."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.http.request_context import CurrentContext
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.errors import invalid, named
from radixkv.gateway.protocol.fields import TokenIds
from radixkv.gateway.turns.messages import ChatMessages, leave_noise_out, template_messages
from radixkv.gateway.turns.models import RADIXKV_VERSION, served_model
from radixkv.gateway.turns.options import ModelName
from radixkv.gateway.turns.tools import ChatTools, plan_tools
from radixkv.gateway.turns.turns import chat_model, read_prompt
from radixkv.generation.request import Prompt

__all__ = ["router"]

router = APIRouter(tags=["engine"], route_class=JsonRoute)


class TokenizeRequest(ApiModel):
    """A text, or messages as input of the model."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: ChatMessages | None = None
    tools: ChatTools | None = None


class DetokenizeRequest(ApiModel):
    """Token ids."""

    model: ModelName | None = None
    tokens: TokenIds


@router.post("/v1/tokenize")
async def tokenize(body: TokenizeRequest, request: Request, context: CurrentContext) -> dict[str, Any]:
    """The token ids of a text, or of messages as in a chat request."""
    backend: Backend = request.app.state.backend
    if (body.prompt is None) is (body.messages is None):
        raise invalid("one of prompt and messages must be given", "prompt")
    if body.messages is None:
        model = await served_model(request, body.model)
        with named(text="prompt"):
            tokens = await backend.tokenize(Prompt(text=body.prompt), b"", context.caller.namespace)
    else:
        model = await chat_model(request, body.model)
        context.leave_out(leave_noise_out(body.messages))
        tools = await off_loop(request, partial(plan_tools, body.tools, None))
        messages = await off_loop(request, partial(template_messages, body.messages))
        transcript = await request.app.state.transcripts.read(context.caller.namespace, messages, tools.tools)
        tokens = await read_prompt(backend, transcript, tools.tools)
    ids = unpack_tokens(tokens)
    return {"count": len(ids), "max_model_len": model.info.max_length, "tokens": ids, "token_strs": None}


@router.post("/v1/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request, _context: CurrentContext) -> dict[str, str]:
    """The text of token ids."""
    await served_model(request, body.model)
    with named(token_ids="tokens"):
        return {"prompt": await request.app.state.backend.detokenize(pack_tokens(body.tokens))}


@router.get("/v1/tokenizer_info")
async def tell_tokenizer(request: Request, _tenant: CurrentTenant) -> dict[str, Any]:
    """End tokens and sizes of the tokenizer. The chat template is not returned: messages are tokenized here."""
    model = await served_model(request)
    spelled = await request.app.state.backend.spell(model.info.eos_token_ids)
    ends = [spelled[token_id].decode(errors="replace") for token_id in model.info.eos_token_ids]
    sizes = {"model_max_length": model.info.max_length, "vocab_size": model.info.vocab_size}
    ids = {"eos_token_ids": list(model.info.eos_token_ids), "eos_tokens": ends}
    return {"tokenizer_class": "radixkv", "eos_token": ends[0] if ends else None, **ids, **sizes}


@router.get("/v1/props")
async def tell_properties(request: Request, _tenant: CurrentTenant) -> dict[str, Any]:
    """The model and its length, in llama.cpp's format."""
    model = await served_model(request)
    return {
        "default_generation_settings": {"n_ctx": model.info.max_length},
        "model_alias": model.name,
        "model_path": model.name,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"radixkv {RADIXKV_VERSION}",
    }


@router.get("/v1/version")
async def tell_version(_tenant: CurrentTenant) -> dict[str, str]:
    """The version of radixkv."""
    return {"version": RADIXKV_VERSION}


@router.get("/v1/get_model_info")
@router.get("/v1/server_info")
async def tell_model(request: Request, _tenant: CurrentTenant) -> dict[str, Any]:
    """The served model and its server."""
    model = await served_model(request)
    named = dict.fromkeys(("model_path", "tokenizer_path", "served_model_name"), model.name)
    sizes = {"max_model_len": model.info.max_length, "vocab_size": model.info.vocab_size}
    return {**named, **sizes, "is_generation": True, "server": "radixkv", "version": RADIXKV_VERSION}
