"""Memory of a device, and the peak of a piece of work.

On a CPU, free memory is what this process may still take: the machine's available memory, within the limits of the process's
control groups, such as a container's. The peak is the kernel's high-water mark of resident memory, which Linux lets a process
reset. Where the mark cannot be read, the peak is None.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

__all__ = ["DeviceMemory", "device_memory", "host_memory", "peak_of"]

_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs


class DeviceMemory(NamedTuple):
    """`total_bytes` of the device; `free_bytes` that can be allocated now."""

    total_bytes: int
    free_bytes: int


def device_memory(device: torch.device) -> DeviceMemory:
    """Memory of a device. Memory that torch caches for reuse counts as free."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return DeviceMemory(total_bytes, free_bytes)
    return host_memory()


def host_memory(root: Path = Path("/")) -> DeviceMemory:
    """Memory of this machine, or of the tightest control group of this process. `root`: the folder of proc and sys."""
    import psutil

    machine = psutil.virtual_memory()
    total_bytes, free_bytes = int(machine.total), int(machine.available)
    for group in _memory_groups(root):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        if limit is None or limit >= total_bytes:
            continue
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        total_bytes = min(total_bytes, limit)
        free_bytes = min(free_bytes, max(0, limit - used + _reclaimable(group)))
    return DeviceMemory(total_bytes, free_bytes)


def peak_of(work: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that `work` held at its peak beyond those held before; None where the platform cannot measure it."""
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with suppress(OSError, AttributeError):  # memory cached by the allocator would hide the work's
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        before = _resident("VmRSS")
        work()
        return max(0, _resident("VmHWM") - before)
    except OSError:
        return None


def _memory_groups(root: Path) -> list[Path]:
    """Folders of the control groups that bound this process's memory, in both versions, up to the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        inner = Path(path.lstrip("/"))
        groups += [top / inner, *(top / parent for parent in inner.parents)]
    return groups


def _number(path: Path) -> int | None:
    """None where there is no such file, or no limit."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _reclaimable(group: Path) -> int:
    """Bytes of files that the kernel drops when memory is short."""
    with suppress(OSError):
        found = re.search(r"^(?:total_)?inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"no {field} in the process's status")
    return int(found[1]) * 1024
