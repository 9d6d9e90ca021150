"""The place of one rank among several, and how they form a group."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from radixkv.core.errors import InvalidArgumentError

__all__ = ["Seat"]

_PATIENCE = timedelta(seconds=120)
"""For a rank that computes, or loads its weights, while the others wait. A rank that ends is noticed at once."""


class Seat(NamedTuple):
    """One rank of several: `folder` is where they find each other, `num_threads` of its OpenMP team."""

    rank: int
    num_ranks: int
    folder: Path
    num_threads: int

    def join(self, device: str) -> str:
        """Wait for the other ranks and form a group with them; returns this rank's device."""
        if dist.is_initialized():
            raise InvalidArgumentError("tensor_parallel", self.num_ranks, "1 in a process that has a group of ranks")
        is_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        if is_cuda and self.num_ranks > torch.cuda.device_count():
            bound = f"at most {torch.cuda.device_count()}, the CUDA devices of this machine"
            raise InvalidArgumentError("tensor_parallel", self.num_ranks, bound)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
        if is_cuda:
            torch.cuda.set_device(self.rank)
        else:
            torch.set_num_threads(self.num_threads)
        store = dist.FileStore(str(self.folder / "ranks"), self.num_ranks)  # type: ignore[attr-defined]  # not in its list
        backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.num_ranks, timeout=_PATIENCE)
        return f"cuda:{self.rank}" if is_cuda else "cpu"
