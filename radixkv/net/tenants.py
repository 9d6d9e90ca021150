"""Tenants, the keys and certificates that authenticate them, and the rights of each.

The cache service, the worker and the gateway read the same file. It is TOML, holds no key, only SHA-256 digests of keys, and is
read again when it changes; see `keys_file`:

    [[tenant]]
    name = "evaluation"
    namespace = "team-a"           # isolation domain of cached and stored data; default: the name
    keys = ["sha256:9f86d08..."]   # printf %s "$KEY" | sha256sum
    certificates = ["eval-job"]    # common names of client certificates, where the server asks for some
    roles = ["client"]             # of client, reader, holder and admin; see `rights`
    namespaces = ["team-a"]        # that it may name, with those of their adapters, "*": all; default: its own
    pools = ["default"]            # that a holder may attach to; default: all
    requests_per_minute = 600
    tokens_per_minute = 200000
    max_concurrent = 32
    operator = true                # sees and may evict the trees of all namespaces, over HTTP; as an admin always does
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import is_derived, owner_of
from radixkv.net.keys_file import KeysFile

__all__ = ["ANONYMOUS", "LIMITS", "ROLES", "KeyRing", "Tenant", "TenantLimits"]

MAX_KEYS = 10_000
MAX_NAME_CHARACTERS = 128
RECHECK_S = 1.0
"""Least time between two checks of the keys file for changes."""

ROLES = ("client", "reader", "holder", "admin")
EVERYTHING = "*"
"""Stands for every namespace in a tenant's list of them."""

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_LISTS = ("keys", "certificates", "roles", "namespaces", "pools")
_SPECULATION = ("none", "own", "all")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """The limits of one tenant at a gateway or a worker; None: no limit.

    Attributes:
        requests_per_minute: requests begun. tokens_per_minute: tokens read (but those found in the cache) and written.
        max_concurrent: concurrent requests.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(name, value, "at least 1")


@dataclass(frozen=True, slots=True)
class Tenant:
    """The tenant on whose behalf a request is served.

    Attributes:
        name: for logs and metrics.
        namespace: isolation domain: nothing cached or stored in it is visible in another.
        limits: its limits.
        is_operator: sees the trees of all namespaces, and may evict from them.
        roles: its roles; see `rights`.
        namespaces: those that it may name; None: its own.
        pools: those that it may hold; None: all.
        speculation: sources of guesses that its requests may use at most; see `SamplingParams`.
    """

    name: str
    namespace: str
    limits: TenantLimits = field(default_factory=TenantLimits)
    is_operator: bool = False
    roles: frozenset[str] = frozenset({"client"})
    namespaces: frozenset[str] | None = None
    pools: frozenset[str] | None = None
    speculation: str = "all"

    @property
    def sees_all(self) -> bool:
        """Whether it may name every namespace."""
        return "admin" in self.roles or (self.namespaces is not None and EVERYTHING in self.namespaces)

    def has_role(self, roles: Iterable[str]) -> bool:
        """Whether it has one of these roles. An admin has all."""
        return "admin" in self.roles or not self.roles.isdisjoint(roles)

    def may_name(self, namespace: str) -> bool:
        """Whether it may name a namespace; that of an adapter or salt as the one that it is derived of. O(1)."""
        named = frozenset((self.namespace,)) if self.namespaces is None else self.namespaces
        return self.sees_all or namespace in named or owner_of(namespace) in named

    def may_hold(self, pool: str) -> bool:
        """Whether it may attach to a pool of that name."""
        return self.has_role(("holder",)) and (self.pools is None or pool in self.pools)


ANONYMOUS = Tenant("default", DEFAULT_NAMESPACE, is_operator=True, roles=frozenset(ROLES))


class _Known(NamedTuple):
    """Tenants by the digest of a key, with that digest, and by the common name of a certificate."""

    by_digest: dict[str, tuple[str, Tenant]]
    by_certificate: dict[str, Tenant]


class KeyRing:
    """The known keys and certificates. Thread-safe.

    Args:
        path: the keys file; None: every caller is the tenant "default", an operator and admin, whatever key is sent.
        limits: of tenants without limits in the file.
        own_key: another key, of an admin: the process's own, which no other process knows.
        clock: seconds, monotonic.

    Raises:
        InvalidArgumentError: the file cannot be read. Later, while running, that is logged and the keys read before stay.
    """

    def __init__(
        self,
        path: Path | None,
        limits: TenantLimits | None = None,
        *,
        own_key: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = KeysFile(path) if path else None
        self._path = path
        self._limits = limits or TenantLimits()
        self._own_digest = _digest(own_key) if own_key else ""
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_s = clock()
        self._known = _Known({}, {})
        if self._file is not None:
            self._known = self._file.load(self._parse)

    @property
    def is_open(self) -> bool:
        """Whether callers need no key."""
        return self._file is None

    @property
    def knows_certificates(self) -> bool:
        """Whether a certificate alone can authenticate a caller."""
        return bool(self._known.by_certificate)

    def find(self, key: str | None) -> Tenant | None:
        """The tenant of a key; None if it is unknown. Takes the same time for every wrong key. O(1)."""
        if self._file is None:
            return replace(ANONYMOUS, limits=self._limits)
        self._reload_if_changed()
        if not key:
            return None
        # The look-up is by digest, whose beginning a caller cannot choose; the match is then compared whole.
        digest = _digest(key)
        found = self._known.by_digest.get(digest)
        return found[1] if found is not None and hmac.compare_digest(found[0], digest) else None

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name, for work that goes on without a key; None once the name has no key. O(keys)."""
        if self._file is None:
            tenant = replace(ANONYMOUS, limits=self._limits)
            return tenant if tenant.name == name else None
        self._reload_if_changed()
        return next((tenant for _, tenant in self._known.by_digest.values() if tenant.name == name), None)

    def find_certificate(self, common_names: Iterable[str]) -> Tenant | None:
        """The tenant of a verified client certificate, by the common names of its subject; None if it is unknown."""
        if self._file is None:
            return replace(ANONYMOUS, limits=self._limits)
        self._reload_if_changed()
        return next((tenant for name in common_names if (tenant := self._known.by_certificate.get(name))), None)

    def _reload_if_changed(self) -> None:
        with self._lock:
            now_s = self._clock()
            if now_s - self._checked_s < RECHECK_S:
                return
            self._checked_s = now_s
            assert self._file is not None
            try:
                known = self._file.reload(self._parse)
            except InvalidArgumentError as error:
                _LOG.error("the keys read before stay in use: %s", error)
                return
            if known is not None:
                self._known = known
                _LOG.info("read %d keys from %s", len(known.by_digest), self._path)

    def _parse(self, text: str) -> _Known:
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidArgumentError("keys file", str(self._path), f"a TOML file that can be read: {error}") from None
        known = _read_tenants(document, self._limits)
        if not document and (self._known.by_digest or self._known.by_certificate):
            raise InvalidArgumentError("keys file", str(self._path), "not empty where it has held tenants")
        if self._own_digest:
            process = Tenant("this process", DEFAULT_NAMESPACE, roles=frozenset({"admin"}))
            known.by_digest[self._own_digest] = (self._own_digest, process)
        return known


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def _read_tenants(document: dict[str, Any], limits: TenantLimits) -> _Known:
    rows = document.get("tenant", [])
    if set(document) - {"tenant"} or not isinstance(rows, list):
        raise InvalidArgumentError("keys file", sorted(document), "a list of [[tenant]] tables and nothing else")
    known = _Known({}, {})
    for row in rows:
        tenant = _read_tenant(row, limits)
        for text in row.get("keys", []):
            match = _DIGEST.fullmatch(text)
            if match is None:
                raise InvalidArgumentError(
                    f"keys of {tenant.name}", "a key", "the SHA-256 digest of a key, 64 hex digits"
                )
            digest = match.group(1).lower()
            if digest in known.by_digest and known.by_digest[digest][1] != tenant:
                raise InvalidArgumentError(f"keys of {tenant.name}", digest[:8], "no key of another tenant")
            known.by_digest[digest] = (digest, tenant)
        for name in row.get("certificates", []):
            if not name or known.by_certificate.get(name, tenant) != tenant:
                bound = "a common name, and of no other tenant's certificate"
                raise InvalidArgumentError(f"certificates of {tenant.name}", name, bound)
            known.by_certificate[name] = tenant
    if len(known.by_digest) + len(known.by_certificate) > MAX_KEYS:
        bound = f"at most {MAX_KEYS} keys and certificates"
        raise InvalidArgumentError("keys file", f"{len(known.by_digest)} keys", bound)
    return known


