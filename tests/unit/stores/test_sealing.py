"""A sealed block opens with its keys, name, model and length, and with nothing else."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from radixkv.stores.errors import SealError
from radixkv.stores.secrets.keys import NamespaceKeys, StoreKeys
from radixkv.stores.secrets.sealing import MAX_SESSIONS, SEAL_BYTES, Sealer

NAME = bytes(range(16))
DATA = os.urandom(1000)


@pytest.fixture
def keys(tmp_path: Path) -> StoreKeys:
    return StoreKeys(tmp_path / "key")


def opened(keys: NamespaceKeys, name: bytes, sealed: bytes, size: int = len(DATA), model: bytes = b"model") -> bytes:
    out = bytearray(b"\xff" * size)
    try:
        Sealer(model).open_into(keys, name, sealed, memoryview(out))
    except SealError:
        assert not any(out), "a block that does not open leaves nothing that looks like one"
        raise
    return bytes(out)


def test_a_block_opens_in_another_process_of_the_same_key_file(keys: StoreKeys, tmp_path: Path) -> None:
    sealed = Sealer(b"model").seal(keys.of("alice"), NAME, memoryview(DATA))
    assert len(sealed) == len(DATA) + SEAL_BYTES
    assert DATA[:32] not in sealed
    assert opened(StoreKeys(tmp_path / "key").of("alice"), NAME, sealed) == DATA


def test_no_other_name_model_namespace_length_or_generation_opens_it(keys: StoreKeys) -> None:
    alice = keys.of("alice")
    sealed = Sealer(b"model").seal(alice, NAME, DATA)
    with pytest.raises(SealError):
        opened(alice, bytes(16), sealed)
    with pytest.raises(SealError):
        opened(alice, NAME, sealed, model=b"other")
    with pytest.raises(SealError):
        opened(keys.of("bob"), NAME, sealed)
    with pytest.raises(SealError, match="1040 bytes, and 1039"):
        opened(alice, NAME, sealed, size=999)
    keys.erase("alice")
    with pytest.raises(SealError):
        opened(keys.of("alice"), NAME, sealed)


def test_no_changed_byte_and_no_cut_goes_unnoticed(keys: StoreKeys) -> None:
    alice = keys.of("alice")
    sealed = Sealer(b"model").seal(alice, NAME, DATA)
    for position in [*range(SEAL_BYTES), 500, *range(len(sealed) - 20, len(sealed))]:
        damaged = bytearray(sealed)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(SealError):
            opened(alice, NAME, bytes(damaged))
    for damaged in (b"", sealed[:-1], sealed + b"\0", bytes(len(sealed))):
        with pytest.raises(SealError):
            opened(alice, NAME, damaged)


def test_no_nonce_repeats_within_a_sealer_between_sealers_and_after_a_fork(keys: StoreKeys) -> None:
    alice = keys.of("alice")
    one, other = Sealer(b"model"), Sealer(b"model")
    heads = [sealer.seal(alice, NAME, DATA)[:24] for sealer in (one, other) for _ in range(50)]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, one.seal(alice, NAME, DATA)[:24])
        os._exit(0)
    heads += [os.read(reader, 24), one.seal(alice, NAME, DATA)[:24]]
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    assert len(set(heads)) == 102


def test_threads_seal_and_open_at_once(keys: StoreKeys) -> None:
    sealer = Sealer(b"model")
    alice = [keys.of(f"alice {number}") for number in range(3)]

    def there_and_back(number: int) -> bytes:
        data, name = os.urandom(5000), number.to_bytes(16, "big")
        out = bytearray(len(data))
        sealed = sealer.seal(alice[number % 3], name, data)
        sealer.open_into(alice[number % 3], name, sealed, memoryview(out))
        assert out == data
        return sealed[:24]

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(there_and_back, range(400)))) == 400


def test_session_keys_in_memory_are_bounded(keys: StoreKeys) -> None:
    alice, sealer = keys.of("alice"), Sealer(b"model")
    for _ in range(MAX_SESSIONS + 10):
        with pytest.raises(SealError):
            sealer.open_into(alice, NAME, os.urandom(41), memoryview(bytearray(1)))
    assert len(sealer._sessions) == MAX_SESSIONS
