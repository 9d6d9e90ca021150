"""The runner computes what transformers computes, however the work is cut up and wherever the KV lies."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tiny_models import CONFIGS, REFUSED_CONFIGS, VOCAB_SIZE, reference_logits, reference_model, save_model

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.worker.errors import ModelError
from radixkv.worker.model.model import ForwardRow, ModelRunner

TOLERANCE = 1e-4
NUM_BLOCKS = 48
BLOCK_SIZE = 4


class Lines:
    """Sequences on a runner, their blocks scattered over the pool."""

    def __init__(self, runner: ModelRunner, seed: int = 0) -> None:
        self.runner = runner
        self.free = list(range(NUM_BLOCKS))
        random.Random(seed).shuffle(self.free)

    def table(self, num_tokens: int) -> array[int]:
        return array("i", [self.free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))])

    def prefill(self, token_ids: list[int], table: array[int], chunk: int, start: int = 0) -> torch.Tensor:
        for first in range(start, len(token_ids), chunk):
            part = token_ids[first : first + chunk]
            is_last = first + chunk >= len(token_ids)
            logits = self.runner.forward([ForwardRow(part, first, table, 0, is_last)])
            assert logits.shape == (int(is_last), VOCAB_SIZE)
        return logits[0]


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRunner, Any]:
    torch.set_num_threads(1)
    folder = save_model(request.param, tmp_path_factory.mktemp(request.param))
    runner = ModelRunner(folder, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype="float32", device="cpu")
    for cache in runner.pool.caches:
        cache.k.fill_(float("nan"))
        cache.v.fill_(float("nan"))  # what nobody wrote must not be felt
    return runner, reference_model(folder)


def random_ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


@pytest.mark.parametrize("chunk", [3, 64, *(pytest.param(each, marks=pytest.mark.thorough) for each in (1, 4, 7))])
def test_logits_equal_those_of_transformers_for_any_chunk_size(pair: tuple[ModelRunner, Any], chunk: int) -> None:
    runner, reference = pair
    token_ids = random_ids(37, seed=chunk)
    lines = Lines(runner, seed=chunk)
    logits = lines.prefill(token_ids, lines.table(len(token_ids)), chunk)
    torch.testing.assert_close(logits, reference_logits(reference, token_ids)[-1], atol=TOLERANCE, rtol=0)


def test_a_mixed_batch_gives_each_row_what_it_gets_alone(pair: tuple[ModelRunner, Any]) -> None:
    runner, reference = pair
    lines = Lines(runner)
    histories = [random_ids(count, seed=count) for count in (1, 5, 18, 30)]
    tables = [lines.table(len(history)) for history in histories]
    starts = [0, 4, 17, 9]
    for history, table, start in zip(histories, tables, starts, strict=True):
        if start:
            runner.forward([ForwardRow(history[:start], 0, table, 0, False)])
    rows = [
        ForwardRow(history[start:], start, table, 0, index != 2)
        for index, (history, table, start) in enumerate(zip(histories, tables, starts, strict=True))
    ]
    logits = runner.forward(rows)
    expected = torch.stack([reference_logits(reference, histories[index])[-1] for index in (0, 1, 3)])
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


class Late:
    """Becomes 1 as a step asks for the `number`th time."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def value(self) -> int:
        self.number -= 1
        return int(self.number < 0)


def test_a_step_given_up_at_any_layer_leaves_its_sequence_and_others_as_they_were(
    pair: tuple[ModelRunner, Any],
) -> None:
    runner, reference = pair
    lines = Lines(runner)
    histories = [random_ids(count, seed=count) for count in (18, 30)]
    tables = [lines.table(len(history)) for history in histories]
    rows = [ForwardRow(history[9:], 9, table, 0, 1) for history, table in zip(histories, tables, strict=True)]
    runner.forward([ForwardRow(history[:9], 0, table, 0, 0) for history, table in zip(histories, tables, strict=True)])
    expected = torch.stack([reference_logits(reference, history)[-1] for history in histories])
    for layer in range(runner.num_layers):
        late: Any = Late(layer)
        assert runner.forward_unless(late, rows[:1]) is None
        assert late.number == -1, "a layer ran on"
        torch.testing.assert_close(runner.forward(rows), expected, atol=TOLERANCE, rtol=0)
    wanted: Any = Late(runner.num_layers)
    found = runner.forward_unless(wanted, rows)
    assert found is not None
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_a_step_in_which_no_row_wants_logits_answers_none(pair: tuple[ModelRunner, Any]) -> None:
    runner, _ = pair
    table = Lines(runner).table(3)
    assert runner.forward([ForwardRow([5, 6, 7], 0, table, 0, False)]).shape == (0, VOCAB_SIZE)


def test_greedy_decoding_gives_the_tokens_of_generate(pair: tuple[ModelRunner, Any]) -> None:
    runner, reference = pair
    prompt = random_ids(11, seed=1)
    count = 20
    generated = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, 11),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
    )[0, len(prompt) :].tolist()
    lines = Lines(runner)
    table = lines.table(len(prompt) + count)
    token_ids = list(prompt)
    logits = lines.prefill(token_ids, table, chunk=4)
    for _ in range(count):
        token_ids.append(int(logits.argmax()))
        logits = runner.forward([ForwardRow(token_ids[-1:], len(token_ids) - 1, table, 0, True)])[0]
    assert token_ids[len(prompt) :] == generated


