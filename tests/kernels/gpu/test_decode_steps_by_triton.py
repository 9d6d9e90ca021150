"""Static decode steps answer what transformers does, whatever batches follow one another; on CUDA they are replayed graphs."""

from __future__ import annotations

import random
from array import array
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tiny_models import CONFIGS, VOCAB_SIZE, reference_logits, reference_model, save_model
from torch._subclasses.fake_tensor import FakeTensorMode
from triton_device import DEVICE, needs_triton_device

from radixkv.kernels.gpu import device_work
from radixkv.kernels.gpu.device_work import ALL_LAUNCHES, DECODE_LAUNCHES
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.worker.model import model
from radixkv.worker.model.cuda import cuda_graphs as decode_steps
from radixkv.worker.model.cuda.capturable_experts import use_capturable_experts
from radixkv.worker.model.cuda.cuda_graphs import STEP_SIZES, fits_steps, padded_size
from radixkv.worker.model.cuda.fused_decoder import fuse_decoder
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ForwardRow, ModelRunner

pytestmark = needs_triton_device

TOLERANCE = 2e-4
NUM_BLOCKS = 64
BLOCK_SIZE = 4
TRUNK = 14


class Branches:
    """Branches that continue one trunk, on scattered blocks of a runner's pool; what nobody wrote there is NaN."""

    def __init__(self, runner: ModelRunner, reference: Any, seed: int = 0) -> None:
        self.runner, self.reference = runner, reference
        self.random = random.Random(seed)
        self.free = list(range(NUM_BLOCKS))
        self.random.shuffle(self.free)
        for layer, cache in zip(runner.pool.layers, runner.pool.caches, strict=True):
            end = None if runner.pool.windows is None or layer.window is None else -1  # a row of zeros
            for tensor in cache.tensors:
                if tensor.is_floating_point() and tensor.element_size() > 1:
                    tensor[:end] = torch.nan
        self.trunk = self.random.choices(range(3, VOCAB_SIZE), k=TRUNK)
        self.trunk_table = self._blocks(TRUNK)
        runner.forward([ForwardRow(self.trunk, 0, self.trunk_table, 0, False)])
        self.histories: list[list[int]] = []
        self.tables: list[array[int]] = []

    def _blocks(self, num_tokens: int) -> array[int]:
        return array("i", [self.free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))])

    def begin(self, own_tokens: int) -> None:
        """A branch of its own tokens after the trunk's whole blocks, computed but for the last."""
        shared = TRUNK // BLOCK_SIZE
        history = self.trunk[: shared * BLOCK_SIZE] + self.random.choices(range(3, VOCAB_SIZE), k=own_tokens)
        table = self.trunk_table[:shared] + self._blocks(own_tokens + 8)
        start = shared * BLOCK_SIZE
        if own_tokens > 1:
            self.runner.forward([ForwardRow(history[start:-1], start, table, 0, False)])
        self.histories.append(history)
        self.tables.append(table)

    def decode(self, *branches: int, is_drawn: bool = False) -> torch.Tensor:
        """A step of these branches, each of which then has the most likely token more; `is_drawn`: ids on the device."""
        drawn_ids = torch.tensor([history[-1] for history in self.histories], device=DEVICE) if is_drawn else None
        rows = [
            ForwardRow(
                [~b] if is_drawn else self.histories[b][-1:], len(self.histories[b]) - 1, self.tables[b], 0, True
            )
            for b in branches
        ]
        logits = self.runner.forward(rows, drawn_ids).cpu().clone()
        expected = torch.stack([reference_logits(self.reference, self.histories[b])[-1] for b in branches])
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
        for branch, row in zip(branches, logits, strict=True):
            self.histories[branch].append(int(row.argmax()))
        return logits


def load(
    family: str, folder: Path, *, is_fused: bool = False, num_window_blocks: int | None = None, **arguments: Any
) -> tuple[ModelRunner, Any]:
    """A runner as on a GPU, and transformers' own model."""
    torch.set_num_threads(1)
    path = save_model(family, folder)
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}
    with patch.object(model, "pack_linears") if is_fused else nullcontext():  # as a GPU does not
        runner = ModelRunner(path, **sizes, dtype="float32", device=DEVICE, **arguments)
    how = {"kv_format": runner.kv_format, "layout": Layout.HEAD_MAJOR, "num_window_blocks": num_window_blocks}
    runner.pool = KVPool(runner._layers, *sizes.values(), runner.dtype, runner.device, **how)
    if is_fused and runner.device.type == "cpu":  # a GPU's runner has done it
        assert fuse(runner)
    return runner, reference_model(path)


def fuse(runner: ModelRunner, *, joins: bool = True) -> bool:
    return fuse_decoder(runner._model, runner._layers, runner._specs, runner._run, runner.device, joins=joins)


