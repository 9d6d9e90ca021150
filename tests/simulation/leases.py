"""Who holds which pool, kept beside the service from what arrives at it: the rules of `Workers.Attach`, written a second time.

It is told of each message before and after the service acts upon it, and says what the service must have done with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radixkv.core.errors import LeaseError, RadixKVError, StaleIncarnationError
from radixkv.service.pools.table import Pool
from radixkv.v1 import workers_pb2 as workers

from .clock import ViolationError

__all__ = ["LeaseBook"]


@dataclass
class Lease:
    """One life of a pool. `stream`: the number of the stream that speaks for it, None while there is none; `stream_number`: its
    holder's for the last that did.
    """

    incarnation: int
    stream: int | None
    ends_at_s: float
    next_step: int
    stream_number: int = 0
    answers: dict[int, bytes] = field(default_factory=dict)


def fingerprint(pool: Pool) -> tuple[object, ...]:
    """Everything of a pool that a Step would change."""
    return pool.incarnation, pool.next_step, pool.cache.stats(), tuple(pool.cache.dump())


class LeaseBook:
    """The leases of one life of a service.

    Args:
        ttl_s: how long a lease lasts after a message of its holder.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._leases: dict[str, Lease] = {}
        self._ended: set[int] = set()
        self._streams: dict[int, tuple[str, Lease]] = {}
        self._before: dict[str, tuple[object, ...]] | None = None

    def live_lease(self, name: str, now_s: float) -> Lease | None:
        """The lease of a pool, if it has not run out."""
        lease = self._leases.get(name)
        return lease if lease is not None and now_s < lease.ends_at_s else None

    def is_entitled(self, stream: int, now_s: float) -> bool:
        """Whether what comes by this stream is its pool's holder's."""
        name, lease = self._streams.get(stream, ("", None))
        return lease is not None and self.live_lease(name, now_s) is lease and lease.stream == stream

    def is_repeated(self, stream: int, request: workers.AttachRequest) -> bool:
        """Whether this is a Step that was applied before."""
        _, lease = self._streams.get(stream, ("", None))
        is_step = request.WhichOneof("message") == "step"
        return lease is not None and is_step and request.step.number < lease.next_step

    def forgave(self, stalled_s: float) -> None:
        """The service has not listened for so long."""
        for lease in self._leases.values():
            lease.ends_at_s += stalled_s

    def expired(self, pools: Mapping[str, Pool], now_s: float) -> None:
        """The service has ended what is over: just what must be is gone."""
        for name, lease in list(self._leases.items()):
            is_there = name in pools and pools[name].incarnation == lease.incarnation
            if lease.ends_at_s <= now_s:
                if is_there:
                    raise ViolationError(
                        f"the lease of pool {name} is over since {lease.ends_at_s:.4f}, and it is still there"
                    )
                self._end(name)
        self.check(pools, now_s)

    def check(self, pools: Mapping[str, Pool], now_s: float) -> None:
        """Nothing that lives is gone, and nothing is there that was never given."""
        for name, pool in pools.items():
            lease = self._leases.get(name)
            if lease is None or lease.incarnation != pool.incarnation:
                raise ViolationError(f"pool {name} lives on in incarnation {pool.incarnation}, which has no lease")
        for name, lease in list(self._leases.items()):
            if name not in pools:
                if now_s < lease.ends_at_s:
                    raise ViolationError(f"the lease of pool {name} was ended {lease.ends_at_s - now_s:.4f} s early")
                self._end(name)

    def arrives(self, stream: int, request: workers.AttachRequest, pools: Mapping[str, Pool], now_s: float) -> None:
        """A message has come and is not acted upon yet."""
        kind = request.WhichOneof("message")
        self._before = None
        if kind == "hello":
            return
        if not self.is_entitled(stream, now_s):
            self._before = {name: fingerprint(pool) for name, pool in pools.items()}
        elif self.is_repeated(stream, request):
            name = self._streams[stream][0]
            self._before = {name: fingerprint(pools[name])}

    def acted(
        self,
        stream: int,
        request: workers.AttachRequest,
        sent: list[workers.AttachResponse],
        error: RadixKVError | None,
        pools: Mapping[str, Pool],
        now_s: float,
    ) -> None:
        """The service has acted upon it: `sent` is what it sent on that stream, `error` what it raised."""
        if error is not None and not isinstance(error, LeaseError):
            raise ViolationError(f"a holder that keeps the rules was told {type(error).__name__}: {error}")
        kind = request.WhichOneof("message")
        if kind == "hello":
            self._acted_on_hello(stream, request.hello, sent, error, now_s)
            return
        self._compare(pools)
        if not self.is_entitled(stream, now_s):
            if error is None:
                raise ViolationError(f"a {kind} of a stream that holds no lease was taken")
            return
        name, lease = self._streams[stream]
        if error is not None:
            raise ViolationError(f"a {kind} of the holder of pool {name} was refused in time: {error}")
        lease.ends_at_s = now_s + self._ttl_s
        if kind == "step":
            self._acted_on_step(name, lease, request.step, sent)
        elif kind == "goodbye":
            self._end(name)

    def left(self, stream: int) -> None:
        """A stream is over; the lease runs on."""
        _, lease = self._streams.pop(stream, ("", None))
        if lease is not None and lease.stream == stream:
            lease.stream = None

    def _acted_on_hello(
        self,
        stream: int,
        hello: workers.Hello,
        sent: list[workers.AttachResponse],
        error: RadixKVError | None,
        now_s: float,
    ) -> None:
        name = hello.pool.name
        held = self.live_lease(name, now_s)
        if error is not None:
            is_new = held is None and not hello.acknowledged_through and hello.incarnation not in self._ended
            over = self._leases.get(name)
            is_over = over is not None and over.incarnation == hello.incarnation and held is None
            is_own = held is not None and held.incarnation == hello.incarnation
            if is_own and held is not None and hello.stream_number < held.stream_number:
                return
            if (is_new and not is_over) or is_own:
                raise ViolationError(f"incarnation {hello.incarnation} was refused pool {name}: {error}")
            if is_over and not isinstance(error, StaleIncarnationError):
                raise ViolationError(f"a stale incarnation was told {error}")
            return
        if hello.incarnation in self._ended:
            raise ViolationError(f"a stale incarnation was given pool {name}")
        attached = sent[0].attached
        if held is None:
            if name in self._leases:
                if self._leases[name].incarnation == hello.incarnation:
                    raise ViolationError(f"a stale incarnation was given pool {name}")
                self._end(name)
            held = self._leases[name] = Lease(hello.incarnation, stream, 0.0, attached.next_step)
        if held.incarnation != hello.incarnation:
            raise ViolationError(f"pool {name} was given to a second holder while the first one's lease runs")
        if attached.next_step != held.next_step:
            raise ViolationError(f"a holder that resumes was told Step {attached.next_step}, not {held.next_step}")
        if hello.stream_number <= held.stream_number:
            raise ViolationError(f"an older stream of the holder took pool {name} over")
        held.stream, held.stream_number = stream, hello.stream_number
        held.ends_at_s = now_s + self._ttl_s
        self._streams[stream] = (name, held)

    def _acted_on_step(self, name: str, lease: Lease, step: workers.Step, sent: list[workers.AttachResponse]) -> None:
        answers = [response for response in sent if response.HasField("step_answer")]
        if [response.step_answer.number for response in answers] != [step.number]:
            raise ViolationError(f"Step {step.number} of pool {name} was not answered once")
        answer = answers[0].SerializeToString(deterministic=True)
        if step.number < lease.next_step:
            if lease.answers.get(step.number) != answer:
                raise ViolationError(f"Step {step.number} of pool {name}, sent again, was answered otherwise")
            return
        if step.number != lease.next_step:
            raise ViolationError(f"Step {step.number} of pool {name} was taken in place of {lease.next_step}")
        lease.answers[step.number] = answer
        lease.next_step += 1

    def _compare(self, pools: Mapping[str, Pool]) -> None:
        """What was not to be acted upon has changed nothing, but that a lease which is over may have been ended."""
        for name, before in (self._before or {}).items():
            if name in pools and fingerprint(pools[name]) != before:
                raise ViolationError(f"a message that was not to be acted upon has changed pool {name}")

    def _end(self, name: str) -> None:
        self._ended.add(self._leases.pop(name).incarnation)
