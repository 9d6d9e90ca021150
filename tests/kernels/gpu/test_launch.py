"""Launches fitted to a chip: its column of the table, its formats, and as many programs as run on it at once."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.gpu import launch
from radixkv.kernels.gpu.launch import Grids, Processor, has_fp8, launch_target, num_processors

H100 = Processor(registers=65536, shared_bytes=228 * 1024, threads=2048)
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Properties of a CUDA device that this machine lacks."""
    properties = SimpleNamespace(
        name="a chip",
        major=9,
        minor=0,
        multi_processor_count=132,
        shared_memory_per_multiprocessor=H100.shared_bytes,
        max_threads_per_multi_processor=H100.threads,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (properties.major, properties.minor))
    caches = (launch_target, has_fp8, num_processors)
    for each in caches:
        each.cache_clear()
    yield properties
    for each in caches:
        each.cache_clear()


@pytest.mark.parametrize(
    ("major", "minor", "target", "fp8"),
    [
        (8, 0, "sm_80", False),
        (8, 6, "sm_80", False),
        (8, 9, "sm_80", True),
        (9, 0, "sm_90", True),
        (10, 0, "sm_100", True),
        (10, 3, "sm_100", True),
        (12, 0, "sm_120", True),
    ],
)
def test_a_chip_has_the_column_of_its_kind(
    chip: SimpleNamespace, major: int, minor: int, target: str, fp8: bool
) -> None:
    chip.major, chip.minor = major, minor
    assert (launch_target(DEVICE), has_fp8(DEVICE)) == (target, fp8)


def test_a_chip_older_than_the_kernels_is_refused(chip: SimpleNamespace) -> None:
    chip.major, chip.minor = 7, 5
    with pytest.raises(InvalidArgumentError, match=r"8\.0 or newer"):
        launch_target(DEVICE)


@pytest.mark.parametrize(
    ("registers", "shared_kib", "warps", "programs"),
    [
        (160, 39, 4, 3),
        (116, 39, 4, 4),
        (168, 71, 4, 3),
        (168, 104, 4, 2),
        (240, 113, 4, 2),
        (255, 147, 8, 1),
        (1, 0, 32, 2),
    ],
)
def test_registers_shared_memory_and_threads_bound_the_programs_of_a_processor(
    registers: int, shared_kib: int, warps: int, programs: int
) -> None:
    assert H100.programs(registers, shared_kib * 1024, warps) == programs


@pytest.mark.usefixtures("chip")
def test_a_grid_is_what_runs_at_once_as_soon_as_the_kernel_is_compiled() -> None:
    grids = Grids()
    compiled = SimpleNamespace(n_regs=168, metadata=SimpleNamespace(shared=71 * 1024))
    assert grids.size("narrow", 10_000, DEVICE) == 2 * 132
    grids.learn("narrow", compiled, 4, DEVICE)
    assert grids.size("narrow", 10_000, DEVICE) == 3 * 132
    assert grids.size("narrow", 5, DEVICE) == 5
    assert grids.size("narrow", 0, DEVICE) == 1
    assert grids.size("wide", 10_000, DEVICE) == 2 * 132


def test_the_interpreter_takes_turns_of_a_few_programs() -> None:
    grids, cpu = Grids(), torch.device("cpu")
    grids.learn("narrow", None, 4, cpu)
    assert grids.size("narrow", 100, cpu) == launch._INTERPRETED_PROGRAMS
