"""`/v1/models`: the served model and its adapters, each of which requests name as a model of its own."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter, Request

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.protocol.anthropic_errors import speaks_anthropic
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.turns.openapi import AnthropicModel, AnthropicModelList, Model, ModelList
from radixkv.generation.request import ModelInfo

__all__ = ["RADIXKV_VERSION", "ServedModel", "router", "served_model"]

RADIXKV_VERSION = version("radixkv")  # looked up once: it takes 0.7 ms

router = APIRouter(tags=["models"])


class ServedModel(NamedTuple):
    """The model or one of its adapters, by its public name. `fingerprint`: changes when replies may. `adapter`: or empty."""

    name: str
    info: ModelInfo
    fingerprint: str
    adapter: str = ""


async def served_model(request: Request, asked: str | None = None) -> ServedModel:
    """Return the served model; `asked` must name it or one of its adapters, as ``NAME`` or ``MODEL:NAME``.

    Raises:
        ApiError: 404: another model was requested.
        UnavailableError: the worker cannot be reached.
    """
    state = request.app.state
    info = await state.backend.model()
    name = public_name(state.config, info)
    names = (name, name.rpartition("/")[2], info.name)
    if asked is None or asked in names:
        return _served(name, info, "")
    for adapter in info.adapters:
        if asked in (adapter, *(f"{own}:{adapter}" for own in names)):
            return _served(adapter, info, adapter)
    served = ", ".join(map(repr, (name, *info.adapters)))
    message = f"the model {asked!r} does not exist here; {served} {'do' if info.adapters else 'does'}"
    raise ApiError(404, message, code="model_not_found", param="model")


def _served(name: str, info: ModelInfo, adapter: str) -> ServedModel:
    digest = hashlib.sha256(repr((RADIXKV_VERSION, info, adapter)).encode()).hexdigest()
    return ServedModel(name, info, f"fp_{digest[:10]}", adapter)


def public_name(config: GatewayConfig, info: ModelInfo) -> str:
    """Return the model's name; for a folder only the last part, so that no path is exposed."""
    if config.model_name:
        return config.model_name
    name = info.name
    return Path(name).name if Path(name).is_absolute() or name.startswith(".") else name or "default"


def _describe(model: ServedModel, parent: ServedModel, created: int) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "radixkv",
        "max_model_len": model.info.max_length,
        "parent": parent.name if model.adapter else None,
        "num_parameters": (not model.adapter and model.info.num_parameters) or None,
    }


def _describe_to_anthropic(model: ServedModel, created: int) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.info.max_length,
    }


@router.get("/v1/models", response_model=ModelList | AnthropicModelList, response_model_exclude_none=True)
async def list_models(request: Request, _tenant: CurrentTenant) -> dict[str, Any]:
    """The served models; with the header `anthropic-version` in that protocol's form."""
    model = await served_model(request)
    served = [model, *(_served(adapter, model.info, adapter) for adapter in model.info.adapters)]
    if speaks_anthropic(request.scope):
        listed = [_describe_to_anthropic(each, request.app.state.started) for each in served]
        return {"data": listed, "has_more": False, "first_id": listed[0]["id"], "last_id": listed[-1]["id"]}
    return {"object": "list", "data": [_describe(each, model, request.app.state.started) for each in served]}


@router.get("/v1/models/{model:path}", response_model=Model | AnthropicModel, response_model_exclude_none=True)
async def retrieve_model(model: str, request: Request, _tenant: CurrentTenant) -> dict[str, Any]:
    """One model; with the header `anthropic-version` in that protocol's form."""
    found = await served_model(request, model)
    if speaks_anthropic(request.scope):
        return _describe_to_anthropic(found, request.app.state.started)
    return _describe(found, await served_model(request), request.app.state.started)
