"""What all tests share: quiet OpenMP threads, and the default model, fetched once into the user's cache."""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from postgres_server import PostgresServer, has_postgres

from radixkv.util.heaps import collector_at_rest, set_heap_aside
from radixkv.worker.threads import configure_threads

_OF_EACH = [
    (name, value) for name, value in (("OMP_NUM_THREADS", "1"), ("GOMP_SPINCOUNT", "0")) if name not in os.environ
]
configure_threads()  # before any test imports torch
_state = tempfile.TemporaryDirectory(prefix="radixkv-state-")
os.environ["RADIXKV_STATE"] = _state.name  # what tests start keeps nothing of the user's
atexit.register(_state.cleanup)
for _package in filter(find_spec, ("httpx", "httpx2")):  # of the tests' clients, and of SDKs
    # HTTP without TLS, yet each client would read all authorities, in 23 to 50 ms
    _transport: Any = import_module(f"{_package}._transports.default")
    _transport.create_ssl_context = cache(_transport.create_ssl_context)
    for _wait in (
        "connect",
        "read",
        "write",
        "pool",
    ):  # by default 5 s, which a busy machine may take for an honest answer
        setattr(import_module(f"{_package}._config").DEFAULT_TIMEOUT_CONFIG, _wait, 300.0)
_on_a_shared_machine = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a slow example is no failure
settings.register_profile("new examples", _on_a_shared_machine)
settings.register_profile("same examples", _on_a_shared_machine, derandomize=True)


MOST_PROCESSES = 4
"""A process takes up to 1.5 GB."""


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis tests what lands with the same examples in each run; only `-m slow` looks for new ones."""
    is_slow = re.search(r"(?<!not )\bslow\b", config.option.markexpr) is not None
    settings.load_profile("new examples" if is_slow else "same examples")


def pytest_xdist_setupnodes() -> None:
    """One thread each for the processes that run tests side by side; they inherit this process's environment.

    Where a test asks for more threads, they sleep as soon as they wait: a thread that spins keeps another process from a core.
    """
    os.environ.update(_OF_EACH)


def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: two for each processor, since many tests wait for processes and clocks."""
    return min(MOST_PROCESSES, 2 * (os.cpu_count() or 1))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests, two million objects, are no garbage: no full collection has to scan them."""
    with collector_at_rest():
        collected = yield
    set_heap_aside()
    return collected


def pytest_unconfigure() -> None:
    """At the end libraries look for leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def default_model() -> str:
    """Folder of the default model; its first use on a machine fetches and converts it."""
    from radixkv.worker.loading.default_model import resolve_model

    return resolve_model(None, progress=False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process; tests that stop it start it again."""
    if not has_postgres:
        pytest.skip("needs PostgreSQL: initdb and postgres")
    pytest.importorskip("psycopg")
    with tempfile.TemporaryDirectory(prefix="radixkv-postgres-") as folder:
        server = PostgresServer(Path(folder) / "server")
        with pytest.MonkeyPatch.context() as patch:  # a busy machine is no server that does not answer
            for patience in (
                "database.ANSWER_S",
                "database.PATIENCE_S",
                "transcript_cache.LOOK_UP_S",
                "postgresql.TRY_S",
            ):
                patch.setattr(f"radixkv.gateway.storage.{patience}", 300.0)
            patch.setattr("radixkv.gateway.storage.postgresql.CONNECT_S", 300)
            yield server
        server.stop(signal.SIGQUIT)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_state(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """A gateway's empty state: a file's path, or the URL of a PostgreSQL database."""
    if request.param == "sqlite":
        return tmp_path / "state.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()
