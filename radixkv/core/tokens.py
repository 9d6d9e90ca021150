"""Token ids as packed little-endian uint32 bytes: the only key there is.

A prefix compare is then one `memcmp`, a child look-up one hash of a slice, and a wire field is parsed without a Python
object per token. Four bytes are one token; an offset is a token position unless its name ends in `_bytes`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any, NoReturn

from radixkv.core.errors import InvalidArgumentError

__all__ = [
    "TOKEN_BYTES",
    "TokensLike",
    "common_prefix_bytes",
    "num_tokens",
    "pack_tokens",
    "token_array",
    "unpack_tokens",
]

TOKEN_BYTES = 4
MAX_TOKEN_ID = 0xFFFF_FFFF

TokensLike = bytes | bytearray | memoryview | Iterable[int]
"""Token arguments of the façade: packed bytes, or any object that `pack_tokens` packs."""

_NEEDS_SWAP = sys.byteorder == "big"


def pack_tokens(token_ids: Any) -> bytes:
    """Pack token ids into little-endian uint32 bytes. O(n).

    Args:
        token_ids: packed bytes (returned as they are), an iterable of ints, or a 1-d integer array (numpy, torch).

    Raises:
        InvalidArgumentError: an id is not an integer in [0, 2**32), the array has another rank or dtype, or packed
            bytes are not a whole number of tokens.
    """
    if isinstance(token_ids, bytes):
        packed = token_ids
    elif isinstance(token_ids, (bytearray, memoryview)):
        packed = bytes(token_ids)
    else:
        return _pack_integers(token_ids)
    if len(packed) % TOKEN_BYTES:
        raise InvalidArgumentError("tokens", f"{len(packed)} bytes", "a whole number of 4-byte token ids")
    return packed


def _pack_integers(token_ids: Any) -> bytes:
    if isinstance(token_ids, array) and token_ids.typecode == "I" and not _NEEDS_SWAP:
        return token_ids.tobytes()
    dtype_kind = getattr(getattr(token_ids, "dtype", None), "kind", None)
    if dtype_kind is not None:
        return _pack_numpy(token_ids, dtype_kind)
    if hasattr(token_ids, "tolist") and not isinstance(token_ids, array):
        if getattr(token_ids, "ndim", 1) != 1:
            _refuse_array(token_ids)
        token_ids = token_ids.tolist()
    try:
        packed = array("I", token_ids)
    except (TypeError, OverflowError):
        raise InvalidArgumentError("tokens", _first_bad_id(token_ids), "integers in [0, 2**32)") from None
    if _NEEDS_SWAP:
        packed.byteswap()
    return packed.tobytes()


def _pack_numpy(token_ids: Any, dtype_kind: str) -> bytes:
    if dtype_kind not in "iu" or token_ids.ndim != 1:
        _refuse_array(token_ids)
    if token_ids.size and (int(token_ids.min()) < 0 or int(token_ids.max()) > MAX_TOKEN_ID):
        raise InvalidArgumentError(
            "tokens", f"ids from {int(token_ids.min())} to {int(token_ids.max())}", "integers in [0, 2**32)"
        )
    packed: bytes = token_ids.astype("<u4", copy=False).tobytes()
    return packed


def _refuse_array(token_ids: Any) -> NoReturn:
    raise InvalidArgumentError("tokens", f"a {token_ids.ndim}-d array of {token_ids.dtype}", "a 1-d integer array")


def _first_bad_id(token_ids: Any) -> object:
    try:
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id <= MAX_TOKEN_ID:
                return token_id
    except TypeError:
        pass
    return token_ids


def unpack_tokens(tokens: bytes | bytearray | memoryview) -> list[int]:
    """Packed bytes back to a list of ids. O(n).

    Raises:
        InvalidArgumentError: not a whole number of tokens.
    """
    return token_array(tokens).tolist()


def token_array(tokens: bytes | bytearray | memoryview) -> array[int]:
    """Like `unpack_tokens`, without a Python object per token."""
    ids = array("I")
    ids.frombytes(pack_tokens(tokens))
    if _NEEDS_SWAP:
        ids.byteswap()
    return ids


def num_tokens(tokens: bytes | bytearray | memoryview) -> int:
    """The number of token ids in packed bytes."""
    return len(tokens) // TOKEN_BYTES


def common_prefix_bytes(left: bytes | bytearray, left_start: int, right: bytes | bytearray, right_end: int) -> int:
    """Bytes that `left[left_start:]` and `right[:right_end]` share, rounded down to whole tokens.

    O(shared bytes) memcmp work in O(log n) slices: the shared length is bisected, and each half is compared once.
    """
    low, high = 0, min(right_end, len(left) - left_start)
    while high - low > 64:
        middle = (low + high) // 2
        if left[left_start + low : left_start + middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    difference = int.from_bytes(left[left_start + low : left_start + high], "little") ^ int.from_bytes(
        right[low:high], "little"
    )
    if difference:
        high = low + ((difference & -difference).bit_length() - 1) // 8
    return high - high % TOKEN_BYTES
