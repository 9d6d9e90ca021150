"""Launch configurations: a table to read and to edit, instead of autotuning at run time.

`python -m bench.gpu.compile_gate` compiles each of them for every target and prints registers, memory and matrix instructions.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.kv.kv_format import int4_group, latent_parts
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, next_power_of_2

__all__ = [
    "MAX_HEAD_DIM",
    "MAX_LATENT_DIM",
    "TARGETS",
    "Forms",
    "Grids",
    "KeyColumns",
    "LayerShape",
    "Processor",
    "TileConfig",
    "has_fp8",
    "holds_latents",
    "key_columns",
    "launch_target",
    "merge_constants",
    "num_processors",
]

MAX_HEAD_DIM = 256
"""Widest head of the Triton kernels: one head's tile of queries stays in registers."""

MAX_LATENT_DIM = 576
"""Widest latent: 512 columns that are also values, and 64 more."""

_COLUMNS = {"sm_80": 0, "sm_120": 0, "sm_90": 1, "sm_100": 2, "gfx942": 3, "gfx1201": 4}
TARGETS = tuple(_COLUMNS)
"""Targets of the table; another chip takes the nearest of its kind."""

_HEAD_CLASSES = (64, 128, 256, 576)

_FIRST_PROGRAMS_PER_PROCESSOR = 2
"""Of a kernel's first launch, after which the number that runs at once is known."""

_INTERPRETED_PROGRAMS = 3

_REGISTERS = 65536
"""Of a streaming multiprocessor, of every target."""

_NARROW_ROWS, _ONE_BUFFER = 16, (4, 2)
"""Rows, and warps and stages, of the narrow tiles whose registers are bounded."""

_MERGED_ELEMENTS, _MOST_MERGED = 8192, 8
"""Of the parts that a program reads at once, and parts; on an H200 16 took longer."""

_REGISTER_UNIT = 256
"""A warp's registers are allocated in multiples of it."""

_RESERVED_SHARED_BYTES = 1024
"""Shared memory that a program takes in addition to its own."""


class TileConfig(NamedTuple):
    """`block_m` query rows x `block_n` keys per step."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def heads(self, group: int) -> int:
        """Query heads of a chunk: all `group` heads of a kv head if its rows hold them, otherwise equal chunks."""
        num_chunks = -(-group // self.block_m)
        return -(-group // num_chunks)

    def options(self, target: str) -> dict[str, int | bool]:
        """Compiler options of a launch. A narrow tile's registers are bounded if it has one buffer: four programs then share a
        processor.
        """
        is_bounded = target == "sm_90" and self[0] == _NARROW_ROWS and self[2:] == _ONE_BUFFER
        bound: dict[str, int | bool] = {"maxnreg": _REGISTERS // (4 * 32 * self.num_warps)} if is_bounded else {}
        return {**PLAIN_OPTIONS, "num_warps": self.num_warps, "num_stages": self.num_stages, **bound}


class Forms(NamedTuple):
    """Tiles of the item kernel's two forms: items of at most `narrow.block_m` rows take the narrow one, others the wide one."""

    narrow: TileConfig
    wide: TileConfig


