"""Clients of the cache service try again what may be tried again, and a change that was tried twice is made once."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from radixkv import PoolShape, Retention, UnavailableError, connect, pack_tokens
from radixkv.net import retry
from radixkv.service import ServiceConfig, ServiceThread

PROMPT = pack_tokens(range(64))


class Cable:
    """Carries bytes to a unix socket and back. Once it is `cut_next`, the next answer is lost, and the connection with it."""

    def __init__(self, listening: Path, behind: Path) -> None:
        self.cut_next = False
        self.num_cuts = 0
        self._behind = str(behind)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(listening))
        self._socket.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._behind)
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, selectors.DefaultSelector() as both:
            both.register(near, selectors.EVENT_READ, far)
            both.register(far, selectors.EVENT_READ, near)
            has_asked = False
            while True:
                for key, _ in both.select():
                    source = near if key.fileobj is near else far
                    try:
                        data = source.recv(65536)
                        if not data:
                            return
                        has_asked |= (
                            self.cut_next and source is near and len(data) > 40
                        )  # a request, not a window's update
                        if has_asked and source is far:
                            time.sleep(0.1)
                            self.cut_next = False
                            self.num_cuts += 1
                            return
                        key.data.sendall(data)
                    except OSError:
                        return


@contextmanager
def cable(tmp_path: Path) -> Iterator[tuple[Cable, str, str]]:
    behind, listening = tmp_path / "service", tmp_path / "cable"
    with ServiceThread(ServiceConfig(addresses=(f"unix:{behind}",))):
        line = Cable(listening, behind)
        try:
            yield line, f"unix:{listening}", f"unix:{behind}"
        finally:
            line.close()


@pytest.mark.parametrize("call", ["evict", "clear", "evict_branch"])
def test_a_change_whose_answer_was_lost_is_made_once_and_tells_what_it_did(call: str, tmp_path: Path) -> None:
    with (
        cable(tmp_path) as (line, address, behind),
        connect(behind, PoolShape(64)) as holder,
        connect(address) as reader,
    ):
        opened = holder.acquire(PROMPT)
        holder.insert(opened.seq_id, 64)
        holder.release(opened.seq_id)
        assert reader.match(PROMPT).num_tokens == 64
        line.cut_next = True
        removed = {
            "evict": lambda: reader.evict(4),
            "clear": reader.clear,
            "evict_branch": lambda: reader.evict_branch(PROMPT),
        }[call]()
        assert line.num_cuts == 1
        assert removed == 4
        assert reader.match(PROMPT).num_tokens == 0


def test_a_reader_waits_out_a_restart_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 1.0)  # a busy machine takes longer to start a service again
    monkeypatch.setattr(retry, "_LONGEST_WAIT_S", 60.0)
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/service",))
    with ExitStack() as stack, connect(config.addresses[0], timeout_s=300.0) as reader:
        with ServiceThread(config):
            assert reader.stats_all() == {}
        timer = threading.Timer(0.4, lambda: stack.enter_context(ServiceThread(config)))
        timer.start()
        assert reader.stats_all() == {}
        timer.join()


def test_a_holder_s_other_calls_wait_until_it_has_reattached_to_a_restarted_service(tmp_path: Path) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/service",))
    with ExitStack() as services:
        services.enter_context(ServiceThread(config))
        with connect(config.addresses[0], PoolShape(64), patience_s=60) as holder:
            opened = holder.acquire(PROMPT)
            holder.insert(opened.seq_id, 64)
            calls: list[Callable[[], object]] = [
                lambda: holder.match(PROMPT).num_tokens == 64,
                lambda: holder.explain(PROMPT).num_tokens == 64,
                lambda: holder.pin(PROMPT).num_tokens == 64,
                lambda: holder.retain(PROMPT, retention=[Retention(0, 64, 50)]) == 64,
                lambda: holder.set_quota("other", 8) is not None,
                lambda: holder.pins() is not None,
                lambda: holder.usage() is not None,
                lambda: holder.stats().num_sequences == 1,
                lambda: holder.check() is None,
                lambda: holder.dump() is not None,
                lambda: holder.events() is not None,
                lambda: holder.evict(1) == 0,
                lambda: holder.unpin(PROMPT) is not None,
            ]
            for call in calls:
                services.close()
                time.sleep(0.2)  # by now the holder tries to attach every tenth of a second or so
                services.enter_context(ServiceThread(config))
                assert call(), calls.index(call)


def test_a_service_that_stays_away_is_told_soon_and_within_the_timeout(tmp_path: Path) -> None:
    for timeout_s in (300.0, 0.3):
        began_s = time.monotonic()
        with connect(f"unix:{tmp_path}/nobody", timeout_s=timeout_s) as reader, pytest.raises(UnavailableError):
            reader.stats_all()
        assert time.monotonic() - began_s < 200.0
