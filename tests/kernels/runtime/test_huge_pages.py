"""Memory in huge pages: tensors lie one behind the other, do not overlap, and keep it alive."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.runtime.huge_pages import HugePages

SHAPES = [((3, 5), torch.float32), ((64,), torch.uint8), ((2, 2, 2), torch.int64), ((1,), torch.bfloat16)]


def test_tensors_are_zero_aligned_and_apart() -> None:
    pages = HugePages(sum(HugePages.aligned(torch.empty(shape, dtype=dtype).nbytes) for shape, dtype in SHAPES))
    tensors = [pages.take(shape, dtype) for shape, dtype in SHAPES]
    for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, SHAPES, strict=True), start=1):
        assert (tuple(tensor.shape), tensor.dtype, tensor.data_ptr() % 64) == (shape, dtype, 0)
        assert not tensor.any()
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors, start=1))


def test_a_tensor_outlives_its_pages() -> None:
    tensor = HugePages(1 << 21).take((1 << 20,), torch.uint8)
    gc.collect()
    tensor += 7
    assert (tensor == 7).all()


def test_the_memory_is_of_the_kind_that_has_huge_pages_by_default() -> None:
    tensor = HugePages(1 << 21).take((1 << 20,), torch.uint8)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access = line.split()[:2]
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= tensor.data_ptr() < end:
            assert access == "rw-p"  # private
            return
    pytest.fail("mapped nowhere")


def test_what_does_not_fit_is_refused() -> None:
    pages = HugePages(128)
    pages.take((65,), torch.uint8)
    with pytest.raises(InvalidArgumentError, match=r"^shape is \(1,\); it must be of at most 0 bytes, which are left"):
        pages.take((1,), torch.uint8)


def test_memory_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(MemoryError, match=r"^[\d,]+ MB cannot be had$"):
        HugePages(1 << 60)
