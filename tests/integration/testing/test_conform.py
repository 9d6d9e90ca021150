"""The command that tests a holder: our own ones pass, over every fault, and what is wrong in a worker's blocks is found."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from byte_model import save_byte_model
from resp_servers import free_port

from radixkv import PoolShape, connect
from radixkv.core.api import Copy
from radixkv.service import ServiceConfig
from radixkv.testing import conform as conform_module
from radixkv.testing.conform import EXIT_BROKEN, EXIT_STOPPED, EXIT_UNTESTED, _parser, main
from radixkv.testing.faults import DEFAULT_FAULTS, Fault, RandomFaults, Script
from radixkv.testing.hash_model import HashRunner
from radixkv.testing.observer import Observer
from radixkv.testing.report import as_text
from radixkv.testing.requests import ask
from radixkv.testing.rules import RULES
from radixkv.testing.trial import Trial
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

LOCAL = "127.0.0.1:0"
EXAMPLE = (sys.executable, "-m", "radixkv.testing.holder")
KIT = (sys.executable, "-m", "radixkv.testing.conform")


def conform(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of the command."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = main(["--json", *arguments])
    return status, json.loads(out.getvalue())


# -- holders that are right


def test_the_example_passes_over_every_fault() -> None:
    status, report = conform("--gap", "4", "--seed", "3", "--ttl", "8", "--", *EXAMPLE, "{address}", "--steps", "200")
    assert not report["breaches"]
    assert status == 0
    assert report["not_seen"] == []
    assert all(report["exercised"][fault] for fault in DEFAULT_FAULTS)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_the_example_passes_with_each_seed_and_lost_leases(seed: int) -> None:
    more = ("--seed", str(seed), "--gap", "9", "--faults", ",".join(Fault), "--window", "3")
    status, report = conform(*more, "--", *EXAMPLE, "--steps", "400", "--seed", str(seed), "{address}")
    assert not report["breaches"]
    assert status == 0
    assert report["exercised"]["leases lost"]


@pytest.mark.thorough
def test_our_worker_passes_and_its_blocks_agree(tmp_path: Path) -> None:
    model = save_byte_model(tmp_path / "model")
    address = f"127.0.0.1:{free_port()}"
    pool = ("--num-blocks", "48", "--block-size", "16", "--device", "cpu", "--dtype", "float32")
    worker = (sys.executable, "-P", "-m", "radixkv", "worker", "--service", "{address}", "--listen", address)
    status, report = conform("--worker", address, "--ttl", "30", "--", *worker, "--model", str(model), *pool)
    assert not report["breaches"]
    assert status == 0
    assert report["exercised"]["blocks verified: agrees"]
    assert report["exercised"]["restarts to adopt after"]


@pytest.mark.thorough
def test_the_command_of_the_readme_runs() -> None:
    readme = (Path(__file__).resolve().parents[3] / "radixkv/testing/README.md").read_text()
    (command,) = re.findall(r"^```sh\n(.*)\n```", readme, re.M)
    words = [sys.executable if word == "python" else word for word in command.split()]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stdout
    assert f"No rule of {len(RULES)} is broken" in ended.stdout


# -- blocks, which messages do not show


class NoCopies(HashRunner):
    """A device on which copies are not carried out."""

    def carry_out(self, ops: Sequence[Copy]) -> None:
        pass


def verified(runner: HashRunner, num_agreeing: int) -> Observer:
    """What is found of an engine with that device, once a block differs or so many have agreed."""

    async def run() -> Observer:
        config = ServiceConfig(addresses=(LOCAL,), lease_ttl_s=30.0, drain_s=0.1)
        address = f"127.0.0.1:{free_port()}"
        async with Trial(Script(), config, worker=address) as trial:
            holder = await asyncio.to_thread(lambda: connect(trial.address, PoolShape(64, 4)))
            with Engine(runner, holder) as engine:
                server = GenerationServer(engine, address).start()
                await ask(address, 8, seed=1)
                while not trial.observer.breaches and trial.observer.seen["blocks verified: agrees"] < num_agreeing:
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(server.stop)
            await asyncio.to_thread(holder.close)
            trial.observer.finished(0)
            return trial.observer

    return asyncio.run(asyncio.wait_for(run(), 500))


def test_a_device_that_copies_passes() -> None:
    observer = verified(HashRunner(64, 4), 12)
    assert not observer.breaches, as_text(observer)
    assert observer.seen["COPY"]


def test_a_device_that_does_not_copy_is_found() -> None:
    observer = verified(NoCopies(64, 4), 1000)
    assert {breach.rule for breach in observer.breaches} == {"block-content"}


# -- the report


def test_breaches_that_differ_in_numbers_alone_are_one_with_a_count() -> None:
    observer = Observer()
    step = observer.note("holder: Step 7: " + "; ".join(["insert seq_id 1"] * 200))
    for number in range(41):
        observer.broke(
            "insert-falls", f"Step {number}, insert of sequence {number * 7} to 1: {number} were computed", step
        )
    observer.broke("insert-falls", "an insert of another kind", step)
    lines = as_text(observer).splitlines()
    assert "BROKEN insert-falls, 42 times: num_computed never falls. (workers.proto, Insert.num_computed)" in lines
    assert "  Step 0, insert of sequence 0 to 1: 0 were computed … 41 times" in lines
    assert [breach.num_times for breach in observer.breaches] == [41, 1]
    assert max(map(len, lines)) < 300
    assert lines.count(f"    message {step}: see above") == 1


# -- the command


def test_a_holder_that_fails_or_does_nothing_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    status, report = conform("--", "sh", "-c", "echo text of a holder; exit 3", "sh")
    assert capfd.readouterr() == ("", "text of a holder\n"), "apart from the report"
    assert status == EXIT_BROKEN
    assert report["num_breaches"] == {"holder-exit": 1}
    assert (report["seed"], report["command"]) == (0, ["sh", "-c", "echo text of a holder; exit 3", "sh"])
    status, report = conform("--", "true")
    assert status == EXIT_UNTESTED
    assert "no Step was sent" in report["not_seen"]


def test_seconds_after_attached_stop_a_holder_which_says_goodbye() -> None:
    """Its start alone takes longer."""
    for seconds in ("0.2", "2", "20"):  # in which a busy machine may send no Step
        status, report = conform("--seconds", seconds, "--faults", "", "--ttl", "60", "--", *EXAMPLE, "--steps", "0")
        if report["exercised"].get("Steps"):
            break
    assert not report["breaches"]
    assert (status, report["exercised"]["goodbyes"]) == (0, 1)
    assert report["exercised"]["Steps"]


def test_ctrl_c_stops_the_holder_and_prints_the_report() -> None:
    marker = f"echo $$; exec {' '.join(EXAMPLE)} --steps 0 $0"
    command = [*KIT, "--faults", "", "--", "sh", "-c", marker]
    kit = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert kit.stderr is not None
    holder = int(kit.stderr.readline())
    time.sleep(0.2)  # before or after it has attached: both are to end cleanly
    kit.send_signal(signal.SIGINT)
    out, errors = kit.communicate(timeout=300)
    assert "Traceback" not in errors
    assert "Exercised:" in out
    assert kit.returncode in (EXIT_STOPPED, EXIT_BROKEN)
    with pytest.raises(ProcessLookupError):
        os.kill(holder, 0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "COMMAND"),
        (["--faults", "earthquake", "--", "true"], "earthquake"),
        (["--ttl", "0", "--", "true"], "lease_ttl_s"),
        (["--gap", "1", "--", "true"], "--gap"),
        (["--window", "0", "--", "true"], "max_unacknowledged_steps"),
    ],
)
def test_a_wrong_command_line_is_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_each_option_says_what_it_is_for_and_what_it_takes() -> None:
    for action in _parser()._actions:
        assert action.help, action
        assert action.nargs == 0 or action.metavar, action


def test_a_command_that_is_not_there_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--", "/no/such/holder"]) == 2
    assert "/no/such/holder" in capfd.readouterr().err


def test_the_rules_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(RULES)


def test_each_source_is_there() -> None:
    protos = Path(__file__).resolve().parents[3] / "protos/radixkv/v1"
    for rule in RULES.values():
        file, _, places = rule.source.partition(", ")
        for place in places.split(" and ") if file.endswith(".proto") else ():
            text = (protos / file).read_text()
            message, _, field = place.partition(".")
            assert f"message {message} " in text or f"service {message} " in text, rule
            assert not field or f" {field} = " in text or f"rpc {field}(" in text, rule


def test_a_seed_draws_each_fault_once_and_the_same_again() -> None:
    plan, again = RandomFaults(5), RandomFaults(5)
    faults = [plan.at(ordinal) for ordinal in range(1, 200)]
    assert faults == [again.at(ordinal) for ordinal in range(1, 200)]
    met = [fault for fault in faults if fault is not None]
    assert set(met[: len(DEFAULT_FAULTS)]) == set(DEFAULT_FAULTS)
    assert RandomFaults(5, []).at(50) is None


def test_a_holder_that_neither_attaches_nor_stops_is_killed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stop, is_stubborn = conform_module._stop, tmp_path / "stubborn"

    async def stop_once_it_is_stubborn(process: Any, ended: Any) -> None:
        while not is_stubborn.exists():
            await asyncio.sleep(0.01)
        await stop(process, ended)

    monkeypatch.setattr(conform_module, "_stop", stop_once_it_is_stubborn)
    monkeypatch.setattr(conform_module, "_START_S", 0.3)
    monkeypatch.setattr(conform_module, "_STOP_S", 0.2)
    stubborn = f'trap "" TERM; echo $$; touch {is_stubborn}; while :; do sleep 0.05; done'
    status, _ = conform("--seconds", "1", "--", "sh", "-c", stubborn, "sh")
    assert status == EXIT_UNTESTED
    pid, *lines = capfd.readouterr().err.splitlines()
    assert lines == ["the holder did not end within 0.2 s of SIGTERM and is killed"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
