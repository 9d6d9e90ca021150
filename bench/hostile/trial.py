"""One attack on a running stack: the neighbour's times before, during and after it, and the cost for the processes.

    |--- before ---|------- attack -------|--- until it is served as before ---|     time to the first token, throughout
                   ^ memory from here on ............ peak

The bound of a way is twice the undisturbed 99th percentile of the same run, or 50 ms more, whichever is larger.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from bench.common.report import percentile
from bench.faults.stack import GATEWAY, SERVICE
from bench.hostile.attacker import Attacker
from bench.hostile.neighbour import WAYS, Neighbour, Sample
from bench.hostile.stack import WORKER, Ending, HostileStack
from bench.hostile.wire import Attack, Outcomes

__all__ = ["MORE_S", "TIMES", "Field", "Trial", "bound_s", "first_token_s"]

TIMES, MORE_S = 2.0, 0.05
GROWTH, MORE_BYTES = 1.5, 64 << 20
BEFORE_S, AFTER_S = 1.0, 1.0
LOOK_S = 0.05
WARM_S = 60.0
RECOVERED_S = 8.0


def first_token_s(samples: list[Sample], way: str, share: float) -> float:
    """A quantile of the time to the first token of one way; 0 without requests."""
    found = [sample.took_s for sample in samples if sample.way == way]
    return percentile(found, share) if found else 0.0


def bound_s(undisturbed: list[Sample], way: str) -> float:
    """Most time that the neighbour's first token may take."""
    p99_s = first_token_s(undisturbed, way, 0.99)
    return max(TIMES * p99_s, p99_s + MORE_S)


@dataclass(slots=True)
class Trial:
    """Result of one attack.

    Attributes:
        undisturbed: the neighbour's requests of the run so far without an attack.
        disturbed: those during the attack and just after it.
        start_bytes, peak_bytes: memory of each process after warming up, and the most since the attack began.
    """

    attack: Attack
    undisturbed: list[Sample] = field(default_factory=list)
    disturbed: list[Sample] = field(default_factory=list)
    outcomes: Outcomes = field(default_factory=Outcomes)
    start_bytes: dict[str, int] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    has_recovered: bool = True

    @property
    def is_lasting(self) -> bool:
        """Whether the stack must not be attacked again, since this attack's effects would count for the next one."""
        return bool(self.ended) or not self.has_recovered or bool(self._grown()) or "unended" in self.outcomes

    @property
    def failures(self) -> list[Sample]:
        """The neighbour's requests that failed."""
        return [sample for sample in self.disturbed if sample.failure]

    def faults(self, share: float) -> list[str]:
        """Broken bounds; `share`: the quantile of first tokens for the bound."""
        found = list(self.ended)
        if not self.has_recovered:
            found.append(f"the neighbour is not served as before {RECOVERED_S:g} s after the attack")
        if self.failures:
            found.append(f"{len(self.failures)} requests of the neighbour failed, such as {self.failures[0]}")
        for way in WAYS:
            took_s, most_s = first_token_s(self.disturbed, way, share), bound_s(self.undisturbed, way)
            if took_s > most_s:
                found.append(f"{way}: first token after {took_s:.3f} s, where {most_s:.3f} s are allowed")
        found += self._grown()
        if odd := set(self.outcomes) - self.attack.allowed:
            found.append(f"answers to the attacker that should not be: { {what: self.outcomes[what] for what in odd} }")
        if self.attack.needed and not self.outcomes[self.attack.needed]:
            found.append(f"no answer to the attacker was {self.attack.needed}: {dict(self.outcomes)}")
        return found

    def _grown(self) -> list[str]:
        """Processes above their bound of memory; a child may have as much as the largest of them."""
        found = []
        for name, peak in self.peak_bytes.items():
            start = self.start_bytes[name] if name in (SERVICE, WORKER, GATEWAY) else max(self.start_bytes.values())
            if peak > GROWTH * start + MORE_BYTES:
                found.append(f"{name} has {peak >> 20} MiB, {start >> 20} at its start")
        return found


