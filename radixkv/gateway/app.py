"""The application: its routes, their shared state, and the middleware around them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute, APIRouter
from starlette.datastructures import State
from starlette.middleware.cors import CORSMiddleware

from radixkv.core.errors import RadixKVError
from radixkv.gateway.api import billing, engine_routes, forks, instructions, me
from radixkv.gateway.api.anthropic import routes as anthropic_routes
from radixkv.gateway.api.conversations import message_routes as kept_messages
from radixkv.gateway.api.conversations import routes as conversations
from radixkv.gateway.api.jobs import message_batch_routes
from radixkv.gateway.api.jobs import routes as job_routes
from radixkv.gateway.api.openai import chat, completions
from radixkv.gateway.api.responses import item_list_routes
from radixkv.gateway.api.responses import routes as responses
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.backend.clears import Clears
from radixkv.gateway.backend.generations import Generations
from radixkv.gateway.backend.lately import Lately
from radixkv.gateway.backend.pools import CachePools, PoolName
from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.admission import Admission
from radixkv.gateway.http.auth import ANONYMOUS, KeyRing
from radixkv.gateway.http.connections import Connections
from radixkv.gateway.http.gate import Gate
from radixkv.gateway.http.metrics import CONTENT_TYPE, Metrics
from radixkv.gateway.http.middleware import GatewayMiddleware
from radixkv.gateway.http.recording import Recording
from radixkv.gateway.http.refusals import add_error_handlers
from radixkv.gateway.http.request_context import GENERATION_ID, Books
from radixkv.gateway.http.shared_limits import SharedLimiter
from radixkv.gateway.pages import pages, replay
from radixkv.gateway.pages.cache_view import branch_routes, pool_routes, prompt_routes
from radixkv.gateway.pages.cache_view import routes as cache_routes
from radixkv.gateway.pages.cache_view.texts import NodeTexts
from radixkv.gateway.pages.cache_view.view import CacheView
from radixkv.gateway.protocol.errors import RATE_LIMIT_HEADERS
from radixkv.gateway.state import kept_state
from radixkv.gateway.storage.billing import BillingBook
from radixkv.gateway.turns import models
from radixkv.gateway.turns.openapi import ERRORS
from radixkv.generation.request import Generator
from radixkv.net.limits import Limiter
from radixkv.util.calls import Calls
from radixkv.util.fair_semaphore import FairSemaphore

__all__ = ["create_app"]

_ROUTERS = (
    models.router,
    chat.router,
    completions.router,
    forks.router,
    responses.router,
    item_list_routes.router,
    anthropic_routes.router,
    engine_routes.router,
    job_routes.router,
    message_batch_routes.router,
    conversations.router,
    kept_messages.router,
    cache_routes.router,
    branch_routes.router,
    prompt_routes.router,
    pool_routes.router,
    replay.router,
    me.router,
    billing.router,
    instructions.router,
    pages.router,
)
_ROUTES = APIRouter(responses=ERRORS)
"""Of every application in the process: what FastAPI makes of them, in 0.2 s, is made once."""

for _router in _ROUTERS:
    _ROUTES.include_router(_router)
_SCHEMAS = threading.Lock()
"""Held while an application makes its schemas: FastAPI then mutes a pydantic warning in the whole process."""


def create_app(generator: Generator, config: GatewayConfig | None = None, limiter: Limiter | None = None) -> FastAPI:
    """Create the gateway as an ASGI application. The caller closes the generator.

    Args:
        generator: generates the replies.
        config: see `GatewayConfig`.
        limiter: of the tenants, shared where this process also serves them elsewhere; None: a new one.

    Raises:
        InvalidArgumentError: the keys file cannot be read.
    """
    config = config or GatewayConfig()
    app = FastAPI(
        title="radixkv",
        description="The OpenAI and Anthropic APIs on a radix tree of prefixes.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=_lifespan,
    )
    state = app.state
    state.config = config
    state.keys = KeyRing(config.keys_file, config.limits)
    state.limits = SharedLimiter(config.shared_url, limiter or Limiter())
    state.metrics = Metrics()
    if isinstance(generator, RoutedGenerator):
        state.metrics.registry.register(generator)
    state.recording = Recording()
    state.generations = Generations()
    state.billing = BillingBook()
    state.backend = Backend(generator, patience_s=config.worker_wait_s, is_shared=not state.keys.is_open)
    state.cache_view, state.node_texts, state.clears = _cache_view(config, state.backend)
    state.gate = Gate(config.max_requests, config.max_waiting, is_shared=not state.keys.is_open)
    state.connections = Connections(ANONYMOUS.name if state.keys.is_open else None)
    state.body_calls = Calls(1, None)
    state.one_by_one = FairSemaphore(None, 1)
    state.told_metrics = Lately(partial(_metrics_text, state))
    state.worker_is_alive = Lately(state.backend.is_alive)
    state.started = int(time.time())
    state.failure = None
    add_error_handlers(app)
    app.router.routes.extend(_ROUTES.routes)
    state.routes = [route for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    state.post_paths = _post_paths(state.routes)
    app.add_api_route("/openapi.json", _openapi, include_in_schema=False)
    app.add_api_route("/health", _health, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/ping", _health, methods=["GET", "HEAD", "POST"], include_in_schema=False)
    app.add_api_route("/metrics", _metrics, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_middleware(
        GatewayMiddleware,
        config=config,
        keys=state.keys,
        gate=state.gate,
        admission=Admission(state.gate, state.limits),
        limits=state.limits,
        books=Books(state.metrics, state.recording, state.generations, state.billing),
    )
    if config.cors_origins:  # outermost, so that pages can read rejections, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", GENERATION_ID, *RATE_LIMIT_HEADERS],
        )
    return app


def _cache_view(config: GatewayConfig, backend: Backend) -> tuple[CacheView | None, NodeTexts | None, Clears | None]:
    """Create what reaches the pools, if a cache service is configured."""
    generator, credentials = backend.generator, config.service_credentials
    if config.service is None:
        return None, None, None
    first = PoolName(config.service, config.pool_name)
    members = generator.members if isinstance(generator, RoutedGenerator) else None
    pools = CachePools(members.met if members is not None else first, credentials=credentials)
    view = CacheView(pools, first, backend, credentials=credentials)
    return view, NodeTexts(backend, view.run), Clears(pools, members, view.run)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the stored state at startup; at shutdown, close it with all changes saved."""
    try:
        await asyncio.to_thread(_warm, app)
        async with kept_state(app):
            if app.state.cache_view is not None:
                app.state.cache_view.start()
            yield
    except Exception as error:
        app.state.failure = error  # the server only learns that startup failed
        raise
    finally:
        if app.state.cache_view is not None:
            app.state.cache_view.close()
        app.state.body_calls.close()
        app.state.backend.close()


