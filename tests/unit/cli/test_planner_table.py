"""The table of a plan: what fits by dtypes, batch and context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixkv import gateway
from radixkv.cli import main
from radixkv.core.errors import InvalidArgumentError
from radixkv.planner import Device, Load, ModelShape, plan_memory, read_config
from radixkv.planner.fit import advise_block_size
from radixkv.planner.table import contexts_of, plan_table

GB, GIB = 10**9, 2**30


def test_a_model_of_30_billion_fits_a_card_of_32_gb_in_4_bits_alone() -> None:
    shape = ModelShape.of(read_config("qwen3-30b-a3b"))
    found = plan_table(shape, Device(32 * GB), (8192, 40_960))
    assert {each.dtype for each in found if each.plan is not None} == {"int4"}
    plain = next(each for each in found if (each.dtype, each.kv_dtype) == ("int4", "bfloat16"))
    embeddings = 151_936 * 2048  # which keep 16 bits; an output head of its own is rounded
    assert plain.weight_bytes == pytest.approx((shape.num_parameters - embeddings) * 0.625 + embeddings * 2, abs=1)
    assert plain.sequence_bytes == (8192 * 96 * 1024, 40_960 * 96 * 1024)  # 2 x 48 layers x 4 heads x 128 x 2 bytes
    assert plain.plan is not None
    assert plain.plan.kv_bytes is not None
    assert [plain.most(index) for index in range(2)] == [plain.plan.kv_bytes // size for size in plain.sequence_bytes]
    fewer = [each.most(0) for each in found if each.plan is not None]
    assert fewer == sorted(fewer), "KV in fewer bits: more at once"


def test_the_scene_of_the_memory_page_is_what_a_plan_leaves() -> None:
    plan = plan_memory(ModelShape.of(read_config("llama-3-70b")), dtype="int4", device=Device(80 * GB))
    text = (Path(gateway.__file__).parent / "static" / "fragmentation" / "scene.js").read_text()
    assert f"numSlots: {plan.num_tokens:_}," in text
    assert f"tokenBytes: {plan.token_bytes:_}," in text


def test_the_usual_contexts_end_with_the_models_length() -> None:
    assert contexts_of(ModelShape.of(read_config("llama-3-8b")), None) == (1024, 8192)
    assert contexts_of(ModelShape.of(read_config("qwen3-8b")), None) == (1024, 8192, 32_768, 40_960)


def test_text_and_json_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "llama-3-8b", "--memory", "24GiB", "--table", "--batches", "4,64", "--contexts", "8192"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert {(each["dtype"], each["kv_dtype"]) for each in told} >= {("bfloat16", "bfloat16"), ("int4", "int4")}
    for each in told:
        assert f"{each['num_tokens']:,} tokens" in text
        at_once = each["at_once"]["8192"]
        assert [cell["fits"] for cell in each["batches"]] == [at_once >= 4, at_once >= 64]
    assert "(64.0 GiB)" in text, "64 sequences of 8,192 tokens in bfloat16 do not fit"
    assert "4.00 GiB" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table"], "--memory is None; it must be given along with --table"),
        (["--memory", "24GiB", "--table", "--contexts", "9000"], "--contexts is 9000; it must be from 1 to 8,192"),
        (["--memory", "24GiB", "--table", "--batches", "1,x"], "--batches is '1,x'; it must be whole numbers"),
        (["--memory", "24GiB", "--table", "--batches", "0"], "--batches is '0'; it must be whole numbers"),
        (["--memory", "24GiB", "--batches", "1"], "--batches is '1'; it must be given along with --table"),
        (
            ["--memory", "24GiB", "--table", "--max-num-seqs", "8"],
            "--max-num-seqs is 8; it must be left out with --table",
        ),
        (["--memory", "24GiB", "--table", "--dtype", "int3"], "dtype is 'int3'; it must be auto, float32"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "llama-3-8b", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_million_tokens_at_int4_are_planned_beyond_the_models_own_length_where_that_is_meant() -> None:
    shape = ModelShape.of(read_config("llama-3.1-8b"))
    with pytest.raises(
        InvalidArgumentError, match=r"at most 131072, which llama-3.1-8b was made for; --rope-scaling 7.63 goes"
    ):
        plan_memory(shape, load=Load(max_model_len=1_000_000))
    load = Load(max_model_len=1_000_000, rope_scaling=7.63)
    plan = plan_memory(shape, kv_dtype="int4", load=load, device=Device(80 * GB))
    assert plan.num_full_sequences == 1
    assert plan.sequence_bytes == 1_000_000 * plan.token_bytes
    with pytest.raises(
        InvalidArgumentError, match=r"at most 262144, 2 times the length of llama-3.1-8b; --rope-scaling 7.63"
    ):
        plan_memory(shape, load=Load(max_model_len=1_000_000, rope_scaling=2))
    assert contexts_of(shape, [1_000_000], 8) == (1_000_000,)


@pytest.mark.parametrize("factor", [0, 0.5, float("inf"), float("nan")])
def test_a_factor_that_stretches_nothing_is_refused_by_name(factor: float) -> None:
    with pytest.raises(InvalidArgumentError, match="rope_scaling is"):
        plan_memory(ModelShape.of(read_config("default")), load=Load(rope_scaling=factor))


def test_the_advised_block_size_follows_the_length_of_a_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert [advise_block_size(length) for length in (None, 1, 800, 1600, 3200, 6400, 1_000_000)] == [
        16,
        16,
        16,
        32,
        64,
        128,
        128,
    ]
    for arguments, advice in (
        ([], "16, for chats and few-shot questions"),
        (["--max-num-seqs", "2"], "128: half a block is 0.8% of 8,192 tokens, the room of each of 2"),
        (["--max-num-seqs", "40"], "16: half a block is 0.7% of 1,226 tokens"),
    ):
        assert main(["plan", "llama-3-8b", "--memory", "24GiB", *arguments]) == 0
        assert advice in capsys.readouterr().out
