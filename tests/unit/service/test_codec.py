"""Values and messages, converted by the descriptor of each field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import pytest

from radixkv.core.api import AcquireOp, PinInfo, PinOp
from radixkv.core.errors import InvalidArgumentError, UnimplementedError
from radixkv.core.tokens import pack_tokens
from radixkv.generation.prices import Prices
from radixkv.v1 import generation_pb2 as generation
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.codec import Codec, Form, OneOf


@dataclass(frozen=True)
class Range:
    """A `types.Retention` whose optional fields have defaults of each kind."""

    start: int
    end: int | None
    priority: int = 7
    duration_s: float | None = None


class Reason(Enum):
    STOP = 1
    LENGTH = 2


class Finished(NamedTuple):
    branch: int
    reason: object


RANGE = Codec(Range, types.Retention)


def test_an_optional_field_is_absent_at_its_default_and_read_as_it() -> None:
    proto = RANGE.to_proto(Range(3, None, 7))
    assert [field.name for field, _ in proto.ListFields()] == ["start"]
    assert RANGE.read(proto) == Range(3, None, 7)
    given = RANGE.to_proto(Range(3, 0, 0, 0.0))
    assert [field.name for field, _ in given.ListFields()] == ["start", "end", "priority", "duration_s"]
    assert RANGE.read(given) == Range(3, 0, 0, 0.0)


def test_a_renamed_field_a_field_left_out_and_a_field_of_the_message_alone() -> None:
    codec = Codec(PinInfo, workers.Pin, left_out=("num_tokens", "num_blocks", "remaining_s"))
    pin = PinInfo("red", pack_tokens([1]), 1, 1, 2.5, 1.5)
    assert codec.read(codec.to_proto(pin), num_tokens=1, num_blocks=1, remaining_s=1.5) == pin
    renamed = Codec(Finished, generation.BranchFinished, branch=Form(name="stop_token_id"), reason=Reason)
    proto = renamed.to_proto(Finished(5, Reason.LENGTH), branch=9)
    assert (proto.branch, proto.stop_token_id, proto.reason) == (9, 5, generation.FINISH_REASON_LENGTH)
    assert renamed.read(proto) == Finished(5, Reason.LENGTH)


def test_a_class_that_takes_values_by_name_alone_is_read_by_name() -> None:
    prices = Prices(currency="EUR", computed=2.0, generated=6.0, held=0.25)
    codec = Codec(Prices, generation.Prices)
    assert codec.read(codec.to_proto(prices)) == prices


def test_an_enum_is_read_by_name_and_an_unknown_one_is_refused() -> None:
    codec = Codec(Finished, generation.BranchFinished)
    assert codec.to_proto(Finished(1, "stop")).reason == generation.FINISH_REASON_STOP
    assert codec.read(generation.BranchFinished(branch=1, reason=generation.FINISH_REASON_LENGTH)) == (1, "length")
    for unknown in (0, 77):
        with pytest.raises(InvalidArgumentError, match=r"reason.*stop or length"):
            codec.read(generation.BranchFinished(reason=unknown))  # type: ignore[arg-type]  # of the future


def test_a_field_without_a_counterpart_is_found_when_the_codec_is_made() -> None:
    with pytest.raises(KeyError, match="priority"):
        Codec(Range, workers.Extend, left_out=("start", "end"))
    with pytest.raises(AssertionError, match="no fields namespace"):
        Codec(Range, types.Retention, namespace=Form())


@pytest.mark.parametrize("field", ["start", "end", "priority", "duration_s"])
def test_a_value_that_no_message_can_hold_names_its_field(field: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        RANGE.to_proto(Range(**({"start": 0, "end": 1} | {field: "many"})))  # type: ignore[arg-type]  # the case
    assert refused.value.argument == field


def test_each_class_of_a_oneof_has_its_own_field() -> None:
    either = OneOf(workers.Op, Codec(PinOp, workers.Pin), Codec(AcquireOp, workers.Acquire, left_out=_WITHOUT_TABLE))
    proto = workers.Op()
    either.write(PinOp(pack_tokens([1]), 2.5), proto)
    assert (proto.WhichOneof("op"), either.read(proto)) == ("pin", PinOp(pack_tokens([1]), 2.5))
    for unknown in (workers.Op(), workers.Op(extend=workers.Extend())):
        with pytest.raises(UnimplementedError, match="known are acquire, pin"):
            either.read(unknown)


_WITHOUT_TABLE = ("share_prefix", "retention")
