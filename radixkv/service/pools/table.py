"""The attached pools of a service: their holders, their leases, and the answers kept for a holder that lost its stream.

A pool lives exactly as long as its lease:

    attach ──> held ──(stream breaks)──> unattended ──(same incarnation attaches)──> held
                │                            │
             Goodbye              nothing received for the TTL
                └──────────> ended: sequences and tree dropped, incarnation retired

Quotas outlive it: see `quotas`. A restarted service knows no pool: a holder that can adopt begins an empty one under its old
incarnation, at its next Step number, and has a "gone" for each acquire that it waited for. By its first Steps it reports the
pool's contents and the changes of the cache's journal.

The module is independent of gRPC, and of any time but its clock's. One thread owns a table and all its pools.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from radixkv.core.api import (
    AdoptBlocksOp,
    AdoptionOp,
    ForkOp,
    MatchOp,
    Notice,
    PoolShape,
    SetQuotaOp,
    StepOp,
    WorkerLoad,
    WorkerReport,
)
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import (
    InvalidArgumentError,
    LeaseError,
    LimitError,
    PoolHeldError,
    RadixKVError,
    StaleIncarnationError,
    UnavailableError,
    UnimplementedError,
    UnknownPoolError,
)
from radixkv.core.tree.journal import JournalEntry
from radixkv.net.calls.callers import Caller
from radixkv.service.config import MAX_NAME_CHARACTERS, ServiceConfig
from radixkv.service.pools.hello import check_hello, check_load
from radixkv.service.pools.stalls import StallWatch
from radixkv.service.quotas import QuotaBook
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.journal import RECORDED, journal_to_proto
from radixkv.wire.steps import notices_to_proto, op_from_proto, result_to_proto
from radixkv.wire.values import pack_blocks

__all__ = ["Attachment", "HolderStream", "Pool", "PoolTable"]


_Answer = TypeVar("_Answer")

_MAX_JOURNAL_BYTES = 1 << 20  # in one message, unless one entry is larger
_MAX_UNTOLD_BYTES = 1 << 28
_JOURNAL_BYTES = 1024  # that count as one notice


class HolderStream(Protocol):
    """The stream of an attached holder, as the table uses it."""

    def end(self, error: RadixKVError) -> None:
        """End the stream with this error, soon. Never raises, never waits."""
        ...

    def send_notices(self) -> None:
        """Send the messages of `Pool.collect_notices`, soon. Never raises, never waits."""
        ...


class Attachment(NamedTuple):
    """An attached pool, and whether its tree is as the holder left it."""

    pool: Pool
    resumed: bool


class Pool:
    """One life of a pool: its tree, its lease, and the answers and notices that its holder has not acknowledged.

    Invariant: `answers` holds those to Steps [next_step - len(answers), next_step), in order, and `notices` the messages of
    numbers [next_notices - len(notices), next_notices).

    `is_older`: than the service, which was restarted. `awaits_quotas`: then the holder may still give back the quotas, with
    which its Steps begin.
    """

    __slots__ = (
        "answers",
        "awaits_quotas",
        "cache",
        "config",
        "erases",
        "expires_at_s",
        "first_step",
        "follows_freed",
        "identity",
        "incarnation",
        "is_older",
        "load",
        "load_at_s",
        "next_notices",
        "next_step",
        "notices",
        "num_audits",
        "num_kept_notices",
        "quotas",
        "shape",
        "stream",
        "stream_number",
        "worker",
    )

    def __init__(
        self, hello: workers.Hello, shape: PoolShape, config: ServiceConfig, cache: PrefixCache, quotas: QuotaBook
    ) -> None:
        self.shape = shape
        self.incarnation = hello.incarnation
        self.config = config
        self.cache = cache
        self.quotas = quotas
        self.stream: HolderStream | None = None
        self.stream_number = hello.stream_number
        self.follows_freed = "freed_blocks" in hello.features
        self.erases = "erasures" in hello.features
        self.identity: tuple[str, str] | None = None  # of the credential that attached it
        self.expires_at_s = 0.0
        self.worker = WorkerReport()
        self.load: WorkerLoad | None = None
        self.load_at_s = 0.0
        self.first_step = self.next_step = hello.acknowledged_through + 1
        self.is_older = bool(hello.acknowledged_through or hello.notices_acknowledged_through)
        self.awaits_quotas = self.is_older
        self.answers: deque[workers.AttachResponse] = deque()
        self.next_notices = hello.notices_acknowledged_through + 1
        self.notices: deque[workers.AttachResponse] = deque()
        self.num_kept_notices = 0
        self.num_audits = 0
        if hello.awaited:
            self._keep_notices([Notice("gone", awaited.seq_id, awaited.num_tokens) for awaited in hello.awaited])

    def acknowledge(self, through: int, notices_through: int) -> None:
        """Drop the answers to Steps up to `through`, and Notices up to `notices_through`. O(dropped).

        Raises:
            InvalidArgumentError: a Step is acknowledged that was never applied, or Notices that were never made.
        """
        if through >= self.next_step:
            raise InvalidArgumentError("acknowledged_through", through, f"below {self.next_step}, the next Step")
        if notices_through >= self.next_notices:
            bound = f"below {self.next_notices}, the next Notices"
            raise InvalidArgumentError("notices_acknowledged_through", notices_through, bound)
        while self.answers and self.next_step - len(self.answers) <= through:
            self.answers.popleft()
        while self.notices and self.next_notices - len(self.notices) <= notices_through:
            self.num_kept_notices -= _weight(self.notices.popleft().notices)

    def take_load(self, load: types.WorkerLoad, now_s: float) -> None:
        """Keep what the holder reports of its load. O(1).

        Raises:
            InvalidArgumentError: a negative number.
        """
        self.load, self.load_at_s = check_load(load), now_s

    def report(self, now_s: float) -> WorkerReport:
        """The holder's report of itself."""
        age_s = 0.0 if self.load is None else max(0.0, now_s - self.load_at_s)
        return self.worker._replace(load=self.load, load_age_s=age_s)

    def change(self, call: Callable[[PrefixCache], _Answer]) -> _Answer:
        """Change the pool for another client than its holder, and send the change to the holder, which outlives the service.

        Raises:
            LimitError: too many earlier changes are not acknowledged by the holder.
        """
        self.require_told()
        answer = call(self.cache)
        self.tell()
        return answer

    def require_told(self) -> None:
        """Raise `LimitError` where too many earlier changes are not acknowledged by the holder."""
        if self._num_untold >= self.config.max_unacknowledged_notices:
            raise LimitError("the holder was not told of earlier changes of its pool yet; try again later")

    def require_quotas(self) -> None:
        """Raise `UnavailableError` where a quota set now would give way to an older one, which the holder gives back."""
        if self.awaits_quotas:
            raise UnavailableError("the holder has not given back the quotas of its pool yet; try again")

    def tell(self) -> None:
        """Send changes to the holder, soon."""
        if self.stream is not None:
            self.stream.send_notices()

    @property
    def _num_untold(self) -> int:
        """Unacknowledged notices, and the weight of the journal's entries."""
        return self.num_kept_notices + self.cache.journal.size_bytes // _JOURNAL_BYTES

    def collect_notices(self) -> workers.AttachResponse | None:
        """The notices since the last call, as a message kept until it is acknowledged. O(notices).

        None where there are none, or where so many are unacknowledged that more wait in the cache.
        """
        if not self.cache.has_untaken or self.num_kept_notices >= self.config.max_unacknowledged_notices:
            return None
        taken, entries = self.cache.take_notices(), self.cache.journal.take(_MAX_JOURNAL_BYTES)
        if (recorded := self.cache.take_records()).block_ids:
            entries.append(recorded)
        return self._keep_notices(taken, entries)

    def _keep_notices(self, taken: list[Notice], entries: Iterable[JournalEntry] = ()) -> workers.AttachResponse:
        """The next message of notices, kept until it is acknowledged."""
        response = workers.AttachResponse()
        journal_to_proto(entries, response.notices)
        response.notices.number = self.next_notices
        response.notices.after_step = self.next_step - 1
        notices_to_proto(taken, response.notices)
        self.notices.append(response)
        self.num_kept_notices += _weight(response.notices)
        self.next_notices += 1
        return response

    def apply(self, step: workers.Step, caller: Caller | None = None) -> workers.AttachResponse:
        """Apply a Step, or return its stored answer if it was applied before. O(ops) in addition to the ops themselves.

        Of a caller with rights, an op that names a namespace beyond them fails alone, by `PermissionDeniedError`; so does an op
        that is not known, or cannot be read.

        Raises:
            InvalidArgumentError: a number skipped or acknowledged before.
            LimitError: too many ops, children, or unacknowledged answers or notices. Nothing of the Step was applied.
        """
        if step.number < self.next_step:
            return self._stored_answer(step.number)
        if step.number > self.next_step:
            raise InvalidArgumentError("step.number", step.number, f"{self.next_step}: no number is left out")
        self.acknowledge(step.acknowledged_through, step.notices_acknowledged_through)
        ops, refused = self._read_ops(step)
        if caller is not None:
            refused |= self._denied(ops, caller)
        self.awaits_quotas = self.awaits_quotas and all(isinstance(op, SetQuotaOp) for op in ops)
        results = self.cache.step(ops, refused)
        response = workers.AttachResponse()
        answer = response.step_answer
        answer.number = step.number
        written = answer.results
        for op, result in zip(ops, results, strict=True):
            result_to_proto(op, result, written.add())
            if isinstance(op, SetQuotaOp) and not isinstance(result, RadixKVError):
                self.quotas.keep(self.shape.name, op)
        if self.follows_freed:
            answer.freed_block_ids = pack_blocks(self.cache.take_freed())
        if (recorded := self.cache.take_records()).block_ids:
            RECORDED.write(recorded, answer.records)
        self.answers.append(response)
        self.next_step += 1
        return response

    def _read_ops(self, step: workers.Step) -> tuple[list[StepOp | AdoptionOp], dict[int, RadixKVError]]:
        """The ops, and by index the errors of quotas beyond their number, and of unreadable ops: those are replaced by a match
        of nothing.
        """
        config = self.config
        if len(self.answers) >= config.max_unacknowledged_steps:
            raise LimitError(
                f"{len(self.answers)} answers are unacknowledged, at most {config.max_unacknowledged_steps} are kept"
            )
        if self.cache.journal.size_bytes > _MAX_UNTOLD_BYTES:
            raise LimitError(f"more than {_MAX_UNTOLD_BYTES} bytes wait for notices to be acknowledged")
        if len(step.ops) > config.max_ops_per_step:
            raise LimitError(f"a Step of {len(step.ops)} ops; at most {config.max_ops_per_step} are taken")
        ops: list[StepOp | AdoptionOp] = []
        refused: dict[int, RadixKVError] = {}
        for index, proto in enumerate(step.ops):
            try:
                op = op_from_proto(proto)
            except (InvalidArgumentError, UnimplementedError) as error:
                op, refused[index] = MatchOp(b""), error
            ops.append(op)
            if isinstance(op, ForkOp):
                if max(op.n, len(op.seq_ids or ())) > config.max_children_per_fork:
                    raise LimitError(f"a fork of {op.n}; at most {config.max_children_per_fork} children are taken")
            elif isinstance(op, SetQuotaOp):
                try:
                    self.quotas.check_number(self.shape.name, op)
                except LimitError as error:
                    refused[index] = error
        return ops, refused

    def _denied(self, ops: list[StepOp | AdoptionOp], caller: Caller) -> dict[int, RadixKVError]:
        """The ops that name a namespace outside the caller's, by their index."""
        denied: dict[int, RadixKVError] = {}
        for index, op in enumerate(ops):
            named = self.cache.namespaces_of(op) if isinstance(op, AdoptBlocksOp) else {getattr(op, "namespace", None)}
            denials = (caller.denial(namespace) for namespace in named if namespace is not None)
            if (denial := next(filter(None, denials), None)) is not None:
                denied[index] = denial
        return denied

    def _stored_answer(self, number: int) -> workers.AttachResponse:
        first = self.next_step - len(self.answers)
        if number < first:
            raise InvalidArgumentError("step.number", number, f"at least {first}: earlier ones were acknowledged")
        return self.answers[number - first]


