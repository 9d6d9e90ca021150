"""What a client sees when a holder, the service or the way between them goes away for good."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_service import TTL_S, Clock

from radixkv import (
    AcquireOp,
    ExtendOp,
    InsertOp,
    InvalidArgumentError,
    LeaseError,
    PoolHeldError,
    PoolShape,
    ReleaseOp,
    StaleIncarnationError,
    UnavailableError,
    UnknownPoolError,
    connect,
    pack_tokens,
)
from radixkv.client import stream
from radixkv.service import ServiceConfig, ServiceThread

PROMPT = pack_tokens(range(100))

SERVER = """
import sys
from radixkv.service import ServiceConfig, run_service
config = ServiceConfig(addresses=(sys.argv[1],), lease_ttl_s=float(sys.argv[2]))
run_service(config, on_ready=lambda addresses: print(*addresses, flush=True))
"""
HOLDER = """
import sys
from radixkv import PoolShape, connect
holder = connect(sys.argv[1], PoolShape(64))
holder.acquire(range(100), seq_id=5)
holder.insert(5, 100)
print("holding", flush=True)
sys.stdin.read()
"""


def test_closing_detaches_at_once_and_ends_what_is_called_later(service: ServiceThread) -> None:
    first = connect(service.addresses[0], PoolShape(64))
    first.acquire(PROMPT)
    first.close()
    first.close()
    with pytest.raises(LeaseError, match="closed"):
        first.acquire(PROMPT)
    for call in (first.stats, lambda: first.begin_route(PROMPT), lambda: next(first.follow_events())):
        with pytest.raises(UnavailableError, match="closed"):
            call()
    with connect(service.addresses[0], PoolShape(64)) as second:
        assert second.stats().num_sequences == 0
        assert second.match(PROMPT).num_tokens == 0
    with pytest.raises(StaleIncarnationError):
        connect(service.addresses[0], PoolShape(64), incarnation=first.incarnation)


def test_closing_detaches_at_once_even_while_the_stream_is_broken(service: ServiceThread) -> None:
    for _ in range(20):
        holder = connect(service.addresses[0], PoolShape(64))
        outstanding = holder.submit([AcquireOp(PROMPT)])
        holder.interrupt()
        holder.close()
        assert isinstance(outstanding.exception(timeout=0), LeaseError | None)


def test_a_lease_that_ran_out_fails_the_holder_for_good(service: ServiceThread, clock: Clock) -> None:
    with connect(service.addresses[0], PoolShape(64)) as lost:
        lost.acquire(PROMPT, seq_id=1)
        clock.now_s += TTL_S
        with pytest.raises(StaleIncarnationError):
            lost.extend(1, 101)
        with pytest.raises(StaleIncarnationError):
            lost.submit([ExtendOp(1, 101)])
        with connect(service.addresses[0], PoolShape(64)) as successor:
            assert successor.match(PROMPT).num_tokens == 0
            successor.check()


def test_a_killed_holders_sequences_go_when_the_ttl_ends(service: ServiceThread, clock: Clock) -> None:
    command = [sys.executable, "-c", HOLDER, service.addresses[0]]
    with (
        connect(service.addresses[0]) as reader,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        process.kill()
        process.wait()
        clock.now_s += TTL_S - 1
        assert reader.stats().num_sequences == 1
        reader.check()
        clock.now_s += TTL_S
        with pytest.raises(UnknownPoolError):
            reader.stats()
        with connect(service.addresses[0], PoolShape(64)) as successor:
            assert successor.stats().num_sequences == 0
            assert successor.match(PROMPT).num_tokens == 0
            successor.check()


def start_service(address: str, ttl_s: float) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", SERVER, address, str(ttl_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_killed_service_fails_the_holder_in_bounded_time_and_is_attached_anew(tmp_path: Path) -> None:
    service, address = start_service(f"unix:{tmp_path}/s", ttl_s=300.0)
    with service, connect(address, PoolShape(64)) as holder, connect(address, timeout_s=5) as reader:
        holder.acquire(PROMPT, seq_id=1)
        service.kill()
        outstanding = [holder.submit([ExtendOp(1, 101 + number)]) for number in range(3)]
        holder._session.lease_ttl_s = 1.0
        for future in outstanding:
            with pytest.raises(UnavailableError):
                future.result(timeout=200)
        with pytest.raises(UnavailableError):
            holder.extend(1, 101)
        with pytest.raises(UnavailableError, match=str(tmp_path)):
            reader.stats()
    service, address = start_service(address, ttl_s=30.0)
    with service:
        with connect(address, PoolShape(64)) as again:
            assert again.stats().num_sequences == 0
            assert again.acquire(PROMPT, seq_id=1).num_stored_tokens == 0
            again.check()
        service.terminate()


def test_sequences_go_on_over_a_restart_of_the_service(tmp_path: Path) -> None:
    service, address = start_service(f"unix:{tmp_path}/s", ttl_s=300.0)
    with connect(address, PoolShape(64), patience_s=200.0) as holder:
        other = pack_tokens(range(500, 540))
        holder.step([AcquireOp(PROMPT, seq_id=1), InsertOp(1, 100), AcquireOp(other, seq_id=2)])
        holder.step([InsertOp(2, 40), ReleaseOp(2)])
        with service:
            service.kill()
        holder._session.lease_ttl_s = 0.5  # the service is away for longer
        waiting = [holder.submit([ExtendOp(1, 101 + number)]) for number in range(3)]
        service, _ = start_service(address, ttl_s=300.0)
        with service:
            assert [future.result(300)[0].first_changed for future in waiting] == [7, 7, 7]
            assert holder.fork(1, 50)[0].num_stored_tokens == 50
            assert holder.match(other).num_tokens == 40
            holder.check()
            service.terminate()


def lease_left_s(service: ServiceThread) -> float:
    with pytest.raises(PoolHeldError) as held:
        connect(service.addresses[0], PoolShape(64))
    assert held.value.retry_after_s is not None
    return held.value.retry_after_s


@pytest.mark.parametrize("patience_s", [None, 30.0])
def test_who_holds_and_says_nothing_for_several_ttls_keeps_the_lease_and_all_that_is_open(
    tmp_path: Path, patience_s: float | None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=clock))
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",), lease_ttl_s=1.0)
    with (
        ServiceThread(config, clock=clock) as service,
        connect(service.addresses[0], PoolShape(64), patience_s=patience_s) as holder,
        connect(service.addresses[0]) as reader,
    ):
        holder.acquire(PROMPT, seq_id=1)
        for _ in range(4):
            clock.now_s += 0.75
            while lease_left_s(service) < 1.0:  # until a heartbeat has come
                assert reader.stats().num_sequences == 1
        assert holder.extend(1, 101).first_changed == 7
        holder.check()


def test_a_frozen_service_fails_the_holder_in_bounded_time(tmp_path: Path) -> None:
    service, address = start_service(f"unix:{tmp_path}/s", ttl_s=3.0)
    with service, connect(address, PoolShape(64)) as holder:
        subprocess.run(["kill", "-STOP", str(service.pid)], check=True)
        with pytest.raises(UnavailableError):
            holder.submit([AcquireOp(PROMPT)]).result(timeout=200)
        service.kill()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("shape", [(), (PoolShape(64),)], ids=["a reader", "a holder"])
def test_a_time_to_wait_that_is_none_is_refused_by_name(timeout_s: float, shape: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout_s"):
        connect(f"unix:{tmp_path}/nobody", *shape, timeout_s=timeout_s)


def test_no_service_at_all_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody"
    with pytest.raises(UnavailableError, match="nobody"):
        connect(address, PoolShape(64), timeout_s=0.3)
    with connect(address, timeout_s=0.3) as reader, pytest.raises(UnavailableError, match="nobody"):
        reader.stats()


def test_a_service_that_starts_a_little_later_is_waited_for(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    held: Future[int] = Future()

    def hold() -> None:
        with connect(address, PoolShape(64), timeout_s=300) as holder:
            held.set_result(holder.stats().num_blocks)

    thread = threading.Thread(target=hold)
    thread.start()
    with ServiceThread(ServiceConfig(addresses=(address,))):
        assert held.result(timeout=300) == 64
        thread.join()


def test_connecting_costs_no_torch_and_prints_nothing_when_the_service_goes_away(tmp_path: Path) -> None:
    program = f"""
import subprocess, sys
import radixkv
from radixkv.service import ServiceConfig, ServiceThread
service = ServiceThread(ServiceConfig(addresses=("unix:{tmp_path}/s",))).start()
holder = radixkv.connect(service.addresses[0], radixkv.PoolShape(64))
holder.acquire([1, 2, 3])
subprocess.run(["true"], check=True)
service.stop()
holder.close()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