def test_a_forked_branch_reads_shared_blocks_and_a_copied_partial_one(pair: tuple[ModelRunner, Any]) -> None:
    runner, reference = pair
    lines = Lines(runner)
    trunk, fork_at = random_ids(23, seed=3), 18
    trunk_table = lines.table(len(trunk))
    lines.prefill(trunk, trunk_table, chunk=23)
    branch = trunk[:fork_at] + random_ids(9, seed=4)
    shared, own = fork_at // BLOCK_SIZE, lines.table(len(branch) - fork_at // BLOCK_SIZE * BLOCK_SIZE)
    runner.carry_out([Copy(trunk_table[shared], own[0], fork_at % BLOCK_SIZE)])
    table = trunk_table[:shared] + own
    logits = lines.prefill(branch, table, chunk=5, start=fork_at)
    torch.testing.assert_close(logits, reference_logits(reference, branch)[-1], atol=TOLERANCE, rtol=0)
    last = runner.forward([ForwardRow(trunk[-1:], len(trunk) - 1, trunk_table, len(trunk), True)])[0]
    torch.testing.assert_close(last, reference_logits(reference, trunk)[-1], atol=TOLERANCE, rtol=0)


def test_positions_that_are_stored_already_are_not_written(pair: tuple[ModelRunner, Any]) -> None:
    runner, _ = pair
    lines = Lines(runner)
    token_ids = random_ids(10, seed=5)
    table = lines.table(len(token_ids))
    lines.prefill(token_ids, table, chunk=10)
    before = [cache.k.clone() for cache in runner.pool.caches]
    runner.forward([ForwardRow([50, 51], 8, table, 10, True)])
    for cache, kept in zip(runner.pool.caches, before, strict=True):
        torch.testing.assert_close(cache.k, kept, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("family", sorted(REFUSED_CONFIGS))
def test_a_model_that_cannot_be_served_is_refused_when_it_is_loaded(family: str, tmp_path: Path) -> None:
    folder = save_model(family, tmp_path)
    with pytest.raises(ModelError) as refusal:
        ModelRunner(folder, num_blocks=4, dtype="float32", device="cpu")
    assert "\n" not in str(refusal.value)


def test_a_folder_without_weights_is_refused_in_one_line(tmp_path: Path) -> None:
    CONFIGS["llama"]().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be loaded") as refusal:
        ModelRunner(str(tmp_path), num_blocks=4, dtype="float32", device="cpu")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("dtype", "int3"),
        ("device", "abacus"),
        ("quantization", "int3"),
        ("kv_dtype", "int3"),
        ("num_blocks", 0),
        ("block_size", 0),
    ],
)
def test_an_argument_outside_its_bound_is_named(argument: str, value: Any, tmp_path: Path) -> None:
    arguments = {"num_blocks": 4, "dtype": "float32", "device": "cpu", argument: value}
    with pytest.raises(InvalidArgumentError) as refusal:
        ModelRunner(save_model("llama", tmp_path), **arguments)
    assert refusal.value.argument == argument


def test_the_runner_tells_what_the_model_allows(tmp_path: Path) -> None:
    runner = ModelRunner(save_model("llama", tmp_path), num_blocks=4, dtype="bfloat16", device="cpu")
    assert (runner.vocab_size, runner.max_model_len, runner.eos_token_ids) == (VOCAB_SIZE, 256, frozenset({2}))
    assert runner.pool.caches[0].dtype == torch.bfloat16


def test_a_rope_that_changes_with_the_length_is_used_only_as_far_as_it_does_not(tmp_path: Path) -> None:
    config = CONFIGS["llama"]()
    config.rope_parameters = {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config.architectures = ["LlamaForCausalLM"]
    save_model("llama", tmp_path)
    config.save_pretrained(tmp_path)
    assert ModelRunner(str(tmp_path), num_blocks=4, dtype="float32", device="cpu").max_model_len == 64


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_weights_are_rounded_where_asked_for_and_where_no_dtype_is(
    has_bfloat16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    config = CONFIGS["llama"]()
    config.hidden_size, config.head_dim, config.intermediate_size = 64, 16, 128
    tf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    def load(**arguments: Any) -> ModelRunner:
        return ModelRunner(str(tmp_path), num_blocks=4, device="cpu", **arguments)

    asked = ("auto", "none", "int8", "int4")
    assert [load(quantization=each).quantization for each in asked] == ["int8", "none", "int8", "int4"]
    assert [load(dtype=dtype).quantization for dtype in ("float32", "bfloat16")] == ["none", "none"]
    exact, rounded = load(dtype="float32"), load(dtype="float32", quantization="int8")
    assert rounded.weight_bytes < 0.5 * exact.weight_bytes
    row = ForwardRow([5, 6, 7], 0, array("i", [2, 0]), 0, True)
    difference = (rounded.forward([row]) - exact.forward([row])).norm() / exact.forward([row]).norm()
    assert 0 < difference < 2e-2
    fewer = load(dtype="float32", quantization="int4")
    assert fewer.weight_bytes < rounded.weight_bytes
    difference = (fewer.forward([row]) - exact.forward([row])).norm() / exact.forward([row]).norm()
    assert 2e-2 < difference < 0.3


def test_int8_weights_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="int8 weights: the model has no linear layer of a multiple of 64 inputs"):
        ModelRunner(save_model("llama", tmp_path), num_blocks=4, device="cpu", dtype="float32", quantization="int8")
