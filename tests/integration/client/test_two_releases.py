"""Holders and services of an earlier release and of this one work with each other, over a restart of the service too."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RELEASE = "b93c9876d462ddc8dfda6a10d59cef822e54f11c"

HOLDER = """
import sys
from radixkv import OutOfBlocksError, PoolShape, connect, pack_tokens

with connect(sys.argv[1], PoolShape(64), patience_s=300) as holder:
    first = holder.acquire(range(40), reserve=60)
    holder.insert(first.seq_id, 40)
    [child] = holder.fork(first.seq_id, 22)
    room = holder.extend(child.seq_id, 40)
    print(*room.ops[0], flush=True)
    sys.stdin.readline()  # the service was started again meanwhile
    holder.insert(child.seq_id, 40, pack_tokens(range(100, 118)))
    holder.extend(first.seq_id, 100)
    holder.insert(first.seq_id, 100, pack_tokens(range(60)))
    holder.release(first.seq_id)
    holder.release(child.seq_id)
    try:
        holder.acquire(range(2000))
    except OutOfBlocksError as error:
        print(error.num_needed, error.num_available)
    branch = pack_tokens([*range(22), *range(100, 118)])
    print(holder.match(range(40)).num_tokens, holder.match(branch).num_tokens, holder.check() or "sound", flush=True)
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = subprocess.run(
        ["git", "archive", RELEASE, "radixkv", "kernels", "pyproject.toml"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"this checkout does not have the earlier release {RELEASE[:12]}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextmanager
def program(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that takes `radixkv` from this folder."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


@pytest.mark.parametrize("is_holder_earlier", [True, False])
def test_a_holder_and_a_service_of_two_releases_go_on_over_a_restart(
    is_holder_earlier: bool, earlier: Path, tmp_path: Path
) -> None:
    holders, services = (earlier, ROOT) if is_holder_earlier else (ROOT, earlier)
    command = "radixkv" if is_holder_earlier else "radixkv.cli"
    serving = ("-m", command, "serve", "--listen", f"unix:{tmp_path}/cache")
    with program(services, *serving) as service:
        assert "radixkv cache service" in line(service)
        with program(holders, "-c", HOLDER, f"unix:{tmp_path}/cache") as holder:
            source, _, num_tokens = line(holder).split()
            assert (source, num_tokens) == ("1", "6")
            service.kill()
            service.wait()
            with program(services, *serving) as restarted:
                assert "radixkv cache service" in line(restarted)
                assert holder.stdin is not None
                print(file=holder.stdin, flush=True)
                assert line(holder) == "125 64"
                assert line(holder) == "40 40 sound"
                assert holder.wait(300) == 0


def test_the_programs_take_their_own_release(earlier: Path) -> None:
    for folder in (earlier, ROOT):
        with program(folder, "-c", "import radixkv; print(radixkv.__file__)") as running:
            assert Path(line(running)).is_relative_to(folder)
