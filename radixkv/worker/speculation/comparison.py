"""Whether a draft changes any bit: a row of several tokens against the same tokens one by one."""

from __future__ import annotations

from array import array

import torch

from radixkv.worker.model.rows import ForwardRow
from radixkv.worker.model.runner import Runner

__all__ = ["rows_agree"]

_STRIDE = 7919
"""A prime, so that the tokens differ."""


def rows_agree(runner: Runner, num_tokens: int) -> bool:
    """Whether a row of `num_tokens` has the logits that they have one by one, to the bit, in a pool that is not in use yet.

    The row follows as many tokens, and another row runs next to it. Writes the pool's first blocks; False if it has too few.
    """
    size = runner.pool.block_size
    num_blocks = -(-2 * num_tokens // size)
    if 2 * num_blocks + 1 > runner.pool.num_blocks:
        return False
    alone, together = (array("i", range(first, first + num_blocks)) for first in (1, 1 + num_blocks))
    ids = [at * _STRIDE % runner.vocab_size for at in range(2 * num_tokens)]
    expected = [runner.forward([ForwardRow([id_], at, alone, 0, 1)]).clone() for at, id_ in enumerate(ids)]
    for at, id_ in enumerate(ids[:num_tokens]):
        runner.forward([ForwardRow([id_], at, together, 0, 0)])
    other = ForwardRow(ids[:1], 0, array("i", [0]), 0, 1)
    found = runner.forward([other, ForwardRow(ids[num_tokens:], num_tokens, together, 0, num_tokens)])
    return torch.equal(found[1:], torch.cat(expected[num_tokens:]))
