"""A file uploaded as a form: parsed as it arrives, with bounds on everything that is held.

fields, few and small       kept until the form has ended
the file                    yielded in pieces of PIECE_BYTES: never in memory as a whole
"""

from __future__ import annotations

from collections.abc import Iterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from radixkv.gateway.protocol.errors import ApiError

__all__ = ["FORM_BYTES", "PIECE_BYTES", "Upload"]

PIECE_BYTES = 256 * 1024

FORM_BYTES = 64 * 1024
"""Bytes of a form apart from the file: its fields, and the heads of its parts."""

MAX_PARTS = 16
MAX_FIELD_BYTES = 1024
MAX_HEADERS, MAX_HEADER_BYTES = 8, 4096
"""Per part."""

MAX_NAME_CHARACTERS = 255


class Upload:
    """One form with a file, parsed as it arrives.

    Args:
        content_type: the header.
        max_bytes: of the file.

    Attributes:
        fields: values by name.
        filename: of the file; None until its part begins.

    Raises:
        ApiError: 400: not a multipart form.
    """

    def __init__(self, content_type: str, max_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise ApiError(400, "a file is uploaded as multipart/form-data", code="invalid_form")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._max_bytes = max_bytes
        self._num_bytes = self._num_parts = 0
        self._piece = bytearray()
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._head: dict[bytes, bytes] = {}
        self._name = ""
        self._text = bytearray()
        self._is_file = self._has_ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_head,
                    "on_part_data": self._data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
                max_header_count=MAX_HEADERS,
                max_header_size=MAX_HEADER_BYTES,
            )
        except FormParserError as error:
            raise _no_form(str(error)) from None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Parse a chunk; yield the complete pieces of the file.

        Raises:
            ApiError: 400: not a form of this kind; 413: the file is too large.
        """
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _no_form(str(error)) from None
        while len(self._piece) >= PIECE_BYTES:
            piece = bytes(self._piece[:PIECE_BYTES])
            del self._piece[:PIECE_BYTES]
            yield piece

    def finish(self) -> bytes:
        """Return the last piece of the file, which may be empty. Call after the whole body.

        Raises:
            ApiError: 400: the form is cut off, or has no file.
        """
        if not self._has_ended:
            raise _no_form("it is not complete")
        if self.filename is None:
            raise ApiError(400, "file: the form has no file", code="missing_value", param="file")
        return bytes(self._piece)

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise _no_form(f"it has more than {MAX_PARTS} parts")
        self._head = {}
        self._text = bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        self._head[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_head(self) -> None:
        kind, options = parse_options_header(self._head.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise _no_form("a part of it has no name")
        self._name = options[b"name"].decode(errors="replace")
        self._is_file = self._name == "file"
        if not self._is_file:
            if b"filename" in options or self._name in self.fields:
                raise _no_form(f"it must have one file, named 'file', and each field once; not {self._name[:64]!r}")
            return
        if self.filename is not None:
            raise _no_form("it has more than one file")
        name = options.get(b"filename", b"").decode(errors="replace").replace("\0", "")
        self.filename = name[:MAX_NAME_CHARACTERS] or "file"

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._text += data[start:end]
            if len(self._text) > MAX_FIELD_BYTES:
                raise _no_form(f"its field {self._name[:64]!r} has more than {MAX_FIELD_BYTES:,} bytes")
            return
        self._num_bytes += end - start
        if self._num_bytes > self._max_bytes:
            message = f"file: it must be at most {self._max_bytes:,} bytes"
            raise ApiError(413, message, code="request_too_large", param="file")
        self._piece += data[start:end]

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._text.decode(errors="replace")

    def _end(self) -> None:
        self._has_ended = True


def _no_form(reason: str) -> ApiError:
    return ApiError(400, f"the form cannot be read: {reason}", code="invalid_form")
