"""What a process may take is bounded by the machine and by every control group around it; peaks are seen."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from radixkv.worker.memory import device_memory, host_memory, peak_of

MIB = 2**20
CPU = torch.device("cpu")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_control_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    memory = host_memory(tmp_path)
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.free_bytes < memory.total_bytes


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (  # version 2: the process's own group
            {
                "proc/self/cgroup": "0::/box/inner\n",
                "sys/fs/cgroup/box/inner/memory.max": str(512 * MIB),
                "sys/fs/cgroup/box/inner/memory.current": str(200 * MIB),
                "sys/fs/cgroup/box/inner/memory.stat": f"anon 5\ninactive_file {50 * MIB}\nactive_file 7\n",
            },
            (512 * MIB, 362 * MIB),
        ),
        (  # a group further out is tighter; the inner one says "max"
            {
                "proc/self/cgroup": "0::/box/inner\n",
                "sys/fs/cgroup/box/inner/memory.max": "max\n",
                "sys/fs/cgroup/box/memory.max": str(300 * MIB),
                "sys/fs/cgroup/box/memory.current": str(100 * MIB),
            },
            (300 * MIB, 200 * MIB),
        ),
        (  # inside a container the group's own folder is the root
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": str(64 * MIB),
                "sys/fs/cgroup/memory.current": str(80 * MIB),
            },
            (64 * MIB, 0),
        ),
        (  # version 1
            {
                "proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/jobs/a\n0::/\n",
                "sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes": str(256 * MIB),
                "sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes": str(56 * MIB),
                "sys/fs/cgroup/memory/jobs/a/memory.stat": f"cache 1\ntotal_inactive_file {6 * MIB}\n",
            },
            (256 * MIB, 206 * MIB),
        ),
    ],
)
def test_the_tightest_control_group_bounds_it(tmp_path: Path, files: dict[str, str], expected: tuple[int, int]) -> None:
    assert host_memory(write(tmp_path, files)) == expected


def test_a_limit_beyond_the_machine_is_no_limit(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712"}
    assert host_memory(write(tmp_path, files)).total_bytes == psutil.virtual_memory().total


def test_the_memory_of_a_cpu_is_the_hosts() -> None:
    assert device_memory(CPU).total_bytes == host_memory().total_bytes


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel tells no peak")
def test_the_peak_of_work_is_seen_although_its_memory_is_given_back() -> None:
    def work() -> None:
        torch.ones(40 * MIB, dtype=torch.uint8).max()
        torch.ones(100 * MIB, dtype=torch.uint8).max()

    kept = torch.ones(200 * MIB, dtype=torch.uint8)
    peak = peak_of(work, CPU)
    assert peak is not None
    assert 95 * MIB < peak < 190 * MIB
    assert kept[-1] == 1


@pytest.mark.gpu
def test_the_peak_on_a_gpu_is_what_its_allocator_held() -> None:
    cuda = torch.device("cuda")
    assert peak_of(lambda: torch.ones(100 * MIB, dtype=torch.uint8, device=cuda).sum(), cuda) >= 100 * MIB
    assert 0 < device_memory(cuda).free_bytes <= device_memory(cuda).total_bytes