@pytest.fixture
def only_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is to be planned for itself."""
    monkeypatch.setattr(model, "StepAttention", lambda *_: pytest.fail("it was not run by a static step"))


def can_be_captured(family: str) -> bool:
    """Every step; on a GPU the experts of a larger one read sizes on the host in fp32, and it runs as it is."""
    return DEVICE != "cuda" or family not in ("gpt_oss", "qwen3_moe")


@pytest.mark.parametrize(
    ("family", "is_fused", "num_window_blocks"),
    [
        *((family, False, None) for family in ("llama", "gemma3", "gpt2", "gpt_oss", "deepseek_v3")),
        *((family, False, NUM_BLOCKS - 8) for family in ("gemma3", "gpt_oss", "mistral")),
        *((family, True, None) for family in ("llama", "qwen2", "qwen3")),
        ("qwen2_mixed", True, NUM_BLOCKS - 8),
    ],
)
def test_branches_that_come_and_go_get_what_transformers_answers(
    family: str, is_fused: bool, num_window_blocks: int | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert family in CONFIGS
    if can_be_captured(family):
        request.getfixturevalue("only_steps")
    branches = Branches(*load(family, tmp_path, is_fused=is_fused, num_window_blocks=num_window_blocks))
    for own_tokens in (6, 3, 9):
        branches.begin(own_tokens)
    for _ in range(3):
        branches.decode(0, 1, 2)
    branches.begin(5)  # a prompt between the steps
    branches.decode(0, 1, 2)
    branches.decode(0, 1, 2, 3)
    branches.decode(3, 0, 2, is_drawn=True)  # another order
    branches.decode(2)
    branches.decode(0, 1, 2, 3, is_drawn=True)


@pytest.mark.usefixtures("only_steps")
def test_lists_are_made_anew_where_items_end_and_buffers_where_they_are_outgrown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_work, "LEAST_SPLITS", (8, 8))
    monkeypatch.setattr(device_work, "MOST_SPLIT", 8)
    monkeypatch.setattr(decode_steps, "_FIRST_CAPACITY", device_work.WorkCapacity(256, 3, 4, 4))
    branches = Branches(*load("llama", tmp_path))
    for own_tokens in (7, 1):
        branches.begin(own_tokens)
    for _ in range(8):
        branches.decode(0, 1)


class Mixes:
    """Random steps of prompts, decodes and both, of branches that share prefixes, run by two runners with a pool each."""

    def __init__(self, static: ModelRunner, planned: ModelRunner, seed: int) -> None:
        self.runners = static, planned
        self.random = random.Random(seed)
        self.free = list(range(NUM_BLOCKS))
        self.random.shuffle(self.free)
        self.sequences: list[tuple[list[int], array[int], int]] = []  # ids, blocks, computed
        for runner in self.runners:
            for cache in runner.pool.caches:
                for tensor in cache.tensors:
                    tensor.fill_(torch.nan)

    def begin(self, num_tokens: int) -> None:
        """A sequence of new tokens after some of the computed blocks of another."""
        ids, table, computed = self.random.choice(self.sequences) if self.sequences else ([], array("i"), 0)
        shared = self.random.randint(computed // BLOCK_SIZE // 2, computed // BLOCK_SIZE)
        length = shared * BLOCK_SIZE + num_tokens
        own = array("i", [self.free.pop() for _ in range(-(-(length + 6) // BLOCK_SIZE) - shared)])
        new_ids = ids[: shared * BLOCK_SIZE] + self.random.choices(range(3, VOCAB_SIZE), k=num_tokens)
        self.sequences.append((new_ids, table[:shared] + own, shared * BLOCK_SIZE))

    def step(self, most_tokens: int, most_logits: int) -> None:
        """Some of the next tokens of some sequences, with the logits of some."""
        rows, chosen, tokens_left, logits_left = [], [], most_tokens, most_logits
        for index in self.random.sample(range(len(self.sequences)), len(self.sequences)):
            ids, table, computed = self.sequences[index]
            count = min(len(ids) - computed, self.random.choice((3, most_tokens)), tokens_left)
            if count:
                num_logits = min(logits_left, self.random.choice((0, 1, count)))
                num_logits = max(num_logits, int(computed + count == len(ids) and logits_left > 0))
                rows.append(ForwardRow(ids[computed : computed + count], computed, table, 0, num_logits))
                chosen.append(index)
                tokens_left, logits_left = tokens_left - count, logits_left - num_logits
        found, expected = (runner.forward(rows).cpu().clone() for runner in self.runners)
        assert found.shape == (most_logits - logits_left, VOCAB_SIZE)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
        assert torch.equal(found.argmax(-1), expected.argmax(-1))
        past = 0
        for index, row in zip(chosen, rows, strict=True):
            ids, table, computed = self.sequences[index]
            past += row.num_logits
            computed += len(row.token_ids)
            if row.num_logits and computed == len(ids) < len(table) * BLOCK_SIZE:
                ids.append(int(found[past - 1].argmax()))
            self.sequences[index] = ids, table, computed


THOROUGH = [("llama", False), ("gemma3", False), ("qwen3_moe", False), ("gpt_oss", False), ("qwen3", True)]


@pytest.mark.parametrize(
    ("family", "is_fused", "num_rounds"),
    [
        *(("gpt_oss", False, 1), ("deepseek_v3", False, 1), ("llama", True, 1)),
        *(pytest.param(*each, 3, marks=pytest.mark.thorough) for each in THOROUGH),
    ],
)
def test_steps_of_prompts_and_decodes_give_what_steps_planned_for_themselves_give(
    family: str, is_fused: bool, num_rounds: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decode_steps, "MOST_ROWS", 8)
    monkeypatch.setattr(decode_steps, "STEP_SIZES", (1, 2, 4, 8, 16))
    monkeypatch.setattr(decode_steps, "_FIRST_CAPACITY", device_work.WorkCapacity(16, 12, 24, 24))
    monkeypatch.setattr(device_work, "LEAST_SPLITS", (8, 8))
    monkeypatch.setattr(device_work, "MOST_SPLIT", 16)
    monkeypatch.setattr(device_work, "_MIN_SAVED_TOKENS", 1)
    how = {"is_fused": is_fused}
    (static, _), (planned, _) = (load(family, tmp_path, **how, cuda_graphs=graphs) for graphs in (True, False))
    if can_be_captured(family):
        monkeypatch.setattr(static, "_compute", lambda *_: pytest.fail("it was not run by a static step"))
    mixes = Mixes(static, planned, seed=2)
    mixes.begin(15)
    mixes.step(16, 8)
    for _ in range(num_rounds):
        mixes.begin(mixes.random.randint(4, 12))
        mixes.step(16, 8)  # the prompt, and decodes
        mixes.step(16, 8)  # decodes
        mixes.step(4, 2)


@pytest.mark.usefixtures("only_steps")
def test_a_step_writes_the_slots_of_its_rows_and_nothing_else(tmp_path: Path) -> None:
    runner, reference = load("llama", tmp_path)
    branches = Branches(runner, reference)
    for own_tokens in (2, 3, 4):
        branches.begin(own_tokens)
    before = [tensor.clone() for cache in runner.pool.caches for tensor in cache.tensors]
    places = [
        (table[(len(h) - 1) // BLOCK_SIZE], (len(h) - 1) % BLOCK_SIZE)
        for h, table in zip(branches.histories, branches.tables, strict=True)
    ]
    branches.decode(0, 1, 2)
    after = [tensor for cache in runner.pool.caches for tensor in cache.tensors]
    for old, new in zip(before, after, strict=True):
        for block, offset in places:
            assert not torch.equal(old[block, :, offset], new[block, :, offset])
            old[block, :, offset] = new[block, :, offset]
        torch.testing.assert_close(old, new, atol=0, rtol=0, equal_nan=True)
    stored = [
        ForwardRow(h[-2:-1], len(h) - 2, t, len(h), True)
        for h, t in zip(branches.histories, branches.tables, strict=True)
    ]
    kept = [tensor.clone() for tensor in after]
    runner.forward(stored)
    for old, new in zip(kept, after, strict=True):
        torch.testing.assert_close(old, new, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(("family", "kv_dtype"), [("llama", "int8"), ("llama", "fp8"), ("deepseek_v3", "int4")])
def test_quantised_caches_give_what_a_step_planned_for_itself_gives(family: str, kv_dtype: str, tmp_path: Path) -> None:
    answers = []
    for cuda_graphs in (True, False):
        runner, _ = load(family, tmp_path, kv_dtype=kv_dtype, cuda_graphs=cuda_graphs)
        table = array("i", range(NUM_BLOCKS))
        ids = random.Random(1).choices(range(3, VOCAB_SIZE), k=20)
        runner.forward([ForwardRow(ids[:-2], 0, table, 0, False)])
        logits = [
            runner.forward([ForwardRow([token], at, table, 0, True)]).clone() for at, token in enumerate(ids[-2:], 18)
        ]
        answers.append(torch.cat(logits))
    torch.testing.assert_close(*answers, atol=1e-6, rtol=0)


def test_steps_are_padded_to_the_next_size() -> None:
    for count, size in ((1, 1), (3, 4), (5, 8), (9, 16), (65, 72), (256, 256), (257, 384), (1024, 1024)):
        assert padded_size(count) == size
    assert padded_size(0) is padded_size(STEP_SIZES[-1] + 1) is None


def test_steps_hold_what_their_buffers_do() -> None:
    def row(num_tokens: int, num_logits: int = 1, adapter: str = "") -> ForwardRow:
        return ForwardRow([3] * num_tokens, 0, array("i"), 0, num_logits, adapter)

    for rows in ([row(1)] * 256, [row(1024)], [row(769), *[row(1)] * 255], [row(300, 256)], [row(9, 0)]):
        assert fits_steps(rows)
    for rows in ([row(1)] * 257, [row(1025)], [row(300, 257)], [row(300, 256), row(1)], [row(1), row(1, 1, "a")]):
        assert not fits_steps(rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_model_that_cannot_be_captured_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner, reference = load("llama", tmp_path)
    answer = runner._answer

    def waits(*arguments: Any) -> torch.Tensor:
        logits = answer(*arguments)
        assert bool(logits.isfinite().all())  # read by the host
        return logits

    monkeypatch.setattr(runner, "_answer", waits)
    branches = Branches(runner, reference)
    branches.begin(5)
    for _ in range(3):
        branches.decode(0)
    steps = runner._take_steps()
    assert steps is not None
    assert steps.failed_sizes == {1, 4, 16}  # those of the prompts, too
    assert runner.num_uncaptured_sizes == 3


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), Exception("out of resource: shared memory")])
def test_a_size_that_cannot_be_captured_runs_without_a_graph_and_the_others_keep_theirs(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    branches = Branches(*load("llama", tmp_path))
    for own_tokens in (6, 3, 4):
        branches.begin(own_tokens)
    steps = branches.runner._take_steps()
    assert steps is not None
    steps._forget_steps()  # those of the prompts
    captured, outcomes = [], [None, error, None]

    def capture(body: Any) -> SimpleNamespace:
        captured.append(body)
        if failure := outcomes.pop(0):
            raise failure
        return SimpleNamespace(replay=body)

    monkeypatch.setattr(steps, "_captures", True)
    monkeypatch.setattr(steps, "_capture", capture)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for rows in ((0,), (0, 1, 2), (0, 1), (2, 0, 1), (1,)):
        branches.decode(*rows)
    assert steps.failed_sizes == {4}
    assert branches.runner.num_uncaptured_sizes == 1
    assert len(captured) == 3


def test_after_a_step_that_failed_between_two_kinds_of_layers_the_next_ones_have_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runner, reference = load("gemma3", tmp_path)
    steps = runner._take_steps()
    assert steps is not None
    attend, kinds = steps.attend, []

    def attend_or_fail(query: torch.Tensor, cache: Any, spec: Any) -> torch.Tensor:
        if spec.sliding_window not in kinds:
            kinds.append(spec.sliding_window)
            if len(kinds) == 2:
                raise torch.OutOfMemoryError("no memory")
        return attend(query, cache, spec)

    monkeypatch.setattr(steps, "attend", attend_or_fail)
    monkeypatch.setattr(steps, "_captures", True)
    monkeypatch.setattr(steps, "_capture", lambda body: SimpleNamespace(replay=body))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    branches = Branches(runner, reference)
    for own_tokens in (6, 3):
        branches.begin(own_tokens)
    branches.decode(0, 1)
    branches.decode(1)
    assert len(kinds) == 2
    assert len(steps.failed_sizes) == 1
    assert len(steps._kinds) == 2


def test_what_is_prepared_is_made_and_no_slot_is_written(tmp_path: Path) -> None:
    runner, _ = load("llama", tmp_path)
    tensors = [tensor for cache in runner.pool.caches for tensor in cache.tensors]
    for tensor in tensors:
        tensor.fill_(7.0)
    runner.prepare(3)
    steps = runner._take_steps()
    assert steps is not None
    assert set(steps._steps) == set(product((1, 2, 4), (ALL_LAUNCHES, DECODE_LAUNCHES)))
    assert all(bool((tensor == 7.0).all()) for tensor in tensors)


def test_the_experts_of_a_small_step_are_run_without_reading_a_number_on_the_host(tmp_path: Path) -> None:
    """Emulated: a tensor without values has no number to read."""
    model = reference_model(save_model("qwen3_moe", tmp_path))
    experts = next(module for module in model.modules() if hasattr(module, "is_transposed"))
    use_capturable_experts(model)
    hidden = torch.randn(2, model.config.hidden_size)
    chosen, weights = torch.tensor([[0, 1], [1, 2]]), torch.rand(2, 2)
    found = experts(hidden, chosen, weights)
    model.set_experts_implementation("eager")
    torch.testing.assert_close(found, experts(hidden, chosen, weights))
    use_capturable_experts(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        faked = experts(*(mode.from_tensor(tensor) for tensor in (hidden, chosen, weights)))
    assert faked.shape == hidden.shape