_TABLE = """
#                 sm_80, sm_120         sm_90                 sm_100                gfx942                gfx1201
# cache   q  head  narrow     wide       narrow     wide       narrow     wide       narrow     wide       narrow     wide
  plain   2    64  16/32/4/5  64/32/4/5  16/64/4/5  128/64/8/5 16/64/4/5  64/64/4/5  16/64/4/2  64/64/4/2  16/32/4/2  64/32/4/2
  plain   2   128  16/32/4/5  64/32/8/5  16/64/4/2  128/64/8/5 16/64/4/5  64/64/4/5  16/64/4/2  64/64/4/2  16/32/4/2  64/32/8/2
  plain   2   256  16/16/4/5  64/16/8/5  16/32/4/5  128/64/8/2 16/16/4/5  64/32/8/5  16/32/4/2  64/32/8/1  16/16/8/2  64/16/8/1
  plain   2   576  16/16/8/5  32/16/8/5  16/32/8/5  64/64/8/2  16/32/8/5  32/32/8/5  16/16/8/1  64/16/8/1  16/16/16/1 32/16/16/1
  scaled  2    64  16/64/4/5  64/32/4/5  16/64/4/5  64/64/4/5  16/32/4/5  64/64/4/5  16/64/4/2  64/64/4/2  16/32/4/2  64/32/8/2
  scaled  2   128  16/32/4/5  64/32/8/5  16/64/4/2  128/64/8/5 16/32/4/5  64/32/4/5  16/32/4/2  64/64/4/2  16/16/4/2  64/16/8/1
  scaled  2   256  16/32/4/5  64/32/8/5  16/32/4/5  64/32/8/5  16/32/4/5  64/32/8/5  16/32/4/2  64/16/8/1  16/16/8/2  32/16/8/1
  scaled  2   576  16/16/8/5  32/16/8/5  16/16/8/5  64/16/8/5  16/16/8/5  16/16/8/5  16/16/4/1  16/16/4/1  -          -
  int4    2   128  16/32/8/5  64/32/8/5  16/64/4/2  128/64/8/5 16/32/4/5  64/32/4/5  16/32/4/2  64/64/4/2  16/16/4/2  64/16/8/1
  int4    2   576  16/16/8/5  32/16/8/5  16/16/8/5  64/16/8/2  16/16/8/5  16/16/8/5  16/16/4/1  16/16/4/1  -          -
  plain   4    64  16/32/4/2  32/32/8/2  16/32/8/2  32/32/8/2  16/32/4/2  32/32/8/2  16/32/4/2  32/32/8/1  16/16/8/1  32/16/8/1
  plain   4   128  16/32/8/2  16/16/4/1  16/32/8/2  32/16/8/1  16/32/8/2  32/16/8/1  16/32/8/1  32/16/8/1  16/16/8/1  16/16/8/1
  plain   4   256  16/32/8/2  32/16/8/1  16/32/8/2  32/16/8/1  16/32/8/2  32/16/8/1  16/16/8/1  32/16/8/1  -          -
  plain   4   576  16/16/8/1  16/16/8/1  16/16/8/2  16/16/8/2  16/16/8/2  16/16/8/2  16/16/4/1  16/16/4/1  -          -
"""
"""Tiles, rows/keys/warps/stages, in both forms. `q`: bytes of a query's element. `head`: the widest head of the row. `scaled`:
int8, fp8, and int4 without a row of its own; with fp32 queries all take the plain row. -: every tile spills on that target.

The block table makes a key's load depend on another load. Triton then gives each of the two half of the stages less 2: with 5,
K and V have two buffers or more, and a tile is loaded while another is computed; with 3 and 4 they have one, and it is not.
Where registers allow four programs or more per processor, one buffer is as good: on an H200, `bench.gpu.attention --only
cases,tiles` measured the column of sm_90.
sm_120, like the smaller chips of sm_80's kind, has 99 KiB of shared memory per program.
"""


@cache
def _forms(target: str) -> dict[tuple[str, int, int], Forms]:
    """The target's column of the table; O(table), once."""
    column = 3 + 2 * _COLUMNS[target]
    forms = {}
    for line in _TABLE.splitlines():
        cells = line.split()
        if cells and cells[0] != "#" and cells[column] != "-":
            narrow, wide = (TileConfig(*map(int, cell.split("/"))) for cell in cells[column : column + 2])
            forms[cells[0], int(cells[1]), int(cells[2])] = Forms(narrow, wide)
    return forms


class KeyColumns(NamedTuple):
    """A key's columns in two dots: `first` and `rest` are powers of two, and `rest` may be 0."""

    first: int
    rest: int


def key_columns(head_dim: int) -> KeyColumns:
    """Split of a key's columns: 128 is 128 + 0, 80 is 64 + 16, 576 is 512 + 64; a dot has 16 or more."""
    first = max(16, 1 << (head_dim.bit_length() - 1))
    return KeyColumns(first, 0 if head_dim <= first else max(16, next_power_of_2(head_dim - first)))


def holds_latents(rank: int, rest: int) -> bool:
    """Whether the kernels read latents of `rank` columns that are also values, and `rest` more."""
    return rank + rest <= MAX_LATENT_DIM and key_columns(rank + rest).first == rank


