"""The exception tree. Every exception that radixkv raises on purpose is below `RadixKVError`.

    RadixKVError
    ├── InvalidArgumentError     an argument outside its bound; names the argument, the value, the bound
    ├── UnknownSequenceError     no sequence of that id is open
    ├── NotCachedError           less of a prompt is cached than its acquire asks for
    ├── OutOfBlocksError         the pool cannot hold the request, even after every permitted eviction
    ├── QuotaError               the request exceeds the namespace's quota of blocks or sequences
    ├── PinBudgetError           a pin would exceed the pin budget or the pool's limit for pins
    ├── WrongThreadError         a pool was called from a thread that does not own it
    ├── AbortedError             an earlier op of the same Step failed on this sequence
    ├── LeaseError               the holder's right to the pool is gone or was never given
    │   ├── StaleIncarnationError    that life of the pool's memory has ended
    │   └── PoolHeldError            another holder is attached to the pool
    ├── UnknownPoolError         no pool of that name is attached
    ├── LimitError               a message or a queue is larger than its configured limit
    ├── DeadlineExceededError    the caller's deadline has passed
    ├── UnauthenticatedError     the caller's credential is missing or unknown
    ├── PermissionDeniedError    the caller has no right to this call, or not in this namespace
    ├── UnimplementedError       the service is of a version that does not know the op, message or option
    ├── CorruptionError          an invariant is broken: a bug of ours, found by `check`
    └── UnavailableError         the service cannot be reached, is stopping, or its answer is lost

A call that raises one of these has changed nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from radixkv.core.reports import PinInfo

__all__ = [
    "AbortedError",
    "CorruptionError",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "LeaseError",
    "LimitError",
    "NotCachedError",
    "OutOfBlocksError",
    "PermissionDeniedError",
    "PinBudgetError",
    "PoolHeldError",
    "QuotaError",
    "RadixKVError",
    "RateLimit",
    "StaleIncarnationError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownPoolError",
    "UnknownSequenceError",
    "WrongThreadError",
]


class RadixKVError(Exception):
    """Root of every error that radixkv raises on purpose.

    Attributes:
        retry_after_s: seconds after which a retry may succeed; None where unknown.
    """

    retry_after_s: float | None = None


class InvalidArgumentError(RadixKVError, ValueError):
    """An argument is outside its bound.

    Attributes:
        argument: name of the argument as the caller wrote it.
        bound: the bound in words, e.g. ``"at least 1"``.
    """

    def __init__(self, argument: str, value: object, bound: str) -> None:
        super().__init__(f"{argument} is {value!r}; it must be {bound}")
        self.argument = argument
        self.value = value
        self.bound = bound


class UnknownSequenceError(RadixKVError, LookupError):
    """No sequence of this id is open in the pool (it was released, or never opened)."""

    def __init__(self, seq_id: int) -> None:
        super().__init__(f"no sequence {seq_id} is open in this pool")
        self.seq_id = seq_id


class NotCachedError(RadixKVError):
    """Less of the prompt is cached than the acquire's `at_least`, so no sequence was opened.

    Attributes:
        num_cached: leading tokens of the prompt that the acquire would have found. at_least: those that it asks for.
    """

    def __init__(self, num_cached: int, at_least: int) -> None:
        super().__init__(f"{num_cached} leading tokens of the prompt are cached, and at least {at_least} are asked for")
        self.num_cached = num_cached
        self.at_least = at_least


class OutOfBlocksError(RadixKVError):
    """The call needs more blocks than are free or evictable and not promised to others.

    Attributes:
        num_needed: blocks that the call would have taken.
        num_available: blocks that could have been given: free + evictable - promised.
    """

    def __init__(self, num_needed: int, num_available: int) -> None:
        super().__init__(
            f"{num_needed} blocks are needed and {num_available} can be had; "
            "release a sequence, ask for less, or attach a larger pool"
        )
        self.num_needed = num_needed
        self.num_available = num_available


class QuotaError(RadixKVError):
    """The call needs more of the pool than the quota of its namespace has left.

    Attributes:
        namespace: owner of the quota. unit: ``"blocks"`` or ``"sequences"``.
        num_needed: units that the call would have taken. num_available: units left of `quota`; evictable blocks count as left.
    """

    def __init__(self, namespace: str, unit: str, num_needed: int, num_available: int, quota: int) -> None:
        super().__init__(
            f"{num_needed} {unit} are needed, and of the {quota} that namespace {namespace!r} may use {num_available} are "
            "left; release a sequence, ask for less, or have its quota raised"
        )
        self.namespace = namespace
        self.unit = unit
        self.num_needed = num_needed
        self.num_available = num_available
        self.quota = quota


class PinBudgetError(RadixKVError):
    """A pin would exceed the budget of its namespace, or the part of the pool that may be pinned.

    Attributes:
        unit: of the exceeded budget, e.g. ``"block-seconds of its namespace"``.
        num_needed, num_available: units that the pin takes, and units left of `num_total`.
        pins: the namespace's pins, the costliest first; of many, some.
    """

    def __init__(
        self, unit: str, num_needed: float, num_available: float, num_total: float, pins: tuple[PinInfo, ...]
    ) -> None:
        super().__init__(
            f"the pin takes {num_needed:,.0f} {unit}, of which pins may take {num_total:,.0f} and {num_available:,.0f} are "
            "left; unpin another, pin for a shorter time, or wait until one ends"
        )
        self.unit = unit
        self.num_needed = num_needed
        self.num_available = num_available
        self.num_total = num_total
        self.pins = pins


class WrongThreadError(RadixKVError):
    """One thread owns a pool; this call came from another. Post it to the owner's queue instead."""