class Field:
    """A stack, its neighbour and its attacker, for one attack after another; a context manager.

    Args:
        stack: running.
    """

    def __init__(self, stack: HostileStack) -> None:
        self.stack = stack
        self._attacker = Attacker(stack.site)
        self._neighbour = Neighbour(stack.site)
        self._undisturbed: list[Sample] = []
        self._start_bytes: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._neighbour.__enter__()
        self._warm_up()
        return self

    def __exit__(self, *_: object) -> None:
        self._attacker.stop()
        self._neighbour.__exit__()

    def _warm_up(self) -> None:
        """Use everything once, and measure the neighbour alone."""
        if not self._neighbour.wait_answered(time.monotonic(), WARM_S):
            raise RuntimeError("the neighbour is not served by a stack that nobody attacks")
        time.sleep(BEFORE_S)
        begin_s = time.monotonic()
        time.sleep(2 * BEFORE_S)
        self._undisturbed += self._neighbour.between(begin_s, time.monotonic())
        self._start_bytes = self.stack.rss_bytes()

    def renew(self) -> None:
        """Kill a stack that no longer serves the neighbour, and start another."""
        self._attacker.stop()
        self._neighbour.__exit__()
        self.stack.restart()
        self._neighbour = Neighbour(self.stack.site)
        self._neighbour.__enter__()
        self._warm_up()

    def try_attack(self, attack: Attack, seconds: float, scale: float) -> Trial:
        """Carry it out. Returns its result."""
        begin_s = time.monotonic()
        time.sleep(BEFORE_S)
        attacked_s = time.monotonic()
        self._undisturbed += [
            sample
            for sample in self._neighbour.between(begin_s, attacked_s)
            if sample.at_s + sample.took_s < attacked_s
        ]
        made = Trial(attack, list(self._undisturbed), start_bytes=self._start_bytes)
        with _Peak(self.stack) as peak:
            self._attacker.begin(attack, seconds, scale)
            made.outcomes = self._attacker.finish(seconds)
            made.has_recovered = self._wait_calm(made.undisturbed)
        made.disturbed = self._neighbour.between(attacked_s, time.monotonic())
        made.peak_bytes = peak.bytes
        made.ended = self.stack.ended()
        return made

    def _wait_calm(self, undisturbed: list[Sample]) -> bool:
        """Wait until the neighbour has been served as before for a second; False if it never is."""
        until_s = time.monotonic() + RECOVERED_S
        while time.monotonic() < until_s:
            begin_s = time.monotonic()
            time.sleep(AFTER_S)
            if not self._neighbour.wait_answered(begin_s, until_s - time.monotonic()):
                return False
            since = [sample for sample in self._neighbour.between(begin_s, time.monotonic()) if sample.at_s >= begin_s]
            is_calm = all(first_token_s(since, way, 0.5) <= bound_s(undisturbed, way) for way in WAYS)
            if is_calm and not any(sample.failure for sample in since):
                return True
        return False

    def interrupt(self, attacks: list[Attack], seconds: float, scale: float) -> dict[str, Ending]:
        """Start attacks, all at once, and send SIGTERM to the stack in the midst of them. Returns the ends of its processes."""
        with ExitStack() as attackers:
            for attack in attacks:
                attacker = attackers.enter_context(Attacker(self.stack.site))
                attacker.begin(attack, 10 * seconds, scale)
            time.sleep(seconds)
            return self.stack.stop()


class _Peak:
    """The peak memory of each process, sampled steadily."""

    def __init__(self, stack: HostileStack) -> None:
        self.bytes: dict[str, int] = {}
        self._stack = stack
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory")

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            for name, size in self._stack.rss_bytes().items():
                self.bytes[name] = max(self.bytes.get(name, 0), size)
            if self._ending.wait(LOOK_S):
                return
