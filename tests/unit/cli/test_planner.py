"""Plans agree with what is published of known models, with transformers, and with what the worker really allocates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import CONFIGS, save_model

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.planner import (
    BLOCK_SIZES,
    KV_DTYPES,
    PUBLISHED,
    Device,
    Load,
    MemoryPlan,
    ModelConfig,
    ModelShape,
    PlanError,
    check_fit,
    count_blocks,
    plan_memory,
    read_config,
)
from radixkv.planner.parameters import _FORMULAS, _build
from radixkv.planner.plan import estimate_activations
from radixkv.worker.model.model import ModelRunner

KIB, MIB, GIB = 2**10, 2**20, 2**30


def plan(name: str, **arguments: Any) -> MemoryPlan:
    return plan_memory(ModelShape.of(read_config(name)), **arguments)


# -- what is published ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "token_bytes", "sizes"),
    [
        # 2 (K and V) x layers x kv heads x width x 2 bytes, from the architecture tables that `published` cites.
        ("mistral-7b", 128 * KIB, {4096: 0.5 * GIB, 32768: 4 * GIB}),
        ("llama-3-8b", 128 * KIB, {4096: 0.5 * GIB, 32768: 4 * GIB}),
        ("llama-3-70b", 320 * KIB, {4096: 1.25 * GIB, 32768: 10 * GIB}),
        # About 2 GB at 4,096 tokens: the worked example of NVIDIA's "Mastering LLM Techniques: Inference Optimization" (2023).
        ("llama-2-7b", 512 * KIB, {4096: 2 * GIB}),
        # Table 1 of "Insights into DeepSeek-V3" (arXiv 2505.09343): 70.272, 327.680 and 516.096 KB per token in bf16.
        ("deepseek-v3", 70_272, {131072: 70_272 * 131072}),
        ("qwen2.5-72b", 327_680, {}),
        ("llama-3.1-405b", 516_096, {}),
    ],
)
def test_kv_sizes_of_published_models_are_reproduced(name: str, token_bytes: int, sizes: dict[int, float]) -> None:
    for dtype in ("bfloat16", "float16"):
        found = plan(name, dtype=dtype)
        assert found.token_bytes == token_bytes
        assert {length: found.bytes_at(length) for length in sizes} == sizes


def test_deepseek_v3_takes_8_58_gib_at_128k() -> None:
    assert round(plan("deepseek-v3").bytes_at(128 * KIB) / GIB, 2) == 8.58


@pytest.mark.parametrize(
    ("name", "billions", "exact"),
    [
        # As the model cards state them, rounded; exactly as the hub counts their safetensors.
        ("mistral-7b", 7.24, 7_241_732_096),
        ("llama-3-8b", 8.03, 8_030_261_248),
        ("llama-3-70b", 70.55, 70_553_706_496),
        ("deepseek-v3", 671.03, 671_026_419_200),
        ("qwen3-8b", 8.19, 8_190_735_360),
        ("qwen3-30b-a3b", 30.53, 30_532_122_624),
        ("smollm2-135m", 0.13, 134_515_008),
    ],
)
def test_parameters_of_published_models_are_counted_exactly(name: str, billions: float, exact: int) -> None:
    shape = ModelShape.of(read_config(name))
    assert shape.num_parameters == exact
    assert round(shape.num_parameters / 1e9, 2) == billions


def test_a_plan_of_a_published_model_takes_neither_torch_nor_a_network() -> None:
    program = (
        "import sys, socket; socket.socket = None\n"
        "from radixkv.planner import *\n"
        "plan_memory(ModelShape.of(read_config('DeepSeek-V3')), dtype='fp8', tp=8, device=Device(parse_bytes('141GB')))\n"
        "assert not {'torch', 'transformers', 'grpc'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 0


# -- agreement with transformers and the worker -----------------------------------------------------------------------

SMALL: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"head_dim": 12, "sliding_window": 5},
    "qwen2": {"num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": {"head_dim": 24, "attention_bias": True},
    "qwen3_moe": {"num_experts": 6, "moe_intermediate_size": 20, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 18,
        "qk_rope_head_dim": 6,
        "qk_nope_head_dim": 10,
        "v_head_dim": 14,
        "moe_intermediate_size": 20,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "attention_bias": True,
    },
}


def small_config(model_type: str) -> ModelConfig:
    values = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        **SMALL[model_type],
    }
    return ModelConfig(model_type, tf.AutoConfig.for_model(model_type, **values).to_dict())


@pytest.mark.parametrize("model_type", list(_FORMULAS))
def test_the_formula_of_an_architecture_counts_what_transformers_builds(model_type: str) -> None:
    config = small_config(model_type)
    assert ModelShape.of(config).num_parameters == _build(config)[1]


def test_deepseek_v3_with_low_rank_queries_is_counted_too() -> None:
    config = small_config("deepseek_v3")
    config = ModelConfig(config.name, {**config.values, "q_lora_rank": 22})
    assert ModelShape.of(config).num_parameters == _build(config)[1]


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b-a3b", "smollm2-135m", "qwen2.5-72b"])
def test_published_shapes_are_what_transformers_builds_from_them(name: str) -> None:
    config = read_config(name)
    assert ModelShape.of(config).num_parameters == _build(config)[1]


@pytest.mark.parametrize("family", list(CONFIGS))
def test_the_stored_layout_is_what_the_worker_allocates(family: str, tmp_path: Path) -> None:
    folder = save_model(family, tmp_path)
    shape = ModelShape.of(read_config(folder))
    for kv_dtype in ("auto", "float32", "fp8", "int8", "int4"):
        runner = ModelRunner(folder, num_blocks=2, block_size=8, dtype="float32", device="cpu", kv_dtype=kv_dtype)
        found = plan_memory(shape, dtype="float32", kv_dtype=kv_dtype, layout="stored", block_size=8)
        assert found.token_bytes == runner.token_bytes == runner.pool.token_bytes
        assert found.block_bytes * 2 == runner.pool.size_bytes
    assert shape.num_parameters >= sum(p.numel() for p in runner._model.parameters())
    assert shape.max_length == 256


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_layers_with_windows_alternate_as_transformers_says(family: str) -> None:
    values = CONFIGS[family]().to_dict()
    shape = ModelShape.of(ModelConfig(family, values))
    assert [layer.window for layer in shape.layers] == [8, None]
    assert values["layer_types"] == ["sliding_attention", "full_attention"]


# -- windows, latents, hybrids ----------------------------------------------------------------------------------------


def test_a_window_bounds_what_a_sequence_keeps() -> None:
    windowed, full = plan("mistral-7b-v0.1"), plan("mistral-7b")
    assert windowed.bytes_at(4096) == full.bytes_at(4096)
    assert windowed.bytes_at(32768) == full.bytes_at(4096)
    # In whole blocks a window that begins inside one keeps a block more.
    assert windowed.sequence_bytes == full.bytes_at(4096 + 16)
    assert plan("mistral-7b-v0.1", layout="stored").bytes_at(32768) == full.bytes_at(32768)


def test_gemma3_keeps_one_full_layer_in_six() -> None:
    config = tf.Gemma3TextConfig(num_hidden_layers=12, hidden_size=64, sliding_window=512, head_dim=16, vocab_size=97)
    shape = ModelShape.of(ModelConfig("gemma3", config.to_dict()))
    assert [layer.window is None for layer in shape.layers] == [False] * 5 + [True] + [False] * 5 + [True]


def test_linear_attention_keeps_a_state_and_no_tokens() -> None:
    config = tf.Qwen3NextConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
    )
    found = plan_memory(ModelShape.of(ModelConfig("hybrid", config.to_dict())), dtype="bfloat16")
    full_layers = [layer for layer in found.shape.layers if layer.num_heads]
    assert (len(full_layers), found.token_bytes) == (1, 2 * 8 * 2 * 2)
    state = 4 * 4 * 8 * 16 + 2 * (2 * 2 * 8 + 4 * 16) * 3
    assert found.bytes_at(1000) - found.bytes_at(0) == 1000 * found.token_bytes
    assert found.bytes_at(0) == 3 * state


def test_latents_are_one_head_on_every_device() -> None:
    for layout in ("least", "stored"):
        assert plan("deepseek-v3", layout=layout).token_bytes == 61 * (512 + 64) * 2 == 70_272
        assert plan("deepseek-v3", tp=8, layout=layout).token_bytes == 70_272


def test_heads_that_unknown_attention_expands_its_latents_to_are_split_over_devices() -> None:
    config = ModelConfig("another", CONFIGS["axk1"]().to_dict())
    one, two = (plan_memory(ModelShape.of(config), tp=tp, layout="stored") for tp in (1, 2))
    assert one.token_bytes == 2 * 4 * (16 + 8 + 12) * 2
    assert two.token_bytes * 2 == one.token_bytes


# -- dtypes and devices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_dtype", "vector_bytes"), [("float32", 512), ("float16", 256), ("fp8", 130), ("int8", 130), ("int4", 96)]
)
def test_quantised_kv_counts_the_scales_of_a_token_and_head(kv_dtype: str, vector_bytes: int) -> None:
    assert KV_DTYPES[kv_dtype].vector_bytes(128) == vector_bytes
    assert plan("llama-3-8b", kv_dtype=kv_dtype).token_bytes == 32 * 8 * 2 * vector_bytes


@pytest.mark.parametrize("kv_format", KVFormat)
def test_a_quantised_vector_is_planned_as_the_kernels_format_has_it(kv_format: KVFormat) -> None:
    dtype = KV_DTYPES[kv_format.value]
    for width in range(1, 600):
        if dtype.takes(width):
            assert dtype.vector_bytes(width) == kv_format.row_bytes(width)
        else:
            with pytest.raises(InvalidArgumentError, match="head_dim"):
                kv_format.row_bytes(width)


def test_heads_that_a_kv_dtype_cannot_hold_are_refused() -> None:
    config = ModelConfig("odd", tf.GPT2Config(n_embd=36, n_head=4, n_layer=2, vocab_size=97).to_dict())
    with pytest.raises(InvalidArgumentError, match=r"^kv_dtype is 'int4'; it must be another one for heads of 9 chan"):
        plan_memory(ModelShape.of(config), kv_dtype="int4")
    assert plan_memory(ModelShape.of(config), kv_dtype="int8").token_bytes == 2 * 4 * 2 * (9 + 2)


def test_kv_of_quantised_weights_stays_in_16_bits_unless_told() -> None:
    assert plan("llama-3-8b", dtype="fp8").kv_dtype == "bfloat16"
    assert plan("llama-3-8b", dtype="float32").kv_dtype == "float32"


@given(
    st.sampled_from(["smollm2-135m", "mistral-7b-v0.1", "deepseek-v3"]),
    st.integers(1, 4000),
    st.sampled_from(BLOCK_SIZES),
    st.sampled_from([0.5, 0.9, 1.0]),
    st.sampled_from([None, 1, 40]),
)
def test_what_a_plan_gives_out_fits_and_the_next_block_would_not(
    name: str, memory_gib: int, block_size: int, utilisation: float, max_num_seqs: int | None
) -> None:
    load = Load(max_model_len=4096, max_num_seqs=max_num_seqs)
    device = Device(memory_gib * GIB, utilisation)
    shape = ModelShape.of(read_config(name))
    alone = plan_memory(shape, block_size=block_size, load=load)
    usable = int(device.memory_bytes * utilisation)
    left = usable - alone.weight_bytes - alone.activation_bytes - device.workspace_bytes
    try:
        found = plan_memory(shape, block_size=block_size, load=load, device=device)
    except PlanError:
        assert left < alone.sequence_bytes
        return
    assert found.kv_bytes == left
    assert found.num_blocks is not None
    assert found.num_full_sequences is not None
    assert found.num_blocks * found.block_bytes <= left
    assert found.num_full_sequences * found.sequence_bytes <= left
    if max_num_seqs is None:
        assert (found.num_blocks + 1) * found.block_bytes > left
        assert (found.num_full_sequences + 1) * found.sequence_bytes > left
    else:
        assert found.num_blocks <= max_num_seqs * 4096 // block_size
        assert found.num_full_sequences <= max_num_seqs


def test_more_devices_hold_less_each() -> None:
    one, four = plan("llama-3-70b"), plan("llama-3-70b", tp=4)
    assert four.weight_bytes * 4 == one.weight_bytes
    assert four.token_bytes * 4 == one.token_bytes
    assert plan("llama-3-70b", tp=16).token_bytes * 8 == one.token_bytes  # fewer kv heads than devices


@pytest.mark.parametrize("tp", [3, 6])
def test_devices_that_the_kv_heads_cannot_be_shared_out_to_are_refused_as_by_a_worker(tp: int) -> None:
    config = ModelConfig("odd", tf.LlamaConfig(num_attention_heads=12, num_key_value_heads=4, hidden_size=96).to_dict())
    assert plan_memory(ModelShape.of(config), tp=12).token_bytes
    with pytest.raises(InvalidArgumentError, match=f"tp is {tp}; it must be a divisor of the model's 4 KV heads"):
        plan_memory(ModelShape.of(config), tp=tp)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_size": 12}, "block_size is 12; it must be one of 8, 16, 32, 64, 128"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"kv_dtype": "int3"}, "kv_dtype is 'int3'"),
        ({"tp": 3}, "tp is 3; it must be a divisor of the model's 32 query heads"),
        ({"tp": 0}, "tp is 0"),
        ({"layout": "both"}, "layout"),
        ({"load": Load(max_model_len=8193)}, "max_model_len is 8193; it must be at most 8192"),
        ({"load": Load(max_num_seqs=0)}, "max_num_seqs"),
        ({"load": Load(max_batch_tokens=-1)}, "max_batch_tokens"),
        ({"device": Device(80 * GIB, 1.5)}, "utilisation is 1.5"),
        ({"device": Device(80 * GIB, workspace_bytes=-1)}, "workspace"),
    ],
)
def test_an_argument_outside_its_bound_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        plan("llama-3-8b", **arguments)


def test_a_model_larger_than_the_device_says_where_the_memory_goes() -> None:
    with pytest.raises(
        PlanError, match=r"0\.9 of 16\.0 GiB is 14\.4 GiB; weights take 15\.0 GiB.*nothing is left for KV"
    ):
        plan("llama-3-8b", device=Device(16 * GIB))


def test_a_length_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(
        PlanError, match="max-model-len 8192 needs 512 blocks of 16 tokens and 300 fit: lower it to 4800 or"
    ):
        check_fit(8192, 16, 300, "raise --kv-memory")
    check_fit(4800, 16, 300, "raise --kv-memory")
    with pytest.raises(PlanError, match="lower it to 7888"):
        plan("llama-3-8b", device=Device(int(18.5 * GIB)))


def test_no_room_for_a_single_block_is_said() -> None:
    with pytest.raises(PlanError, match=r"one block takes 2\.00 MiB"):
        count_blocks(2 * MIB - 1, 2 * MIB)
    assert count_blocks(2 * MIB, 2 * MIB) == 1


# -- where configurations come from -----------------------------------------------------------------------------------


def test_a_folder_a_file_and_a_name_in_any_case_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(PUBLISHED["qwen3-8b"])))
    for name in (str(tmp_path), str(tmp_path / "config.json"), "Qwen3-8B"):
        assert ModelShape.of(read_config(name)).num_parameters == 8_190_735_360
    assert ModelShape.of(read_config("default")).num_parameters == 134_515_008


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[1]", "names no model_type"),
        ("{}", "names no model_type"),
        ('{"model_type": "llama", "vocab_size": 8}', "has no hidden_size"),
        ('{"model_type": "nonesuch"}', "can build no language model"),
        ('{"model_type": "t5"}', "can build no language model"),
    ],
)
def test_a_configuration_that_cannot_be_planned_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(PlanError, match=message):
        ModelShape.of(read_config(str(path)))


@pytest.mark.parametrize("name", ["no-such-model", "/nowhere/at/all", "./nothing"])
def test_a_name_that_is_nothing_is_refused_with_what_could_be_given(name: str) -> None:
    with pytest.raises(PlanError, match=r"give a folder, a config\.json, .* llama-3-8b"):
        read_config(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"] * 27}, "names 28 layers and the kinds of 27"),
        ({"global_head_dim": 256}, "layers with heads of several widths, which cannot be planned"),
        ({"layer_types": ["linear_attention"] * 28}, "has no linear_"),
        ({"layer_types": ["sliding_attention"] * 28, "sliding_window": None}, "has no sliding_window"),
    ],
)
def test_layers_that_are_not_described_whole_cannot_be_planned(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ModelShape.of(ModelConfig("m", {**PUBLISHED["qwen3-0.6b"], **changes}))


def test_layers_that_read_the_kv_of_earlier_ones_keep_none() -> None:
    plain = ModelShape.of(ModelConfig("m", dict(PUBLISHED["qwen3-0.6b"])))
    sharing = ModelShape.of(ModelConfig("m", {**PUBLISHED["qwen3-0.6b"], "num_kv_shared_layers": 4}))
    assert sharing.layers[:-4] == plain.layers[:-4]
    assert [layer.num_heads for layer in sharing.stored_layers[-4:]] == [0] * 4
    assert plan_memory(sharing).token_bytes * 28 == plan_memory(plain).token_bytes * 24


@pytest.mark.parametrize(
    ("length", "arguments"),
    [
        (8192, {"load": Load(max_model_len=8192)}),
        (1, {"load": Load(max_model_len=1, max_num_seqs=1, max_batch_tokens=1)}),
    ],
)
def test_an_argument_at_its_bound_is_taken(length: int, arguments: dict[str, Any]) -> None:
    found = plan("llama-3-8b", device=Device(80 * GIB, 1.0, workspace_bytes=0), **arguments)
    assert found.max_model_len == length
    told = found.as_dict()
    assert (told["memory_bytes"], told["utilisation"], told["workspace_bytes"]) == (80 * GIB, 1.0, 0)
    alone = plan("llama-3-8b", **arguments).as_dict()
    assert [alone[name] for name in ("memory_bytes", "utilisation", "workspace_bytes", "num_blocks")] == [None] * 4
    assert {name: value for name, value in alone.items() if value is not None}.items() <= told.items()


def test_activations_grow_with_the_batch_and_are_shared_by_devices() -> None:
    shape = ModelShape.of(read_config("llama-3-8b"))

    def activations(tokens: int, seqs: int | None = None, tp: int = 1) -> int:
        return estimate_activations(shape, "bfloat16", Load(max_batch_tokens=tokens, max_num_seqs=seqs), tp)

    per_position = activations(1001, 1) - activations(1000, 1)
    per_sequence = activations(1000, 2) - activations(1000, 1)
    assert per_position == 2 * (2 * shape.hidden_size + 3 * shape.feed_forward_size)
    assert per_sequence == shape.vocab_size * (2 + 24), "the logits, and what sampling makes of them"
    assert activations(1000, 1) == 1000 * per_position + per_sequence
    assert activations(1000) == activations(1000, 64)
    assert activations(8, 64) == activations(8, 8), "a sequence has a position at least"
    assert activations(1001, 1, 8) - activations(1000, 1, 8) == 2 * (
        2 * shape.hidden_size + 3 * shape.feed_forward_size // 8
    )


def test_a_layer_kind_that_is_unknown_is_refused_rather_than_guessed() -> None:
    values = {**PUBLISHED["qwen3-0.6b"], "layer_types": ["mamba"] * 28}
    with pytest.raises(PlanError, match="layers of kind mamba"):
        ModelShape.of(ModelConfig("hybrid", values))
