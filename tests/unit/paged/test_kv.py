"""The pool of `radixkv.paged`: what was stored comes back, for layers of any shape, and what does not fit is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, REFUSED_CONFIGS, random_model
from transformers import DynamicCache

from radixkv import Copy, InvalidArgumentError, PrefixCache
from radixkv.paged import PagedKV

BLOCK_SIZE = 4
SHAPES = {"llama": ((2, 8), (2, 8)), "deepseek_v2": ((1, 16), (1, 8)), "gpt2": ((4, 8), (4, 8))}
"""Heads and width of K, and of V."""


def pool_of(family: str) -> PagedKV:
    return PagedKV(random_model(CONFIGS[family]()), num_blocks=6, block_size=BLOCK_SIZE)


def numbers(family: str, num_tokens: int, num_rows: int = 1) -> DynamicCache:
    past = DynamicCache()
    for layer in range(2):
        past.update(*(torch.rand(num_rows, heads, num_tokens, width) for heads, width in SHAPES[family]), layer)
    return past


def states(past: DynamicCache) -> list[torch.Tensor]:
    return [tensor for layer in past.layers for tensor in (layer.keys, layer.values)]


@pytest.mark.parametrize("family", SHAPES)
def test_tokens_come_back_as_they_were_stored(family: str) -> None:
    kv, past, table = pool_of(family), numbers(family, 11, num_rows=2), [5, 0, 3]
    kv.scatter(past, table, 0, 6, row=1)
    kv.scatter(past, table, 6, 11, row=1)
    for num_tokens in (1, 4, 11):
        for found, given in zip(states(kv.gather(table, num_tokens)), states(past), strict=True):
            assert torch.equal(found[0], given[1, :, :num_tokens])
    assert kv.gather(table, 0).get_seq_length() == 0
    assert kv.size_bytes == 6 * BLOCK_SIZE * 4 * 2 * sum(heads * width for heads, width in SHAPES[family])


def test_only_the_range_is_written() -> None:
    kv, first, second = pool_of("llama"), numbers("llama", 8), numbers("llama", 8)
    kv.scatter(first, [1, 2], 0, 8)
    kv.scatter(second, [1, 2], 3, 5)
    for found, old, new in zip(*map(states, (kv.gather([1, 2], 8), first, second)), strict=True):
        assert torch.equal(found, torch.cat([old[:, :, :3], new[:, :, 3:5], old[:, :, 5:]], dim=2))


def test_block_ops_are_carried_out_in_order() -> None:
    kv, past = pool_of("deepseek_v2"), numbers("deepseek_v2", 4)
    kv.scatter(past, [0], 0, 4)
    kv.carry_out([Copy(0, 1, 3), Copy(1, 2, 2)])
    for found, given in zip(states(kv.gather([2], 2)), states(past), strict=True):
        assert torch.equal(found, given[:, :, :2])
    with pytest.raises(InvalidArgumentError, match="below 6"):
        kv.carry_out([Copy(0, 6, 1)])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda past: past.layers.pop(), r"len\(past_key_values.layers\) is 1; it must be 2"),
        (
            lambda past: setattr(past.layers[1], "values", torch.rand(1, 2, 8, 9)),
            r"layers\[1\].values.shape is \(1, 2, 8, 9\); it must be \(any, 2, any, 8\)",
        ),
        (
            lambda past: setattr(past.layers[1], "keys", past.layers[1].keys.half()),
            r"layers\[1\].keys.dtype is torch.float16",
        ),
        (lambda past: setattr(past.layers[0], "keys", None), r"layers\[0\].keys is None"),
        (lambda past: past.crop(-1), r"layers\[0\] is 'positions 0 to 7'; it must be positions 2 to 8"),
    ],
)
def test_a_cache_that_does_not_fit_is_named_and_nothing_is_stored(change: Any, error: str) -> None:
    kv, past = pool_of("llama"), numbers("llama", 8)
    change(past)
    with pytest.raises(InvalidArgumentError, match=error):
        kv.scatter(past, [0, 1], 2, 8)
    assert not any(state.any() for state in states(kv.gather([0, 1], 8)))


def test_a_window_that_has_dropped_the_positions_is_named() -> None:
    model = random_model(CONFIGS["gemma3"]())
    kv, past = PagedKV(model, 6, BLOCK_SIZE), DynamicCache(config=model.config)
    for layer in range(2):
        past.update(torch.rand(1, 2, 20, 8), torch.rand(1, 2, 20, 8), layer)
    kv.scatter(past, [0, 1, 2, 3, 4], 13, 20)
    with pytest.raises(
        InvalidArgumentError, match=r"layers\[0\] is 'positions 13 to 20'; it must be positions 12 to 20"
    ):
        kv.scatter(past, [0, 1, 2, 3, 4], 12, 20)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda kv, _: kv.gather([0, 1], 9), "num_tokens"),
        (lambda kv, _: kv.gather([0, 6], 8), "block_table"),
        (lambda kv, _: kv.gather([-1], 1), "block_table"),
        (lambda kv, past: kv.scatter(past, [0], 0, 5), "end"),
        (lambda kv, past: kv.scatter(past, [0], 3, 2), "start"),
        (lambda kv, past: kv.scatter(past, [0], 0, 4, row=1), "row"),
        (lambda kv, _: kv.scatter((), [0], 0, 4), "len(past_key_values.layers)"),
        (lambda *_: PagedKV(None, 0), "num_blocks"),
    ],
)
def test_an_argument_out_of_bounds_is_named(call: Any, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        call(pool_of("llama"), numbers("llama", 8))
    assert raised.value.argument == argument


@pytest.mark.parametrize(("family", "found"), [("mamba", "layer 0 has a LinearAttentionLayer"), ("t5", "T5For")])
def test_a_model_with_another_state_is_refused(family: str, found: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{found}.*keep K and V per token"):
        PagedKV(random_model(REFUSED_CONFIGS[family]()), 6)


def test_a_pool_of_another_size_or_model_is_named() -> None:
    kv = pool_of("llama")
    with pytest.raises(InvalidArgumentError, match=r"kv\.block_size is 4; it must be 16, as in the prefix cache"):
        kv.check(None, PrefixCache(6))
    with pytest.raises(InvalidArgumentError, match=r"kv\.num_blocks is 6; it must be 7"):
        kv.check(None, PrefixCache(7, BLOCK_SIZE))
    kv.check(random_model(CONFIGS["qwen3"]()), PrefixCache(6, BLOCK_SIZE))  # of the same shapes
    with pytest.raises(
        InvalidArgumentError, match=r"model's layer 0 is '4 KV heads.*it must be 2 KV heads, K of width 8"
    ):
        kv.check(random_model(CONFIGS["gpt2"]()), PrefixCache(6, BLOCK_SIZE))
