"""The target: `radixkv up` with a tiny model in a separate process, and its state as observed from outside.

There are the attacker's pools and the victim's: its holder keeps live sequences in a namespace that no hostile message names,
and must not be affected.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.common.byte_model import save_byte_model
from radixkv.client import connect
from radixkv.core.api import PoolShape
from radixkv.core.errors import LimitError, UnknownPoolError
from radixkv.core.tokens import pack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import prefix_cache_pb2_grpc
from radixkv.worker.loading.packed_linear import padded_length
from radixkv.worker.scheduling.limits import SchedulerLimits

if TYPE_CHECKING:
    from radixkv.client.holder import RemoteHolder
    from radixkv.generation.client import GenerationClient

__all__ = ["Target", "Victim", "running_target"]

NUM_BLOCKS = 512
START_S = 120.0
HEALTH_S = 60.0
IDLE_S = 60.0
_FAULTS = re.compile(r"Traceback|^\S*(Error|Exception)\b|assert", re.MULTILINE)


class Target:
    """A running stack: its addresses, health, memory, output, and state."""

    def __init__(
        self, process: subprocess.Popen[str], log: Path, service: str, worker: str, gateway: str, stack: ExitStack
    ) -> None:
        from radixkv.generation.client import GenerationClient

        self.num_lost_leases = 0
        self.service, self.worker, self.gateway = service, worker, gateway
        channel = stack.enter_context(grpc.insecure_channel(service, options=[("grpc.max_receive_message_length", -1)]))
        self._stub = prefix_cache_pb2_grpc.PrefixCacheStub(channel)
        self.client: GenerationClient = stack.enter_context(GenerationClient(worker))
        self._process = process
        self._log = log
        self._told = 0

    def faults(self) -> list[str]:
        """Faults found: of the process, its health, its output since the last call."""
        if self._process.poll() is not None:
            return [f"the process has ended with {self._process.returncode}: {self._log.read_text()[-2000:]}"]
        found = []
        for address in (self.service, self.worker):
            try:
                with grpc.insecure_channel(address) as channel:
                    stub = health_pb2_grpc.HealthStub(channel)
                    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_S)
                if answer.status != health_pb2.HealthCheckResponse.SERVING:
                    found.append(f"{address} is not serving")
            except grpc.RpcError as error:
                found.append(f"{address} does not answer: {error.code()}")  # type: ignore[attr-defined]  # it is a call
        written = self._log.read_text(errors="replace")
        if _FAULTS.search(written, self._told):
            found.append(f"written to standard error: {written[self._told :][-3000:]}")
        self._told = len(written)
        return found

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * 4096

    def fill_bounded_stores(self) -> None:
        """Make the model multiply every number of rows that a prompt's chunk can have: oneDNN keeps a kernel for each."""
        sampling = SamplingParams(max_tokens=1)
        for num_tokens in sorted(
            {padded_length(num_rows) for num_rows in range(1, SchedulerLimits().chunk_tokens + 1)}
        ):
            tokens = [num_tokens % 251] * num_tokens
            for _ in self.client.generate(GenerateParams(token_ids=tokens, sampling=sampling, sharing="off")):
                pass

    def wait_idle(self) -> bool:
        """Wait until no generation runs; False if one does after `IDLE_S`, or if calls are still refused by a limit then.

        A worker that was silent past its lease on an overloaded machine attaches again with its next request, made here.
        """
        until_s = time.monotonic() + IDLE_S
        while time.monotonic() < until_s:
            try:
                engine = self.client.stats().engine
            except LimitError:  # thousands of streams were just opened and reset
                time.sleep(0.1)
                continue
            except UnknownPoolError:
                self.num_lost_leases += 1
                for _ in self.client.generate(GenerateParams(text="a", sampling=SamplingParams(max_tokens=1))):
                    pass
                continue
            if not (engine.num_generations or engine.num_running_branches):
                return True
            time.sleep(0.02)
        return False

    def state(self) -> dict[str, list[bytes]]:
        """All state, by pool: counters, usage, pins, nodes; without ages and numbers of followers."""
        found: dict[str, list[bytes]] = {}
        for stats in self._stub.Stats(readers.StatsRequest(), timeout=HEALTH_S).pools:
            for name in ("num_event_subscribers", "num_events_sent", "num_event_resets", "worker"):
                stats.ClearField(name)
            found[stats.pool] = [stats.SerializeToString(deterministic=True)]
        for usage in self._stub.Usage(readers.UsageRequest(), timeout=HEALTH_S).pools:
            for each in usage.usages:
                each.ClearField("held_block_s")
            found.setdefault(usage.pool, []).append(usage.SerializeToString(deterministic=True))
        for pins in self._stub.Pins(readers.PinsRequest(), timeout=HEALTH_S).pools:
            for pin in pins.pins:
                pin.ClearField("remaining_s")
            found.setdefault(pins.pool, []).append(pins.SerializeToString(deterministic=True))
        for chunk in self._stub.Dump(readers.DumpRequest(), timeout=HEALTH_S):
            chunk.ClearField("now_s")
            found.setdefault(chunk.pool, []).append(chunk.SerializeToString(deterministic=True))
        return found


