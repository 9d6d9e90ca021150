"""KV of many sequences, each in one contiguous virtual range per tensor, over physical pages that several may share.

    physical   one file; row p is page p of every tensor's part of it, at (tensor · num_rows + p) · page_bytes
    virtual    one reservation; page i of a slot is mapped at base + (tensor · num_slots + slot) · range_bytes + i · page_bytes

    slot 0     [ 3 | 4 | 5 | 9 | .  .  . ]      rows mapped; the rest is reserved and cannot be read
    slot 1     [ 3 | 4 | 12 | .  .  .  . ]      a fork within page 2: it maps rows 3 and 4, row 12 is its copy of 5

The tensors of a sequence (K and V of its layers) grow in step, so its list of rows is a block table whose blocks are pages.
Rows are taken lowest first: neighbours in the file that are mapped side by side are one mapping to the system. Page tables are
filled when pages are mapped. Free rows keep their memory, like a pool's blocks. Linux only. Arranged like vAttention (arXiv
2405.04437), with shared pages.
"""

from __future__ import annotations

import ctypes
import heapq
import mmap
import os
import random
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError

__all__ = ["HUGE_BYTES", "PAGE", "OutOfPagesError", "VirtualPool", "count_mappings", "max_mappings", "open_pages"]

PAGE, HUGE_BYTES = 4096, 2 << 20
_MAPPINGS_LEFT = 2048
"""For the rest of the process."""
_NO_ACCESS, _MAP_FIXED, _MAP_NORESERVE, _MAP_POPULATE = 0, 0x10, 0x4000, 0x8000
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_SHARED = mmap.MAP_SHARED | _MAP_FIXED | _MAP_POPULATE
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class OutOfPagesError(MemoryError):
    """Pages, slots or mappings do not suffice. Nothing has changed."""


def count_mappings() -> int:
    """Mappings of this process. O(mappings)."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def max_mappings() -> int:
    """The system's limit for a process, `vm.max_map_count`."""
    return int(Path("/proc/sys/vm/max_map_count").read_text())


def open_pages(page_bytes: int, num_bytes: int, folder: Path | None = None) -> int:
    """The descriptor of an unnamed file of `num_bytes`. A multiple of 2 MiB as `page_bytes` asks for pages of that size.

    `folder` is for these, in hugetlbfs or in a tmpfs mounted with `huge=always`; None: those that the kernel has reserved.

    Raises:
        InvalidArgumentError: the system has no such pages, or too few of them.
    """
    if page_bytes < 1 or page_bytes % mmap.PAGESIZE:
        raise InvalidArgumentError("page_bytes", page_bytes, f"a multiple of the system's pages, {mmap.PAGESIZE}")
    is_huge = page_bytes % HUGE_BYTES == 0
    if is_huge and folder is not None:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    else:
        free = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        num_free, num_asked = int(free.read_text()) if free.exists() else 0, num_bytes // HUGE_BYTES
        if is_huge and num_free < num_asked:
            bound = f"below 2 MiB: {num_asked} such pages are needed and {num_free} free (raise vm.nr_hugepages)"
            raise InvalidArgumentError("page_bytes", page_bytes, bound)
        file = os.memfd_create("kv", os.MFD_CLOEXEC | (os.MFD_HUGETLB if is_huge else 0))
    if is_huge and os.fstat(file).st_blksize % HUGE_BYTES:
        os.close(file)
        raise InvalidArgumentError("folder", str(folder), "in a file system with pages of 2 MiB")
    os.ftruncate(file, num_bytes)
    return file


