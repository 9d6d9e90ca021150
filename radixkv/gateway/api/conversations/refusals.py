"""Rejections of requests about conversations, as API errors."""

from __future__ import annotations

from radixkv.gateway.protocol.errors import ApiError

__all__ = ["conflict", "full", "no_conversation", "no_message", "not_json", "not_possible"]


def no_conversation(conversation_id: str) -> ApiError:
    """The conversation does not exist, or is another tenant's."""
    message = f"conversation with id {conversation_id!r} not found"
    return ApiError(404, message, code="not_found", param="conversation_id")


def no_message(message_id: str, param: str = "message_id") -> ApiError:
    """The conversation has no such message."""
    return ApiError(
        404, f"message with id {message_id!r} not found in this conversation", code="not_found", param=param
    )


def conflict(message: str, param: str | None = None) -> ApiError:
    """The request conflicts with the stored state."""
    return ApiError(409, message, code="conflict", param=param)


def full(message: str) -> ApiError:
    """A bound is reached; the message names what to delete."""
    return ApiError(409, message, code="conversations_full")


def not_json() -> ApiError:
    """The Content-Type of the body is not JSON."""
    message = "the body must be JSON or JSON lines: send the header 'Content-Type: application/json'"
    return ApiError(415, message, code="unsupported_media_type", param="body")


def not_possible(message: str, param: str) -> ApiError:
    """The request is invalid in every state."""
    return ApiError(400, message, code="invalid_value", param=param)
