"""A packed layer answers what the layer it came from answers."""

from __future__ import annotations

import pytest
import torch

from radixkv.worker.loading.packed_linear import PackedLinear, RoundedLinear, pack_linears, padded_length

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 65])
def test_it_computes_what_the_plain_layer_computes(dtype: torch.dtype, with_bias: bool, num_rows: int) -> None:
    torch.manual_seed(num_rows)
    linear = torch.nn.Linear(48, 80, bias=with_bias).to(dtype)
    x = torch.randn(1, num_rows, 48).to(dtype)
    expected = linear.double()(x.double())
    model = torch.nn.Sequential(linear.to(dtype))
    with torch.inference_mode():
        pack_linears(model)
        output = model(x)
    assert output.dtype == dtype
    assert output.shape == (1, num_rows, 80)
    assert (output - expected).norm() <= TOLERANCES[dtype] * expected.norm()


def test_few_numbers_of_rows_are_multiplied_and_few_rows_are_added() -> None:
    padded = {num_rows: padded_length(num_rows) for num_rows in range(2049)}
    assert all(num_rows <= length <= num_rows + num_rows // 8 for num_rows, length in padded.items())
    assert len(set(padded.values())) == 1 + 16 + 7 * 8  # none, up to 16, and seven doublings


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_rounded_to_int8_it_computes_nearly_the_same(dtype: torch.dtype, with_bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 80, bias=with_bias).to(dtype)
    x = torch.randn(1, 5, 128).to(dtype)
    expected = linear.double()(x.double())
    model = torch.nn.Sequential(linear.to(dtype), torch.nn.Linear(80, 8).to(dtype))
    with torch.inference_mode():
        assert pack_linears(model, "int8") == 1  # 80 inputs are no multiple of 64
        output = model[0](x)
    assert isinstance(model[0], RoundedLinear)
    is_packable = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert isinstance(model[1], PackedLinear) is is_packable
    assert output.dtype == dtype
    assert 0 < (output - expected).norm() <= 1e-2 * expected.norm()
    assert (model[0].weight - linear.weight).norm() <= 1e-2 * linear.weight.norm()


def test_layers_within_layers_are_packed_and_an_embedding_that_shares_a_weight_keeps_it() -> None:
    model = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(32, 16), "body": torch.nn.Sequential(torch.nn.Linear(16, 16))}
    )
    model["head"] = torch.nn.Linear(16, 32, bias=False)
    model["head"].weight = model["embed"].weight
    model = model.requires_grad_(False)
    pack_linears(model)
    assert isinstance(model["body"][0], PackedLinear)
    assert isinstance(model["head"], PackedLinear)
    assert torch.equal(model["head"].weight, model["embed"].weight)


def test_a_subclass_that_computes_something_else_is_left_alone() -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model = torch.nn.Sequential(Doubled(4, 4))
    pack_linears(model)
    assert isinstance(model[0], Doubled)