class VirtualPool:
    """Opens, grows, forks and closes sequences by slot. For one thread; tensors of its memory must not outlive `unmap`.

    Attributes:
        memory: bytes [num_tensors, num_slots, range_bytes]; above a sequence's mapped length an access ends the process.
        num_mappings: of all pages, and one for the reserved end of each range; the system may have fewer.
        num_shared_rows: mappings of rows by a second sequence, and by each further one.
    """

    def __init__(
        self,
        num_rows: int,
        page_bytes: int,
        num_tensors: int,
        num_slots: int,
        range_bytes: int,
        *,
        folder: Path | None = None,
        draw: random.Random | None = None,
        most_mappings: int | None = None,
    ) -> None:
        """Reserve ranges of `range_bytes`, and a file for `num_rows` pages of each tensor; neither takes memory.

        Args:
            draw: to take rows in random order, as after long use; None: lowest first.
            most_mappings: None: as the system allows, less the process's own and some thousand.

        Raises:
            InvalidArgumentError: an argument is out of its bound, or the system lacks such pages.
        """
        sizes = {"num_rows": num_rows, "num_tensors": num_tensors, "num_slots": num_slots, "range_bytes": range_bytes}
        for name, value in sizes.items():
            if value < 1:
                raise InvalidArgumentError(name, value, "at least 1")
        if page_bytes > 0 and range_bytes % page_bytes:
            raise InvalidArgumentError("range_bytes", range_bytes, f"a multiple of page_bytes, {page_bytes}")
        self._file = open_pages(page_bytes, num_tensors * num_rows * page_bytes, folder)
        self.page_bytes, self.num_tensors, self.num_slots = page_bytes, num_tensors, num_slots
        self.range_bytes = range_bytes
        self.num_mappings, self.num_shared_rows = num_tensors * num_slots, 0
        allowed = max_mappings() - count_mappings() - _MAPPINGS_LEFT
        self._most_mappings = allowed if most_mappings is None else most_mappings
        self._free, self._refs = list(range(num_rows)), [0] * num_rows
        self._take, self._return = heapq.heappop, heapq.heappush
        if draw is not None:
            draw.shuffle(self._free)
            self._take, self._return = list.pop, list.append
        self._free_slots, self._rows = list(range(num_slots)), dict[int, list[int]]()
        size = num_tensors * num_slots * range_bytes
        self._reserved_bytes = size + page_bytes
        self._reservation = _map(None, self._reserved_bytes, _NO_ACCESS, _RESERVED, -1, 0)
        self._base = -(-self._reservation // page_bytes) * page_bytes
        buffer = (ctypes.c_char * size).from_address(self._base)
        self.memory: Tensor = torch.frombuffer(buffer, dtype=torch.uint8).view(num_tensors, num_slots, range_bytes)

    def unmap(self) -> None:
        """Return everything to the system."""
        _libc.munmap(self._reservation, self._reserved_bytes)
        os.close(self._file)

    @property
    def touched_bytes(self) -> int:
        """Physical memory of the file, as counted by the system."""
        return os.fstat(self._file).st_blocks * 512

    def open(self, num_bytes: int = 0) -> int:
        """Start a sequence, with room for `num_bytes` in each tensor. Returns its slot. O(pages). Raises as `grow`, and
        OutOfPagesError if all slots are open.
        """
        return self._start([], self._pages(num_bytes))

    def grow(self, slot: int, num_bytes: int) -> int:
        """Map pages up to `num_bytes` of each tensor and one ahead, within the range, unless `num_bytes` are mapped already.
        Returns the number of pages added to each tensor. O(pages added).

        Raises:
            InvalidArgumentError: `num_bytes` is outside the range.
            OutOfPagesError: pages or mappings do not suffice.
        """
        num_held, num_pages = len(self._rows[slot]), self._pages(num_bytes)
        if num_pages <= num_held:
            return 0
        num_new = min(num_pages + 1, self.range_bytes // self.page_bytes) - num_held
        self._append(slot, [], num_new)
        return num_new

    def fork(self, slot: int, num_bytes: int) -> int:
        """A sequence that shares whole pages of the first `num_bytes` of each tensor, and copies the rest, less than a page.
        The parent must write above `num_bytes` only. Returns the slot. O(pages).

        Raises:
            InvalidArgumentError: the parent has less than `num_bytes` mapped.
            OutOfPagesError: slots, pages or mappings do not suffice.
        """
        rows = self._rows[slot]
        if not 0 <= num_bytes <= len(rows) * self.page_bytes:
            raise InvalidArgumentError("num_bytes", num_bytes, f"from 0 to {len(rows) * self.page_bytes}, as mapped")
        num_shared, num_copied = divmod(num_bytes, self.page_bytes)
        child = self._start(rows[:num_shared], int(num_copied > 0))
        for tensor in range(self.num_tensors if num_copied else 0):
            to, source = (self._address(tensor, each, num_shared) for each in (child, slot))
            ctypes.memmove(to, source, num_copied)
        return child

    def close(self, slot: int) -> None:
        """End a sequence; rows that no other maps are free. O(pages)."""
        rows = self._rows.pop(slot)
        for tensor in range(self.num_tensors if rows else 0):
            length = len(rows) * self.page_bytes
            _map(self._address(tensor, slot, 0), length, _NO_ACCESS, _RESERVED | _MAP_FIXED, -1, 0)
        for row in rows:
            self._refs[row] -= 1
            if self._refs[row]:
                self.num_shared_rows -= 1
            else:
                self._return(self._free, row)
        self.num_mappings -= len(_runs(rows)) * self.num_tensors
        heapq.heappush(self._free_slots, slot)

    def check(self) -> None:
        """Assert that each row and slot is free or in use, as often as counted. O(rows)."""
        mapped = Counter(row for rows in self._rows.values() for row in rows)
        assert [mapped[row] for row in range(len(self._refs))] == self._refs
        assert sorted([*mapped, *self._free]) == list(range(len(self._refs)))
        assert sorted([*self._rows, *self._free_slots]) == list(range(self.num_slots))
        assert mapped.total() - len(mapped) == self.num_shared_rows
        num_runs = sum(len(_runs(rows)) for rows in self._rows.values())
        assert self.num_mappings == self.num_tensors * (num_runs + self.num_slots)

    def _start(self, shared: list[int], num_new: int) -> int:
        if not self._free_slots:
            raise OutOfPagesError(f"all {self.num_slots} ranges are in use: close a sequence, or raise num_slots")
        slot = self._free_slots[0]
        self._rows[slot] = []
        try:
            self._append(slot, shared, num_new)
        except OutOfPagesError:
            del self._rows[slot]
            raise
        return heapq.heappop(self._free_slots)

    def _append(self, slot: int, shared: list[int], num_new: int) -> None:
        """Map rows of another sequence, then new ones, at the end of a sequence."""
        if num_new > len(self._free):
            raise OutOfPagesError(f"{num_new} rows are needed and {len(self._free)} free: raise num_rows")
        rows, new = self._rows[slot], [self._take(self._free) for _ in range(num_new)]
        runs = _runs([*shared, *new])
        joins = bool(rows and runs and runs[0][0] == rows[-1] + 1)
        wanted = self.num_mappings + (len(runs) - joins) * self.num_tensors
        if wanted > self._most_mappings:
            for row in new:
                self._return(self._free, row)
            bound = f"at most {self._most_mappings} allowed: raise vm.max_map_count or page_bytes"
            raise OutOfPagesError(f"{wanted} mappings are needed and {bound}")
        page, num_pages = self.page_bytes, len(rows)
        for first, count in runs:
            for tensor in range(self.num_tensors):
                to, offset = self._address(tensor, slot, num_pages), (tensor * len(self._refs) + first) * page
                _map(to, count * page, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED, self._file, offset)
            num_pages += count
        for row in (*shared, *new):
            self._refs[row] += 1
            rows.append(row)
        self.num_shared_rows += len(shared)
        self.num_mappings = wanted

    def _pages(self, num_bytes: int) -> int:
        if not 0 <= num_bytes <= self.range_bytes:
            raise InvalidArgumentError("num_bytes", num_bytes, f"from 0 to {self.range_bytes}, the range")
        return -(-num_bytes // self.page_bytes)

    def _address(self, tensor: int, slot: int, page: int) -> int:
        return self._base + (tensor * self.num_slots + slot) * self.range_bytes + page * self.page_bytes


def _map(address: int | None, length: int, access: int, flags: int, file: int, offset: int) -> int:
    mapped: int | None = _libc.mmap(address, length, access, flags, file, offset)
    if mapped is None or mapped == _FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {length} bytes failed: {os.strerror(ctypes.get_errno())}")
    return mapped


def _runs(rows: list[int]) -> list[tuple[int, int]]:
    """First row and length of each run of consecutive rows."""
    starts = [i for i, row in enumerate(rows) if not i or row != rows[i - 1] + 1]
    return [(rows[start], end - start) for start, end in zip(starts, [*starts, len(rows)][1:], strict=True)]
