"""The pages and their files: read once from the package, served from memory.

Pages load nothing from other servers and run only scripts of this package; the Content-Security-Policy header enforces
both. A page contains no user data; it loads that from `/v1/`, with a key where keys are required.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple
from urllib.parse import urljoin

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

__all__ = ["PAGES", "assets", "router"]

router = APIRouter(include_in_schema=False)

PAGES: Mapping[str, str] = {
    "/": "chat.html",
    "/tree": "tree.html",
    "/fragmentation": "fragmentation.html",
    "/docs": "docs.html",
}
"""File of each page, by path."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCRIPT = re.compile(rb'<script type="module" src="/static/([^"]+)"')
_IMPORT = re.compile(rb"""\b(?:from|import)\s*["'](\.[^"']+)["']""")
_HEADERS = {
    "Cache-Control": "no-cache",  # revalidated each time, answered with 304
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}


class _Asset(NamedTuple):
    content: bytes
    packed: bytes
    media_type: str
    etag: str


@cache
def assets() -> Mapping[str, _Asset]:
    """Return every file below `static/` that a browser loads, by its path there; pages preload the modules that they import."""
    contents: dict[str, bytes] = {}
    folders: list[tuple[str, Traversable]] = [("", files("radixkv.gateway") / "static")]
    while folders:
        prefix, folder = folders.pop()
        for entry in folder.iterdir():
            path = f"{prefix}{entry.name}"
            if entry.is_dir():
                folders.append((f"{path}/", entry))
            elif _media_type(path):
                contents[path] = entry.read_bytes()
    for path in PAGES.values():
        links = "".join(f'<link rel="modulepreload" href="/static/{module}" />' for module in _imported(path, contents))
        contents[path] = contents[path].replace(b"</head>", links.encode() + b"</head>")
    return {path: _asset(path, content) for path, content in contents.items()}


def _media_type(path: str) -> str | None:
    return _TYPES.get(f".{path.rpartition('.')[2]}")


def _asset(path: str, content: bytes) -> _Asset:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _Asset(content, gzip.compress(content, mtime=0), _media_type(path) or "", etag)


def _imported(page: str, contents: Mapping[str, bytes]) -> list[str]:
    """Return the modules that a page loads before it shows anything, without its own entry module."""
    found = [path.decode() for path in _SCRIPT.findall(contents[page])]
    first = len(found)
    for module in found:  # grows in the loop
        for target in _IMPORT.findall(contents[module]):
            path = urljoin(f"/static/{module}", target.decode()).removeprefix("/static/")
            if path not in found:
                found.append(path)
    return found[first:]


async def _page(request: Request) -> Response:
    return _serve(request, PAGES[request.url.path])


async def _file(request: Request, path: str) -> Response:
    return _serve(request, path)


def _serve(request: Request, path: str) -> Response:
    asset = assets().get(path)
    if asset is None:
        raise HTTPException(404)
    headers = {**_HEADERS, "ETag": asset.etag}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, media_type=asset.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(asset.content, media_type=asset.media_type, headers=headers)


for _path in PAGES:
    router.add_api_route(_path, _page, methods=["GET", "HEAD"])
router.add_api_route("/static/{path:path}", _file, methods=["GET", "HEAD"])
