"""Serialised messages from a seed: most are nearly valid, since input that is refused at once tests little.

    generated   field by field from the descriptor, values from a palette of existing ones and from the edges of their type
    mutated     bytes of such a message cut, flipped, spliced with another's

All are written at the wire level, so that a message may have content that no protobuf library would write.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.descriptor import Descriptor, FieldDescriptor

__all__ = ["MessageMaker", "Palette"]

_VARINT, _FIXED64, _BYTES, _GROUP, _FIXED32 = 0, 1, 2, 3, 5
_MAX_DEPTH = 6
_EDGES = (0, 1, 2, 15, 16, 17, 255, 4096, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_DOUBLES = (0.0, -0.0, 0.5, 1.0, 30.0, 1e9, 1e308, 5e-324, -1.0, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    b"",
    b"default",
    b"a",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x00",
    "é日🙂".encode(),
    b"../../x",
    b"x" * 257,
    b"x" * 70_000,
)
_JSON = (b"{}", b"[]", b"null", b"{", b'{"a":' * 400, b'{"role":1}', b"1e999", b'"\\ud800"', b'{"type":"object"}')

_DOUBLE_KINDS = {FieldDescriptor.TYPE_DOUBLE: "<d", FieldDescriptor.TYPE_FLOAT: "<f"}
_FIXED64_KINDS = (FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64)
_FIXED32_KINDS = (FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)


@dataclass(slots=True)
class Palette:
    """Existing values, so that values are often right: by name of a field, its candidates."""

    texts: dict[str, list[bytes]] = field(default_factory=dict)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    vocab_size: int = 40

    def tokens(self, source: random.Random) -> bytes:
        """Packed ids that often share a prefix with others; sometimes cut within a token, or outside the vocabulary."""
        kind = source.random()
        if kind < 0.05:
            return source.randbytes(source.choice((1, 2, 3, 5, 7, 4095)))
        if kind < 0.1:
            return b"" if kind < 0.07 else b"\xff" * 4 * source.choice((1, 64))
        length = source.choice((1, 3, 16, 17, 48, 100, 300)) if kind < 0.99 else 20_000
        first = source.randrange(4)
        ids = [(first + i) % self.vocab_size for i in range(length)]
        if source.random() < 0.5:
            ids[source.randrange(length)] = source.randrange(self.vocab_size)
        return struct.pack(f"<{length}I", *ids)


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tagged(number: int, wire_type: int, payload: bytes) -> bytes:
    head = _varint(number << 3 | wire_type)
    return head + _varint(len(payload)) + payload if wire_type == _BYTES else head + payload


class MessageMaker:
    """Draws messages.

    Args:
        source: of all randomness.
        palette: may be changed between two calls.
    """

    def __init__(self, source: random.Random, palette: Palette) -> None:
        self._source = source
        self._palette = palette

    def make(self, kind: Descriptor) -> bytes:
        """A message of that type, or something similar."""
        chance = self._source.random()
        message = self.generate(kind)
        if chance < 0.15:
            return self.mutate(message, self.generate(kind))
        return message if chance < 0.99 else self._source.randbytes(self._source.randrange(64))

    def generate(self, kind: Descriptor, depth: int = 0) -> bytes:
        """Field by field: usually one of a oneof, occasionally unknown fields, in any order."""
        source = self._source
        pieces: list[bytes] = []
        chosen = {one.name: source.choice(one.fields).name for one in kind.oneofs}
        keeps_oneofs = source.random() < 0.95
        share = source.choice((0.3, 0.7, 0.9))
        for each in kind.fields:
            one = each.containing_oneof
            is_other = one is not None and len(one.fields) > 1 and chosen[one.name] != each.name
            is_chosen = one is not None and len(one.fields) > 1 and not is_other
            if (is_other and keeps_oneofs) or not (is_chosen or source.random() < share):
                continue
            pieces += [self._field(each, depth) for _ in range(self._count(each))]
        if source.random() < 0.03:
            pieces.append(self._unknown())
        if source.random() < 0.1:
            source.shuffle(pieces)
        return b"".join(pieces)

    def _count(self, each: FieldDescriptor) -> int:
        if not each.is_repeated:
            return 1 if self._source.random() < 0.98 else 2
        chance = self._source.random()
        return self._source.choice((1, 1, 2, 3, 6)) if chance < 0.97 else self._source.choice((0, 65, 300))

    def _field(self, each: FieldDescriptor, depth: int) -> bytes:
        source = self._source
        if source.random() < 0.005:  # another wire type than the field's
            return _tagged(each.number, source.choice((_VARINT, _FIXED64, _BYTES, _GROUP, _FIXED32)), b"\x01" * 8)
        if each.message_type is not None:
            inner = self.generate(each.message_type, depth + 1) if depth < _MAX_DEPTH else b""
            return _tagged(each.number, _BYTES, inner)
        if each.type == FieldDescriptor.TYPE_BYTES:
            return _tagged(each.number, _BYTES, self._palette.tokens(source))
        if each.type == FieldDescriptor.TYPE_STRING:
            return _tagged(each.number, _BYTES, self._text(each.name))
        if each.type in _DOUBLE_KINDS:
            form = _DOUBLE_KINDS[each.type]
            value = source.choice(_DOUBLES) if source.random() < 0.3 else source.choice((0.5, 1.0, 2.0))
            value = min(max(value, -3e38), 3e38) if form == "<f" else value
            return _tagged(each.number, _FIXED32 if form == "<f" else _FIXED64, struct.pack(form, value))
        value = self._number(each)
        if each.type in _FIXED64_KINDS:
            return _tagged(each.number, _FIXED64, struct.pack("<Q", value % 2**64))
        if each.type in _FIXED32_KINDS:
            return _tagged(each.number, _FIXED32, struct.pack("<I", value % 2**32))
        return _tagged(each.number, _VARINT, _varint(value))

    def _number(self, each: FieldDescriptor) -> int:
        source = self._source
        if each.enum_type is not None:
            return source.choice([value.number for value in each.enum_type.values] + [99, -1])
        if each.type == FieldDescriptor.TYPE_BOOL:
            return source.choice((0, 1, 2))
        known: Sequence[int] = self._palette.numbers.get(each.name, ())
        chance = source.random()
        if known and chance < 0.85:
            return source.choice(known)
        if chance < 0.5 and not known:
            return source.randrange(64)
        edge = source.choice(_EDGES)
        return edge if source.random() < 0.7 else -edge

    def _text(self, name: str) -> bytes:
        source = self._source
        known = self._palette.texts.get(name, ())
        if known and source.random() < 0.9:
            return source.choice(known)
        if name.endswith("_json") or name in ("lark", "regex", "json_schema"):
            return source.choice(_JSON)
        return source.choice(_TEXTS)

    def _unknown(self) -> bytes:
        number = self._source.choice((60, 1000, 536_870_911, 0))
        kind = self._source.choice((_VARINT, _FIXED64, _BYTES, _FIXED32))
        return _tagged(number, kind, {_VARINT: b"\x05", _BYTES: b"abc", _FIXED64: b"\0" * 8, _FIXED32: b"\0" * 4}[kind])

    def mutate(self, data: bytes, other: bytes = b"") -> bytes:
        """`data` with up to four faults: cut short, bits flipped, bytes inserted, removed or doubled, spliced with `other`."""
        source = self._source
        mutated = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 4))):
            at, until = sorted((source.randint(0, len(mutated)), source.randint(0, len(mutated))))
            fault = source.randrange(6)
            if fault == 0:
                del mutated[at:]
            elif fault == 1 and mutated:
                mutated[at % len(mutated)] ^= 1 << source.randrange(8)
            elif fault == 2:
                mutated[at:at] = source.randbytes(source.randrange(1, 9))
            elif fault == 3:
                del mutated[at:until]
            elif fault == 4:
                mutated[at:at] = mutated[at : min(until, at + 64)]
            else:
                mutated[at:] = other[source.randint(0, len(other)) :]
        return bytes(mutated)
