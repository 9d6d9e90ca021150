"""Aliases of served paths: without /v1, with a trailing slash, by HEAD."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["API_PREFIX", "as_served"]

API_PREFIX = "/v1/"
"""Requests below it need a known tenant."""

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
    """Return the scope with the path and method that serve the request; unchanged where it names these itself."""
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
