"""Requests and responses of the file and batch endpoints, in both protocols' forms."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from radixkv.gateway.api.jobs.batches import Batch
from radixkv.gateway.api.responses.schema import Metadata
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.fields import ClosedModel, Name, Whole

__all__ = [
    "BatchObject",
    "BatchPage",
    "CreateBatch",
    "DeletedFile",
    "DeletedMessageBatch",
    "FileObject",
    "FilePage",
    "MessageBatch",
    "MessageBatchPage",
    "batch_body",
    "message_batch_body",
]

MIN_TTL_S, MAX_TTL_S = 3600, 2_592_000


class ExpiresAfter(ClosedModel):
    """Lifetime of a file, in seconds after its creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[Whole, Field(ge=MIN_TTL_S, le=MAX_TTL_S)]


class CreateBatch(ApiModel):
    """Body of a new batch."""

    input_file_id: Name
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class FileObject(BaseModel):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"]


class FilePage(BaseModel):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """Confirms the deletion."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchFault(BaseModel):
    """A fault of a batch's file, with its line."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchFaults(BaseModel):
    """All faults, up to a bound."""

    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(BaseModel):
    """Numbers of requests of a batch, by result."""

    total: int
    completed: int
    failed: int


class BatchObject(BaseModel):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    status: str
    errors: BatchFaults | None
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    completion_window: str
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None


class BatchPage(BaseModel):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageCounts(BaseModel):
    """Numbers of requests of a message batch, by state."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(BaseModel):
    """A message batch. `results_url`: a path of this server."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    ended_at: str | None
    created_at: str
    expires_at: str
    archived_at: None
    cancel_initiated_at: str | None
    results_url: str | None


class MessageBatchPage(BaseModel):
    """A page of message batches, latest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(BaseModel):
    """Confirms the deletion."""

    id: str
    type: Literal["message_batch_deleted"]


def batch_body(batch: Batch) -> dict[str, Any]:
    """Return a batch as the OpenAI API's object."""
    details = batch.details
    errors = details.get("errors")
    times = ("in_progress", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "status": batch.status,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": details["input_file_id"],
        "output_file_id": details.get("output_file_id"),
        "error_file_id": details.get("error_file_id"),
        "completion_window": "24h",
        "request_counts": {"total": batch.num_total, "completed": batch.num_completed, "failed": batch.num_failed},
        "metadata": details.get("metadata"),
        "created_at": int(batch.created_s),
        "expires_at": int(batch.window_s),
        **{f"{name}_at": _whole(details.get(f"{name}_at")) for name in times},
    }


def message_batch_body(batch: Batch) -> dict[str, Any]:
    """Return a batch as the Anthropic API's object. Results are counted only at its end."""
    details = batch.details
    has_ended = not batch.is_open
    status = "ended" if has_ended else "canceling" if batch.status == "cancelling" else "in_progress"
    done = (batch.num_completed, batch.num_failed, batch.num_cancelled, batch.num_expired) if has_ended else (0,) * 4
    counts = dict(zip(("succeeded", "errored", "canceled", "expired"), done, strict=True))
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {"processing": 0 if has_ended else batch.num_total, **counts},
        "ended_at": _date(_ended_s(details)),
        "created_at": _date(batch.created_s),
        "expires_at": _date(batch.window_s),
        "archived_at": None,
        "cancel_initiated_at": _date(details.get("cancelling_at")),
        "results_url": f"/v1/messages/batches/{batch.id}/results" if has_ended else None,
    }


def _ended_s(details: Mapping[str, Any]) -> float | None:
    times = (details.get(f"{name}_at") for name in ("completed", "cancelled", "expired"))
    return next((time_s for time_s in times if time_s is not None), None)


def _whole(time_s: float | None) -> int | None:
    return None if time_s is None else int(time_s)


def _date(time_s: float | None) -> str | None:
    return None if time_s is None else datetime.fromtimestamp(time_s, UTC).isoformat()
