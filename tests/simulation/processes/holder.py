"""A holder's streams on simulated time: what `client/stream.py` does with threads over gRPC, around the same session."""

from __future__ import annotations

from collections.abc import Callable

from radixkv.client.session import FINAL_ERRORS, HolderSession
from radixkv.core.errors import RadixKVError, UnavailableError

from ..clock import Process, Simulator, ViolationError
from ..network import End, Network

__all__ = ["SimulatedHolder"]

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.02, 0.5
_LATE_SHARE = 0.5


class SimulatedHolder:
    """Opens streams, one after the other, until the lease is lost for good.

    Args:
        process: whose holder it is.
        session: what is said on the streams.
        timeout_s: how long the first attachment may take.
        patience_s: how long to try to reach a service that is gone; None: for the lease's TTL.
        lost: called once, with why, when the lease is lost for good.
    """

    def __init__(
        self,
        simulator: Simulator,
        network: Network,
        process: Process,
        session: HolderSession,
        timeout_s: float,
        patience_s: float | None,
        lost: Callable[[RadixKVError], None],
    ) -> None:
        self.session = session
        self.is_over = False
        self._simulator = simulator
        self._network = network
        self._process = process
        self._timeout_s = timeout_s
        self._given_patience_s = patience_s
        self._lost = lost
        self._backoff_s = _FIRST_BACKOFF_S
        self._heard_at_s = self._heard_before_s = simulator.now_s
        self._end: End | None = None
        simulator.after(timeout_s, process, None, self._lose_patience)
        self._open()

    @property
    def was_attached(self) -> bool:
        """Whether it was taken once; before, its caller has no holder yet."""
        return self.session.lease_ttl_s > 0

    def interrupt(self) -> None:
        """Break the stream, as its owner may."""
        self.session.stop_sending()
        self._cancel()

    def say_goodbye(self) -> None:
        """End the lease, if attached, and open no other stream."""
        self.session.say_goodbye()
        self.is_over = True

    @property
    def _silence_s(self) -> float:
        return self.session.lease_ttl_s or self._timeout_s

    @property
    def _patience_s(self) -> float:
        return self._silence_s if self._given_patience_s is None else max(self._silence_s, self._given_patience_s)

    def _open(self) -> None:
        if self.is_over:
            return
        self._heard_before_s = self._heard_at_s
        opened: list[End] = []

        def send(message: bytes) -> None:
            opened[0].send(message)

        def receive(message: bytes) -> None:
            self._heard_at_s = self._simulator.now_s
            is_first = not self.was_attached
            try:
                self.session.receive(message, send)
                if is_first and self.was_attached:
                    self._plan_pulse()
            except RadixKVError as error:
                raise ViolationError(f"what the service sent cannot be: {error}") from error

        def ended(error: RadixKVError) -> None:
            self._ended(opened[0], error)

        self._end = self._network.connect(self._process, "service", receive, ended)
        opened.append(self._end)
        self.session.open(send)

    def _cancel(self) -> None:
        end = self._end
        if end is not None:
            end.hears_late = self._simulator.chance(_LATE_SHARE)
            end.cancel()
            self._ended(end, UnavailableError("the stream was cancelled"))

    def _ended(self, end: End, error: RadixKVError) -> None:
        """A stream is over: open another at once, later, or never."""
        if self.is_over or self._end is not end:
            return
        self._end = None
        self.session.lose_stream()
        if isinstance(error, FINAL_ERRORS):
            self._fail(error)
        elif self._heard_at_s != self._heard_before_s:
            self._backoff_s = _FIRST_BACKOFF_S
            self._open()
        elif self._simulator.now_s + self._backoff_s > self._heard_at_s + self._patience_s:
            self._fail(UnavailableError(f"out of reach for {self._patience_s:g} s: {error}"))
        else:
            self._simulator.after(self._backoff_s, self._process, None, self._open)
            self._backoff_s = min(self._backoff_s * 2, _LONGEST_BACKOFF_S)

    def _fail(self, error: RadixKVError) -> None:
        self.is_over = True
        self.session.fail(error)
        self._lost(error)

    def _lose_patience(self) -> None:
        """The first attachment has taken too long."""
        if not self.is_over and not self.was_attached:
            if self._end is not None:
                self._end.cancel()
            self._fail(UnavailableError(f"the service did not answer within {self._timeout_s:g} s"))

    def _plan_pulse(self) -> None:
        self._simulator.after(self._silence_s / 3, self._process, None, self._beat)

    def _beat(self) -> None:
        """Three heartbeats per TTL; a stream on which nothing is heard for a TTL is given up."""
        if self.is_over:
            return
        self.session.heartbeat()
        if self._end is not None and self._simulator.now_s > self._heard_at_s + self._silence_s:
            self._cancel()
        self._plan_pulse()
