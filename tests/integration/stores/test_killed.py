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
from store_writer import MAX_WRITTEN, NUM_BLOCKS

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT / "tests" / "shared" / "stores"


def run_and_kill(program: str, *arguments: object, after_s: float) -> list[list[str]]:
    """Run a program for a time after its start and kill it with -9. Returns the words of each line that it printed whole."""
    paths = (ROOT, *SHARED.parent.iterdir())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, str(SHARED / program), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        output = b""
        until_s = time.monotonic() + 300
        while time.monotonic() < until_s:
            if select.select([process.stdout], [], [], 0.01)[0]:
                output += os.read(process.stdout.fileno(), 1 << 16)
                if output.startswith(b"started\n") and until_s > time.monotonic() + 100:
                    until_s = time.monotonic() + after_s
            assert process.poll() is None, "the program ended by itself"
        process.kill()
        output += process.stdout.read()
    assert output.startswith(b"started\n"), "the program did not start"
    return [line.decode().split() for line in output.split(b"\n")[1:-1]]


def kill_often(tmp_path: Path, times: int) -> None:
    folder, key_file = tmp_path / "disk", tmp_path / "key"
    maker = BlockMaker(key_file, 5000)
    draw = random.Random(times)
    stored: dict[tuple[int, ...], str] = {}
    num_read = num_erased = 0
    for seed in range(times):
        for verb, namespace, *words in run_and_kill(
            "store_writer.py", folder, key_file, seed, after_s=draw.uniform(0.0, 0.5)
        ):
            if verb == "erased":
                stored = {tokens: owner for tokens, owner in stored.items() if owner != namespace}
                num_erased += 1
            else:
                stored[tuple(map(int, words))] = namespace
        disk = maker.level(folder, NUM_BLOCKS)
        disk.check()
        lost = [tokens for tokens, owner in stored.items() if maker.found(disk, list(tokens), owner) < len(tokens)]
        # an erasure that was not acknowledged may have taken effect
        assert not [tokens for tokens in lost if stored[tokens] == "bob"], "an acknowledged block is gone"
        assert not lost or len(lost) == sum(owner == "alice" for owner in stored.values())
        num_read += sum(map(len, stored))
        for tokens in lost:
            del stored[tokens]
        assert disk.stats().faults == {}
        if disk.stats().num_blocks > NUM_BLOCKS - MAX_WRITTEN:
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


def kill_workers(tmp_path: Path, times: int) -> int:
    """Kill a worker so often; returns how many histories of the life before were found, in part at least."""
    draw = random.Random(times)
    num_replies = num_before = num_found = 0
    for life in range(times):
        lines = run_and_kill("store_worker.py", tmp_path, life, after_s=draw.uniform(0.0, 3.0))
        found = [int(words[1]) for words in lines if words[0] == "before"]
        num_replies += len(lines)
        num_before += len(found)
        num_found += sum(each > 0 for each in found)
    print(f"{times} kills, {num_replies} replies, all as the model's; {num_found} of {num_before} histories found")
    return num_found


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_worker_that_is_killed_200_times_replies_as_the_model_does_and_finds_what_it_has_saved(
    tmp_path: Path,
) -> None:
    assert kill_workers(tmp_path, 200) > 100
