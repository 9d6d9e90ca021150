"""`/v1/radixkv/replay`: the shapes of the caller's own last requests, which the page on fragmentation plays."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.json_body import JsonRoute
from radixkv.gateway.http.recording import shapes_of_branches

__all__ = ["router"]

router = APIRouter(tags=["radixkv"], route_class=JsonRoute)


class ReplayedRequest(BaseModel):
    """One reply; a request for several is as many of these, which share its prompt."""

    arrival_s: float = Field(description="When its request came, in seconds after the first one told")
    prompt_tokens: int
    generated_tokens: int = Field(description="So far, where it still runs")
    max_tokens: int = Field(description="How long the reply was allowed to get")
    parent: int | None = Field(description="The place in this list of the earlier one that its prompt shares most with")
    shared_tokens: int = Field(description="Tokens of the prompt that are those of the parent's prompt and reply")
    found_tokens: int | None = Field(
        description="Tokens of the prompt that were in the cache; null for forks, and while it runs"
    )


class Replay(BaseModel):
    """A load as it was: lengths and times, no text."""

    step_s: float | None = Field(description="Mean time between two tokens of these replies; null where none has two")
    requests: list[ReplayedRequest]


@router.get("/v1/radixkv/replay", response_model=Replay)
async def replay(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """What the gateway was lately asked by this tenant, as far back as it remembers; nothing of others."""
    state = request.app.state
    branches = state.recording.branches(tenant.namespace)
    async with state.one_by_one.place(tenant.namespace):
        shapes = await run_in_threadpool(shapes_of_branches, branches)
    return {"step_s": state.recording.step_s(tenant.namespace), "requests": [shape._asdict() for shape in shapes]}
