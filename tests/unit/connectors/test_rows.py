"""Host rows: blocks come back byte for byte in every cache layout, and a row that is not the expected one is not loaded."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="host rows are torch tensors")

from radixkv.connectors.rows import NO_STAMP, BlockMove, HostRows  # noqa: E402

BLOCKS = 6
LAYOUTS = {
    "k and v apart": lambda: torch.randn(2, BLOCKS, 4, 2, 8),
    "heads first": lambda: torch.randn(BLOCKS, 4, 2, 16).transpose(1, 2),
    "layers inside blocks": lambda: torch.randn(BLOCKS, 3, 2, 4, 16)[:, 1],
    "two kernel blocks in one": lambda: torch.randn(2 * BLOCKS, 2, 2, 16),
    "latents": lambda: torch.randn(BLOCKS, 1, 4, 24, dtype=torch.bfloat16),
    "fp8": lambda: torch.randn(BLOCKS, 2, 4, 16).to(torch.float8_e4m3fn),
}


def moves(rows: list[int], blocks: list[int], first_stamp: int) -> list[BlockMove]:
    return [BlockMove(*move) for move in zip(rows, blocks, range(first_stamp, first_stamp + len(rows)), strict=True)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_come_back_byte_for_byte(layout: str) -> None:
    cache = LAYOUTS[layout]()
    rows = HostRows({"layer": cache}, BLOCKS, 8)
    before = cache.clone().to(torch.float32)
    assert rows.save(moves([7, 2, 3], [1, 4, 5], 10))
    cache.copy_(torch.zeros_like(cache))
    assert rows.load([BlockMove(2, 1, 11), BlockMove(7, 0, 10), BlockMove(3, 5, 12)]) == set()
    axis = 1 if cache.ndim == 5 else 0
    per_block = cache.shape[axis] // BLOCKS
    after = cache.to(torch.float32).movedim(axis, 0).reshape(BLOCKS, per_block, -1)
    before = before.movedim(axis, 0).reshape(BLOCKS, per_block, -1)
    for target, source in ((1, 4), (0, 1), (5, 5)):
        assert torch.equal(after[target], before[source])
    assert not after[[2, 3, 4]].any()


def test_a_row_with_another_stamp_is_not_loaded() -> None:
    cache = torch.arange(6.0).repeat_interleave(4).view(BLOCKS, 1, 1, 4)
    rows = HostRows({"layer": cache}, BLOCKS, 4)
    assert rows.save(moves([0, 1], [1, 2], 5))
    assert rows.save(moves([1], [3], 9))
    failed = rows.load([BlockMove(0, 0, 5), BlockMove(1, 4, 6), BlockMove(2, 5, 7), BlockMove(3, 2, NO_STAMP)])
    assert failed == {4, 5, 2}
    assert cache[:, 0, 0, 0].tolist() == [1, 1, 2, 3, 4, 5]


def test_layers_that_share_a_cache_are_kept_once() -> None:
    cache = torch.zeros(BLOCKS, 1, 4, 8)
    assert HostRows({"a": cache, "b": cache}, BLOCKS, 2).size_bytes == 2 * 4 * 8 * 4


def test_a_cache_without_a_block_axis_is_rejected_by_name() -> None:
    with pytest.raises(ValueError, match=r"kv_caches\['layer'\]"):
        HostRows({"layer": torch.zeros(7, 4)}, BLOCKS, 2)
