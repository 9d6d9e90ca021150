"""Conversion between values and messages, both ways, by tables: a field has the same name on both sides unless declared.

    FORK = Codec(ForkOp, workers.Fork, seq_ids=SEQ_IDS)
    FORK.write(ForkOp(1, 16), proto)
    op = FORK.read(proto)

The descriptor of a message's field decides its conversion:

    number, text     none
    bool             truth
    bytes            `pack_tokens`; read as packed token ids
    enum             its name in lower case, or the member of an `Enum` class in the table
    repeated, map    read as a tuple, as a dict
    message          the codec in the table
    optional         absent where the value is None or its class's default; read as that default, otherwise as None

A message is read as its class's default where absent; without a default, as an empty message.

Each codec is compiled to two functions, as fast as conversions by hand. For `ReleaseOp` and a ``namespace`` they would be:

    def convert(value, message):                         def convert(message):
        message.seq_id = value.seq_id                        return kind(
        message.keep = write_keep(value.keep)                    message.seq_id,
        if value.namespace != default_namespace:                 message.keep,
            message.namespace = value.namespace                  message.namespace if message.HasField("namespace")
                                                                 else default_namespace)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from radixkv.core.errors import InvalidArgumentError, UnimplementedError
from radixkv.core.tokens import pack_tokens

__all__ = ["Codec", "Form", "OneOf"]

_Value = TypeVar("_Value")
_Message = TypeVar("_Message")

_UNFIT = (AttributeError, TypeError, ValueError)


class Form(NamedTuple):
    """Conversion of one field. None: none.

    write: to the message's field. Of a message's field, and of each item of a repeated one: `write(value, message)`.
    read: back. name: of the message's field; empty: the same. most: items to read of a repeated field; None: all.
    """

    write: Callable[..., Any] | None = None
    read: Callable[..., Any] | None = None
    name: str = ""
    most: int | None = None


class _Field(NamedTuple):
    """A field of a value, and its message's. `default`: `dataclasses.MISSING` if none."""

    name: str
    proto: Any
    form: Form
    default: Any

    @property
    def names(self) -> dict[str, Any]:
        """Names in its statements."""
        values = {"write": self.form.write, "read": self.form.read, "default": self._absent, "most": self.form.most}
        return {f"{kind}_{self.name}": value for kind, value in values.items()}

    @property
    def _absent(self) -> Any:
        return None if self.default is dataclasses.MISSING else self.default

    def write(self) -> list[str]:
        """Statements that write it."""
        value, target, proto = f"value.{self.name}", f"message.{self.proto.name}", self.proto
        converted = f"write_{self.name}({value})" if self.form.write else value
        if proto.is_repeated and proto.message_type is None:
            return [f"{target}.extend({converted})"]
        if proto.is_repeated and proto.message_type.GetOptions().map_entry:
            return [f"{target}.update({converted})"]
        if proto.is_repeated:
            return [f"for item in {value}:", f"    write_{self.name}(item, {target}.add())"]
        if proto.message_type is not None:
            return [
                f"if {value} is not None:",
                f"    {target}.SetInParent()",
                f"    write_{self.name}({value}, {target})",
            ]
        if not proto.has_presence:
            return [f"{target} = {converted}"]
        is_given = "is not None" if self._absent is None else f"!= default_{self.name}"
        return [f"if {value} {is_given}:", f"    {target} = {converted}"]

    def read(self) -> str:
        """An expression that reads it."""
        source, proto = f"message.{self.proto.name}", self.proto
        if proto.is_repeated:
            items = source if self.form.most is None else f"islice({source}, most_{self.name})"
            if proto.message_type is not None and proto.message_type.GetOptions().map_entry:
                return f"dict({items})"
            return f"tuple(map(read_{self.name}, {items}))" if self.form.read else f"tuple({items})"
        read = f"read_{self.name}({source})" if self.form.read else source
        if not proto.has_presence or (proto.message_type is not None and self.default is dataclasses.MISSING):
            return read
        return f"{read} if message.HasField({proto.name!r}) else default_{self.name}"

    def bound(self) -> str:
        """Values that its message can hold."""
        proto = self.proto
        if proto.cpp_type == proto.CPPTYPE_STRING:
            return "a string of Unicode characters"
        if proto.cpp_type == proto.CPPTYPE_INT32:
            return "an integer in [-2**31, 2**31)"
        if proto.cpp_type == proto.CPPTYPE_DOUBLE:
            return "a number of seconds, or None" if proto.has_presence else "a number of seconds"
        return "integers in [-2**63, 2**63)"