def _warm(app: FastAPI) -> None:
    """Build caches before the first request, which would otherwise build them while all others wait."""
    pages.assets()
    with _SCHEMAS:
        for route in app.routes:
            route.matches({"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []})


def _post_paths(routes: Iterable[APIRoute]) -> list[str]:
    """Documented paths that take POST."""
    return sorted(route.path for route in routes if route.include_in_schema and "POST" in (route.methods or ()))


async def _openapi(request: Request) -> Response:
    """The description of every route; built at the first request, 0.2 to 0.9 s in a thread of its own."""
    return JSONResponse(await asyncio.to_thread(_describe, request.app))


def _describe(app: FastAPI) -> dict[str, Any]:
    with _SCHEMAS:
        return app.openapi()


async def _health(request: Request) -> Response:
    """200 while the server accepts requests; 503 while it drains, has no free thread, or cannot reach the worker."""
    state = request.app.state
    if state.gate.is_draining:
        return JSONResponse({"status": "draining"}, 503)
    if state.backend.is_stuck:
        return JSONResponse({"status": "no request can be begun: all threads are busy"}, 503)
    if not await state.worker_is_alive.get():
        return JSONResponse({"status": "the worker cannot be reached"}, 503)
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    """Metrics, at most a second old: frequent scrapes cost nothing extra."""
    return PlainTextResponse(await request.app.state.told_metrics.get(), media_type=CONTENT_TYPE)


async def _metrics_text(state: State) -> bytes:
    stats, name = await state.backend.stats(), ""
    if stats is not None:
        with suppress(RadixKVError):
            name = models.public_name(state.config, await state.backend.model())
    text: bytes = state.metrics.text(stats, name)
    return text
