"""`/v1/radixkv/replay`: the shapes of the caller's own last requests, which the fragmentation page plays.

Token ids never leave this process: the points where prompts diverge are computed here, and only those numbers are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from radixkv.core.tokens import TOKEN_BYTES
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.http.recording import RecordedBranch
from radixkv.simulate import branchings

__all__ = ["router", "shapes_of_branches"]

router = APIRouter(tags=["radixkv"], route_class=JsonRoute)


class ReplayedRequest(BaseModel):
    """One reply; a request for several replies is listed as several of these, which share its prompt."""

    arrival_s: float = Field(description="Arrival of its request, in seconds after the first listed one")
    prompt_tokens: int
    generated_tokens: int = Field(description="So far, while it runs")
    max_tokens: int = Field(description="Longest allowed reply")
    parent: int | None = Field(description="Index in this list of the earlier request that shares the longest prefix")
    shared_tokens: int = Field(description="Tokens shared with the parent's prompt and reply")
    found_tokens: int | None = Field(description="Prompt tokens found in the cache; null for forks, and while it runs")


class Replay(BaseModel):
    """A recorded load: lengths and times, no text."""

    step_s: float | None = Field(
        description="Mean time between two tokens of these replies; null where no reply has two"
    )
    requests: list[ReplayedRequest]


@router.get("/v1/radixkv/replay", response_model=Replay)
async def replay(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """The tenant's last requests, as far back as they are recorded; nothing of other tenants."""
    state = request.app.state
    branches = state.recording.branches(tenant.namespace)
    async with state.one_by_one.place(tenant.namespace):
        shapes = await run_in_threadpool(shapes_of_branches, branches)
    return {"step_s": state.recording.step_s(tenant.namespace), "requests": shapes}


def shapes_of_branches(branches: Sequence[RecordedBranch]) -> list[ReplayedRequest]:
    """Return the shapes. Only branches of the same place (adapter and salt) share KV. O(n log n) compares of histories."""
    found = branchings((each.place, each.prompt, each.reply) for each in branches)
    return [
        ReplayedRequest(
            arrival_s=round(each.arrival_s - branches[0].arrival_s, 4),
            prompt_tokens=len(each.prompt) // TOKEN_BYTES,
            generated_tokens=len(each.reply) // TOKEN_BYTES,
            max_tokens=each.max_tokens,
            parent=parent,
            shared_tokens=num_shared,
            found_tokens=each.num_found,
        )
        for each, (parent, num_shared) in zip(branches, found, strict=True)
    ]
