"""The holder of a pool: every call of `PrefixCache`, over a stream of numbered Steps."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

from radixkv.client.notices import NoticeBox
from radixkv.client.reader import RemoteReader
from radixkv.client.session import HolderSession
from radixkv.client.stream import StepStream
from radixkv.core import validation
from radixkv.core.api import (
    DEFAULT_NAMESPACE,
    AcquireOptions,
    AcquireResult,
    ExtendOp,
    ExtendResult,
    ForkOp,
    HintOp,
    InsertOp,
    Notice,
    Pending,
    PoolShape,
    ReleaseOp,
    StepOp,
    StepResult,
    Tier,
    WorkerLoad,
)
from radixkv.core.errors import InvalidArgumentError, RadixKVError, UnknownPoolError
from radixkv.core.tokens import TokensLike, pack_tokens
from radixkv.core.tree.journal import JournalEntry
from radixkv.net.channel import Credentials

__all__ = ["RemoteHolder"]

_RESUMING_S = 0.01  # between two looks at whether the service knows the pool


class RemoteHolder(RemoteReader):
    """A `CacheHolder` of one pool of a service, a context manager. Calls may come from any thread.

    It keeps the lease alive while it lives, reattaches after a broken stream, and sends unanswered Steps again; each Step is
    applied exactly once. It reports the pool's contents to a restarted service, and its sequences go on; a sequence that cannot
    gets a `Notice` of kind ``"lost"``. Pins, quotas and retention go on, a restart counting as a use of them; dropped branches
    stay away. Calls outside Steps (`match`, `pin`, `stats`) wait until the service knows all this, `timeout_s` at most.
    When the lease is lost for good, every outstanding call and every later one raises the cause (`LeaseError`,
    `UnavailableError`): the pool's sequences are gone then.

    Args:
        address, pool, incarnation, holder_name, timeout_s, on_notices, on_restart, on_freed, on_journal, load,
            patience_s, credentials: see `connect`.

    Beyond the errors of `PrefixCache`, calls raise `LimitError` for a Step over the service's limits.
    """

    def __init__(
        self,
        address: str,
        pool: PoolShape,
        *,
        incarnation: int | None = None,
        holder_name: str = "",
        timeout_s: float = 10.0,
        on_notices: Callable[[], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        on_freed: Callable[[array[int]], None] | None = None,
        on_journal: Callable[[Sequence[JournalEntry]], Sequence[Future[None]] | None] | None = None,
        load: Callable[[], WorkerLoad] | None = None,
        patience_s: float | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        if incarnation is None:
            incarnation = secrets.randbits(64) or 1
        validation.check_int("incarnation", incarnation, 1, 2**64 - 1)
        super().__init__(address, pool.name, timeout_s=timeout_s, credentials=credentials)
        self.pool = pool
        self.incarnation = incarnation
        self._notices = NoticeBox(on_notices)
        try:
            self._session = HolderSession(
                pool, incarnation, self._notices, holder_name, on_restart, on_freed, on_journal, load
            )
            self._steps = StepStream(self._channel, address, self._session, timeout_s, patience_s)
        except BaseException:
            super().close()
            raise

    @property
    def features(self) -> Collection[str]:
        """Names of the additions to the first contract that the service understands; see `Attached.features` in workers.proto.
        A restart may change them.
        """
        return self._steps.features

    def acquire(self, tokens: TokensLike, **options: Unpack[AcquireOptions]) -> AcquireResult:
        """See `PrefixCache.acquire`."""
        opened: AcquireResult = self._one(validation.acquire_op(tokens, options, waits=False))
        return opened

    def acquire_or_wait(self, tokens: TokensLike, **options: Unpack[AcquireOptions]) -> AcquireResult | Pending:
        """See `PrefixCache.acquire_or_wait`."""
        answer: AcquireResult | Pending = self._one(validation.acquire_op(tokens, options, waits=True))
        return answer

    def extend(self, seq_id: int, num_tokens: int) -> ExtendResult:
        """See `PrefixCache.extend`."""
        room: ExtendResult = self._one(ExtendOp(seq_id, num_tokens))
        return room

    def insert(self, seq_id: int, num_computed: int, new_tokens: TokensLike = b"", position: int | None = None) -> None:
        """See `PrefixCache.insert`."""
        self._one(InsertOp(seq_id, num_computed, pack_tokens(new_tokens), position))

    def fork(
        self, seq_id: int, position: int, n: int = 1, reserve: int = 0, seq_ids: Sequence[int] | None = None
    ) -> list[AcquireResult]:
        """See `PrefixCache.fork`."""
        if seq_ids is not None and (isinstance(seq_ids, str | bytes) or not isinstance(seq_ids, Sequence)):
            raise InvalidArgumentError("seq_ids", seq_ids, "a sequence of ids")
        ids = None if seq_ids is None else tuple(seq_ids)
        children: list[AcquireResult] = self._one(ForkOp(seq_id, position, n, reserve, ids))
        return children

    def release(self, seq_id: int, keep: bool = True) -> None:
        """See `PrefixCache.release`."""
        self._one(ReleaseOp(seq_id, keep))

    def hint(
        self, tier: Tier, saved: Sequence[int] = (), lost: Sequence[int] = (), *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """See `PrefixCache.hint`. A restarted service gets them again, by itself."""
        self._one(HintOp(tier, saved, lost, namespace))

    def take_notices(self) -> list[Notice]:
        """Return the outcomes of earlier `Pending` answers since the last call, oldest first; see `CacheHolder`. Never blocks.

        They arrive soon after the answer to the Step, or after the `clear`, that caused them; the holder's `on_notices` is
        called whenever there are new ones.
        """
        return self._notices.take()

    def step(self, ops: Sequence[StepOp]) -> list[StepResult]:
        """See `PrefixCache.step`. One round trip, however many ops."""
        return self.submit(ops).result()

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        """Send a Step and return at once; the future holds the answer of `step`. Never blocks.

        Futures complete in the order of submission, on a thread of this holder: a callback must be short and must not wait
        for another answer.

        Raises:
            InvalidArgumentError: an op that a message cannot hold.
            UnimplementedError: an option that the attached service, of an earlier version, would ignore.
            LimitError: a Step, or a queue of Steps, larger than its limit. Nothing was sent.
            LeaseError, UnavailableError: the lease was lost before.
        """
        return self._steps.submit(ops)

    def announce(self, generation_address: str, fingerprint: str = "") -> None:
        """Report where Generation is served, and the model, on a new stream, which is opened now and resumes.

        Args:
            generation_address: as clients reach it. fingerprint: stands for model, tokenizer, template and adapters.
        """
        self._session.announce(generation_address, fingerprint)
        self._steps.interrupt()

    def report_load(self) -> None:
        """Report the present load now; it also goes with every Step, and within 0.1 s of a change."""
        self._session.report_load()

    def interrupt(self) -> None:
        """Break the stream, as a network would. The holder reattaches and resumes."""
        self._steps.interrupt()

    def close(self) -> None:
        """Detach: the lease ends at once, and with it the pool's sequences and tree. May be repeated."""
        self._steps.close()
        super().close()

    def _call(self, method: Any, request: Any) -> Any:
        """`RemoteReader._call`, once a restarted service knows what the holder has; waits at most `timeout_s` for that.

        An answer of a service that has restarted meanwhile is asked for again: it may have known a part only.
        """
        until_s = time.monotonic() + self._timeout_s
        session = self._session
        while True:
            self._await_resumed(until_s)
            num_restarts = session.num_restarts
            try:
                answer = super()._call(method, request)
            except UnknownPoolError:
                if session.error is not None or time.monotonic() > until_s:
                    raise
                time.sleep(_RESUMING_S)
                continue
            self._await_resumed(until_s)
            if session.num_restarts == num_restarts or session.error is not None or time.monotonic() > until_s:
                return answer

    def _await_resumed(self, until_s: float) -> None:
        session = self._session
        while not session.is_resumed and session.error is None and time.monotonic() < until_s:
            time.sleep(_RESUMING_S)

    def _one(self, op: StepOp) -> Any:
        result = self._steps.submit((op,)).result()[0]
        if isinstance(result, RadixKVError):
            raise result
        return result