class Codec(Generic[_Value, _Message]):
    """Conversion of one class of values, a dataclass or a NamedTuple, to and from one class of messages.

    Args:
        kind: class of the values.
        message: class of the messages.
        left_out: fields that are converted elsewhere: `read` takes their values by name.
        bound: of values that a message cannot hold, for the error; empty: by the field's type.
        table: by field, what differs from the rules of this module: a `Form`, a codec, a `OneOf` or an `Enum` class.

    Attributes:
        write: write a value into a message. O(size). Raises `InvalidArgumentError`, which names the field, for a value that no
            message can hold.
        read: the value of a message. O(size). Raises `InvalidArgumentError` for bytes cut short and for an unknown enum.
    """

    def __init__(
        self,
        kind: type[_Value],
        message: type[_Message],
        *,
        left_out: Collection[str] = (),
        bound: str = "",
        **table: Any,
    ) -> None:
        self.kind = kind
        self.message = message
        self._bound = bound
        protos = message.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]  # every message class has it
        self._fields: list[_Field] = []
        for name, default in _defaults(kind):
            if name not in left_out:
                given = table.pop(name, None)
                proto = protos[given.name if isinstance(given, Form) and given.name else name]
                self._fields.append(_Field(name, proto, _form(proto, given), default))
        assert not table, f"{kind.__name__} has no fields {', '.join(table)}"
        self._names = {"kind": kind, "islice": islice, "refuse": self._refuse, "unfit": _UNFIT}
        for field in self._fields:
            self._names |= field.names
        statements = [f"    {statement}" for field in self._fields for statement in field.write()]
        guarded = ["try:", *(statements or ["    pass"]), "except unfit as error:", "    refuse(value, error)"]
        self.write: Callable[[_Value, _Message], None] = self._compile("value, message", guarded)
        by_name = bool(left_out) or _takes_names(kind)
        given = [f"{field.name}={field.read()}" if by_name else field.read() for field in self._fields]
        arguments = "message, **others" if left_out else "message"
        given += ["**others"] if left_out else []
        self.read: Callable[..., _Value] = self._compile(arguments, [f"return kind({', '.join(given)})"])

    def to_proto(self, value: _Value, **others: Any) -> _Message:
        """A message of a value; `others`: fields of the message alone."""
        message = self.message(**others)
        self.write(value, message)
        return message

    def _compile(self, arguments: str, statements: list[str]) -> Any:
        source = "\n".join([f"def convert({arguments}):", *(f"    {statement}" for statement in statements)])
        exec(source, names := self._names.copy())
        return names["convert"]

    def _refuse(self, value: Any, error: Exception) -> None:
        """Raise for the first field that a message cannot hold."""
        for field in self._fields:
            given = getattr(value, field.name)
            if field.proto.is_repeated and field.proto.message_type is not None and field.form.write is not None:
                for index, item in enumerate(given):
                    self._refuse_item(f"{field.name}[{index}]", item, field)
                continue
            try:
                self._compile("value, message", field.write())(value, self.message())
            except InvalidArgumentError:
                raise
            except (TypeError, ValueError):
                raise InvalidArgumentError(field.name, given, self._bound or field.bound()) from None
        raise error

    def _refuse_item(self, name: str, item: Any, field: _Field) -> None:
        assert field.form.write is not None, "messages are written by a codec"
        try:
            field.form.write(item, getattr(self.message(), field.proto.name).add())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}.{error.argument}", error.value, error.bound) from None
        except AttributeError:
            raise InvalidArgumentError(name, item, f"a `{field.proto.message_type.name}`") from None


