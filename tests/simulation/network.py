"""A simulated network: connections whose messages keep their order, are late, and are lost from the end.

A connection that breaks loses a suffix of what is under way in each direction; each end hears of it in its own time, one maybe
much later than the other. A message into a partition waits until it is over, as TCP sends again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from radixkv.core.errors import RadixKVError, UnavailableError

from .clock import Process, Simulator

__all__ = ["Connection", "End", "Network", "Server"]

_LEAST_DELAY_S, _MOST_DELAY_S = 0.0005, 0.006
_SLOW_SHARE, _SLOW_S = 0.03, 0.08


class Server(Protocol):
    """Who can be connected to."""

    process: Process

    def accept(self, end: End) -> None:
        """Someone has connected: set what becomes of messages and of the end."""
        ...


class _Parcel:
    """A message under way, or the news that there will be no more."""

    __slots__ = ("at_s", "is_lost", "message")

    def __init__(self, message: Any, at_s: float) -> None:
        self.message = message
        self.at_s = at_s
        self.is_lost = False


class End:
    """One end of a connection: what is sent from it and what arrives at it.

    Attributes:
        on_message, on_end: called on the process of this end.
        is_open: nothing arrives any more once it is not.
        hears_late: messages that were under way when this end gave up still arrive, as they do from another thread.
    """

    def __init__(self, connection: Connection, process: Process) -> None:
        self.connection = connection
        self.process = process
        self.life = process.life
        self.is_open = True
        self.hears_late = False
        self.on_message: Callable[[Any], None] = _nothing
        self.on_end: Callable[[RadixKVError], None] = _nothing
        self.peer: End
        self.under_way: deque[_Parcel] = deque()

    def send(self, message: Any) -> None:
        """Send to the other end, if this one is open and lives."""
        if self.is_open and not self.connection.is_broken:
            self.connection.carry(self, message)

    def finish(self, error: RadixKVError) -> None:
        """End the connection from here: what was sent arrives, then this error."""
        if not self.is_open:
            return
        self.is_open = False
        if not self.connection.is_broken:
            self.connection.is_broken = True
            self.connection.tell_end(self.peer, error, 0.0)

    def cancel(self) -> None:
        """Give the connection up: of what is under way a suffix is lost in each direction."""
        self.is_open = False
        self.connection.break_off(silent_s=0.0)


def _nothing(_ignored: Any) -> None:
    """What an end does that nobody has set up yet."""


class Connection:
    """Two ends and what is under way between them.

    `is_broken`: nothing that is sent from now on arrives.
    """

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self.network = network
        self.is_broken = False
        self.number = network.num_opened
        self.client_end, self.server_end = End(self, client), End(self, server)
        self.client_end.peer, self.server_end.peer = self.server_end, self.client_end

    def carry(self, sender: End, message: Any) -> None:
        """Put a message under way."""
        simulator, receiver = self.network.simulator, sender.peer
        last_s = receiver.under_way[-1].at_s if receiver.under_way else 0.0
        at_s = max(last_s, self.network.arrival_s(sender.process, receiver.process))
        parcel = _Parcel(message, at_s)
        receiver.under_way.append(parcel)
        simulator.at(at_s, receiver.process, (self.number, receiver.process.name), self._arrive, receiver, parcel)

    def _arrive(self, receiver: End, parcel: _Parcel) -> None:
        if parcel in receiver.under_way:
            receiver.under_way.remove(parcel)
        if parcel.is_lost or not (receiver.is_open or receiver.hears_late):
            return
        receiver.on_message(parcel.message)

    def break_off(self, silent_s: float) -> None:
        """Break: lose suffixes, tell each open end; the server's no sooner than after `silent_s`."""
        if self.is_broken:
            return
        self.is_broken = True
        error = UnavailableError("the connection broke")
        for end in (self.client_end, self.server_end):
            self._lose_suffix(end)
            if end.is_open:
                self.tell_end(end, error, silent_s if end is self.server_end else 0.0)

    def _lose_suffix(self, receiver: End) -> None:
        parcels = list(receiver.under_way)
        num_kept = self.network.simulator.rng.randint(0, len(parcels))
        for parcel in parcels[num_kept:]:
            parcel.is_lost = True

    def tell_end(self, end: End, error: RadixKVError, silent_s: float) -> None:
        """Let an end know, after all that still arrives there."""
        simulator = self.network.simulator
        last_s = end.under_way[-1].at_s if end.under_way else 0.0
        at_s = max(last_s, self.network.arrival_s(end.peer.process, end.process) + silent_s)
        simulator.at(at_s, end.process, (self.number, end.process.name), self._ended, end, error)

    def _ended(self, end: End, error: RadixKVError) -> None:
        if end.is_open:
            end.is_open = False
            end.on_end(error)


class Network:
    """Everyone's connections, and who cannot reach whom."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.num_opened = 0
        self.connections: list[Connection] = []
        self._servers: dict[str, Server] = {}
        self._healed_at_s: dict[tuple[str, str], float] = {}

    def listen(self, server: Server) -> None:
        """Let everyone connect to this server by its process's name, while that is up."""
        self._servers[server.process.name] = server

    def arrival_s(self, sender: Process, receiver: Process) -> float:
        """When a message that is sent now arrives."""
        rng = self.simulator.rng
        delay_s = rng.uniform(_LEAST_DELAY_S, _MOST_DELAY_S)
        if rng.random() < _SLOW_SHARE:
            delay_s += rng.random() * _SLOW_S
        healed_at_s = self._healed_at_s.get((sender.name, receiver.name), 0.0)
        return max(self.simulator.now_s, healed_at_s) + delay_s

    def part(self, sender: str, receiver: str, duration_s: float) -> None:
        """Let nothing through from one process to another for so long."""
        self._healed_at_s[sender, receiver] = self.simulator.now_s + duration_s

    def heal(self) -> None:
        """End every partition for what is sent from now on."""
        self._healed_at_s.clear()

    def connect(
        self,
        client: Process,
        server_name: str,
        on_message: Callable[[Any], None],
        on_end: Callable[[RadixKVError], None],
    ) -> End:
        """Open a connection; what is sent on it at once arrives after it. It ends by itself where nobody listens."""
        self.num_opened += 1
        server = self._servers[server_name]
        connection = Connection(self, client, server.process)
        end = connection.client_end
        end.on_message, end.on_end = on_message, on_end
        self.connections = [other for other in self.connections if _matters(other)]
        self.connections.append(connection)
        if not server.process.is_up:
            connection.is_broken = True
            connection.server_end.is_open = False
            connection.tell_end(end, UnavailableError("nobody listens"), 0.0)
        else:
            server.accept(connection.server_end)
        return end

    def died(self, process: Process) -> None:
        """Break every connection of a process that is gone; it may take the other side long to see that."""
        rng = self.simulator.rng
        for connection in self.connections:
            for end in (connection.client_end, connection.server_end):
                if end.process is process and end.is_open:
                    end.is_open = False
                    connection.break_off(silent_s=rng.choice((0.0, 0.0, 0.2, 1.0)))


def _matters(connection: Connection) -> bool:
    return connection.client_end.is_open or connection.server_end.is_open
