"""A process that is killed while it writes loses nothing that it has acknowledged, and leaves nothing wrong."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sealed_blocks import BlockMaker

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT / "tests" / "shared" / "stores"


def write_and_kill(folder: Path, key_file: Path, seed: int, after_s: float) -> list[list[str]]:
    """Run a writer for a time and kill it with -9. Returns the words of each line that it printed whole."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(SHARED)))}
    command = [sys.executable, str(SHARED / "store_writer.py"), str(folder), str(key_file), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        output = b""
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            if select.select([writer.stdout], [], [], 0.01)[0]:
                output += os.read(writer.stdout.fileno(), 1 << 16)
                if output.startswith(b"started\n") and until_s > time.monotonic() + 100:
                    until_s = time.monotonic() + after_s
        writer.kill()
        output += writer.stdout.read()
    assert output.startswith(b"started\n"), "the writer did not start"
    return [line.decode().split() for line in output.split(b"\n")[1:-1]]


def kill_often(tmp_path: Path, times: int) -> None:
    folder, key_file = tmp_path / "disk", tmp_path / "key"
    maker = BlockMaker(key_file, 5000)
    draw = random.Random(times)
    stored: dict[tuple[int, ...], str] = {}
    num_read = num_erased = 0
    for seed in range(times):
        for verb, namespace, *words in write_and_kill(folder, key_file, seed, draw.uniform(0.0, 0.5)):
            if verb == "erased":
                stored = {tokens: owner for tokens, owner in stored.items() if owner != namespace}
                num_erased += 1
            else:
                stored[tuple(map(int, words))] = namespace
        disk = maker.level(folder, 4000)
        disk.check()
        lost = [tokens for tokens, owner in stored.items() if maker.found(disk, list(tokens), owner) < len(tokens)]
        # an erasure that was not acknowledged may have taken effect
        assert not [tokens for tokens in lost if stored[tokens] == "bob"], "an acknowledged block is gone"
        assert not lost or len(lost) == sum(owner == "alice" for owner in stored.values())
        num_read += sum(map(len, stored))
        for tokens in lost:
            del stored[tokens]
        assert disk.stats().faults == {}
        if disk.stats().num_blocks > 2000:
            assert disk.erase(*disk.namespace_ids())
            maker.keys.erase("alice")
            maker.keys.erase("bob")
            stored = {}
        disk.close()
    print(f"{times} kills, {num_read} acknowledged blocks read, {num_erased} erasures")
    assert num_read > 10 * times


def test_a_killed_writer_loses_nothing_it_has_acknowledged(tmp_path: Path) -> None:
    kill_often(tmp_path, 10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_writer_that_is_killed_200_times_loses_nothing_it_has_acknowledged(tmp_path: Path) -> None:
    kill_often(tmp_path, 200)
