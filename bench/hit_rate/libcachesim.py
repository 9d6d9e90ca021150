"""The peer of the hit-rate bench: the policies of libcachesim, adapted to prefixes.

Each runs in its own way over single blocks, in a separate process (`python -m bench.hit_rate.libcachesim JOB FOLDER`, which
prints one JSON line). The rules of a prefix cache are added around it: a block counts as found only if all blocks before it in
its request were found, and a request's blocks are touched either last first, so that policies by recency evict the end of a
prompt before its start, or first to last. The better of the two orders represents the policy, at each capacity. It evicts
single blocks where the core evicts whole leaves, and may evict a block of the request that it is serving.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.tree.wheel import PeerMissingError, fetch_wheels, wheel_folder
from radixkv.simulate import Trace

__all__ = ["LIBCACHESIM_VERSION", "PeerRate", "default_peer_dir", "fetch_peer", "peer_rates"]

LIBCACHESIM_VERSION = "0.3.5"
HASH_POWER = 18
"""Size of its tables, as a power of two: 2 MiB each instead of its default of 128."""

POLICIES = (
    *(
        "ARC",
        "Cacheus",
        "Clock",
        "Clock2QPlus",
        "ClockPro",
        "FIFO",
        "FlashProb",
        "GDSF",
        "GLCache",
        "Hyperbolic",
        "LFU",
    ),
    *(
        "LFUDA",
        "LHD",
        "LIRS",
        "LRB",
        "LRU",
        "LRUK",
        "LRUProb",
        "LeCaR",
        "MQ",
        "Random",
        "S3FIFO",
        "SLRU",
        "Sieve",
        "Size",
    ),
    *("ThreeLCache", "TwoQ", "WTinyLFU"),
)
"""All of its policies except those that know the future, each with its default parameters."""


class PeerRate(NamedTuple):
    """The hit rate of one policy in its better order, after the warm-up."""

    policy: str
    num_blocks: int
    rate: float


def default_peer_dir() -> Path:
    """Folder of the peer's wheel in the user's cache."""
    return wheel_folder("libcachesim", LIBCACHESIM_VERSION)


def fetch_peer(folder: Path) -> None:
    """Download the peer's wheel (12 MB) into `folder`, if missing. Errors as of `fetch_wheels`."""
    fetch_wheels(folder, "libcachesim", [f"libcachesim=={LIBCACHESIM_VERSION}"])


def peer_rates(
    trace: Trace, capacities: Sequence[int], warm_up: float, folder: Path, policies: Sequence[str] = POLICIES
) -> Iterator[PeerRate]:
    """The rate of every policy at every capacity.

    Raises:
        PeerMissingError: the wheel is missing in the folder or does not load, or a policy ended its process.
    """
    if not (folder / "libcachesim").is_dir():
        raise PeerMissingError(f"libcachesim {LIBCACHESIM_VERSION} is not in {folder}; --peer fetch gets it")
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / "job.json"
        for policy in policies:
            description = {
                "policy": policy,
                "capacities": list(capacities),
                "warm_up": warm_up,
                "tokens_per_block": trace.tokens_per_block,
                "lengths": [request.num_tokens for request in trace.requests],
                "blocks": [list(row) for row in trace.block_numbers()],
            }
            job.write_text(json.dumps(description), encoding="utf-8")
            command = [sys.executable, "-m", "bench.hit_rate.libcachesim", str(job), str(folder)]
            finished = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
            if finished.returncode:
                why = (finished.stderr.strip().splitlines() or ["no word"])[-1]
                raise PeerMissingError(f"libcachesim's {policy} ended with status {finished.returncode}: {why}")
            rates = json.loads(finished.stdout.splitlines()[-1])
            yield from (PeerRate(policy, *pair) for pair in zip(capacities, rates, strict=True))


def _rate(
    make: Callable[[int], Any], new_request: Callable[[], Any], job: dict[str, Any], num_blocks: int, step: int
) -> float:
    """One policy at one capacity; `step` 1 touches a request's blocks first to last, -1 last to first."""
    cache, request = make(num_blocks), new_request()
    request.obj_size = 1
    first_counted = int(len(job["blocks"]) * job["warm_up"])
    num_tokens = num_hit = 0
    for number, (blocks, length) in enumerate(zip(job["blocks"], job["lengths"], strict=True)):
        request.clock_time = number
        found = []
        for block in blocks[::step]:
            request.obj_id = block + 1
            found.append(cache.get(request))
        if number >= first_counted:
            num_found = next((index for index, hit in enumerate(found[::step]) if not hit), len(found))
            num_tokens += length
            num_hit += min(length, num_found * job["tokens_per_block"])
    return num_hit / num_tokens


def main(job_path: str, folder: str) -> None:
    """Print the policy's rates, one per capacity."""
    sys.path.insert(0, folder)
    library = importlib.import_module("libcachesim")
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))

    def make(num_blocks: int) -> Any:
        return getattr(library, job["policy"])(cache_size=num_blocks, hashpower=HASH_POWER)

    rates = [max(_rate(make, library.Request, job, size, step) for step in (-1, 1)) for size in job["capacities"]]
    print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
