"""Configuration of a gateway, validated once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from radixkv.client import Credentials
from radixkv.core.errors import InvalidArgumentError
from radixkv.net.addresses import parse_address
from radixkv.net.tenants import TenantLimits
from radixkv.net.tls import Security, ServerTls

__all__ = ["GatewayConfig", "TenantLimits"]

DEFAULT_LISTEN = "127.0.0.1:8000"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Configuration of a gateway.

    Attributes:
        listen: ``host:port``; port 0 takes a free port.
        keys_file: TOML of tenants and their keys, see `net.tenants`; None: every caller is the tenant "default".
        allow_anonymous: without a keys file, listen on addresses other than loopback.
        tls: the server's certificate; None: plaintext HTTP. Clients need no certificate.
        allow_plaintext: with a keys file and without TLS, listen on addresses other than loopback: a proxy in front does TLS.
        allow_hosts: other names of this server. Without keys, on a loopback address, requests with an unknown Host header are
            rejected: another site's page sent them.
        model_name: public name of the model; None: the worker's name.
        max_tokens: longest reply, in tokens, of a chat without a length.
        system_prompt: of the page's conversations without one; None: the default of the model's template.
        limits: of tenants without limits in the keys file.
        max_body_bytes: of a request.
        max_requests: concurrent requests, all tenants together.
        max_waiting: requests that wait for a place; others are rejected with 503, in the Anthropic API with 529. With a keys
            file, a tenant has at most a quarter of both, and is rejected with 429 beyond it.
        cors_origins: origins whose pages may call the API; ``("*",)`` for any.
        drain_s: how long streams, background responses and replies of conversations may continue after a stop begins, in
            seconds.
        worker_wait_s: how long a request waits for a remote worker that is unreachable or stopping, in seconds.
        unread_s: clients that read nothing of a response, or are unreachable, for so many seconds are disconnected, by the
            kernel where it can (Linux).
        log_requests: log one line per request: tenant, route, duration, tokens; never contents.
        state_file: SQLite file of stored responses, conversations and transcripts, or the URL of a PostgreSQL database that
            any number of gateways share; None: in memory, lost with the process.
        shared_url: Valkey or Redis server of all gateways, for tenants' limits; None: each gateway grants its share of them.
        response_ttl_s: lifetime of a stored response, in seconds.
        max_responses: stored responses per tenant; the oldest are dropped first. max_response_bytes: the same, in bytes.
        max_conversations: conversations per tenant; others are rejected. max_conversation_bytes: the same, in bytes.
        max_file_bytes: of an uploaded file. max_batch_body_bytes: of the body of a message batch.
        max_job_bytes: of the files and batches of one tenant, with their results.
        service: address of the worker's cache service, for administration and the tree page; None: there is neither. A
            generator over several services has their addresses itself.
        service_credentials: key or certificate for the services; None: none.
        pool_name: the pool of a single worker on its service.
    """

    listen: str = DEFAULT_LISTEN
    keys_file: Path | None = None
    allow_anonymous: bool = False
    tls: ServerTls | None = None
    allow_plaintext: bool = False
    allow_hosts: tuple[str, ...] = ()
    model_name: str | None = None
    max_tokens: int = 4096
    system_prompt: str | None = None
    limits: TenantLimits = field(default_factory=TenantLimits)
    max_body_bytes: int = 4 * 1024 * 1024
    max_requests: int = 1024
    max_waiting: int = 6144
    cors_origins: tuple[str, ...] = ()
    drain_s: float = 30.0
    worker_wait_s: float = 30.0
    unread_s: float = 60.0
    log_requests: bool = False
    state_file: Path | str | None = None
    shared_url: str | None = None
    response_ttl_s: float = 30 * 24 * 3600.0
    max_responses: int = 100_000
    max_response_bytes: int = 1024 * 1024 * 1024
    max_conversations: int = 10_000
    max_conversation_bytes: int = 1024 * 1024 * 1024
    max_file_bytes: int = 100 * 1024 * 1024
    max_batch_body_bytes: int = 32 * 1024 * 1024
    max_job_bytes: int = 1024 * 1024 * 1024
    service: str | None = None
    service_credentials: Credentials | None = None
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
            "max_file_bytes",
            "max_batch_body_bytes",
            "max_job_bytes",
        ):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(name, getattr(self, name), "at least 1")
        if self.max_waiting < 0:
            raise InvalidArgumentError("max_waiting", self.max_waiting, "at least 0")
        if self.service is not None:
            parse_address(self.service)
        for name in ("drain_s", "worker_wait_s"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(name, getattr(self, name), "at least 0")
        for name in ("unread_s", "response_ttl_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(name, getattr(self, name), "above 0")

    @property
    def security(self) -> Security:
        """Keys and TLS of the listener."""
        return Security(
            keys_file=self.keys_file,
            tls=self.tls and replace(self.tls, client_ca_file=None),  # HTTP clients need no certificate
            allow_anonymous=self.allow_anonymous,
            allow_plaintext=self.allow_plaintext,
        )
