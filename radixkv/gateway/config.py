"""What a gateway is told, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from radixkv.core.errors import InvalidArgumentError
from radixkv.service.addresses import parse_address

__all__ = ["GatewayConfig", "TenantLimits"]

DEFAULT_LISTEN = "127.0.0.1:8000"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What one tenant may ask of the server; None: as much as there is.

    Attributes:
        requests_per_minute: requests begun. tokens_per_minute: tokens read (but those found in the cache) and written.
        max_concurrent: requests under way at once.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(name, value, "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """What a gateway is told.

    Attributes:
        listen: ``host:port``; port 0 takes a free one.
        keys_file: TOML of API keys and whose they are, see `auth`; None: every caller is the tenant "default".
        allow_anonymous: without a keys file, listen on other addresses than this machine's own.
        model_name: what the model is called here; None: as the worker calls it.
        max_tokens: longest reply of a chat that names no length, in tokens.
        limits: of a tenant that the keys file gives none.
        max_body_bytes: of a request.
        max_requests: requests under way at once, all tenants together; the next one is refused with 503,
            529 where it speaks the Anthropic API.
        cors_origins: origins whose pages may call; ``("*",)`` for any.
        drain_s: how long streams, responses in the background and replies of conversations may go on once the server is told
            to stop, in seconds.
        worker_wait_s: how long a request waits for a worker of another process that cannot be reached or is stopping, in
            seconds.
        log_requests: one line per request in the log: who, what, how long, how many tokens; never contents.
        state_file: SQLite file of stored responses, conversations and transcripts; None: they are kept in memory and end with
            the process.
        response_ttl_s: how long a stored response is kept, in seconds.
        max_responses: stored responses per tenant, the oldest forgotten first. max_response_bytes: the same, in bytes.
        max_conversations: conversations kept per tenant, further ones are refused. max_conversation_bytes: the same, in bytes.
        service: address of the cache service behind the worker, whose tree is shown; None: the tree page says how to name it.
        pool_name: of the worker's pool there.
    """

    listen: str = DEFAULT_LISTEN
    keys_file: Path | None = None
    allow_anonymous: bool = False
    model_name: str | None = None
    max_tokens: int = 4096
    limits: TenantLimits = field(default_factory=TenantLimits)
    max_body_bytes: int = 4 * 1024 * 1024
    max_requests: int = 1024
    cors_origins: tuple[str, ...] = ()
    drain_s: float = 30.0
    worker_wait_s: float = 30.0
    log_requests: bool = False
    state_file: Path | None = None
    response_ttl_s: float = 30 * 24 * 3600.0
    max_responses: int = 100_000
    max_response_bytes: int = 1024 * 1024 * 1024
    max_conversations: int = 10_000
    max_conversation_bytes: int = 1024 * 1024 * 1024
    service: str | None = None
    pool_name: str = "default"

    def __post_init__(self) -> None:
        for name in (
            "max_tokens",
            "max_body_bytes",
            "max_requests",
            "max_responses",
            "max_response_bytes",
            "max_conversations",
            "max_conversation_bytes",
        ):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(name, getattr(self, name), "at least 1")
        if self.service is not None:
            parse_address(self.service)
        if self.drain_s < 0:
            raise InvalidArgumentError("drain_s", self.drain_s, "at least 0")
        if self.worker_wait_s < 0:
            raise InvalidArgumentError("worker_wait_s", self.worker_wait_s, "at least 0")
        if not self.response_ttl_s > 0:
            raise InvalidArgumentError("response_ttl_s", self.response_ttl_s, "above 0")
