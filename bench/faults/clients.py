"""Clients that play the scripts of `scripts`, and judge the replies."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from bench.faults.asker import Asker, HungError, Ledger
from bench.faults.scripts import Script
from radixkv.core.errors import RadixKVError

__all__ = ["Client"]


class Client(threading.Thread):
    """Plays scripts of some kinds until it is stopped, and compares every reply with the undisturbed one.

    Args:
        number: of the client; seeds the order of its scripts.
        kinds: of its scripts.
        answers: the undisturbed ones.
        urls, worker: addresses for its requests.
        ledger: of all tries.
    """

    def __init__(
        self,
        number: int,
        kinds: Sequence[str],
        answers: dict[Script, list[str]],
        urls: Sequence[str],
        worker: str,
        ledger: Ledger,
    ) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.routes = {script.route for script in answers if script.kind in kinds}
        self.number = number
        self._scripts = [script for script in answers if script.kind in kinds]
        self._answers = answers
        self._ledger = ledger
        self._leaving = threading.Event()
        self._source = random.Random(number)
        self._asker = Asker(urls, worker, ledger, number, lambda: False)

    def leave(self) -> None:
        """Stop after the current script."""
        self._leaving.set()

    def run(self) -> None:
        try:
            while not self._leaving.is_set():
                script = self._source.choice(self._scripts)
                self._judge(script)
        finally:
            self._asker.close()

    def _judge(self, script: Script) -> None:
        try:
            answers = script.play(self._asker)
        except (HungError, RuntimeError, RadixKVError) as error:
            self._ledger.went_wrong(f"{script.kind} {script.number}: {type(error).__name__}: {error}")
            return
        if answers != self._answers[script]:
            self._ledger.went_wrong(
                f"{script.kind} {script.number}: other tokens than undisturbed: {answers!r} in place of "
                f"{self._answers[script]!r}"[:600]
            )
