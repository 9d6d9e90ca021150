"""A row with an adapter gets what transformers computes with the adapter merged into its weights, and nobody else does."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from tiny_adapters import linear_paths, merged, save_adapter
from tiny_models import VOCAB_SIZE, reference_logits, reference_model, save_model

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import derived_namespace
from radixkv.worker.errors import ModelError
from radixkv.worker.model.model import ForwardRow, ModelRunner

TOLERANCE = 1e-4

MODULES: dict[str, tuple[str, ...]] = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"),
    "qwen2_mixed": ("q_proj", "v_proj", "down_proj"),
    "qwen3": ("k_proj", "o_proj", "up_proj"),
    "gemma2": ("q_proj", "v_proj", "gate_proj"),
    "gemma3": ("q_proj", "o_proj", "lm_head"),
    "phi3": ("qkv_proj", "gate_up_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "mixtral": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "deepseek_v3": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "down_proj"),
    "deepseek_v2": ("q_proj", "kv_b_proj", "o_proj"),
}


def _runner(folder: str, adapters: Mapping[str, Path], **options: Any) -> ModelRunner:
    options = {"num_blocks": 48, "block_size": 4, "dtype": "float32", "device": "cpu", **options}
    return ModelRunner(folder, adapters=adapters, **options)


def _ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def _row(token_ids: list[int], first_block: int, adapter: str = "", wants_logits: bool = True) -> ForwardRow:
    table = array("i", range(first_block, first_block + -(-len(token_ids) // 4)))
    return ForwardRow(token_ids, 0, table, 0, wants_logits, adapter)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("family", MODULES)
def test_rows_of_several_adapters_in_one_batch_get_the_logits_of_merged_weights(family: str, tmp_path: Path) -> None:
    folder = save_model(family, tmp_path / "model")
    base = reference_model(folder)
    paths = linear_paths(base, *MODULES[family])
    assert {path.rpartition(".")[2] for path in paths} == set(MODULES[family])
    models = {"": base}
    for number, (name, some) in enumerate([("all", paths), ("few", paths[::3])]):
        models[name] = merged(base, save_adapter(tmp_path / name, base, some, seed=number))
    runner = _runner(folder, {"all": tmp_path / "all", "few": tmp_path / "few"})
    histories = [_ids(count, count) for count in (9, 5, 14, 1, 12, 6)]
    names = ["all", "", "few", "all", "", "few"]
    rows = [
        _row(history, 6 * index, name, wants_logits=index != 4)
        for index, (history, name) in enumerate(zip(histories, names, strict=True))
    ]
    logits = runner.forward(rows)
    told = [index for index in range(6) if index != 4]
    expected = torch.stack([reference_logits(models[names[index]], histories[index])[-1] for index in told])
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
    assert runner.forward([_row(histories[0], 0, "all", wants_logits=False)]).shape == (0, VOCAB_SIZE)
    apart = reference_logits(base, histories[0])[-1] - expected[0]
    assert apart.abs().max() > 0.1  # so that a model without its adapter would be seen


def test_decoding_goes_on_from_what_the_adapter_computed(llama: str, tmp_path: Path) -> None:
    base = reference_model(llama)
    adapted = merged(base, save_adapter(tmp_path / "a", base, linear_paths(base, "q_proj", "v_proj"), seed=1))
    runner = _runner(llama, {"a": tmp_path / "a"})
    prompt, tokens = _ids(10, 1), _ids(10, 1)
    table = array("i", range(10))
    logits = runner.forward([ForwardRow(prompt, 0, table, 0, True, "a")])
    for _ in range(15):
        tokens.append(int(logits.argmax()))
        logits = runner.forward([ForwardRow(tokens[-1:], len(tokens) - 1, table, 0, True, "a")])
    ids = torch.tensor([prompt])
    expected = adapted.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, do_sample=False, eos_token_id=None
    )
    assert tokens == expected[0].tolist()


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True},
        {"lora_alpha": 12, "alpha_pattern": {"q_proj": 3}},
        {"rank_pattern": {"v_proj": 2}},
        {"init_lora_weights": "gaussian", "lora_dropout": 0.1, "fan_in_fan_out": False, "task_type": "CAUSAL_LM"},
    ],
    ids=lambda config: next(iter(config)),
)
def test_the_scale_of_each_module_is_the_one_that_the_settings_mean(
    llama: str, config: dict[str, Any], tmp_path: Path
) -> None:
    base = reference_model(llama)
    tensors = save_adapter(tmp_path / "a", base, linear_paths(base, "q_proj", "v_proj"), seed=2, **config)
    adapted = merged(base, tensors, config.get("lora_alpha", 6), **config)
    logits = _runner(llama, {"a": tmp_path / "a"}).forward([_row(_ids(9, 3), 0, "a")])
    torch.testing.assert_close(logits[0], reference_logits(adapted, _ids(9, 3))[-1], atol=TOLERANCE, rtol=0)


def test_steps_with_an_adapter_run_beside_the_native_decoder(tmp_path: Path) -> None:
    config = tf.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    torch.manual_seed(5)
    base: Any = tf.AutoModelForCausalLM.from_config(config).eval()
    base.save_pretrained(tmp_path / "model")
    adapted = merged(base, save_adapter(tmp_path / "a", base, linear_paths(base), seed=4, lora_alpha=0.4), 0.4)
    runner = _runner(str(tmp_path / "model"), {"a": tmp_path / "a"}, quantization="int8")
    if not runner.is_native:
        pytest.skip("no compiled kernels here")
    token_ids = _ids(14, 6)
    alone = runner.forward([_row(token_ids, 0)])
    plain, with_adapter = runner.forward([_row(token_ids, 8), _row(token_ids, 16, "a")])
    assert (plain - alone[0]).norm() < 1e-2 * alone[0].norm()
    expected = [reference_logits(model, token_ids)[-1] for model in (base, adapted)]
    assert (expected[1] - expected[0]).norm() > 0.3 * expected[1].norm()
    assert (plain - expected[0]).norm() < 3e-2 * expected[0].norm()
    assert (with_adapter - expected[1]).norm() < 3e-2 * expected[1].norm()
    assert torch.equal(runner.forward([_row(token_ids, 0)]), alone)


def test_a_models_bytes_count_its_adapters(llama: str, tmp_path: Path) -> None:
    base = reference_model(llama)
    tensors = save_adapter(tmp_path / "a", base, linear_paths(base, "q_proj"), seed=5)
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    assert _runner(llama, {"a": tmp_path / "a"}).weight_bytes - _runner(llama, {}).weight_bytes == num_bytes


def test_latents_stay_absorbed_unless_an_adapter_changes_what_expands_them(tmp_path: Path) -> None:
    folder = save_model("deepseek_v3", tmp_path / "model")
    base = reference_model(folder)
    widths = {}
    for name in ("q_b_proj", "kv_b_proj"):
        save_adapter(tmp_path / name, base, linear_paths(base, name), seed=6)
        widths[name] = _runner(folder, {"a": tmp_path / name}).token_bytes
    assert widths["q_b_proj"] < widths["kv_b_proj"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "use_dora is not supported"),
        ({"bias": "all"}, "bias is 'all', which is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters is not supported"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices is not supported"),
        ({"peft_type": "IA3"}, "its peft_type is 'IA3'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the model's own weights"),
        ({"r": 0}, "r is 0; it must be a number above 0"),
        ({"lora_alpha": None}, "lora_alpha is None; it must be"),
        ({"r": 8}, r"of model\.layers\.0\.self_attn\.q_proj A is 4 x 32 and B 32 x 4; its rank is 8"),
    ],
)
def test_settings_that_are_not_supported_are_refused_by_name(
    llama: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    base = reference_model(llama)
    save_adapter(tmp_path / "a", base, linear_paths(base, "q_proj"), seed=7)
    path = tmp_path / "a" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(ModelError, match=f"the adapter 'a' cannot be served: {message}") as refusal:
        _runner(llama, {"a": tmp_path / "a"})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        (
            "base_model.model.model.layers.7.self_attn.q_proj",
            "its module model.layers.7.self_attn.q_proj does not exist",
        ),
        ("base_model.model.model.norm", "its module model.norm is no linear layer"),
        (
            "base_model.model.model.layers.0.mlp.down_proj",
            "down_proj takes 48 inputs to 32 outputs, and the adapter 32 to 32",
        ),
        ("model.layers.0.self_attn.q_proj", "is not the A or B of a linear layer"),
    ],
)
def test_an_adapter_of_another_model_is_refused_by_module(
    llama: str, renamed: str, message: str, tmp_path: Path
) -> None:
    base = reference_model(llama)
    tensors = save_adapter(tmp_path / "a", base, ["model.layers.0.self_attn.q_proj"], seed=8)
    own = "base_model.model.model.layers.0.self_attn.q_proj"
    changed = {key.replace(own, renamed): tensor for key, tensor in tensors.items()}
    save_file(changed, tmp_path / "a" / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=message) as refusal:
        _runner(llama, {"a": tmp_path / "a"})
    assert "\n" not in str(refusal.value)


def test_a_damaged_adapter_is_refused_in_one_line(llama: str, tmp_path: Path) -> None:
    base = reference_model(llama)
    save_adapter(tmp_path / "a", base, linear_paths(base, "q_proj"), seed=9)
    weights = tmp_path / "a" / "adapter_model.safetensors"
    whole = load_file(weights)

    def refusal(pattern: str) -> None:
        with pytest.raises(ModelError, match=pattern) as refused:
            _runner(llama, {"a": tmp_path / "a"})
        assert "\n" not in str(refused.value)

    save_file({key: tensor for key, tensor in whole.items() if "lora_A" in key}, weights)
    refusal("it has lora_A alone")
    save_file({}, weights)
    refusal("holds no updates")
    weights.write_bytes(b"no tensors")
    refusal(r"adapter_model\.safetensors cannot be read")
    weights.unlink()
    refusal(r"adapter_model\.safetensors cannot be read")
    (tmp_path / "a" / "adapter_config.json").write_text("{")
    refusal(r"adapter_config\.json cannot be read")


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 65, "a/b"])
def test_a_name_that_requests_could_not_give_is_refused(llama: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        _runner(llama, {name: tmp_path})
    assert refusal.value.argument == "adapter"


def test_no_two_of_namespace_and_adapter_share_a_namespace() -> None:
    pairs = [(namespace, adapter) for namespace in ("team", "team-a", "a") for adapter in ("", "a", "b")]
    assert len({derived_namespace(pair[0], adapter=pair[1]) for pair in pairs}) == len(pairs)
    with pytest.raises(InvalidArgumentError, match="namespace"):
        derived_namespace(derived_namespace("team", adapter="a"))
