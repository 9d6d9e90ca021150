"""What a gateway is told, checked once."""

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
    """What a gateway is told.

    Attributes:
        listen: ``host:port``; port 0 takes a free one.
        keys_file: TOML of keys and whose they are, see `net.tenants`; None: every caller is the tenant "default".
        allow_anonymous: without a keys file, listen on other addresses than this machine's own.
        tls: what is shown to callers; None: plaintext, HTTP. No certificate is asked of them.
        allow_plaintext: with a keys file and without TLS, listen on other addresses than this machine's own: something in front
            does TLS.
        allow_hosts: further names that callers may know this server by. Without keys, on an address of this machine alone, a
            request that names it otherwise is refused: a page of somebody else's has sent it.
        model_name: what the model is called here; None: as the worker calls it.
        max_tokens: longest reply of a chat that names no length, in tokens.
        system_prompt: of the page's conversations that begin without one; None: what the model's template brings.
        limits: of a tenant that the keys file gives none.
        max_body_bytes: of a request.
        max_requests: requests under way at once, all tenants together.
        max_waiting: further ones, which wait for a place; the next one is refused with 503, 529 where it speaks the Anthropic
            API. A tenant of a keys file has at most a quarter of both, and is refused with 429 beyond it.
        cors_origins: origins whose pages may call; ``("*",)`` for any.
        drain_s: how long streams, responses in the background and replies of conversations may go on once the server is told
            to stop, in seconds.
        worker_wait_s: how long a request waits for a worker of another process that cannot be reached or is stopping, in
            seconds.
        unread_s: a caller who takes nothing of an answer for so many seconds is disconnected, and so is one whose machine has
            gone; by the kernel, where it can (Linux).
        log_requests: one line per request in the log: who, what, how long, how many tokens; never contents.
        state_file: SQLite file of stored responses, conversations and transcripts; None: they are kept in memory and end with
            the process.
        response_ttl_s: how long a stored response is kept, in seconds.
        max_responses: stored responses per tenant, the oldest forgotten first. max_response_bytes: the same, in bytes.
        max_conversations: conversations kept per tenant, further ones are refused. max_conversation_bytes: the same, in bytes.
        max_file_bytes: of an uploaded file. max_batch_body_bytes: of the body of a message batch.
        max_job_bytes: of the files and batches of one tenant, with their results.
        service: address of the cache service behind the worker, whose tree is shown; None: the tree page says how to name it.
        service_credentials: what is shown to that service; None: nothing.
        pool_name: of the worker's pool there.
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
    state_file: Path | None = None
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
        """Who may call, and what protects the way here."""
        return Security(
            keys_file=self.keys_file,
            tls=self.tls and replace(self.tls, client_ca_file=None),  # HTTP asks nobody for a certificate
            allow_anonymous=self.allow_anonymous,
            allow_plaintext=self.allow_plaintext,
        )