class OneOf:
    """Conversion of values of several classes, each to its own field of one ``oneof``: that of its codec's message.

    Args:
        message: class of the messages; the first ``oneof`` of it is meant.
        codecs: of its fields.

    Attributes:
        codecs: by the names of their fields. names: of the fields, by class.
    """

    def __init__(self, message: Any, *codecs: Codec[Any, Any]) -> None:
        oneof = message.DESCRIPTOR.oneofs[0]
        by_message = {codec.message.DESCRIPTOR: codec for codec in codecs}
        self.name: str = oneof.name
        self.codecs: dict[str, Codec[Any, Any]] = {
            proto.name: by_message[proto.message_type] for proto in oneof.fields if proto.message_type in by_message
        }
        self.names: dict[type, str] = {codec.kind: name for name, codec in self.codecs.items()}
        self._writes = {codec.kind: (name, codec.write) for name, codec in self.codecs.items()}
        self._reads = {name: codec.read for name, codec in self.codecs.items()}

    def write(self, value: Any, message: Any) -> None:
        """Write a value, of one of the classes themselves, into its field. O(size)."""
        name, write = self._writes[type(value)]
        part = getattr(message, name)
        part.SetInParent()
        write(value, part)

    def read(self, message: Any) -> Any:
        """The value of the field that is set.

        Raises:
            UnimplementedError: none is, or one unknown to this version.
        """
        name = message.WhichOneof(self.name)
        read = self._reads.get(name)
        if read is None:
            raise UnimplementedError(self.name, tuple(self.codecs))
        return read(getattr(message, name))


class _Enum(dict[Any, Any]):
    """Values by their numbers, or the reverse. `name`: of the field. `known`: the values."""

    def __init__(self, name: str, known: Collection[Any], items: dict[Any, Any]) -> None:
        super().__init__(items)
        self.name = name
        self.known = known

    def __missing__(self, given: Any) -> Any:
        *names, last = (value.name if isinstance(value, Enum) else value for value in self.known)
        raise InvalidArgumentError(self.name, given, f"{', '.join(names)} or {last}")


def _defaults(kind: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a class, and their defaults or `dataclasses.MISSING`."""
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            yield field.name, field.default
    else:
        for name in kind._fields:
            yield name, kind._field_defaults.get(name, dataclasses.MISSING)


def _takes_names(kind: Any) -> bool:
    """Whether a class takes values by name alone."""
    return dataclasses.is_dataclass(kind) and any(field.kw_only for field in dataclasses.fields(kind))


def _form(proto: Any, given: Any) -> Form:
    """The form of a field by its table, otherwise by its descriptor."""
    if isinstance(given, Codec | OneOf):
        return Form(given.write, given.read)
    form: Form = given if isinstance(given, Form) else Form()
    if form.write is not None or form.read is not None or proto.is_repeated:
        return form
    if proto.enum_type is not None:
        prefix = len(proto.enum_type.values_by_number[0].name) - len("UNSPECIFIED")
        numbers = {value.name[prefix:]: value.number for value in proto.enum_type.values if value.number}
        values = {name: name.lower() if given is None else given[name] for name in numbers}
        by_value = _Enum(proto.name, values.values(), {values[name]: number for name, number in numbers.items()})
        by_number = _Enum(proto.name, values.values(), {number: value for value, number in by_value.items()})
        return Form(by_value.__getitem__, by_number.__getitem__)
    if proto.type == proto.TYPE_BYTES:
        return form._replace(write=pack_tokens)
    if proto.type == proto.TYPE_BOOL:
        return form._replace(write=bool)
    return form
