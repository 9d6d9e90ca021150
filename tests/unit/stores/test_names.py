"""Names stand for the whole history, the model and the namespace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixkv import InvalidArgumentError, pack_tokens
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.secrets.names import NAME_BYTES, names_of, root_name

BLOCK_BYTES = 16


@pytest.fixture
def keys(tmp_path: Path) -> StoreKeys:
    return StoreKeys(tmp_path / "key")


def test_only_whole_blocks_are_named_and_each_name_continues_the_last(keys: StoreKeys) -> None:
    alice = keys.of("alice")
    root = root_name(alice, b"model")
    tokens = pack_tokens(range(11))
    names = names_of(alice, root, tokens, BLOCK_BYTES)
    assert len(names) == 2
    assert {len(name) for name in [root, *names]} == {NAME_BYTES}
    assert names == names_of(alice, root, tokens[:16], BLOCK_BYTES) + names_of(
        alice, names[0], tokens[16:], BLOCK_BYTES
    )
    assert names == names_of(alice, root, memoryview(tokens), BLOCK_BYTES)
    assert names_of(alice, root, tokens[:15], BLOCK_BYTES) == []


def test_equal_tokens_have_equal_names_only_after_equal_histories_of_one_model_and_namespace(
    keys: StoreKeys, tmp_path: Path
) -> None:
    tokens = os.urandom(BLOCK_BYTES)
    other_file = StoreKeys(tmp_path / "other").of("alice")
    alice, bob = keys.of("alice"), keys.of("bob")
    roots = [
        (alice, root_name(alice, b"model")),
        (alice, root_name(alice, b"other model")),
        (alice, os.urandom(NAME_BYTES)),
    ]
    roots += [(each, root_name(each, b"model")) for each in (bob, other_file)]
    assert len({name for each, root in roots for name in names_of(each, root, tokens, BLOCK_BYTES)}) == len(roots)


def test_a_guessed_prompt_is_not_confirmed_once_the_namespace_is_erased(keys: StoreKeys) -> None:
    tokens = os.urandom(3 * BLOCK_BYTES)
    before = keys.of("alice")
    stored = {*names_of(before, root_name(before, b"model"), tokens, BLOCK_BYTES), before.id}
    keys.erase("alice")
    after = keys.of("alice")
    assert stored.isdisjoint({*names_of(after, root_name(after, b"model"), tokens, BLOCK_BYTES), after.id})


@pytest.mark.parametrize("block_bytes", [0, 3, 6, -4])
def test_a_block_of_no_whole_tokens_is_rejected(keys: StoreKeys, block_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match="block_bytes"):
        names_of(keys.of("alice"), bytes(NAME_BYTES), b"", block_bytes)


def test_a_parent_of_another_length_is_rejected(keys: StoreKeys) -> None:
    with pytest.raises(InvalidArgumentError, match="parent is '15 bytes'"):
        names_of(keys.of("alice"), bytes(15), bytes(16), BLOCK_BYTES)
