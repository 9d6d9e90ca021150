"""Model files of a few bytes that promise terabytes are refused before anything is set aside for them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

MEMORY_BYTES = 2 << 30
GROWTH_BYTES = 64 << 20
CPU_S = 3.0
CHILD_S = 300.0
HUGE = 10**12

U8, U32, STRING, ARRAY, U64 = 0, 4, 8, 9, 10


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words)) + words.encode()


def head(num_tensors: int = 0, num_facts: int = 1, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_facts)


def array(kind: int, length: int) -> bytes:
    return text("a") + struct.pack("<IIQ", ARRAY, kind, length)


def tensor(*sizes: int, num_sizes: int | None = None) -> bytes:
    dims = struct.pack(f"<{len(sizes)}Q", *sizes)
    return (
        text("w") + struct.pack("<I", len(sizes) if num_sizes is None else num_sizes) + dims + struct.pack("<IQ", 0, 0)
    )


FILES = {
    "an array of bytes": head() + array(U8, HUGE),
    "an array of numbers": head() + array(U32, HUGE),
    "an array whose size overflows": head() + array(U64, 2**63),
    "an array of texts": head() + array(STRING, HUGE),
    "an array of arrays": head() + array(ARRAY, HUGE) + struct.pack("<IQ", U8, HUGE) * 2,
    "a long text": head() + text("a") + struct.pack("<IQ", STRING, HUGE),
    "a long key": head() + struct.pack("<Q", HUGE),
    "many facts": head(num_facts=HUGE),
    "many facts of no length": head(num_facts=2**63) + (text("") + struct.pack("<IB", U8, 0)) * 4,
    "many tensors": head(num_tensors=HUGE, num_facts=0),
    "a tensor of many sizes": head(1, 0) + tensor(num_sizes=2**31),
    "a large tensor": head(1, 0) + tensor(HUGE),
    "a tensor whose size overflows": head(1, 0) + tensor(2**32, 2**32, 16),
    "the other byte order": b"GGUF" + struct.pack(">IQQ", 3, HUGE, HUGE) + b"\xff" * 16,
}

CHILD = """
import json, resource, sys, time
from pathlib import Path
import gguf, numpy
from radixkv.worker.errors import ModelError
from radixkv.worker.loading.gguf_file import GGUFFile
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
before, started_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    GGUFFile(Path(sys.argv[1]))
    said = ""
except ModelError as error:
    said = str(error)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([said, 1024 * (after - before), time.process_time() - started_s]))
"""


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_promises_more_than_it_holds_is_refused_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(FILES[name])
    command = [sys.executable, "-c", CHILD, str(path), str(MEMORY_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S, check=True)
    said, growth_bytes, cpu_s = json.loads(done.stdout)
    assert str(path) in said
    assert growth_bytes < GROWTH_BYTES
    assert cpu_s < CPU_S