def _read_tenant(row: Any, limits: TenantLimits) -> Tenant:
    known = {"name", "namespace", "operator", "speculation", *_LISTS, *LIMITS}
    if not isinstance(row, dict) or set(row) - known:
        raise InvalidArgumentError("[[tenant]]", row, f"a table of {', '.join(sorted(known))}")
    name, namespace = _read_names(row)
    for limit in LIMITS:
        if limit in row and (not isinstance(row[limit], int) or isinstance(row[limit], bool)):
            raise InvalidArgumentError(f"[[tenant]] {limit}", row[limit], "a whole number, at least 1")
    lists = {key: _read_list(row, key) for key in _LISTS}
    roles = lists["roles"] or frozenset({"client"})
    if roles - set(ROLES):
        raise InvalidArgumentError("[[tenant]] roles", sorted(roles), f"of {', '.join(ROLES)}")
    is_operator = row.get("operator", "admin" in roles)
    if not isinstance(is_operator, bool):
        raise InvalidArgumentError("[[tenant]] operator", is_operator, "true or false")
    speculation = row.get("speculation", "all")
    if speculation not in _SPECULATION:
        raise InvalidArgumentError("[[tenant]] speculation", speculation, f"one of {', '.join(_SPECULATION)}")
    own = TenantLimits(**{limit: row.get(limit, getattr(limits, limit)) for limit in LIMITS})
    return Tenant(name, namespace, own, is_operator, roles, lists["namespaces"], lists["pools"], speculation)


def _read_names(row: dict[str, Any]) -> tuple[str, str]:
    name = row.get("name")
    namespace = row.get("namespace", name)
    for field_name, value in (("name", name), ("namespace", namespace)):
        if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
            raise InvalidArgumentError(
                f"[[tenant]] {field_name}", value, f"a text of 1 to {MAX_NAME_CHARACTERS} characters"
            )
    assert isinstance(name, str)
    assert isinstance(namespace, str)
    if is_derived(namespace):
        raise InvalidArgumentError("[[tenant]] namespace", namespace, "one that is no adapter's or salt's")
    return name, namespace


def _read_list(row: dict[str, Any], key: str) -> frozenset[str] | None:
    """A list of texts; None where it is absent."""
    texts = row.get(key)
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        what = "a value" if key == "keys" else texts  # a key in plain text must not be in a message
        raise InvalidArgumentError(f"[[tenant]] {key}", what, "a list of texts")
    return frozenset(texts)
