"""`/v1/models`: the one model that is served."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter, Request

from radixkv.gateway.answers import Model, ModelList
from radixkv.gateway.auth import CurrentTenant
from radixkv.gateway.errors import ApiError
from radixkv.worker.request import ModelInfo

__all__ = ["ServedModel", "router", "served_model"]

router = APIRouter(tags=["models"])


class ServedModel(NamedTuple):
    """The model under its public name. `fingerprint`: changes when answers may."""

    name: str
    info: ModelInfo
    fingerprint: str


async def served_model(request: Request, asked: str | None = None) -> ServedModel:
    """The model that is served; `asked` is checked to be it.

    Raises:
        ApiError: 404: another model was asked for.
        UnavailableError: the worker cannot be reached.
    """
    state = request.app.state
    info = await state.backend.model()
    name = state.config.model_name or _public_name(info.name)
    if asked is not None and asked not in (name, name.rpartition("/")[2], info.name):
        message = f"the model {asked!r} does not exist here; {name!r} does"
        raise ApiError(404, message, code="model_not_found", param="model")
    digest = hashlib.sha256(repr((version("radixkv"), info)).encode()).hexdigest()
    return ServedModel(name, info, f"fp_{digest[:10]}")


def _public_name(name: str) -> str:
    """A model's name; of a folder the last part, since where it lies is nobody's business."""
    return Path(name).name if Path(name).is_absolute() or name.startswith(".") else name or "default"


def _describe(model: ServedModel, created: int) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "radixkv",
        "max_model_len": model.info.max_length,
    }


@router.get("/v1/models", response_model=ModelList)
async def list_models(request: Request, _tenant: CurrentTenant) -> dict[str, Any]:
    """What is served."""
    model = await served_model(request)
    return {"object": "list", "data": [_describe(model, request.app.state.started)]}


@router.get("/v1/models/{model:path}", response_model=Model)
async def retrieve_model(model: str, request: Request, _tenant: CurrentTenant) -> dict[str, Any]:
    """One model."""
    return _describe(await served_model(request, model), request.app.state.started)
