"""Calls of readers at the simulated service: the real servicer's, answered at once or a message at a time on simulated time."""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.service.events.subscriptions import SubscriberGate
from radixkv.wire.errors import status_of

from ..clears import unheard
from ..clock import ViolationError
from ..network import End

if TYPE_CHECKING:
    from .service import SimulatedService

__all__ = ["ReaderCall", "SimulatedFollowers", "serve"]

_LONGEST_TURN_S = 0.004
_PARKED = object()
_STREAMS = ("Dump", "Events")


class ReaderCall:
    """A unary or streaming call of a reader: its method, its request, and who takes the answer."""

    def __init__(self, method: str, request: Any) -> None:
        self.method = method
        self.request = request


class SimulatedFollowers(SubscriberGate):
    """Those who follow events: they are woken in simulated time."""

    def __init__(self, max_followers: int) -> None:
        super().__init__(max_followers)
        self._parked: list[Callable[[], None]] = []

    def park(self, wake: Callable[[], None]) -> None:
        """Have this called at the next change."""
        self._parked.append(wake)

    def changed(self) -> None:
        """See `SubscriberGate.changed`."""
        super().changed()
        woken, self._parked = self._parked, []
        for wake in woken:
            wake()

    async def wait(self, change: asyncio.Event) -> None:
        """See `SubscriberGate.wait`."""
        while not change.is_set():
            await _park()


@types.coroutine
def _park() -> Generator[object, None, None]:
    yield _PARKED


def serve(service: SimulatedService, call: ReaderCall, end: End) -> None:
    """Answer a call."""
    service.awake("call")
    if call.method in _STREAMS:
        _StreamCall(service, call, end).go_on()
        return
    if call.method == "Clear":
        before = {name: unheard(pool) for name, pool in service.table().items()}
    serving = getattr(service.servicer, call.method)(call.request, None)
    try:
        serving.send(None)
    except StopIteration as done:
        if call.method == "Clear":
            _note_clears(service, call.request.namespace, before)
        _answer(service, call, end, done.value)
    except RadixKVError as error:
        _answer(service, call, end, _refusal(error))
    else:
        raise ViolationError(f"{call.method} waits for something")


def _note_clears(service: SimulatedService, namespace: str, before: dict[str, Counter[str]]) -> None:
    """Of a call that was repeated, only the first time it cleared anything."""
    for name, pool in service.table().items():
        if unheard(pool)[namespace] > before[name][namespace]:
            service.clears.cleared(pool, namespace)
            is_early = pool.cache._forest.pool.can_claim and pool.first_step > 1
            service.simulator.count("cleared before all was adopted" if is_early else "cleared")


def _answer(service: SimulatedService, call: ReaderCall, end: End, answer: Any) -> None:
    refused = answer.partition(":")[0] if isinstance(answer, str) else "served"
    service.simulator.count(f"{call.method} {refused}")
    service.simulator.note(f"service: {call.method}", refused)
    end.send(answer)
    end.finish(UnavailableError("the call is over"))


def _refusal(error: RadixKVError) -> str:
    return f"{status_of(error).name}: {error}"


class _StreamCall:
    """A call that is answered by a stream: in one message at its end, or as it comes to one who follows.

    How messages are written to a caller is the business of gRPC and its loop.
    """

    def __init__(self, service: SimulatedService, call: ReaderCall, end: End) -> None:
        self._service = service
        self._call = call
        self._end = end
        self._answers: list[Any] = []
        self._follows = call.method == "Events" and call.request.follow
        self._messages = getattr(service.servicer, call.method)(call.request, None)
        self._step = self._messages.__anext__()
        self._is_over = False
        end.on_end = self._left

    def go_on(self) -> None:
        """Up to where Steps may come in between, or to where there is nothing to tell."""
        if self._is_over:
            return
        self._service.awake("call")
        while True:
            try:
                turn = self._step.send(None)
            except StopIteration as done:
                self._take(done.value)
            except StopAsyncIteration:
                self._over(self._answers)
                return
            except RadixKVError as error:
                self._over(_refusal(error))
                return
            else:
                if turn is _PARKED:
                    self._service.followers.park(self._soon)
                else:
                    self._soon()
                return

    def _soon(self) -> None:
        simulator = self._service.simulator
        simulator.after(simulator.rng.random() * _LONGEST_TURN_S, self._service.process, None, self.go_on)

    def _take(self, message: Any) -> None:
        if self._follows:
            self._end.send(message)
        else:
            self._answers.append(message)
        self._step = self._messages.__anext__()

    def _over(self, answer: Any) -> None:
        self._is_over = True
        _answer(self._service, self._call, self._end, answer)

    def _left(self, _error: RadixKVError) -> None:
        """The caller is gone: the handler is cancelled where it waits."""
        if not self._is_over:
            self._is_over = True
            try:
                self._step.throw(asyncio.CancelledError)
            except asyncio.CancelledError:
                return
            raise ViolationError(f"{self._call.method} goes on though its caller is gone")
