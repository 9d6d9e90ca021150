"""Paths that clients ask for and mean one of ours by: without /v1, with a slash at the end, by HEAD."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["API_PREFIX", "as_served"]

API_PREFIX = "/v1/"
"""Below it a caller must be known."""

_ROOTS = (
    "batches",
    "chat",
    "completions",
    "conversations",
    "detokenize",
    "files",
    "get_model_info",
    "messages",
    "models",
    "props",
    "responses",
    "server_info",
    "tokenize",
    "tokenizer_info",
    "version",
)


def as_served(scope: Scope) -> Scope:
    """The scope of a request under the path and method that serve it; the same where it names these itself."""
    path: str = scope["path"]
    served = path
    if path.startswith("/") and path[1:].partition("/")[0] in _ROOTS:
        served = API_PREFIX + path[1:]
    if served.startswith(API_PREFIX) and served != API_PREFIX:
        served = served.rstrip("/")
    is_head = scope["method"] == "HEAD" and served.startswith(API_PREFIX)
    if served == path and not is_head:
        return scope
    return {**scope, "path": served, "raw_path": served.encode(), "method": "GET" if is_head else scope["method"]}
