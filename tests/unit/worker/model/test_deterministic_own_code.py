"""Deterministic mode of models that run by their own code: logits are the same to the bit, as by the native decoder."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from random_cuts import check_random_cuts
from tiny_adapters import linear_paths, save_adapter
from tiny_models import CONFIGS, VOCAB_SIZE, reference_logits, reference_model, save_model, save_wide
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaMLP

from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.errors import ModelError
from radixkv.worker.model.batch_invariant import BatchInvariantModel
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.model.rows import ForwardRow, cut_into_tiles

pytestmark = pytest.mark.thorough

LENGTH = 48
DTYPES = ("float32", "bfloat16")
EXPERTS = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v2", "axk1")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where there is none."""
    monkeypatch.setenv("RADIXKV_CPU_KERNELS", "torch")
    native_library.cache_clear()
    yield
    monkeypatch.undo()
    native_library.cache_clear()


def load(folder: str, dtype: str, block_size: int = 4, **arguments: Any) -> ModelRunner:
    options = {
        "num_blocks": 5 * (LENGTH // block_size + 1),
        "block_size": block_size,
        "quantization": "none",
        **arguments,
    }
    return ModelRunner(folder, dtype=dtype, device="cpu", deterministic=True, **options)


def check(runner: ModelRunner, num_plans: int = 1, adapters: tuple[str, ...] = ("",)) -> None:
    assert not runner.is_native
    check_random_cuts(runner, VOCAB_SIZE, LENGTH, (LENGTH - 27, 31), num_plans, adapters)


@pytest.mark.parametrize("family", CONFIGS)
def test_any_cut_batch_and_prefix_give_the_same_logits(family: str, tmp_path: Path) -> None:
    folder = save_model(family, tmp_path)
    for dtype in DTYPES:
        check(load(folder, dtype))


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("family", "dtype", "kv_dtype"),
    [
        ("llama", "float32", "auto"),
        ("gpt_oss", "bfloat16", "auto"),
        ("gemma2", "float32", "auto"),
        ("mistral", "bfloat16", "int8"),
        ("phi", "float32", "fp8"),
    ],
)
def test_so_they_do_without_a_compiler(family: str, dtype: str, kv_dtype: str, tmp_path: Path) -> None:
    check(load(save_model(family, tmp_path), dtype, kv_dtype=kv_dtype))


@pytest.mark.skipif(native_library() is None, reason="there is no C++ compiler here")
@pytest.mark.parametrize(
    ("family", "dtype", "kv_dtype"),
    [("phi3", "bfloat16", "int8"), ("mixtral", "float32", "int4"), ("gemma2", "bfloat16", "auto")],
)
def test_so_they_do_with_rounded_weights_and_kv(family: str, dtype: str, kv_dtype: str, tmp_path: Path) -> None:
    folder = save_wide(family, tmp_path, **({} if family != "phi3" else {"num_key_value_heads": 4}))
    check(load(folder, dtype, 16, kv_dtype=kv_dtype, quantization="int8"))


@pytest.mark.parametrize(("family", "quantization"), [("llama", "int8"), ("gpt2", "none"), ("deepseek_v2", "none")])
def test_so_do_rows_of_several_adapters(family: str, quantization: str, tmp_path: Path) -> None:
    if quantization == "int8" and native_library() is None:
        pytest.skip("there is no C++ compiler here")
    folder = (save_wide if quantization == "int8" else save_model)(family, tmp_path / "model")
    base = reference_model(folder)
    paths = linear_paths(base, *{"gpt2": ("c_attn", "c_fc")}.get(family, ("q_proj", "o_proj", "lm_head")))
    for seed, name in enumerate(("one", "two")):
        save_adapter(tmp_path / name, base, paths, seed=seed)
    adapters = {name: tmp_path / name for name in ("one", "two")}
    runner = load(folder, "float32", adapters=adapters, quantization=quantization)
    check(runner, 2, ("", "one", "two"))
    check(runner, adapters=("two",))


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_in_tiles_give_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    folder = save_model(family, tmp_path)
    ids = random.Random(1).choices(range(3, VOCAB_SIZE), k=45)
    found = load(folder, "float32").forward([ForwardRow(ids, 0, array("i", range(12)), 0, True)])
    torch.testing.assert_close(found[0], reference_logits(reference_model(folder), ids)[-1], atol=1e-4, rtol=0)


def test_a_model_whose_rows_are_mixed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: plain(self, x - x.mean(1, keepdim=True)))
    with pytest.raises(ModelError, match=r"^deterministic mode: who else is in a step changes the logits"):
        load(save_model("llama", tmp_path), "float32")


def test_a_model_that_multiplies_other_numbers_of_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LlamaMLP.forward
    by_halves = lambda self, x: torch.cat([plain(self, x[:, :1]), plain(self, x[:, 1:])], 1)  # noqa: E731
    monkeypatch.setattr(LlamaMLP, "forward", by_halves)
    with pytest.raises(ModelError, match=r"^deterministic mode: the model runs a linear layer on"):
        load(save_model("llama", tmp_path), "float32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_activation_is_the_same_wherever_it_stands(dtype: torch.dtype) -> None:
    x = torch.randn(40_000, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.set_num_threads(3)
    functions = (functional.silu, functional.gelu, functional.softplus, torch.sigmoid, torch.rsqrt)
    for function in functions:
        with BatchInvariantModel(torch.nn.Identity()):
            whole = function(x)
            pieces = [function(x[at : at + 7]) for at in range(0, 2100, 7)]
            apart = function(input=torch.stack([x, x], 1)[:, 1])
        assert torch.equal(torch.cat(pieces).nan_to_num(), whole[:2100].nan_to_num()), function
        assert torch.equal(apart.nan_to_num(), whole.nan_to_num()), function
        torch.testing.assert_close(whole, function(x), equal_nan=True)


def test_rows_are_cut_into_tiles_in_their_order() -> None:
    table = array("i", [3, 1, 2])
    rows = [ForwardRow([1], 9, table, 0, True), ForwardRow(list(range(20)), 4, table, 6, True, "a")]
    tiles = cut_into_tiles(rows, (4, 8), 4)
    assert [sum(len(row.token_ids) for row in tile) for tile in tiles] == [8, 8, 8]
    cut = [row for tile in tiles for row in tile]
    assert [(row.start, len(row.token_ids), row.num_logits > 0, row.adapter) for row in cut] == [
        (9, 1, True, ""),
        (4, 7, False, "a"),
        (11, 8, False, "a"),
        (19, 5, True, "a"),
        (0, 3, False, ""),
    ]
    assert [id_ for row in cut[1:4] for id_ in row.token_ids] == list(range(20))
    assert cut[-1].num_stored == 3  # nothing is written
    assert [len(tile) for tile in cut_into_tiles(rows[:1], (1, 4), 4)] == [1]
