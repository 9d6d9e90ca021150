"""One incarnation of a pool, and one stream of its holder, as the observer keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixkv.core.api import AdoptionOp, Pending, StepOp, StepResult
from radixkv.core.tree.journal import JournalEntry, Recorded
from radixkv.testing.adoption import Adoption
from radixkv.testing.record import PoolRecord
from radixkv.v1 import workers_pb2 as workers

__all__ = ["Flight", "Life", "Note", "StreamWatch"]


@dataclass
class Flight:
    """A Step that the holder has sent and whose answer it has not acknowledged. `results`, `recorded`: those delivered."""

    number: int
    protos: list[workers.Op]
    ops: list[StepOp | AdoptionOp | None]
    message: int
    unsure: list[bool]
    is_clean: bool
    results: list[StepResult] | None = None
    recorded: Recorded | None = None


@dataclass
class Note:
    """Notices that were delivered and are not in the record yet."""

    number: int
    after_step: int
    entries: list[JournalEntry]


@dataclass
class Life:
    """One incarnation of a pool, as its holder must see it."""

    hello: workers.Hello
    record: PoolRecord
    stream: StreamWatch | None = None  # the newest
    stream_number: int = 0
    acknowledged: int = 0
    delivered: int = 0
    notices_acknowledged: int = 0
    notices_delivered: int = 0
    flights: dict[int, Flight] = field(default_factory=dict)
    notices_noted: int = 0  # of those in the record
    notes: list[Note] = field(default_factory=list)
    unacknowledged: dict[int, tuple[int, float]] = field(default_factory=dict)  # message and time of each Notices
    released: dict[int, int] = field(default_factory=dict)  # the message that released a sequence
    is_attached: bool = False
    is_cut: bool = False  # its last stream did not end by the holder
    ended_by: int = 0  # the message that ended it
    adopting: Adoption | None = None  # the state that a restarted service is to be given
    outcomes: dict[int, tuple[int, list[Pending]]] = field(default_factory=dict)  # by number of Notices, with its Step

    @property
    def last_step_message(self) -> int:
        """The message of the last Step under way; 0: there is none."""
        return max((flight.message for flight in self.flights.values()), default=0)


@dataclass(eq=False)
class StreamWatch:
    """One stream of a holder."""

    limits: workers.Attached | None = None
    life: Life | None = None
    hello_message: int = 0
    expected_step: int = 0
    heard_at_s: float = 0.0
    last_message: int = 0
    is_silent: bool = False
    is_over: bool = False
