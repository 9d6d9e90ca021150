"""Bounds of the façade's arguments. Each check names the argument, the value and the bound."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from operator import index

from radixkv.core.api import MAX_PRIORITY, AcquireOp, AcquireOptions, Retention
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TokensLike, pack_tokens

__all__ = [
    "MAX_BLOCK_SIZE",
    "MAX_CHILDREN",
    "MAX_HASHES",
    "MAX_NAMESPACE_CHARS",
    "MAX_NUM_BLOCKS",
    "MAX_OTHER_NAMESPACES",
    "MAX_POSITION",
    "MAX_RETENTION_RANGES",
    "MAX_SEQ_ID",
    "MAX_TTL_S",
    "PIN_CLASSES",
    "acquire_op",
    "check_computed",
    "check_flag",
    "check_flags",
    "check_hashes",
    "check_int",
    "check_namespace",
    "check_new_id",
    "check_new_ids",
    "check_ops",
    "check_other_namespaces",
    "check_pool_shape",
    "check_prompt",
    "check_retention",
    "check_ttl",
    "check_unicode",
]

MAX_BLOCK_SIZE = 4096
MAX_CHILDREN = 2**20  # of one fork; without a reserve they take no blocks
MAX_NUM_BLOCKS = 2**31 - 1  # block ids are int32
MAX_SEQ_ID = 2**63 - 1
MAX_NAMESPACE_CHARS = 256
MAX_OTHER_NAMESPACES = 64
MAX_TTL_S = 7 * 86400.0
MAX_RETENTION_RANGES = 64
MAX_HASHES = 65_536  # of one hint
MAX_POSITION = 2**63 - 1  # positions are int64

PIN_CLASSES = {"5m": 300.0, "1h": 3600.0}
"""Times for which prefixes are pinned, by their names in chat protocols, in seconds."""


def check_int(argument: str, value: object, low: int, high: int | None = None) -> None:
    """Check that `value` is an int in [low, high] (no upper bound if None)."""
    if type(value) is int and low <= value and (high is None or value <= high):
        return
    try:
        number = index(value)  # type: ignore[arg-type]  # it may be none, as is found here
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or number < low:
        raise InvalidArgumentError(argument, value, f"an integer of at least {low}")
    if high is not None and number > high:
        raise InvalidArgumentError(argument, value, f"an integer from {low} to {high}" if high > low else f"{low}")


def check_flag(argument: str, value: object) -> bool:
    """The truth of a value."""
    try:
        return bool(value)
    except (TypeError, ValueError):  # as of an array
        raise InvalidArgumentError(argument, value, "True or False") from None


def check_flags(waits: object, share_prefix: object, whole_blocks: object) -> None:
    """Check the flags of an acquire."""
    if not type(waits) is type(share_prefix) is type(whole_blocks) is bool:
        check_flag("waits", waits), check_flag("share_prefix", share_prefix), check_flag("whole_blocks", whole_blocks)


def check_ops(ops: object) -> None:
    """Check for a list of ops; each op is checked where it is applied."""
    if type(ops) is not list and (isinstance(ops, str | bytes | Mapping) or not isinstance(ops, Iterable)):
        raise InvalidArgumentError("ops", ops, "a list of ops, such as [AcquireOp(tokens)]")


def check_pool_shape(num_blocks: object, block_size: object) -> None:
    check_int("num_blocks", num_blocks, 1, MAX_NUM_BLOCKS)
    check_int("block_size", block_size, 1, MAX_BLOCK_SIZE)


def check_hashes(argument: str, hashes: SequenceOf[int]) -> array[int]:
    """Hashes of blocks, at most `MAX_HASHES`, as uint64."""
    if not isinstance(hashes, str | bytes | Mapping):
        try:
            if len(hashes) <= MAX_HASHES:
                return array("Q", hashes)
        except (TypeError, ValueError, OverflowError):
            pass
    raise InvalidArgumentError(argument, hashes, f"at most {MAX_HASHES:,} integers in [0, 2**64)")


def check_namespace(namespace: str) -> str:
    if not isinstance(namespace, str) or not 0 < len(namespace) <= MAX_NAMESPACE_CHARS:
        raise InvalidArgumentError("namespace", namespace, f"a string of 1 to {MAX_NAMESPACE_CHARS} characters")
    check_unicode("namespace", namespace)
    return namespace


def check_other_namespaces(names: SequenceOf[str]) -> tuple[str, ...]:
    """Check names of other namespaces, at most `MAX_OTHER_NAMESPACES`."""
    if isinstance(names, str | bytes) or not isinstance(names, SequenceOf) or len(names) > MAX_OTHER_NAMESPACES:
        raise InvalidArgumentError(
            "other_namespaces", names, f"a sequence of at most {MAX_OTHER_NAMESPACES} namespaces"
        )
    return tuple(map(check_namespace, names))


def check_prompt(tokens: bytes) -> None:
    if not tokens:
        raise InvalidArgumentError("tokens", "empty", "at least one token long")


def check_ttl(ttl: float | str) -> float:
    """Return the seconds of a ttl: a number above 0, or the name of a class."""
    seconds = PIN_CLASSES.get(ttl) if isinstance(ttl, str) else ttl
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TTL_S:
        names = ", ".join(map(repr, PIN_CLASSES))
        raise InvalidArgumentError("ttl", ttl, f"above 0 and at most {MAX_TTL_S:.0f} seconds, or one of {names}")
    return float(seconds)


def check_unicode(argument: str, value: object) -> None:
    """Check that every string in a value, which may be nested as JSON is, can be written in UTF-8. O(size)."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            if each.isascii():  # O(1)
                continue
            try:
                each.encode()
            except UnicodeEncodeError as error:
                found = f"text with U+{ord(each[error.start]):04X}"
                raise InvalidArgumentError(argument, found, "valid Unicode: that is half of a character") from None
        elif isinstance(each, Mapping):
            waiting += (*each.keys(), *each.values())
        elif isinstance(each, list | tuple):
            waiting += each


