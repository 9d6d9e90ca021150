"""The application: routes, what they share, and what stands around them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.middleware.cors import CORSMiddleware

from radixkv.core.errors import RadixKVError
from radixkv.gateway import anthropic_routes, chat, completions, models, pages, replay, responses
from radixkv.gateway.answers import ERRORS
from radixkv.gateway.auth import KeyRing
from radixkv.gateway.backend import Backend
from radixkv.gateway.cache_view import routes as cache_routes
from radixkv.gateway.cache_view.observer import CacheObserver
from radixkv.gateway.cache_view.texts import NodeTexts
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.conversations import routes as conversations
from radixkv.gateway.limits import RATE_LIMIT_HEADERS, Limiter
from radixkv.gateway.metrics import CONTENT_TYPE, Metrics
from radixkv.gateway.middleware import Gate, GatewayMiddleware
from radixkv.gateway.recording import Recording
from radixkv.gateway.refusals import add_error_handlers
from radixkv.gateway.state import kept_state
from radixkv.worker.request import Generator

__all__ = ["create_app"]


def create_app(generator: Generator, config: GatewayConfig | None = None) -> FastAPI:
    """The gateway as an ASGI application. The generator stays the caller's to close.

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
        responses=ERRORS,
        lifespan=_lifespan,
    )
    state = app.state
    state.config = config
    state.keys = KeyRing(config.keys_file, config.limits)
    state.limiter = Limiter()
    state.metrics = Metrics()
    state.recording = Recording()
    state.backend = Backend(generator, patience_s=config.worker_wait_s)
    state.cache_observer, state.node_texts = _cache_view(config, state.backend)
    state.gate = Gate(config.max_requests)
    state.started = int(time.time())
    state.failure = None
    add_error_handlers(app)
    app.include_router(models.router)
    app.include_router(chat.router)
    app.include_router(completions.router)
    app.include_router(responses.router)
    app.include_router(anthropic_routes.router)
    app.include_router(conversations.router)
    app.include_router(cache_routes.router)
    app.include_router(replay.router)
    app.include_router(pages.router)
    app.add_api_route("/health", _health, include_in_schema=False)
    app.add_api_route("/metrics", _metrics, include_in_schema=False)
    app.add_middleware(
        GatewayMiddleware,
        config=config,
        keys=state.keys,
        gate=state.gate,
        metrics=state.metrics,
        recording=state.recording,
    )
    if config.cors_origins:  # outermost, so that pages can read refusals too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", *RATE_LIMIT_HEADERS],
        )
    return app


def _cache_view(config: GatewayConfig, backend: Backend) -> tuple[CacheObserver | None, NodeTexts | None]:
    """What the tree page looks through, where the cache service is known."""
    if config.service is None:
        return None, None
    observer = CacheObserver(config.service, config.pool_name, backend, credentials=config.service_credentials)
    return observer, NodeTexts(backend, observer.run)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """What is stored is opened when the application starts and closed, complete, when it ends."""
    try:
        async with kept_state(app):
            if app.state.cache_observer is not None:
                app.state.cache_observer.start()
            yield
    except RadixKVError as error:
        app.state.failure = error  # the server only learns that we did not start
        raise
    finally:
        if app.state.cache_observer is not None:
            app.state.cache_observer.close()
        app.state.backend.close()


async def _health(request: Request) -> Response:
    """200 while requests are taken; 503 while the server drains or the worker cannot be reached."""
    state = request.app.state
    if state.gate.is_draining:
        return JSONResponse({"status": "draining"}, 503)
    if not await state.backend.is_alive():
        return JSONResponse({"status": "the worker cannot be reached"}, 503)
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    state = request.app.state
    return PlainTextResponse(state.metrics.text(await state.backend.stats()), media_type=CONTENT_TYPE)
