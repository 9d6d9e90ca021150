"""The service's end of one stream of a holder, from Hello to its end, as a state machine: no gRPC, no tasks, no clock.

hello ──> attached ──(step | heartbeat)──> answers, notices ──(goodbye)──> over
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from radixkv.core.errors import InvalidArgumentError, LeaseError, RadixKVError, UnimplementedError
from radixkv.net.calls.callers import Caller
from radixkv.service.pools.table import Attachment, Pool, PoolTable
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.features import FEATURES

__all__ = ["AttachSession"]

_log = logging.getLogger(__name__)
_MESSAGES = tuple(field.name for field in workers.AttachRequest.DESCRIPTOR.oneofs_by_name["message"].fields)


class AttachSession:
    """One stream, as the pool table and the transport see it.

    Args:
        pools: the pool table; its owner calls this.
        send: takes messages for the holder, in order. Never raises, never waits.
        end: takes the error of an end that the stream's own messages did not cause. Never raises.
        caller: rights of the holder; None: every right.

    `is_over`: the holder has sent Goodbye; nothing else is to be read.
    """

    def __init__(
        self,
        pools: PoolTable,
        send: Callable[[workers.AttachResponse], None],
        end: Callable[[RadixKVError], None],
        caller: Caller | None = None,
    ) -> None:
        self.is_over = False
        self._pools = pools
        self._send = send
        self._end = end
        self._caller = caller
        self._pool: Pool | None = None

    def receive(self, request: workers.AttachRequest) -> None:
        """Handle a message of the holder; its answers are sent before this returns.

        Raises:
            RadixKVError: the stream is to be ended with it. The lease runs on, unless the error is that it has ended.
        """
        if self._caller is not None:
            self._caller.check_alive()
        kind = request.WhichOneof("message")
        pool = self._pool
        if pool is None:
            if kind != "hello":
                raise _unexpected(kind, "hello, the first of a stream")
            self._attach(request.hello)
            return
        self._pools.renew(pool, self)
        if kind in {"step", "heartbeat"} and (message := getattr(request, kind)).HasField("load"):
            pool.take_load(message.load, self._pools.clock())
        if kind == "step":
            self._send(self._apply(pool, request.step))
            self.send_notices()
        elif kind == "heartbeat":
            heartbeat = request.heartbeat
            pool.awaits_quotas = False  # a holder with quotas begins with Steps
            pool.acknowledge(heartbeat.acknowledged_through, heartbeat.notices_acknowledged_through)
            self._send(workers.AttachResponse(heartbeat_answer=workers.HeartbeatAnswer()))
            self.send_notices()
        elif kind == "goodbye":
            self.lost()
            self._pools.end(pool)
            self.is_over = True
        else:
            raise _unexpected(kind, "a step, a heartbeat or goodbye")

    def lost(self) -> None:
        """The stream has ended, for any reason; the lease runs on. May be repeated."""
        if self._pool is not None:
            self._pools.leave(self._pool, self)

    # -- for the pool table

    def end(self, error: RadixKVError) -> None:
        """See `HolderStream`."""
        self._end(error)

    def send_notices(self) -> None:
        """See `HolderStream`."""
        while self._pool is not None and (notices := self._pool.collect_notices()) is not None:
            self._send(notices)

    def _attach(self, hello: workers.Hello) -> None:
        if self._caller is not None:
            self._caller.check_pool(hello.pool.name)
        attachment = self._pools.attach(hello, self, self._caller.identity if self._caller is not None else None)
        self._pool = attachment.pool
        self._send(workers.AttachResponse(attached=self._describe(attachment)))
        for unacknowledged in attachment.pool.notices:
            self._send(unacknowledged)
        self.send_notices()

    def _describe(self, attachment: Attachment) -> workers.Attached:
        config = self._pools.config
        return workers.Attached(
            resumed=attachment.resumed,
            next_step=attachment.pool.next_step,
            lease_ttl_ms=round(config.lease_ttl_s * 1000),
            max_message_bytes=config.max_message_bytes,
            max_unacknowledged_steps=config.max_unacknowledged_steps,
            max_ops_per_step=config.max_ops_per_step,
            max_children_per_fork=config.max_children_per_fork,
            features=FEATURES,
        )

    def _apply(self, pool: Pool, step: workers.Step) -> workers.AttachResponse:
        """Apply a Step; a pool is dropped after a failure of the service itself."""
        try:
            return pool.apply(step, self._caller)
        except RadixKVError:
            raise
        except Exception:
            _log.exception("Step %d of pool %r failed", step.number, pool.shape.name)
            self.lost()
            self._pools.end(pool)
            raise LeaseError(
                f"the service failed on Step {step.number} and has dropped pool {pool.shape.name!r}; "
                "attach with a new incarnation"
            ) from None


def _unexpected(kind: str | None, bound: str) -> RadixKVError:
    """The error for a message that is out of turn, unset or unknown."""
    return UnimplementedError("message", _MESSAGES) if kind is None else InvalidArgumentError("message", kind, bound)
