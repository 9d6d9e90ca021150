"""The attacker: a separate process, which yields the processor to all others, as if on another machine.

It reads orders as lines of JSON and writes the result of each as one.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Self

from bench.hostile import bodies, grammars, shares, strangers, texts
from bench.hostile.stack import Site
from bench.hostile.wire import Attack, Outcomes

__all__ = ["ATTACKS", "SIBLINGS", "Attacker", "find_attack"]

ATTACKS: tuple[Attack, ...] = (
    *grammars.ATTACKS,
    *bodies.ATTACKS,
    *strangers.ATTACKS,
    *texts.ATTACKS,
    *shares.ATTACKS,
)
SIBLINGS = frozenset(
    {
        "slow grammars, Responses",
        "slow grammars, background responses",
        "slow grammars, Anthropic format",
        "many new schemas of 200 properties",
        "a long path",
        "trailers without end",
        "bodies that never come, no such path",
        "deaf readers of the page",
        "deaf readers of the schema",
        "deaf readers of metrics",
        "health calls without a message at the worker",
        "reflection streams at the worker",
        "calls without a message at the service",
        "holders that say nothing at the service",
        "a row of words, follow-up",
        "lists of wrong items, completions",
        "requests of 128 drafts",
        "100 readers of one long conversation",
        "searches and stores of a limited tenant",
    }
)
"""Left out of short runs, which have a similar attack for each of them."""

NICENESS = 19
GIVE_UP_S = 20.0
"""Time to wait beyond an attack's own time."""


def find_attack(name: str) -> Attack:
    """The attack of that name. Raises LookupError."""
    for attack in ATTACKS:
        if attack.name == name:
            return attack
    raise LookupError(f"there is no attack {name!r}")


class Attacker:
    """Carries out attacks one by one; a context manager."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process, also in the middle of an attack; the next attack starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def begin(self, attack: Attack, seconds: float, scale: float) -> None:
        """Send the order; returns at once. The first one waits until the process runs."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.hostile.attacker", json.dumps(self._site)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([attack.name, seconds, scale]) + "\n")

    def finish(self, seconds: float) -> Outcomes:
        """Wait for its end. Returns the outcomes; one that does not end is killed, and counts as one "unended"."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        late = threading.Timer(seconds + GIVE_UP_S, process.kill)
        late.start()
        try:
            line = process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            self.stop()
            return Counter({"unended": 1})
        return Counter(json.loads(line))


def main() -> None:
    """Carry out the orders on standard input."""
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    site = Site(*json.loads(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        name, seconds, scale = json.loads(line)
        started_s = time.monotonic()
        try:
            found = find_attack(name).run(site, seconds, scale)
        except Exception:  # a broken attack must be visible, without ending the others
            traceback.print_exc()
            found = Counter({f"broken after {time.monotonic() - started_s:.0f} s": 1})
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
