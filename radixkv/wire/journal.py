"""Conversion of the journal, by which a holder follows changes to its pool, both ways."""

from __future__ import annotations

from collections.abc import Iterable

from radixkv.core.api import ClearOp
from radixkv.core.tree.journal import Dropped, JournalEntry, Recorded, Retained
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.codec import Codec, OneOf
from radixkv.wire.steps import PIN_OP, QUOTA_OP, UNPIN_OP
from radixkv.wire.values import BLOCK_IDS

__all__ = ["RECORDED", "journal_from_proto", "journal_to_proto"]

RECORDED = Codec(Recorded, workers.BlockRecords, block_ids=BLOCK_IDS)

_ENTRIES = OneOf(
    workers.JournalEntry,
    PIN_OP,
    UNPIN_OP,
    QUOTA_OP,
    Codec(Retained, workers.Retained, block_ids=BLOCK_IDS),
    Codec(Dropped, workers.Dropped, kept=BLOCK_IDS._replace(name="kept_block_ids")),
    RECORDED,
)


def journal_to_proto(entries: Iterable[JournalEntry], proto: workers.Notices) -> None:
    """Write journal entries into a wire message. O(size)."""
    for entry in entries:
        if isinstance(entry, ClearOp):
            proto.cleared.append(entry.namespace)
        else:
            _ENTRIES.write(entry, proto.journal.add())


def journal_from_proto(proto: workers.Notices) -> list[JournalEntry]:
    """Read journal entries from the wire; entries unknown to this version are skipped. O(size)."""
    entries: list[JournalEntry] = [ClearOp(namespace) for namespace in proto.cleared]
    entries += [_ENTRIES.read(entry) for entry in proto.journal if entry.WhichOneof("entry") is not None]
    return entries
