"""`radixkv top`: a worker and its cache, live in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import DEFAULT_WORKER_ADDRESS, add_command, say
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.net.signals import StopSignals

if TYPE_CHECKING:
    from radixkv.cli.views.top_view import View
    from radixkv.generation.client import GenerationClient

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    top = add_command(commands, "top", _run, "show a running worker and its cache: load, rates, latencies, the pool")
    top.add_argument(
        "--worker", metavar="ADDRESS", default=DEFAULT_WORKER_ADDRESS, help="the worker (default %(default)s)"
    )
    top.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between two readings (default %(default)s)"
    )
    top.add_argument("--once", action="store_true", help="print one reading as text, the default without a terminal")
    add_client_flags(top)
    top.add_argument("--json", action="store_true", help="print one reading as JSON")


def _run(options: argparse.Namespace) -> int:
    from radixkv.generation.client import GenerationClient

    if not 0.05 <= options.interval <= 3600:
        raise InvalidArgumentError("--interval", options.interval, "from 0.05 to 3600 seconds")
    with GenerationClient(options.worker, credentials=client_credentials(options)) as client:
        watch = _Watch(client)
        if options.json or options.once or not sys.stdout.isatty():
            watch.read()
            time.sleep(options.interval)  # rates are of an interval
            view = watch.read()
            say(json.dumps(view.as_dict(), indent=2) if options.json else "\n".join(view.lines()))
        else:
            _show(watch, options.interval)
    return 0


class _Watch:
    """Reads a worker repeatedly, and keeps the last reading for the rates."""

    def __init__(self, client: GenerationClient) -> None:
        from radixkv.cli.views.top_view import Reading

        self._client = client
        self._model = client.model()
        self._before: Reading | None = None

    def read(self) -> View:
        """Read the worker's stats.

        Raises:
            UnavailableError: the worker cannot be reached.
        """
        from radixkv.cli.views.top_view import Rates, Reading, View

        now = Reading(time.monotonic(), self._client.stats())
        rates = Rates.between(self._before, now) if self._before is not None else None
        self._before = now
        return View(self._client.address, self._model, now, rates)


def _show(watch: _Watch, interval_s: float) -> None:
    """Show the worker until Ctrl-C. Waits for a worker that is down.

    The signal sets a flag: a KeyboardInterrupt inside a call's destructor would be ignored.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    view = watch.read()
    with StopSignals() as signals, Live(view.screen(), screen=True, auto_refresh=False) as live:
        signals.listen()
        live.refresh()
        while not signals.wait(interval_s):
            try:
                view = watch.read()
                live.update(view.screen())
            except UnavailableError as error:
                live.update(Group(Text(f"{error}; trying again", style="red"), view.screen()))
            live.refresh()
    say("\n".join(view.lines()))