class AbortedError(RadixKVError):
    """An earlier op of the same Step failed on this sequence, so this op was not tried."""


class LeaseError(RadixKVError):
    """The holder's right to its pool has ended or was refused."""


class StaleIncarnationError(LeaseError):
    """The incarnation named by the holder was replaced or its lease has expired: its sequences are gone."""


class PoolHeldError(LeaseError):
    """Another live holder is attached to the pool.

    `retry_after_s`: when its lease ends, unless it sends another message until then.
    """

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnknownPoolError(RadixKVError, LookupError):
    """No pool of this name is attached to the service."""


class RateLimit(NamedTuple):
    """The rest of a tenant's limit per minute.

    Attributes:
        kind: ``"requests"`` or ``"tokens"``. limit: of them, per minute. remaining: whole ones that are left.
        reset_s: seconds until the whole limit is available again.
    """

    kind: str
    limit: int
    remaining: int
    reset_s: float


class LimitError(RadixKVError):
    """A message, a queue or a count exceeds its configured limit.

    Attributes:
        rates: the rest of the caller's limits per minute, where it has any.
    """

    def __init__(
        self, message: str = "", *, retry_after_s: float | None = None, rates: tuple[RateLimit, ...] = ()
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.rates = rates


class DeadlineExceededError(RadixKVError):
    """The caller's deadline has passed; all tokens generated until then have been sent."""


class UnavailableError(RadixKVError):
    """The service cannot be reached or is stopping; trying again later may succeed."""


class UnauthenticatedError(RadixKVError):
    """The caller's credential is missing or unknown. The error does not distinguish the two."""


class PermissionDeniedError(RadixKVError):
    """The caller is authenticated and has no right to this call, or not in this namespace. Reveals nothing of its content."""


class UnimplementedError(RadixKVError):
    """An op, message or option is unset, or of a later version than the service.

    Attributes:
        what: the unknown thing: an ``"op"``, a ``"message"``, or the name of an option such as ``"at_least"``.
        known: the names that are known in its place, where there are some.
    """

    def __init__(self, what: str, known: tuple[str, ...] = ()) -> None:
        listed = (
            f"known are {', '.join(known)}" if known else "see the features that the service names when it is attached"
        )
        super().__init__(f"{what} is unset or unknown to this version; {listed}")
        self.what = what
        self.known = known


class CorruptionError(RadixKVError):
    """`check` found an invariant broken. Drop the pool and report it: this is a bug."""