class Victim:
    """A holder with live sequences."""

    def __init__(self, holder: RemoteHolder) -> None:
        self._holder = holder
        self._prompts = [pack_tokens([1000 + i, *range(2000, 2040 + i)]) for i in range(4)]
        self._sequences = []
        for prompt in self._prompts:
            sequence = holder.acquire(prompt, namespace="victim's own")
            holder.insert(sequence.seq_id, num_computed=len(prompt) // 4)
            self._sequences.append(sequence)

    def faults(self) -> list[str]:
        """Observations that it should not make."""
        found = []
        try:
            for prompt, sequence in zip(self._prompts, self._sequences, strict=True):
                length = len(prompt) // 4
                grown = self._holder.extend(sequence.seq_id, num_tokens=length)
                if grown.block_ids or grown.first_changed != len(sequence.block_table):
                    found.append("the victim's block table has changed")
                if self._holder.match(prompt, namespace="victim's own").num_tokens != length:
                    found.append("the victim's prefix is gone")
            self._holder.check()
        except Exception as error:  # any error is an observation of the victim
            found.append(f"the victim sees {error!r}")
        return found


@contextmanager
def running_target() -> Iterator[tuple[Target, Victim]]:
    """Start it, and stop it at the end; its standard error must be empty then."""
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder, ExitStack() as stack:
        log = Path(folder) / "stderr"
        flags = ["--listen", "127.0.0.1:0", "--service-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--no-chat"]
        flags += ["--model", save_byte_model(Path(folder) / "model"), "--dtype", "float32", "--state", "none"]
        command = [sys.executable, "-P", "-m", "radixkv", "up", *flags, "--num-blocks", str(NUM_BLOCKS)]
        with log.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        stack.callback(_stop, process)
        addresses = _addresses(process)
        target = Target(process, log, *addresses, stack)
        holder = stack.enter_context(connect(target.service, PoolShape(64, 16, "victim")))
        yield target, Victim(holder)


def _addresses(process: subprocess.Popen[str]) -> tuple[str, str, str]:
    """Addresses of service, worker and gateway, from the output of the process.

    Raises:
        RuntimeError: it ended before that.
    """
    assert process.stdout is not None
    told: dict[str, str] = {}
    for line in process.stdout:
        words = line.split()
        told[" ".join(words[:-1])] = words[-1] if words else ""
        if "Ctrl-C" in line:
            gateway = told["OpenAI API"].removeprefix("http://").removesuffix("/v1")
            return told["cache service"], told["generation"], gateway
    raise RuntimeError(f"radixkv up ended with {process.wait()} before it was ready")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
