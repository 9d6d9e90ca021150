"""Files of exported blocks: what is written is read again, by any safetensors reader; everything else is rejected by name."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from radixkv import pack_tokens
from radixkv.core.errors import InvalidArgumentError
from radixkv.stores.block_file import BlockKind, exported_tokens, read_file, write_file

KIND = BlockKind(b"f" * 32, 4, 24)
TOKENS = pack_tokens(range(1, 13))
BLOCKS = [bytes([number]) * 24 for number in (7, 8, 9)]
FILE = b"".join(write_file(KIND, TOKENS, BLOCKS))


def read(content: bytes, kind: BlockKind = KIND, max_tokens: int = 64) -> tuple[bytes, list[bytes]]:
    tokens, blocks = read_file(kind, (content,), max_tokens=max_tokens, vocab_size=100)
    return tokens, [bytes(block) for block in blocks]


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    header, rest = header_of(FILE)
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def test_what_is_written_is_read_whatever_pieces_it_comes_in() -> None:
    assert read(FILE) == (TOKENS, BLOCKS)
    for size in (1, 7, 100):
        pieces = [FILE[start : start + size] for start in range(0, len(FILE), size)]
        assert read_file(KIND, pieces, max_tokens=12, vocab_size=13)[0] == TOKENS
    assert exported_tokens(write_file(KIND, TOKENS, BLOCKS)[0]) == 12


def test_the_safetensors_package_reads_it() -> None:
    tensors = safetensors.numpy.load(FILE)
    assert tensors["tokens"].dtype == np.uint32
    assert tensors["tokens"].tobytes() == TOKENS
    assert tensors["blocks"].shape == (3, 24)
    assert [row.tobytes() for row in tensors["blocks"]] == BLOCKS


def test_a_file_that_the_package_has_written_again_is_read() -> None:
    tensors = safetensors.numpy.load(FILE)
    assert read(safetensors.numpy.save(tensors, header_of(FILE)[0]["__metadata__"])) == (TOKENS, BLOCKS)


CUTS = [0, 1, 7, 8, 9, 100, len(FILE) // 2, len(FILE) - 24, len(FILE) - 1]


@pytest.mark.parametrize("length", CUTS)
def test_a_cut_file_is_rejected(length: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^file"):
        read(FILE[:length])


def test_a_file_with_more_behind_its_end_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="as its header says"):
        read(FILE + b"\0")


def test_every_changed_byte_is_found() -> None:
    end = 8 + int.from_bytes(FILE[:8], "little")
    for at in range(len(FILE)):
        if FILE[at : at + 1] == b" " and at < end:
            continue  # blanks of the header mean nothing
        changed = bytearray(FILE)
        changed[at] ^= 1 << random.Random(at).randrange(8)
        with pytest.raises(InvalidArgumentError, match=r"^file"):
            read(bytes(changed))


def _put(*path: str | int) -> Callable[[Any], Callable[[dict[str, Any]], None]]:
    def to(value: Any) -> Callable[[dict[str, Any]], None]:
        def change(header: dict[str, Any]) -> None:
            place: Any = header
            for name in path[:-1]:
                place = place[name]
            place[path[-1]] = value

        return change

    return to


FIELDS = {
    "a later version": (_put("__metadata__", "format")("radixkv-blocks-2"), "file's format is 'radixkv-blocks-2'"),
    "another model": (
        _put("__metadata__", "fingerprint")("00" * 32),
        "file's fingerprint is '0000.*'; it must be '6666",
    ),
    "no fingerprint": (_put("__metadata__", "fingerprint")(None), "file's fingerprint is 'None'"),
    "another block size": (_put("__metadata__", "block_size")("16"), "file's block_size is '16'; it must be '\"?'?4"),
    "another checksum": (_put("__metadata__", "checksum")("00" * 32), "file's checksum is '000.*damaged"),
    "no number of tokens": (_put("tokens", "shape")([]), "file's header"),
    "a text as number": (_put("tokens", "shape")("12"), "file's tokens is '1 token ids'"),
    "a fraction": (_put("tokens", "shape")([4.5]), "file's tokens is '4.5 token ids'"),
    "no tokens": (_put("tokens", "shape")([0]), "file's tokens is '0 token ids'"),
    "below zero": (_put("tokens", "shape")([-4]), "file's tokens is '-4 token ids'"),
    "no whole block": (_put("tokens", "shape")([13]), "whole blocks of 4 tokens, at most 64 in all"),
    "a million tokens": (_put("tokens", "shape")([1_000_000]), "file's tokens is '1000000 token ids'.*at most 64"),
    "a number of 3,000 digits": (_put("tokens", "shape")([10**3000]), "file's tokens is '1000.*at most 64"),
    "tokens elsewhere": (_put("tokens", "data_offsets")([0, 1 << 60]), "file's header.*two tensors"),
    "other bytes of a block": (_put("blocks", "shape")([3, 1 << 60]), "file's header.*two tensors"),
    "another type": (_put("blocks", "dtype")("F32"), "file's header.*two tensors"),
    "a third tensor": (
        _put("more")({"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}),
        "file's header.*two tensors",
    ),
    "no metadata": (lambda header: header.pop("__metadata__"), "file's header"),
    "no blocks": (lambda header: header.pop("blocks"), "file's header.*two tensors"),
    "a field more": (_put("__metadata__", "also")("x"), "file's header.*two tensors"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_header_altered_in_any_field_is_rejected_by_the_field(name: str) -> None:
    change, message = FIELDS[name]
    with pytest.raises(InvalidArgumentError, match=message):
        read(with_header(change))


TEXTS = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"[" * 4000,
    b"\xff\xfe",
    b'{"__metadata__": 3}',
    b'{"__metadata__": "\\ud800"}',
    b"NaN",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_header_that_is_no_such_json_is_rejected(text: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"file's header is .*; it must be that of a file that radixkv"):
        read(len(text).to_bytes(8, "little") + text)


def test_a_pickle_and_other_files_are_rejected_unread() -> None:
    for content in (
        pickle.dumps({"tokens": [1, 2, 3]}),
        b"PK\x03\x04 a zip archive",
        b"\xff" * 100,
        b"#!/bin/sh\nexit",
    ):
        with pytest.raises(InvalidArgumentError, match="no safetensors file: it begins with"):
            read(content)


def test_an_unknown_token_id_is_rejected() -> None:
    content = b"".join(write_file(KIND, pack_tokens([1, 2, 3, 100]), BLOCKS[:1]))
    with pytest.raises(InvalidArgumentError, match="file's tokens is 100; it must be token ids below 100"):
        read(content)


def test_a_rejected_file_is_not_read_any_further() -> None:
    pieces = iter([with_header(FIELDS["a million tokens"][0])[:700], b"more", b"more"])

    def endless() -> Iterator[bytes]:
        yield FILE
        while True:
            yield bytes(1 << 20)

    with pytest.raises(InvalidArgumentError, match="1000000"):
        read_file(KIND, pieces, max_tokens=64, vocab_size=100)
    assert next(pieces) == b"more"
    with pytest.raises(InvalidArgumentError, match="longer than"):
        read_file(KIND, endless(), max_tokens=64, vocab_size=100)
