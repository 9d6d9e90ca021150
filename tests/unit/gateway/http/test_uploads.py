"""A form with a file: what is read of it however it is cut, each bound up to its last value, and what is no such form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from radixkv.gateway.http.bodies.uploads import (
    MAX_FIELD_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_NAME_CHARACTERS,
    MAX_PARTS,
    PIECE_BYTES,
    Upload,
)
from radixkv.gateway.protocol.errors import ApiError

KIND = "multipart/form-data; boundary=cut"
FILE = b'form-data; name="file"; filename="a.txt"'


def part(disposition: bytes, content: bytes, *headers: bytes) -> bytes:
    head = b"\r\n".join([b"Content-Disposition: " + disposition, *headers])
    return b"--cut\r\n" + head + b"\r\n\r\n" + content + b"\r\n"


def field(name: str, content: bytes = b"x") -> bytes:
    return part(f'form-data; name="{name}"'.encode(), content)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--cut--\r\n"


def cuts(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


def read(body: bytes, *, size: int = 1 << 30, max_bytes: int = 100) -> tuple[Upload, list[bytes]]:
    upload = Upload(KIND, max_bytes)
    pieces = [piece for chunk in cuts(body, size) for piece in upload.feed(chunk)]
    return upload, [*pieces, upload.finish()]


@pytest.mark.parametrize("size", [1, 7, 1 << 30])
def test_fields_and_the_file_are_read_however_the_form_is_cut(size: int) -> None:
    body = form(field("purpose", b"batch"), part(FILE, b"one\r\ntwo", b"Content-Type: text/plain"), field("z", b""))
    upload, pieces = read(body, size=size)
    assert (upload.fields, upload.filename, pieces) == ({"purpose": "batch", "z": ""}, "a.txt", [b"one\r\ntwo"])


@pytest.mark.parametrize(
    ("num_bytes", "sizes"),
    [
        (PIECE_BYTES - 1, [PIECE_BYTES - 1]),
        (PIECE_BYTES, [PIECE_BYTES, 0]),
        (2 * PIECE_BYTES + 3, [PIECE_BYTES, PIECE_BYTES, 3]),
    ],
)
def test_a_large_file_comes_in_pieces_of_one_size(num_bytes: int, sizes: list[int]) -> None:
    content = bytes(index % 251 for index in range(num_bytes))
    _, pieces = read(form(part(FILE, content)), size=100_000, max_bytes=num_bytes)
    assert [len(piece) for piece in pieces] == sizes
    assert b"".join(pieces) == content


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('; filename="b.jsonl"', "b.jsonl"),
        ("", "file"),
        ('; filename=""', "file"),
        ('; filename="a\0b"', "ab"),
        (f'; filename="{"n" * (MAX_NAME_CHARACTERS + 1)}"', "n" * MAX_NAME_CHARACTERS),
    ],
)
def test_a_file_has_a_name_of_a_bounded_length(given: str, kept: str) -> None:
    upload, _ = read(form(part(f'form-data; name="file"{given}'.encode(), b"x")))
    assert upload.filename == kept


def test_bytes_that_are_no_text_are_replaced() -> None:
    named = part(b'form-data; name="b\xff"', b"\xfe!")
    upload, _ = read(form(named, part(b'form-data; name="file"; filename="c\xff.txt"', b"x")))
    assert (upload.fields, upload.filename) == ({"b\ufffd": "\ufffd!"}, "c\ufffd.txt")


BOUNDS = [
    ([field(str(number)) for number in range(MAX_PARTS - 1)], field("more")),
    ([field("a", b"x" * MAX_FIELD_BYTES)], field("b", b"x" * (MAX_FIELD_BYTES + 1))),
    (
        [part(b'form-data; name="a"', b"", *[b"X: y"] * (MAX_HEADERS - 1))],
        part(b'form-data; name="b"', b"", *[b"X: y"] * MAX_HEADERS),
    ),
    ([], part(b'form-data; name="b"', b"", b"X: " + b"y" * MAX_HEADER_BYTES)),
]


@pytest.mark.parametrize(("taken", "beyond"), BOUNDS, ids=["parts", "field", "headers", "header"])
def test_what_is_held_of_a_form_is_bounded(taken: list[bytes], beyond: bytes) -> None:
    file = part(FILE, b"x" * 100)
    assert read(form(*taken, file))[1] == [b"x" * 100]
    with pytest.raises(ApiError) as refused:
        read(form(*taken, file, beyond))
    assert (refused.value.status, refused.value.code) == (400, "invalid_form")


def test_a_file_past_its_bound_is_refused_as_too_large() -> None:
    with pytest.raises(ApiError) as refused:
        read(form(part(FILE, b"x" * 101)))
    assert (refused.value.status, refused.value.code, refused.value.param) == (413, "request_too_large", "file")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (form(part(b"form-data", b"x")), "a part of it has no name"),
        (form(part(b'attachment; name="file"', b"x")), "a part of it has no name"),
        (form(field("a"), field("a")), "each field once; not 'a'"),
        (form(part(b'form-data; name="other"; filename="a"', b"x")), "one file, named 'file'"),
        (form(part(FILE, b"x"), part(FILE, b"y")), "more than one file"),
        (form(field("a")), "the form has no file"),
        (part(FILE, b"x"), "it is not complete"),
        (b"no form at all", "the form cannot be read"),
    ],
)
def test_what_is_no_form_with_one_file_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(ApiError, match=complaint) as refused:
        read(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/mixed; boundary=cut", "application/json; boundary=cut", ""]
)
def test_another_kind_of_body_is_no_form(kind: str) -> None:
    with pytest.raises(ApiError, match="uploaded as multipart/form-data"):
        Upload(kind, 100)


def test_a_boundary_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ApiError, match="the form cannot be read"):
        Upload(f"multipart/form-data; boundary={'b' * 10_000}", 100)