def _weight(notices: workers.Notices) -> int:
    """The weight of a message in the bound on notices: each counts one, a large one more."""
    num_bytes = notices.ByteSize() if notices.journal else 0
    return len(notices.notices) + len(notices.cleared) + num_bytes // _JOURNAL_BYTES


class PoolTable:
    """Every attached pool, by name, and the quotas of their namespaces.

    Args:
        config: limits and the lease's TTL.
        clock: seconds, monotonic.
        wall_clock: seconds since 1970; makes the event numbers of a later life of a pool higher.
        stall_clock: seconds, monotonic; measures stalls of the service.

    The owner calls `sweep` every `sweep_interval_s`. After a stall of the service itself, the first call that reads the clock
    extends every lease by that time.

    `num_ended`: pools that have ended so far.
    """

    def __init__(
        self,
        config: ServiceConfig,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
        stall_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.clock = clock
        self.quotas = QuotaBook(config.quotas, config.max_quotas_per_pool, config.max_retired_incarnations)
        self.num_ended = 0
        self._stalls = StallWatch(stall_clock, config.lease_ttl_s)
        self._wall_clock = wall_clock
        self._pools: dict[str, Pool] = {}
        self._retired: OrderedDict[int, None] = OrderedDict()

    def attach(self, hello: workers.Hello, stream: HolderStream, identity: tuple[str, str] | None = None) -> Attachment:
        """Give the pool to a holder: a new life, or the one that its incarnation names. O(1) apart from making the pool.

        `identity`: of the holder's credential; a life goes on for the same identity alone.

        Raises:
            InvalidArgumentError: a shape, name or incarnation out of bounds, or another shape than the pool's.
            StaleIncarnationError: that life has ended, or is unknown to this service.
            PoolHeldError: another incarnation holds the pool.
            LimitError: too many pools.
        """
        self.expire()
        shape = check_hello(hello, self.config)
        pool = self._pools.get(shape.name)
        if hello.incarnation in self._retired:
            raise StaleIncarnationError(
                f"this life of pool {shape.name!r} has ended and its sequences are gone; attach with a new incarnation"
            )
        if pool is not None and (pool.incarnation, pool.identity) == (hello.incarnation, identity):
            return self._resume(pool, shape, hello, stream)
        if pool is not None:
            raise PoolHeldError(
                f"pool {shape.name!r} is held by another worker; it is free once that one detaches "
                f"or is silent for {self.config.lease_ttl_s:g} s",
                retry_after_s=max(0.0, pool.expires_at_s - self.clock()),
            )
        if (hello.acknowledged_through or hello.notices_acknowledged_through) and not hello.can_adopt:
            raise StaleIncarnationError(
                f"this service does not know this life of pool {shape.name!r} (it was restarted); "
                "attach with a new incarnation"
            )
        if len(self._pools) >= self.config.max_pools:
            raise LimitError(f"{len(self._pools)} pools are attached; the service takes no more")
        cache = PrefixCache(
            shape.num_blocks,
            shape.block_size,
            eviction=self.config.eviction,
            pin_budget=self.config.pin_budget,
            clock=self.clock,
            event_capacity=self.config.max_kept_events,
            first_event_number=self._first_event_number(),
            follows_freed="freed_blocks" in hello.features,
            record_key=hello.incarnation if "records" in hello.features else None,
        )
        if hello.acknowledged_through or hello.notices_acknowledged_through:
            cache.expect_records()
        self.quotas.furnish(shape.name, cache)
        pool = self._pools[shape.name] = Pool(hello, shape, self.config, cache, self.quotas)
        pool.stream, pool.identity = stream, identity
        self._introduce(pool, hello)
        self._renew(pool)
        return Attachment(pool, resumed=False)

    def _first_event_number(self) -> int:
        """Microseconds since 1970: above every number of any earlier life with less than a million events a second."""
        return max(1, int(self._wall_clock() * 1e6))

    def _resume(self, pool: Pool, shape: PoolShape, hello: workers.Hello, stream: HolderStream) -> Attachment:
        if shape != pool.shape:
            raise InvalidArgumentError("pool", shape, f"the shape that it was attached with, {pool.shape}")
        took_over = LeaseError(f"a newer stream of the holder of pool {shape.name!r} took over")
        if 0 < hello.stream_number < pool.stream_number:
            raise took_over
        pool.acknowledge(hello.acknowledged_through, hello.notices_acknowledged_through)
        self._introduce(pool, hello)
        pool.stream_number = hello.stream_number
        older, pool.stream = pool.stream, stream
        if older is not None:
            older.end(took_over)
        self._renew(pool)
        # An older life is empty until its first Step has reported the contents, whatever Hello it answered.
        return Attachment(pool, resumed=not pool.is_older or pool.next_step > pool.first_step)

    def _introduce(self, pool: Pool, hello: workers.Hello) -> None:
        """Keep the holder's report of itself."""
        pool.worker = WorkerReport(hello.incarnation, hello.holder_name, hello.generation_address, hello.fingerprint)
        if hello.HasField("load"):
            pool.take_load(hello.load, self.clock())

    def renew(self, pool: Pool, stream: HolderStream) -> None:
        """Record a message of the pool's holder. Call it before the message is handled.

        Raises:
            StaleIncarnationError: the lease has ended.
            LeaseError: a newer stream of the same holder has taken over.
        """
        if pool.expires_at_s <= self._now_s():
            self.expire()
        if self._pools.get(pool.shape.name) is not pool:
            raise self._ended(pool)
        if pool.stream is not stream:
            raise LeaseError(f"a newer stream of the holder of pool {pool.shape.name!r} took over")
        self._renew(pool)

    def _renew(self, pool: Pool) -> None:
        pool.expires_at_s = self.clock() + self.config.lease_ttl_s  # `_now_s` was read before

    def leave(self, pool: Pool, stream: HolderStream) -> None:
        """Record that a stream broke. The lease runs on."""
        if pool.stream is stream:
            pool.stream = None

    def holds(self, pool: Pool) -> bool:
        """Whether this life of a pool goes on."""
        return self._pools.get(pool.shape.name) is pool

    def end(self, pool: Pool, why: LeaseError | None = None) -> None:
        """End a lease now: drop the pool with its sequences and its tree, retire its incarnation. O(1).

        `why`: the error for its holder; None: that its lease expired.
        """
        if not self.holds(pool):
            return
        del self._pools[pool.shape.name]
        self.num_ended += 1
        self._retired[pool.incarnation] = None
        if len(self._retired) > self.config.max_retired_incarnations:
            self._retired.popitem(last=False)
        pool.answers.clear()
        pool.notices.clear()
        stream, pool.stream = pool.stream, None
        if stream is not None:
            stream.end(why or self._ended(pool))

    def _ended(self, pool: Pool) -> StaleIncarnationError:
        return StaleIncarnationError(
            f"the lease of pool {pool.shape.name!r} has ended: nothing was heard of its holder for "
            f"{self.config.lease_ttl_s:g} s; attach with a new incarnation"
        )

    def expire(self) -> None:
        """End every expired lease. O(pools)."""
        now_s = self._now_s()
        for pool in [pool for pool in self._pools.values() if pool.expires_at_s <= now_s]:
            self.end(pool)

    def _now_s(self) -> float:
        """The time for leases. O(1), or O(pools) after a stall."""
        stalled_s = self._stalls.take_stall_s()
        if stalled_s:
            for pool in self._pools.values():
                pool.expires_at_s += stalled_s
        return self.clock()

    @property
    def sweep_interval_s(self) -> float:
        """How often `sweep` is to be called."""
        return self._stalls.sweep_interval_s

    def sweep(self) -> None:
        """End every expired lease. O(pools)."""
        self.expire()
        self._stalls.swept()

    def select(self, name: str) -> list[Pool]:
        """The pool of that name, or all of them, sorted by name, for an empty one.

        Raises:
            UnknownPoolError: no pool of that name is attached.
        """
        self.expire()
        if not name:
            return [self._pools[name] for name in sorted(self._pools)]
        pool = self._pools.get(name)
        if pool is None:
            raise UnknownPoolError(f"no pool {name[:MAX_NAME_CHARACTERS]!r} is attached to this service")
        return [pool]