def merge_constants(heads: int, v_head_dim: int) -> dict[str, int]:
    """Constants of `merge_heads` for so many heads: columns, and parts that a program reads at once."""
    columns = next_power_of_2(heads * v_head_dim)
    return {"BLOCK": columns, "PARTS": max(1, min(_MOST_MERGED, _MERGED_ELEMENTS // columns))}


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Parameters that the item kernel is compiled for, apart from the target and the variants of `spec`.

    `group`: query heads per kv head. `element_size`: bytes of q's elements. `cache_format`: "plain", "int8", "fp8" or "int4";
    "int8x4" or "fp8x4" where codes become numbers four at a time, for bf16 queries on sm_90.
    """

    group: int
    head_dim: int
    v_head_dim: int
    block_size: int
    element_size: int
    cache_format: str
    is_latent: bool

    @property
    def key_parts(self) -> tuple[int, ...]:
        """As `KVCache.key_parts`."""
        return latent_parts(self.head_dim, self.v_head_dim) if self.is_latent else (self.head_dim,)

    @property
    def row(self) -> tuple[str, int, int]:
        """Key of its row in the table, which may be missing."""
        widest = max(self.head_dim, self.v_head_dim)
        row = self.element_size, next((width for width in _HEAD_CLASSES if widest <= width), widest)
        if self.cache_format == "plain" or self.element_size == 4:
            return "plain", *row
        return ("int4" if self.cache_format == "int4" and ("int4", *row) in _forms(TARGETS[0]) else "scaled"), *row

    def forms(self, target: str) -> Forms:
        """The table's tiles for this shape.

        Raises:
            InvalidArgumentError: there are none: the shape is too wide, or every tile spills on this target.
        """
        forms = _forms(target).get(self.row)
        if forms is None:
            what = f"{self.cache_format} caches with queries of {8 * self.element_size} bits on {target}"
            raise InvalidArgumentError("head_dim", max(self.head_dim, self.v_head_dim), f"narrower, for {what}")
        return forms

    def constants(self, config: TileConfig) -> dict[str, int | str | bool]:
        """The kernel's constants in a form with this tile."""
        columns = key_columns(self.head_dim)
        return {
            "GROUP": self.group,
            "HEADS": config.heads(self.group),
            "D": self.head_dim,
            "DV": self.v_head_dim,
            "BLOCK_SIZE": self.block_size,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_D": columns.first,
            "REST": columns.rest,
            "BLOCK_DV": max(16, next_power_of_2(self.v_head_dim)),
            "FORMAT": self.cache_format,
            "K_GROUP": int4_group(self.key_parts[-1]),
            "V_GROUP": int4_group(self.v_head_dim),
            "LATENT": self.is_latent,
            **{f"MERGE_{name}": value for name, value in merge_constants(self.group, self.v_head_dim).items()},
        }


@cache
def launch_target(device: torch.device) -> str:
    """The table's column for a device; on a CPU, for the interpreter, that of sm_90.

    Raises:
        InvalidArgumentError: a GPU older than the kernels' targets.
    """
    if device.type == "cpu":
        return "sm_90"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return "gfx942" if properties.gcnArchName.startswith("gfx9") else "gfx1201"
    if properties.major < 8:
        raise InvalidArgumentError("device", properties.name, "a GPU of compute capability 8.0 or newer")
    return {8: "sm_80", 9: "sm_90", 10: "sm_100", 11: "sm_100"}.get(properties.major, "sm_120")


@cache
def has_fp8(device: torch.device) -> bool:
    """Whether Triton converts fp8 on the device; otherwise kernels decode its bytes."""
    if device.type == "cpu" or torch.version.hip is not None:
        return launch_target(device) != "sm_80"
    return torch.cuda.get_device_capability(device) >= (8, 9)


@cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; programs of a launch on a CPU, for the interpreter."""
    return (
        _INTERPRETED_PROGRAMS
        if device.type == "cpu"
        else torch.cuda.get_device_properties(device).multi_processor_count
    )


class Processor(NamedTuple):
    """Resources of one streaming multiprocessor."""

    registers: int
    shared_bytes: int
    threads: int

    def programs(self, registers: int, shared_bytes: int, num_warps: int) -> int:
        """Programs that run at once, at least 1, with so many registers per thread and bytes of shared memory per program."""
        per_warp = -(-max(registers, 1) * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        bounds = (
            self.registers // (per_warp * num_warps),
            self.shared_bytes // (shared_bytes + _RESERVED_SHARED_BYTES),
            self.threads // (32 * num_warps),
        )
        return max(1, min(bounds))


class Grids:
    """Grids of a kernel that walks a list: as many programs as run at once, so that each takes its share in the first round.

    Their number follows from the registers and memory of each compiled form, which its first launch returns.
    """

    def __init__(self) -> None:
        self._programs: dict[Hashable, int] = {}

    def size(self, form: Hashable, num_units: int, device: torch.device, *, rounds: int = 1, most: int = 32) -> int:
        """Programs for a list of up to `num_units`, in so many rounds of up to `most` per processor."""
        per_processor = 1 if device.type == "cpu" else self._programs.get((form, device), _FIRST_PROGRAMS_PER_PROCESSOR)
        return max(1, min(num_units, num_processors(device) * min(per_processor, most) * rounds))

    def learn(self, form: Hashable, compiled: Any, num_warps: int, device: torch.device) -> None:
        """Note what a launch of this form returned; the interpreter returns nothing."""
        if (form, device) not in self._programs and device.type == "cuda" and torch.version.hip is None:
            found = torch.cuda.get_device_properties(device)
            processor = Processor(
                _REGISTERS,
                found.shared_memory_per_multiprocessor,
                found.max_threads_per_multi_processor,
            )
            self._programs[form, device] = processor.programs(compiled.n_regs, compiled.metadata.shared, num_warps)
