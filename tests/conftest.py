"""What all tests share: quiet OpenMP threads, and the default model, fetched once into the user's cache."""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, has_postgres

from radixkv.worker.threads import configure_threads

_HAS_THREADS = "OMP_NUM_THREADS" in os.environ
configure_threads()  # before any test imports torch
_state = tempfile.TemporaryDirectory(prefix="radixkv-state-")
os.environ["RADIXKV_STATE"] = _state.name  # what tests start keeps nothing of the user's
atexit.register(_state.cleanup)


MOST_PROCESSES = 4
"""A process takes up to 1.5 GB."""


def pytest_xdist_setupnodes() -> None:
    """One thread each for the processes that run tests side by side; they inherit this process's environment."""
    if not _HAS_THREADS:
        os.environ["OMP_NUM_THREADS"] = "1"


def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means."""
    return min(MOST_PROCESSES, os.cpu_count() or 1)


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
        yield server
        server.stop(signal.SIGQUIT)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_state(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """A gateway's empty state: a file's path, or the URL of a PostgreSQL database."""
    if request.param == "sqlite":
        return tmp_path / "state.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()
