"""The cache service on simulated time: the real pool table, ends of streams and calls of readers, over a simulated network."""

from __future__ import annotations

from typing import Any

from radixkv.core.errors import LeaseError, RadixKVError, UnavailableError
from radixkv.service.attach.session import AttachSession
from radixkv.service.config import ServiceConfig
from radixkv.service.pools.table import Pool, PoolTable
from radixkv.service.reading import PrefixCacheServicer
from radixkv.v1 import workers_pb2 as workers

from ..clears import Clears
from ..clock import Process, Simulator
from ..leases import LeaseBook
from ..network import End, Network
from .reader_calls import ReaderCall, SimulatedFollowers, serve

__all__ = ["SimulatedService"]

_SLOWEST_END_S = 0.02


class _Stream:
    """One holder's stream at the service."""

    def __init__(self, service: SimulatedService, end: End) -> None:
        self.number = end.connection.number
        self.sent: list[workers.AttachResponse] = []
        self._service = service
        self._end = end
        self._is_ending = False
        self._holding = AttachSession(service.pools, self._send, self._end_soon)

    def receive(self, request: workers.AttachRequest) -> None:
        """Act upon a message, as the gRPC servicer does."""
        service = self._service
        service.awake("message")
        service.book.arrives(self.number, request, service.table(), service.clock())
        self.sent = []
        error: RadixKVError | None = None
        try:
            self._holding.receive(request)
        except RadixKVError as raised:
            error = raised
        was_repeated = service.book.is_repeated(self.number, request)
        service.book.acted(self.number, request, self.sent, error, service.table(), service.clock())
        service.changed(request, self.sent, error, was_repeated=was_repeated)
        service.followers.changed()
        if error is not None:
            self._over(error)
        elif self._holding.is_over:
            self._over(UnavailableError("the service has ended the stream"))

    def stop(self) -> None:
        """End the stream as a service does that is stopping."""
        self._over(UnavailableError("the service is stopping"))

    def lost(self) -> None:
        """The connection is gone."""
        self._service.streams.pop(self.number, None)
        self._holding.lost()
        self._service.book.left(self.number)

    def _send(self, response: workers.AttachResponse) -> None:
        self.sent.append(response)
        self._end.send(response.SerializeToString())

    def _end_soon(self, error: RadixKVError) -> None:
        """What arrives before the stream's own task wakes is still read."""
        if not self._is_ending:
            self._is_ending = True
            service = self._service
            service.simulator.count("taken over" if type(error) is LeaseError else "ended")
            delay_s = service.simulator.rng.random() * _SLOWEST_END_S
            service.simulator.after(delay_s, service.process, None, self._over, error)

    def _over(self, error: RadixKVError) -> None:
        self.lost()
        self._end.finish(error)


class SimulatedService:
    """Lives of a service.

    Args:
        config: limits and the lease's TTL.

    Attributes:
        skew_s: how far its clock has leapt ahead of the simulator's.
        has_acted: whether it has done anything since it was checked last.
        clears: knows what was cleared.
    """

    def __init__(self, simulator: Simulator, network: Network, config: ServiceConfig) -> None:
        self.simulator = simulator
        self.process = Process("service")
        self.config = config
        self.skew_s = 0.0
        self.has_acted = False
        self.clears = Clears(())
        self._network = network
        network.listen(self)
        self.start()

    def start(self) -> None:
        """Begin a life, with nothing."""
        self.process.start()
        self.has_acted = False
        self.streams: dict[int, _Stream] = {}
        self.pools = PoolTable(self.config, self.clock, lambda: 1e9 + self.simulator.now_s, self.clock)
        self._sweep_interval_s = min(self.config.lease_ttl_s / 4, 1.0)
        self._due_s = self.clock() + self._sweep_interval_s
        self.book = LeaseBook(self.config.lease_ttl_s)
        self.followers = SimulatedFollowers(self.config.max_event_subscribers)
        self.servicer = PrefixCacheServicer(self.pools, self.followers)
        self._sweep()

    def stop(self) -> None:
        """Send holders away, then end."""
        for stream in list(self.streams.values()):
            stream.stop()
        self.followers.stop()
        self.crash()

    def crash(self) -> None:
        """Lose everything."""
        self._network.died(self.process)
        self.process.die()
        self.clears.lost(self.table())
        self.has_acted = False

    def clock(self) -> float:
        """Seconds; never falls, and may leap."""
        return self.simulator.now_s + self.skew_s

    def table(self) -> dict[str, Pool]:
        """The pools that are there, whether their time is up or not: to ask for them would end those whose is."""
        return self.pools._pools

    def changed(
        self,
        request: workers.AttachRequest,
        sent: list[workers.AttachResponse],
        error: RadixKVError | None,
        *,
        was_repeated: bool,
    ) -> None:
        """Note what a message came to."""
        kind, simulator = request.WhichOneof("message"), self.simulator
        name = type(error).__name__ if error is not None else "taken"
        simulator.count(f"{kind} {name}")
        if kind == "hello" and error is None and sent[0].attached.resumed:
            simulator.count("resumed")
        elif kind == "hello" and error is None and sent[0].attached.next_step > 1:
            simulator.count("adopted")
        if was_repeated and error is None:
            simulator.count("step sent again")
        number = request.step.number if kind == "step" else ""
        simulator.note(f"service: {kind}", number, name)

    def awake(self, by: str) -> None:
        """Say that it acts: if it was stalled before, that was nobody's silence, whatever it is that wakes it."""
        self.has_acted = True
        late_s = self.clock() - self._due_s
        if late_s > self._sweep_interval_s:
            self._due_s = self.clock()
            self.simulator.count(f"forgiven at a {by}")
            self.simulator.note("service: forgives", f"{late_s:.4f}")
            self.book.forgave(late_s)

    # -- holders

    def accept(self, end: End) -> None:
        """Serve a holder, or a reader, by what it says first."""
        stream: list[_Stream] = []

        def receive(message: Any) -> None:
            if isinstance(message, ReaderCall):
                serve(self, message, end)
                return
            if not stream:
                stream.append(_Stream(self, end))
                self.streams[stream[0].number] = stream[0]
            stream[0].receive(workers.AttachRequest.FromString(message))

        def ended(_error: RadixKVError) -> None:
            if stream:
                stream[0].lost()

        end.on_message, end.on_end = receive, ended

    # -- sweeping

    def _sweep(self) -> None:
        self.awake("sweep")
        num_ended = self.pools.num_ended
        self.pools.sweep()
        self.book.expired(self.table(), self.clock())
        if self.pools.num_ended != num_ended:
            self.simulator.count("expired")
            self.simulator.note("service: a lease has expired")
        self.followers.changed()
        self._due_s = self.clock() + self._sweep_interval_s
        self.simulator.after(self._sweep_interval_s, self.process, None, self._sweep)
