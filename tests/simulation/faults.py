"""What goes wrong in a run: drawn once, at its beginning, from the same chance as everything else."""

from __future__ import annotations

from collections.abc import Sequence

from .clock import Process, Simulator
from .network import Network
from .processes.clients import Reader
from .processes.service import SimulatedService
from .processes.worker import SimulatedWorker

__all__ = ["Faults"]

_KINDS = (
    ("break", 8),
    ("interrupt", 4),
    ("part", 5),
    ("crash worker", 2),
    ("crash service", 3),
    ("restart worker", 1),
    ("restart service", 2),
    ("pause service", 2),
    ("pause worker", 3),
    ("leap", 1),
)

_CLEAR_SHARE = 0.2


class Faults:
    """Breaks connections, parts, kills, pauses and starts again, until it is told to stop."""

    def __init__(
        self,
        simulator: Simulator,
        network: Network,
        service: SimulatedService,
        workers: Sequence[SimulatedWorker],
        reader: Reader,
    ) -> None:
        self._simulator = simulator
        self._reader = reader
        self._network = network
        self._service = service
        self._workers = workers
        self._ttl_s = service.config.lease_ttl_s
        self._has_stopped = False

    def plan(self, number: int, until_s: float) -> None:
        """Let so many faults happen by then."""
        rng = self._simulator.rng
        for _ in range(number):
            kind = rng.choices([kind for kind, _ in _KINDS], [weight for _, weight in _KINDS])[0]
            self._simulator.after(rng.random() * until_s, None, None, self._strike, kind)

    def stop(self) -> None:
        """Undo what is undone by itself sooner or later: everyone runs, everyone can be reached."""
        self._has_stopped = True
        self._network.heal()
        if self._service.process.is_paused:
            self._simulator.wake(self._service.process)
        if not self._service.process.is_up:
            self._service.start()
        for worker in self._workers:
            self._wake(worker.process)
            if not worker.process.is_up and not worker.is_leaving:
                worker.start()

    def _strike(self, kind: str) -> None:
        if self._has_stopped:
            return
        rng = self._simulator.rng
        worker = rng.choice(self._workers)
        duration_s = rng.choice((0.3, 0.8, 1.3, 2.0)) * self._ttl_s
        self._simulator.count(kind)
        self._simulator.note(f"fault: {kind}", worker.process.name, f"{duration_s:.3f}")
        match kind:
            case "break":
                self._break(rng.choice((0.0, 0.0, 0.1, 3 * self._ttl_s)))
            case "interrupt":
                if worker.process.is_up and worker.holder is not None and not worker.holder.is_over:
                    worker.holder.interrupt()
            case "part":
                self._part(worker.process.name, duration_s)
            case "pause service":
                self._pause(self._service.process, duration_s)
            case "pause worker":
                self._pause(worker.process, duration_s)
            case "leap":
                self._service.skew_s += duration_s
            case _:
                self._end(kind, worker, duration_s)

    def _end(self, kind: str, worker: SimulatedWorker, duration_s: float) -> None:
        """Kill a process or send it away, and start it again."""
        is_worker = kind.endswith("worker")
        target: SimulatedWorker | SimulatedService = worker if is_worker else self._service
        if not target.process.is_up:
            return
        if kind.startswith("crash") or target.process.is_paused:
            target.crash()
        else:
            target.stop()
        restart, arguments = (self._restart_worker, (worker,)) if is_worker else (self._restart_service, ())
        self._simulator.after(duration_s / 4, None, None, restart, *arguments)

    def _break(self, silent_s: float) -> None:
        live = [connection for connection in self._network.connections if not connection.is_broken]
        to_service = [connection for connection in live if connection.server_end.process is self._service.process]
        if to_service and self._simulator.chance(0.8):
            live = to_service
        if live:
            self._simulator.rng.choice(live).break_off(silent_s)

    def _part(self, name: str, duration_s: float) -> None:
        rng = self._simulator.rng
        ways = rng.choice((((0, 1), (1, 0)), ((0, 1),), ((1, 0),)))
        ends = (name, self._service.process.name)
        for sender, receiver in ways:
            self._network.part(ends[sender], ends[receiver], duration_s)
        if rng.random() < 0.5:
            for connection in self._network.connections:
                if connection.client_end.process.name == name and rng.random() < 0.5:
                    connection.break_off(duration_s)

    def _pause(self, process: Process, duration_s: float) -> None:
        if process.is_up and not process.is_paused:
            process.is_paused = True
            self._simulator.after(duration_s, None, None, self._wake, process)

    def _wake(self, process: Process) -> None:
        if process.is_paused:
            self._simulator.wake(process)

    def _restart_worker(self, worker: SimulatedWorker) -> None:
        if not worker.process.is_up and not worker.is_leaving:
            worker.start()

    def _restart_service(self) -> None:
        if not self._service.process.is_up:
            self._service.start()
            if self._simulator.chance(_CLEAR_SHARE):  # what holders are about to tell it
                self._reader.clear_soon()
