"""`python -m radixkv.testing.conform`: runs a holder against a cache service under watch, and reports which rules it breaks."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from radixkv.core.errors import RadixKVError
from radixkv.service import ServiceConfig
from radixkv.testing.faults import DEFAULT_FAULTS, Fault, RandomFaults
from radixkv.testing.report import as_json, as_text
from radixkv.testing.requests import ask
from radixkv.testing.rules import RULES
from radixkv.testing.trial import Trial

__all__ = ["main"]

DESCRIPTION = """\
Test a holder: a program, in any language, that attaches to the cache service by Workers.Attach.

A real service is started on a free port of this machine, with a short lease, and COMMAND is run with its address in place of
{address} (or as its last argument). Streams break, answers are lost after they were applied, the service is restarted, and
other clients pin, set quotas and retention, evict and clear. From the messages alone each rule of
protos/radixkv/v1/workers.proto is checked.

  python -m radixkv.testing.conform -- ./my_engine --cache {address} --self-test
  python -m radixkv.testing.conform --seconds 30 -- python -m radixkv.testing.holder {address} --steps 0
  python -m radixkv.testing.conform --worker 127.0.0.1:50052 --seconds 60 -- \\
      radixkv worker --service {address} --listen 127.0.0.1:50052 --num-blocks 64

COMMAND does the work: it opens sequences (acquire), asks for room (extend), reports computed tokens (insert), forks and
releases, in a pool of its own choice; a small one, so that blocks are evicted and copied. It ends by itself, or by SIGTERM
--seconds after it was attached, and detaches by Goodbye. A breach is reported with the messages that show it. The order of
copies on a device cannot be seen in messages: give --worker for a holder that serves Generation.VerifyBlock and Generate. It
is sent requests, and its cached blocks are computed again and compared.
"""
EPILOG = """\
exit status: 0 no rule is broken, 1 a rule is broken, 2 a wrong command line, 3 the holder sent no Step, 130 stopped by Ctrl-C
"""
_STOP_S = 15.0
_START_S = 600.0
"""How long a holder that is stopped after some seconds may take to attach."""
_PLACE = "{address}"
EXIT_BROKEN, EXIT_UNTESTED, EXIT_STOPPED = 1, 3, 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m radixkv.testing.conform",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the holder, after --")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="stop the holder so long after Attached (default: it ends by itself)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="draws the same faults again (default %(default)s)"
    )
    parser.add_argument(
        "--faults",
        metavar="NAMES",
        default=",".join(DEFAULT_FAULTS),
        help=f"comma-separated, of {', '.join(Fault)}; empty: none (default: all except {Fault.LOSE_LEASE})",
    )
    parser.add_argument(
        "--gap", type=int, default=6, metavar="N", help="most Steps between two faults (default %(default)s)"
    )
    parser.add_argument("--ttl", type=float, default=3.0, metavar="S", help="TTL of the lease (default %(default)s)")
    parser.add_argument(
        "--window", type=int, default=16, metavar="N", help="unacknowledged Steps (default %(default)s)"
    )
    parser.add_argument(
        "--worker", metavar="ADDRESS", help="of the holder's Generation service: requests, and verified blocks"
    )
    parser.add_argument(
        "--requests", type=int, default=24, metavar="N", help="requests to --worker (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--rules", action="store_true", help="list the rules and their sources, and exit")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rules:
        print("\n".join(f"{name}: {rule.text} ({rule.source})" for name, rule in RULES.items()))
        return 0
    if not options.command:
        parser.error("no COMMAND is given; put it after --")
    names = [name for name in options.faults.split(",") if name]
    unknown = [name for name in names if name not in list(Fault)]
    if unknown:
        parser.error(f"--faults {unknown[0]!r} is none of {', '.join(Fault)}")
    if options.gap < 2:
        parser.error(f"--gap {options.gap}: at least 2")
    try:
        config = ServiceConfig(
            addresses=("127.0.0.1:0",),
            lease_ttl_s=options.ttl,
            max_unacknowledged_steps=options.window,
            drain_s=0.2,
        )
    except RadixKVError as error:
        parser.error(str(error))
    plan = RandomFaults(options.seed, [Fault(name) for name in names], (2, options.gap))
    trial = Trial(plan, config, seed=options.seed, worker=options.worker)
    try:
        was_stopped = asyncio.run(_run(trial, options))
    except OSError as error:
        print(f"the holder cannot be started: {error}", file=sys.stderr)
        return 2
    more = {"seed": options.seed, "command": options.command}
    print(as_json(trial.observer, **more) if options.json else as_text(trial.observer))
    if trial.observer.num_breaches:
        return EXIT_BROKEN
    if was_stopped:
        return EXIT_STOPPED
    return 0 if trial.observer.seen["Steps"] else EXIT_UNTESTED


async def _run(trial: Trial, options: argparse.Namespace) -> bool:
    """Run the holder to its end. Returns whether Ctrl-C stopped it."""
    async with trial:
        command = [part.replace(_PLACE, trial.address) for part in options.command]
        if command == options.command:
            command.append(trial.address)
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr.fileno(), start_new_session=True)
        ended = asyncio.ensure_future(process.wait())
        interrupted = asyncio.ensure_future(stopping.wait())
        attached = asyncio.ensure_future(trial.attached.wait())
        waiting: set[asyncio.Future[Any]] = {ended, interrupted}
        requests = None
        if options.worker is not None:
            requests = asyncio.ensure_future(ask(options.worker, options.requests, options.seed))
            waiting |= set() if options.seconds else {requests}
        progress = asyncio.ensure_future(_progress(trial))
        try:
            if options.seconds:
                first = {*waiting, attached}
                await asyncio.wait(first, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
            if not options.seconds or attached.done():
                await asyncio.wait(waiting, timeout=options.seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in (requests, interrupted, attached, progress):
                if task is not None:
                    task.cancel()
            trial.stop_faults()
            exit_status = process.returncode
            if exit_status is None:
                await _stop(process, ended)
        finally:
            if process.returncode is None:
                _send(process, signal.SIGKILL)
                await process.wait()
        if requests is not None and requests.done() and not requests.cancelled() and requests.exception():
            print(f"the requests to {options.worker} failed: {requests.exception()}", file=sys.stderr)
        await trial.settle()
        trial.observer.finished(exit_status)
        return stopping.is_set()


async def _stop(process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
    """End the holder as an operator would, and by force if it does not."""
    _send(process, signal.SIGTERM)
    await asyncio.wait({ended}, timeout=_STOP_S)
    if process.returncode is None:
        print(f"the holder did not end within {_STOP_S:g} s of SIGTERM and is killed", file=sys.stderr)


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


async def _progress(trial: Trial) -> None:
    """A line a second on a terminal."""
    started_s = time.monotonic()
    while sys.stderr.isatty():
        await asyncio.sleep(1.0)
        seen = trial.observer.seen
        line = f"{time.monotonic() - started_s:.0f} s, {seen['Steps']:,} Steps, {seen['streams']:,} streams, "
        print(f"{line}{len(trial.observer.num_breaches)} rules broken", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
