"""Who calls: API keys, the tenants behind them, and the dependency that tells a route.

The keys file is TOML. It holds no key, only SHA-256 digests of keys, and is read again when it changes:

    [[tenant]]
    name = "evaluation"
    namespace = "team-a"           # isolation domain of what is cached and stored; the name where it is left out
    keys = ["sha256:9f86d08..."]   # printf %s "$KEY" | sha256sum
    requests_per_minute = 600
    tokens_per_minute = 200000
    max_concurrent = 32
    operator = true                # sees and may evict what all namespaces have cached; false where it is left out
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.config import TenantLimits
from radixkv.gateway.errors import ApiError

__all__ = ["ANONYMOUS", "TENANT", "CurrentTenant", "KeyRing", "Tenant", "authenticate", "current_tenant"]

MAX_KEYS = 10_000
MAX_NAME_CHARACTERS = 128
TENANT = "radixkv.tenant"
"""Where the tenant is left in the request's scope, once it is known."""

RECHECK_S = 1.0
"""How often the keys file is looked at for changes, at most."""

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tenant:
    """On whose behalf a request is served.

    Attributes:
        name: for logs and metrics.
        namespace: isolation domain: nothing cached, stored or told crosses from one to another.
        limits: what it may ask for.
        is_operator: sees what all namespaces have cached, and may evict of it.
    """

    name: str
    namespace: str
    limits: TenantLimits = field(default_factory=TenantLimits)
    is_operator: bool = False


ANONYMOUS = Tenant("default", DEFAULT_NAMESPACE, is_operator=True)


class KeyRing:
    """The keys that are known, by digest. Safe to call from any thread.

    Args:
        path: the keys file; None: every caller is the tenant "default", an operator, whatever key is sent.
        limits: of tenants that the file gives none.
        clock: seconds, monotonic.

    Raises:
        InvalidArgumentError: the file cannot be read. Later, while running, that is logged and the keys read before stay.
    """

    def __init__(
        self,
        path: Path | None,
        limits: TenantLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._limits = limits or TenantLimits()
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_s = clock()
        self._stamp = self._read_stamp()
        self._tenants = self._load() if path else {}

    @property
    def is_open(self) -> bool:
        """Whether callers need no key."""
        return self._path is None

    def find(self, key: str | None) -> Tenant | None:
        """The tenant of a key; None if it is nobody's. Takes the same time whichever key is wrong. O(1)."""
        if self._path is None:
            return replace(ANONYMOUS, limits=self._limits)
        self._reload_if_changed()
        if not key:
            return None
        # What is looked up is the digest, of which a caller cannot choose the beginning; what is found is compared whole.
        digest = hashlib.sha256(key.encode()).hexdigest()
        found = self._tenants.get(digest)
        return found[1] if found is not None and hmac.compare_digest(found[0], digest) else None

    def _reload_if_changed(self) -> None:
        with self._lock:
            now_s = self._clock()
            if now_s - self._checked_s < RECHECK_S:
                return
            self._checked_s = now_s
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            try:
                self._tenants = self._load()
            except InvalidArgumentError as error:
                _LOG.error("the keys read before stay in use: %s", error)
            else:
                _LOG.info("read %d keys from %s", len(self._tenants), self._path)
            self._stamp = stamp

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat() if self._path else None
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_size, status.st_ino) if status else None

    def _load(self) -> dict[str, tuple[str, Tenant]]:
        assert self._path is not None
        try:
            document = tomllib.loads(self._path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidArgumentError("keys file", str(self._path), f"a TOML file that can be read: {error}") from None
        return _read_tenants(document, self._limits)


def _read_tenants(document: dict[str, Any], limits: TenantLimits) -> dict[str, tuple[str, Tenant]]:
    rows = document.get("tenant", [])
    if set(document) - {"tenant"} or not isinstance(rows, list):
        raise InvalidArgumentError("keys file", sorted(document), "a list of [[tenant]] tables and nothing else")
    tenants: dict[str, tuple[str, Tenant]] = {}
    for row in rows:
        tenant = _read_tenant(row, limits)
        for text in row.get("keys", []):
            match = _DIGEST.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                raise InvalidArgumentError(
                    f"keys of {tenant.name}", "a key", "the SHA-256 digest of a key, 64 hex digits"
                )
            digest = match.group(1).lower()
            if digest in tenants and tenants[digest][1] != tenant:
                raise InvalidArgumentError(f"keys of {tenant.name}", digest[:8], "no key of another tenant")
            tenants[digest] = (digest, tenant)
    if len(tenants) > MAX_KEYS:
        raise InvalidArgumentError("keys file", f"{len(tenants)} keys", f"at most {MAX_KEYS} keys")
    return tenants


def _read_tenant(row: Any, limits: TenantLimits) -> Tenant:
    known = {"name", "namespace", "keys", "operator", *_LIMITS}
    if not isinstance(row, dict) or set(row) - known:
        raise InvalidArgumentError("[[tenant]]", row, f"a table of {', '.join(sorted(known))}")
    name = row.get("name")
    namespace = row.get("namespace", name)
    for field_name, value in (("name", name), ("namespace", namespace)):
        if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
            raise InvalidArgumentError(
                f"[[tenant]] {field_name}", value, f"a text of 1 to {MAX_NAME_CHARACTERS} characters"
            )
    for limit in _LIMITS:
        if limit in row and (not isinstance(row[limit], int) or isinstance(row[limit], bool)):
            raise InvalidArgumentError(f"[[tenant]] {limit}", row[limit], "a whole number, at least 1")
    is_operator = row.get("operator", False)
    if not isinstance(is_operator, bool):
        raise InvalidArgumentError("[[tenant]] operator", is_operator, "true or false")
    own = TenantLimits(**{limit: row.get(limit, getattr(limits, limit)) for limit in _LIMITS})
    assert isinstance(name, str)
    assert isinstance(namespace, str)
    return Tenant(name, namespace, own, is_operator)


def authenticate(scope: Scope, keys: KeyRing) -> Tenant:
    """Who sends a request, which is left in its scope; nothing of its body has been read.

    Raises:
        ApiError: 401 where the key is missing or nobody's.
    """
    sent = Headers(scope=scope)
    scheme, _, key = sent.get("authorization", "").partition(" ")
    given = key.strip() if scheme.lower() == "bearer" else sent.get("x-api-key", "").strip()
    tenant = keys.find(given)
    if tenant is None:
        message = "no such API key"
        if not given:
            message = "an API key is needed: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        headers = {"WWW-Authenticate": "Bearer"}
        raise ApiError(401, message, type="authentication_error", code="invalid_api_key", headers=headers)
    scope[TENANT] = tenant
    return tenant


async def current_tenant(request: Request) -> Tenant:
    """Dependency of every route that works for somebody: the tenant, known before the route was looked for."""
    tenant: Tenant = request.scope[TENANT]
    return tenant


CurrentTenant = Annotated[Tenant, Depends(current_tenant)]
