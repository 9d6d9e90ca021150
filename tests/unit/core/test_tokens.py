"""`radixkv.core.tokens`: what can be packed, what is refused, and common prefixes of packed ids."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes, num_tokens, pack_tokens, token_array, unpack_tokens

token_ids = st.integers(0, 2**32 - 1)
few_ids = st.lists(st.integers(0, 2), max_size=200)


@given(st.lists(token_ids))
def test_packing_and_unpacking_give_the_same_ids(ids: list[int]) -> None:
    packed = pack_tokens(ids)
    assert unpack_tokens(packed) == token_array(packed).tolist() == ids
    assert num_tokens(packed) == len(ids)


@given(st.lists(token_ids))
def test_packed_tokens_are_little_endian_uint32(ids: list[int]) -> None:
    assert pack_tokens(ids) == b"".join(token_id.to_bytes(4, "little") for token_id in ids)


def test_packed_bytes_pass_as_they_are() -> None:
    packed = pack_tokens([1, 2, 3])
    assert pack_tokens(packed) is packed
    assert pack_tokens(bytearray(packed)) == packed
    assert pack_tokens(memoryview(packed)) == packed


@pytest.mark.parametrize("make", [tuple, iter, lambda ids: array("I", ids), lambda ids: (i for i in ids)])
def test_any_iterable_of_ints_is_packed(make: Any) -> None:
    assert pack_tokens(make([1, 2**32 - 1])) == pack_tokens([1, 2**32 - 1])


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "uint64", ">i8"])
def test_integer_arrays_are_packed(dtype: str) -> None:
    numpy = pytest.importorskip("numpy")
    assert pack_tokens(numpy.array([1, 127], dtype)) == pack_tokens([1, 127])
    assert pack_tokens(numpy.array([], dtype)) == b""
    assert pack_tokens(numpy.arange(10, dtype=dtype)[::3]) == pack_tokens([0, 3, 6, 9])


@pytest.mark.parametrize("typecode", "bBhHiIlLqQ")
def test_arrays_of_any_integers_are_packed(typecode: str) -> None:
    assert pack_tokens(array(typecode, [1, 127])) == pack_tokens([1, 127])
    if typecode.islower():
        with pytest.raises(InvalidArgumentError, match="is -1"):
            pack_tokens(array(typecode, [1, -1]))


def test_torch_tensors_are_packed() -> None:
    torch = pytest.importorskip("torch")
    assert pack_tokens(torch.tensor([1, 2, 3])) == pack_tokens([1, 2, 3])
    with pytest.raises(InvalidArgumentError, match=r"a 2-d array of torch\.int64'; it must be a 1-d integer array"):
        pack_tokens(torch.tensor([[1, 2, 3]]))
    with pytest.raises(InvalidArgumentError, match="a 0-d array"):
        pack_tokens(torch.tensor(1))


@pytest.mark.parametrize("ids", [[-1], [2**32], [1, 2**32], [1.5], ["a"], [None], [[1, 2]], 7, None])
def test_what_is_no_token_id_is_refused_by_name(ids: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        pack_tokens(ids)
    assert caught.value.argument == "tokens"
    assert "2**32" in str(caught.value)


def test_the_first_bad_id_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="tokens is -5"):
        pack_tokens([1, 2, -5, -6])


@pytest.mark.parametrize("ids", [[-1], [2**32], [[1, 2], [3, 4]], [1.5], [True, False]])
def test_arrays_of_other_values_ranks_or_kinds_are_refused(ids: Any) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(InvalidArgumentError):
        pack_tokens(numpy.array(ids))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 4095])
def test_bytes_that_are_no_whole_number_of_tokens_are_refused(length: int) -> None:
    for packed in (bytes(length), bytearray(length), memoryview(bytes(length))):
        with pytest.raises(InvalidArgumentError, match=f"{length} bytes"):
            pack_tokens(packed)


@given(few_ids, few_ids, st.integers(0, 50), st.integers(0, 200))
def test_common_prefix_is_that_of_the_id_lists(left: list[int], right: list[int], start: int, end: int) -> None:
    start, end = min(start, len(left)), min(end, len(right))
    expected = 0
    for one, other in zip(left[start:], right[:end], strict=False):
        if one != other:
            break
        expected += 1
    found = common_prefix_bytes(pack_tokens(left), start * TOKEN_BYTES, pack_tokens(right), end * TOKEN_BYTES)
    assert found == expected * TOKEN_BYTES


@given(few_ids, st.integers(0, 199), st.integers(1, 2**32 - 1))
def test_common_prefix_ends_at_the_one_id_that_differs(ids: list[int], position: int, flip: int) -> None:
    other = list(ids)
    if position < len(ids):
        other[position] ^= flip
    packed = pack_tokens(other)
    found = common_prefix_bytes(pack_tokens(ids), 0, bytearray(packed), len(packed))
    assert found == min(position, len(ids)) * TOKEN_BYTES


@pytest.mark.parametrize("byte", [0, 1, 2, 3])
def test_ids_that_differ_in_any_one_byte_share_nothing(byte: int) -> None:
    left, right = pack_tokens([7, 0x01010101]), pack_tokens([7, 0x01010101 ^ (0x80 << 8 * byte)])
    assert common_prefix_bytes(left, 0, right, 8) == 4
