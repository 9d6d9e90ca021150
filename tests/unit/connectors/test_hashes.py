"""Chains of block hashes as keys of a prefix cache: exact, a block per hash."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import InvalidArgumentError, PrefixCache
from radixkv.connectors.hashes import HashKeys

chains = st.lists(st.integers(0, 2**64 - 1), max_size=4)


@given(chains, chains, st.integers(8, 64))
def test_chains_have_the_same_ids_only_if_they_are_equal(one: list[int], other: list[int], hash_bytes: int) -> None:
    keys = HashKeys(hash_bytes)
    assert (keys.pack(one) == keys.pack(other)) == (one == other)
    assert len(keys.pack(one)) == 4 * keys.num_ids(len(one))


@pytest.mark.parametrize("hash_bytes", [8, 20, 32])
def test_a_chain_is_found_up_to_the_block_at_which_it_parts(hash_bytes: int) -> None:
    keys = HashKeys(hash_bytes)
    cache = PrefixCache(num_blocks=64, block_size=keys.ids_per_hash)
    chain = [sha256(bytes([n])).digest()[:hash_bytes] for n in range(9)]
    seq = cache.acquire(keys.pack(chain), namespace="model")
    assert len(set(seq.block_table)) == len(chain)
    cache.insert(seq.seq_id, num_computed=keys.num_ids(len(chain)))
    cache.release(seq.seq_id)
    begins_alike = chain[5][:-1] + bytes([chain[5][-1] ^ 1])
    for probe, num_found in ((chain, 9), (chain[:4], 4), ([*chain[:5], begins_alike, *chain[6:]], 5), (chain[1:], 0)):
        assert keys.num_hashes(cache.match(keys.pack(probe), namespace="model").num_tokens) == num_found
    assert not cache.match(keys.pack(chain), namespace="another model").num_tokens
    cache.check()


def test_hashes_out_of_bounds_are_rejected() -> None:
    for hash_bytes in (7, 65):
        with pytest.raises(InvalidArgumentError, match="hash_bytes"):
            HashKeys(hash_bytes)
    for bad in (-1, 2**64, b"1234567", b"123456789"):
        with pytest.raises(InvalidArgumentError, match="hashes"):
            HashKeys(8).pack([bad])
