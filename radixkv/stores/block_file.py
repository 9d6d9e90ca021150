"""The file of an export: KV of a history's first blocks, as safetensors.

    header's length, 8 bytes | header, JSON | tokens: U32 [n x block size] | blocks: U8 [n, block bytes]

    __metadata__   format, fingerprint, block_size, checksum

The checksum is BLAKE2b-256 over everything else. It shows damage and no forgery: replies depend on the author of a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES, token_array
from radixkv.util.json_text import read_json

__all__ = ["BlockKind", "exported_tokens", "read_file", "write_file"]

FORMAT = "radixkv-blocks-1"
MAX_HEADER_BYTES = 4096
_LENGTH_BYTES = 8
_TOLD_CHARACTERS = 80
"""Of a rejected value, in the error."""

_FIELDS = ("format", "fingerprint", "block_size")
_WRITTEN = "a file that radixkv has exported"


class BlockKind(NamedTuple):
    """The blocks that workers can exchange. `fingerprint`: of all that the bytes depend on but tokens. `block_size`: tokens."""

    fingerprint: bytes
    block_size: int
    block_bytes: int


def write_file(kind: BlockKind, tokens: bytes, blocks: Sequence[bytes]) -> list[bytes]:
    """The file of blocks and their packed token ids, in pieces: the header, the tokens, each block. O(bytes)."""
    checksum = _checksum(kind, tokens, blocks)
    header = json.dumps(_header(kind, len(blocks), checksum)).encode()
    header += b" " * (-len(header) % _LENGTH_BYTES)
    return [len(header).to_bytes(_LENGTH_BYTES, "little") + header, tokens, *blocks]


def read_file(
    kind: BlockKind, pieces: Iterable[bytes], *, max_tokens: int, vocab_size: int
) -> tuple[bytes, list[memoryview]]:
    """The packed token ids and blocks of a file that comes in pieces. O(bytes); rejects by the header before it takes the rest.

    Raises:
        InvalidArgumentError: the file is cut, altered, of another kind of blocks or no such file; more than `max_tokens`; a
            token id of `vocab_size` or above.
    """
    content, rest = bytearray(), iter(pieces)
    _take(content, rest, _LENGTH_BYTES)
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    if len(content) < _LENGTH_BYTES:
        raise InvalidArgumentError("file", f"{len(content)} bytes long", _WRITTEN)
    if start > _LENGTH_BYTES + MAX_HEADER_BYTES:
        value = f"no safetensors file: it begins with {bytes(content[:_LENGTH_BYTES])!r}"
        raise InvalidArgumentError("file", value, f"{_WRITTEN}, whose header has at most {MAX_HEADER_BYTES:,} bytes")
    _take(content, rest, start)
    num_blocks, checksum = _read_header(kind, bytes(content[_LENGTH_BYTES:start]), max_tokens)
    size_bytes = start + num_blocks * (kind.block_size * TOKEN_BYTES + kind.block_bytes)
    _take(content, rest, size_bytes + 1)
    if len(content) != size_bytes:
        length = f"{len(content):,} bytes long" if len(content) < size_bytes else f"longer than {size_bytes:,} bytes"
        raise InvalidArgumentError("file", length, f"{size_bytes:,} bytes long, as its header says")
    first_block = size_bytes - num_blocks * kind.block_bytes
    tokens, view = bytes(content[start:first_block]), memoryview(content)
    largest = max(token_array(tokens))
    if largest >= vocab_size:
        raise InvalidArgumentError("file's tokens", largest, f"token ids below {vocab_size:,}")
    blocks = [view[at : at + kind.block_bytes] for at in range(first_block, size_bytes, kind.block_bytes)]
    if _checksum(kind, tokens, blocks) != checksum:
        raise InvalidArgumentError("file's checksum", _told(checksum), "that of its content: the file is damaged")
    return tokens, blocks


def exported_tokens(head: bytes) -> int:
    """Tokens in a file that `write_file` has written; `head`: its first piece."""
    end = _LENGTH_BYTES + int.from_bytes(head[:_LENGTH_BYTES], "little")
    return int(json.loads(head[_LENGTH_BYTES:end])["tokens"]["shape"][0])


def _header(kind: BlockKind, num_blocks: int, checksum: str) -> dict[str, Any]:
    first_block = num_blocks * kind.block_size * TOKEN_BYTES
    end = first_block + num_blocks * kind.block_bytes
    return {
        "__metadata__": {
            "format": FORMAT,
            "fingerprint": kind.fingerprint.hex(),
            "block_size": str(kind.block_size),
            "checksum": checksum,
        },
        "tokens": {"dtype": "U32", "shape": [num_blocks * kind.block_size], "data_offsets": [0, first_block]},
        "blocks": {"dtype": "U8", "shape": [num_blocks, kind.block_bytes], "data_offsets": [first_block, end]},
    }


def _read_header(kind: BlockKind, text: bytes, max_tokens: int) -> tuple[int, str]:
    """Number of blocks and checksum from the header of a file of this kind of blocks."""
    try:
        header = read_json(text)
        given, count = header["__metadata__"], header["tokens"]["shape"][0]
        checksum, fields = str(given["checksum"]), {name: given[name] for name in _FIELDS}
    except (ValueError, LookupError, TypeError):
        raise InvalidArgumentError(
            "file's header", _told(text.decode(errors="replace")), f"that of {_WRITTEN}"
        ) from None
    own = _header(kind, 0, "")["__metadata__"]
    for name, bound in (
        ("format", f"{FORMAT!r}, the version that this worker reads"),
        ("fingerprint", f"{own['fingerprint']!r}, this worker's: model, adapter, dtype and KV format must be the same"),
        ("block_size", f"{own['block_size']!r}, as this worker's blocks have"),
    ):
        if fields[name] != own[name]:
            raise InvalidArgumentError(f"file's {name}", _told(fields[name]), bound)
    if type(count) is not int or not 0 < count <= max_tokens or count % kind.block_size:
        bound = f"whole blocks of {kind.block_size} tokens, at most {max_tokens:,} in all"
        raise InvalidArgumentError("file's tokens", f"{_told(count)} token ids", bound)
    if header != _header(kind, count // kind.block_size, given["checksum"]):
        bound = f"two tensors: {count:,} tokens (U32), and {kind.block_bytes:,} bytes (U8) of each of their blocks"
        raise InvalidArgumentError("file's header", _told(text.decode(errors="replace")), bound)
    return count // kind.block_size, checksum


def _take(content: bytearray, pieces: Iterator[bytes], size_bytes: int) -> None:
    """Take pieces up to so many bytes, as far as there are pieces."""
    while len(content) < size_bytes and (piece := next(pieces, None)) is not None:
        content += piece


def _checksum(kind: BlockKind, tokens: bytes, blocks: Sequence[bytes | memoryview]) -> str:
    digest = blake2b(json.dumps(_header(kind, len(blocks), "")).encode(), digest_size=32, person=b"radixkv file")
    for part in (tokens, *blocks):
        digest.update(part)
    return digest.hexdigest()


def _told(value: object) -> str:
    return str(value)[:_TOLD_CHARACTERS]
