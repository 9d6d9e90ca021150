"""Derived namespaces: a worker derives one of its caller's for each salt and adapter.

    team-a                          the owner: quotas, pin budgets, turns and rights are its
    team-a#salt=5f1c…               requests with one salt; the name holds a hash, since a salt is a secret
    team-a#adapter=sql              requests with an adapter, whose KV is another model's
    team-a#salt=5f1c…#adapter=sql

Nothing matches across two of them.

Sharing is how far a request reuses KV of other requests. `on`: within its namespace. `own`: within its conversation, which its
salt names; without a salt it shares nothing. `off`: not at all. A tenant has one of them, and a request may ask for a stricter
one.
"""

from __future__ import annotations

from hashlib import blake2b

from radixkv.core.errors import InvalidArgumentError, PermissionDeniedError
from radixkv.core.validation import MAX_NAMESPACE_CHARS, check_unicode

__all__ = [
    "MAX_SALT_CHARS",
    "SHARING",
    "adapter_of",
    "check_salt",
    "check_sharing",
    "choose_sharing",
    "conversation_salt",
    "covers",
    "derived_namespace",
    "has_salt",
    "is_conversation_salt",
    "is_derived",
    "owner_of",
    "shares_prefix",
    "with_adapter",
]

MAX_SALT_CHARS = 256

SHARING = ("on", "own", "off")
"""From the loosest to the strictest."""

_ADAPTER, _SALT = "#adapter=", "#salt="
_SALT_HASH_BYTES = 16
_CONVERSATION = "\x1fconversation "


def check_salt(salt: str) -> None:
    """Raise unless `salt` is a valid salt; empty is none. The error does not contain it.

    Raises:
        InvalidArgumentError: too long, or half a character.
    """
    if len(salt) > MAX_SALT_CHARS:
        raise InvalidArgumentError("cache_salt", f"{len(salt)} characters", f"at most {MAX_SALT_CHARS} characters")
    check_unicode("cache_salt", salt)


def check_sharing(sharing: object, name: str = "sharing") -> None:
    """Raise unless `sharing` is one of `SHARING`. `name`: of the argument.

    Raises:
        InvalidArgumentError: it is not.
    """
    if sharing not in SHARING:
        raise InvalidArgumentError(name, sharing, f"one of {', '.join(SHARING)}")


def choose_sharing(tenants: str, asked: str | None) -> str:
    """The sharing of a request whose tenant has `tenants`; `asked`: by the request, None: the tenant's.

    Raises:
        InvalidArgumentError: `asked` is no sharing. PermissionDeniedError: the tenant's is stricter.
    """
    if asked is None:
        return tenants
    check_sharing(asked)
    if SHARING.index(asked) < SHARING.index(tenants):
        stricter = " or ".join(map(repr, SHARING[SHARING.index(tenants) :]))
        raise PermissionDeniedError(f"sharing is {asked!r}; its tenant allows {stricter}")
    return asked


def shares_prefix(sharing: str, *, salted: bool) -> bool:
    """Whether a request with this sharing, and with a salt or without, uses and leaves cached prefixes at all."""
    return sharing == "on" or (sharing == "own" and salted)


def conversation_salt(sharing: str, conversation_id: str) -> str:
    """The salt of a request in a conversation that is known by its id; empty unless it shares `own`."""
    return f"{_CONVERSATION}{conversation_id}" if sharing == "own" else ""


def is_conversation_salt(salt: str) -> bool:
    """Whether `conversation_salt` made this salt."""
    return salt.startswith(_CONVERSATION)


def derived_namespace(owner: str, *, salt: str = "", adapter: str = "") -> str:
    """The namespace for requests of `owner` with this salt and adapter; `owner` itself with neither. O(length).

    The hash in the name is of owner and salt, so that equal salts of two owners do not appear equal.

    Raises:
        InvalidArgumentError: `owner` is derived itself, or the name is too long; an invalid salt.
    """
    if is_derived(owner):
        bound = f"without {_SALT!r} and {_ADAPTER!r}, which set salts and adapters apart"
        raise InvalidArgumentError("namespace", owner, bound)
    check_salt(salt)
    name = with_adapter(f"{owner}{_SALT}{_hash(owner, salt)}" if salt else owner, adapter)
    if len(name) > MAX_NAMESPACE_CHARS:
        bound = f"at most {MAX_NAMESPACE_CHARS} characters long with the marks of salt and adapter"
        raise InvalidArgumentError("namespace", owner, bound)
    return name


def with_adapter(namespace: str, adapter: str) -> str:
    """The namespace of an adapter's requests in a namespace without one; the same with an empty one."""
    return f"{namespace}{_ADAPTER}{adapter}" if adapter else namespace


def adapter_of(namespace: str) -> str:
    """The adapter for which `derived_namespace` made this namespace; empty if for none."""
    return namespace.partition(_ADAPTER)[2]


def owner_of(namespace: str) -> str:
    """The owner of a namespace made by `derived_namespace`; the namespace itself otherwise. O(length)."""
    if "#" not in namespace:
        return namespace
    return namespace.partition(_ADAPTER)[0].partition(_SALT)[0]


def has_salt(namespace: str) -> bool:
    """Whether `derived_namespace` made this namespace with a salt."""
    return _SALT in namespace.partition(_ADAPTER)[0]


def is_derived(namespace: str) -> bool:
    """Whether a name has the form of a namespace derived for a salt or an adapter."""
    return owner_of(namespace) != namespace


def covers(namespace: str, other: str) -> bool:
    """Whether `other` is `namespace` or derived of it."""
    return other == namespace or owner_of(other) == namespace


def _hash(owner: str, salt: str) -> str:
    said = f"{len(owner)}:{owner}{salt}".encode()
    return blake2b(said, digest_size=_SALT_HASH_BYTES, person=b"radixkv salt").hexdigest()
