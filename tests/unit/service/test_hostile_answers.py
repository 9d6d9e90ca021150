"""What a client reads of a server that answers nonsense is an error of radixkv's, never one of Python's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from radixkv import MatchOp, unpack_tokens
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation import wire
from radixkv.v1 import generation_pb2, prefix_cache_pb2, workers_pb2
from radixkv.wire import journal as journal_conversion
from radixkv.wire import reads as reader_conversion
from radixkv.wire import steps as conversion

CUT = b"\x01\x02\x03"
CASES: dict[str, tuple[Callable[[Any], object], Any]] = {
    "a block table": (
        partial(conversion.result_from_proto, MatchOp(b"")),
        workers_pb2.OpResult(acquire=workers_pb2.AcquireResult(block_table=CUT)),
    ),
    "the blocks of a retained history": (
        journal_conversion.journal_from_proto,
        workers_pb2.Notices(journal=[workers_pb2.JournalEntry(retained=workers_pb2.Retained(block_ids=CUT))]),
    ),
    "the blocks of a node": (reader_conversion.NODE.read, prefix_cache_pb2.Node(block_ids=CUT)),
    "the blocks of an event": (
        reader_conversion.EVENT.read,
        prefix_cache_pb2.Event(kind=1, tier=1, block_ids=CUT),
    ),
    "the hashes of an event": (
        reader_conversion.EVENT.read,
        prefix_cache_pb2.Event(kind=1, tier=1, block_hashes=CUT),
    ),
    "the tokens of a reply": (
        wire.event_from_proto,
        generation_pb2.GenerateResponse(delta=generation_pb2.Delta(token_ids=CUT)),
    ),
    "why a reply ended": (
        wire.event_from_proto,
        generation_pb2.GenerateResponse(branch_finished=generation_pb2.BranchFinished(reason=99)),  # type: ignore[arg-type]
    ),
    "a model's end-of-reply tokens": (wire.MODEL.read, generation_pb2.GetModelResponse(eos_token_ids=CUT)),
}


@pytest.mark.parametrize("what", CASES)
def test_an_answer_that_is_cut_short_or_unknown_is_an_invalid_argument(what: str) -> None:
    read, message = CASES[what]
    with pytest.raises(InvalidArgumentError):
        read(message)


def test_tokens_are_whole_to_be_unpacked() -> None:
    with pytest.raises(InvalidArgumentError, match="3 bytes"):
        unpack_tokens(CUT)