def check_retention(ranges: SequenceOf[Retention]) -> tuple[Retention, ...]:
    """Ranges of a history, each with its priority and duration."""
    if isinstance(ranges, Retention) or not isinstance(ranges, SequenceOf):
        raise InvalidArgumentError("retention", ranges, f"a sequence of at most {MAX_RETENTION_RANGES} ranges")
    for number, wanted in enumerate(ranges[: MAX_RETENTION_RANGES + 1]):
        name = f"retention[{number}]"
        if not isinstance(wanted, Retention):
            raise InvalidArgumentError(name, wanted, "a `Retention`")
        if number == MAX_RETENTION_RANGES:
            raise InvalidArgumentError(name, tuple(wanted), f"absent: at most {MAX_RETENTION_RANGES} ranges are taken")
        check_int(f"{name}.start", wanted.start, 0, MAX_POSITION)
        if wanted.end is not None:
            check_int(f"{name}.end", wanted.end, wanted.start + 1, MAX_POSITION)
        check_int(f"{name}.priority", wanted.priority, 0, MAX_PRIORITY)
        duration_s = wanted.duration_s
        if duration_s is not None and (
            isinstance(duration_s, bool) or not isinstance(duration_s, int | float) or not 0 < duration_s <= MAX_TTL_S
        ):
            bound = f"above 0 and at most {MAX_TTL_S:.0f} seconds, or None"
            raise InvalidArgumentError(f"{name}.duration_s", duration_s, bound)
    return tuple(ranges)


def acquire_op(tokens: TokensLike, options: AcquireOptions, *, waits: bool) -> AcquireOp:
    """The op of an acquire. Checks that it can be one; the cache checks its bounds."""
    if "retention" in options:
        options["retention"] = check_retention(options["retention"])
    return AcquireOp(pack_tokens(tokens), waits=waits, **options)  # type: ignore[arg-type]  # a tuple, once checked


def check_computed(num_computed: object, already: int, room: int, history: int) -> None:
    """Check that `num_computed` neither falls nor exceeds the room or the history."""
    check_int("num_computed", num_computed, already)
    if num_computed > room:  # type: ignore[operator]  # an int, as was just checked
        raise InvalidArgumentError("num_computed", num_computed, f"at most {room}, the room given to this sequence")
    if num_computed > history:  # type: ignore[operator]  # an int, as was just checked
        raise InvalidArgumentError("num_computed", num_computed, f"at most {history}, the length of its history")


def check_new_ids(seq_ids: SequenceOf[int], n: int, in_use: Container[int]) -> None:
    """Check for `n` distinct sequence ids that no open sequence has."""
    bound = f"{n} distinct ids"
    if isinstance(seq_ids, str | bytes) or not isinstance(seq_ids, SequenceOf) or len(seq_ids) != n:
        raise InvalidArgumentError("seq_ids", seq_ids, bound)
    for seq_id in seq_ids:
        check_new_id(seq_id, in_use)
    if len(set(seq_ids)) != n:
        raise InvalidArgumentError("seq_ids", list(seq_ids), bound)


def check_new_id(seq_id: int, in_use: Container[int]) -> None:
    """Check for a sequence id that no open sequence has."""
    check_int("seq_id", seq_id, 0, MAX_SEQ_ID)
    if seq_id in in_use:
        raise InvalidArgumentError("seq_id", seq_id, "the id of no open sequence")
