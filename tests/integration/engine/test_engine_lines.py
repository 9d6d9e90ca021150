"""Lines in spans of their own: tokens are those of transformers and of a paged engine, and no fork computes anything again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answers import draw_prompt, generate_tokens, greedy, read_tokens, start_together
from desk import Desk, LateCache
from desk import greedy as greedy_of_hashes
from desk import take as take_hashes
from tiny_models import reference_model, reference_replies, save_model

from radixkv import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta, Usage
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.generation import Generation
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.limits import SchedulerLimits

VOCAB_SIZE, MAX_LENGTH, BLOCK_SIZE, NUM_BLOCKS = 97, 256, 8, 64
LINE_BLOCKS = MAX_LENGTH // BLOCK_SIZE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("llama")
    return save_model("llama", path)


@pytest.fixture(scope="module")
def reference(folder: str) -> Any:
    return reference_model(folder)


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    with _engine(folder) as engine:
        yield engine
        engine.call(lambda cache: cache.check())
        assert engine.call(lambda cache: cache.stats()).num_sequences == 0


def _engine(folder: str, num_lines: int = 2, num_blocks: int = NUM_BLOCKS, kv_dtype: str = "auto") -> Engine:
    runner = ModelRunner(
        folder,
        num_blocks=num_blocks + num_lines * LINE_BLOCKS,
        block_size=BLOCK_SIZE,
        dtype="float32",
        device="cpu",
        kv_dtype=kv_dtype,
    )
    arena = Arena(num_blocks, num_lines, LINE_BLOCKS, BLOCK_SIZE) if num_lines else None
    limits = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16)
    return Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), limits=limits, arena=arena)


def _lines(engine: Engine) -> tuple[int, int]:
    """How many there are, and how often one was moved."""
    engine.call(lambda _: None)  # what has ended is released by then
    stats = engine.stats().engine
    return stats.num_lines, stats.num_moved_lines


def _cached_blocks(engine: Engine) -> int:
    return engine.call(lambda cache: cache.stats()).num_cached_blocks


def _talk(engine: Engine, seed: int = 1) -> tuple[list[int], list[tuple[list[int], Usage]]]:
    """Three turns: the whole history, and each reply with what it cost."""
    history: list[int] = []
    turns = []
    for turn in range(3):
        history += draw_prompt(VOCAB_SIZE, seed * 10 + turn, 30 - 7 * turn)
        tokens, usage = generate_tokens(engine, history, greedy(11))
        turns.append((tokens[0], usage))
        history += tokens[0]
    return history, turns


def test_a_conversation_is_a_line_until_it_is_forked_and_then_a_tree(engine: Engine, reference: Any) -> None:
    history, turns = _talk(engine)
    assert _lines(engine) == (1, 0)
    assert _cached_blocks(engine) == 0
    length = 0
    for turn, (reply, usage) in enumerate(turns):
        num_new = 30 - 7 * turn
        length += num_new
        assert reply == reference_replies(reference, history[:length], 11)[0]
        assert usage.num_computed_tokens == (turn > 0) + num_new + 10
        length += 11
    for position in (50, 41, 77):  # inside the second turn's reply, at its beginning, before the last token of all
        tokens, usage = generate_tokens(engine, history[:position], greedy(9))
        assert tokens[0] == reference_replies(reference, history[:position], 9)[0]
        assert usage.num_computed_tokens == 9  # the last token of what is cached gives the first, and eight more
        assert _lines(engine) == (0, 1)
    further = [*history, *draw_prompt(VOCAB_SIZE, 99, 5)]
    tokens, usage = generate_tokens(engine, further, greedy(4))  # what was the line goes on, from blocks
    assert tokens[0] == reference_replies(reference, further, 4)[0]
    assert usage.num_computed_tokens == 1 + 5 + 3
    assert _lines(engine) == (0, 1)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4"])
def test_line_and_tree_give_the_tokens_of_a_paged_engine(folder: str, kv_dtype: str) -> None:
    told = []
    for num_lines in (0, 1):
        with _engine(folder, num_lines, kv_dtype=kv_dtype) as engine:
            history, turns = _talk(engine)
            forked = generate_tokens(engine, history[:50], greedy(12, n=2))
            assert _lines(engine) == (0, num_lines)
            told.append((turns, forked))
    for (tokens, usage), (others, other_usage) in zip(
        told[0][0] + [told[0][1]], told[1][0] + [told[1][1]], strict=True
    ):
        assert tokens == others
        assert usage[:4] == other_usage[:4]


def test_namespaces_have_lines_of_their_own(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 3, 30)
    expected = reference_replies(reference, prompt, 6)[0]
    for namespace in ("a", "b"):
        params = GenerateParams(token_ids=prompt, sampling=greedy(6), namespace=namespace)
        tokens, usage = read_tokens(engine.generate(params))
        assert tokens[0] == expected
        assert usage.num_cached_tokens == 0
    assert _lines(engine) == (2, 0)
    again = GenerateParams(token_ids=prompt[:29], sampling=greedy(1), namespace="a")
    assert read_tokens(engine.generate(again))[1].num_computed_tokens == 1
    assert _lines(engine) == (1, 1)
    matched = [engine.call(lambda cache, name=name: cache.match(prompt, namespace=name)).num_tokens for name in "ab"]  # type: ignore[misc]
    assert matched == [30, 0]


def test_where_spans_run_out_the_line_least_recently_used_goes_on_in_blocks(engine: Engine, reference: Any) -> None:
    histories = []
    for seed in (1, 2, 3):
        prompt = draw_prompt(VOCAB_SIZE, seed, 26)
        histories.append(prompt + generate_tokens(engine, prompt, greedy(8))[0][0])
    assert _lines(engine) == (2, 1)
    for history in histories:
        prompt = history + draw_prompt(VOCAB_SIZE, 9, 4)
        tokens, usage = generate_tokens(engine, prompt, greedy(5))
        assert tokens[0] == reference_replies(reference, prompt, 5)[0]
        assert usage.num_computed_tokens == 1 + 4 + 4


def test_a_line_that_finds_no_blocks_to_move_to_is_a_miss_and_no_error(folder: str, reference: Any) -> None:
    prompts = [draw_prompt(VOCAB_SIZE, seed, 70) for seed in (1, 2)]
    with _engine(folder, num_lines=1, num_blocks=12) as engine:
        engine.call(lambda cache: cache.acquire(range(48), seq_id=10**9))  # somebody holds six of the twelve
        first = generate_tokens(engine, prompts[0], greedy(3))[0][0]
        generate_tokens(engine, prompts[1], greedy(3))  # needs the span, and nine blocks of the six that are left
        tokens, usage = generate_tokens(engine, prompts[0], greedy(3))
        assert tokens[0] == first == reference_replies(reference, prompts[0], 3)[0]
        assert usage.num_cached_tokens == 0


def test_a_cancelled_reply_leaves_what_it_has_computed(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 4, 30)
    with engine.generate(GenerateParams(token_ids=prompt, sampling=greedy(100))) as stream:
        while not isinstance(next(stream), Delta):
            pass
    tokens, usage = generate_tokens(engine, prompt, greedy(7))
    assert tokens[0] == reference_replies(reference, prompt, 7)[0]
    assert usage.num_computed_tokens == 7


def test_a_running_line_is_forked_and_runs_on_in_its_span(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 7, 30)
    expected = reference_replies(reference, prompt, 120)[0]
    running = engine.generate(GenerateParams(token_ids=prompt, sampling=greedy(120)))
    generated: list[int] = []
    while len(generated) < 20:
        event = next(running)
        generated += event.token_ids if isinstance(event, Delta) else ()
    for position in (13, 30, 41):
        fork = engine.fork(ForkParams(generation_id=running.generation_id, position=position, sampling=greedy(8)))
        tokens, usage = read_tokens(fork)
        assert tokens[0] == reference_replies(reference, (prompt + expected)[:position], 8)[0]
        assert usage.num_computed_tokens == 8
    assert generated + read_tokens(running)[0][0] == expected
    num_lines, num_moves = _lines(engine)
    assert num_lines == 0  # what was new of it followed at its end
    assert num_moves > 1
    _, usage = generate_tokens(engine, prompt + expected, greedy(1))
    assert usage.num_computed_tokens == 1


def test_what_forks_by_itself_is_in_blocks_from_the_beginning(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 5, 40)
    several, usage = generate_tokens(engine, prompt, greedy(6, n=3))
    assert several == dict.fromkeys(range(3), reference_replies(reference, prompt, 6)[0])
    assert usage.num_computed_tokens == 40 + 3 * 5
    beams = SamplingParams(temperature=0, num_beams=3, max_tokens=6, ignore_eos=True)
    found, _ = generate_tokens(engine, draw_prompt(VOCAB_SIZE, 6, 20), beams)
    options = {"num_beams": 3, "num_return_sequences": 1}
    assert found[0] == reference_replies(reference, draw_prompt(VOCAB_SIZE, 6, 20), 6, **options)[0]
    assert _lines(engine) == (0, 0)


def test_a_line_that_others_want_while_it_is_computed_is_computed_once(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 8, 60)
    asked = [GenerateParams(token_ids=prompt[: 60 - index], sampling=greedy(5)) for index in range(3)]
    num_computed = 0
    for stream, params in zip(start_together(engine, asked), asked, strict=True):
        tokens, usage = read_tokens(stream)
        assert tokens[0] == reference_replies(reference, params.token_ids, 5)[0]  # type: ignore[arg-type]
        num_computed += usage.num_computed_tokens
    assert num_computed <= 60 + 3 * 5
    assert _lines(engine)[1] > 0


def test_what_outgrows_a_span_is_in_blocks(folder: str, reference: Any) -> None:
    runner = ModelRunner(folder, num_blocks=64 + 4, block_size=BLOCK_SIZE, dtype="float32", device="cpu")
    prompt = draw_prompt(VOCAB_SIZE, 9, 20)
    with Engine(runner, PrefixCache(64, BLOCK_SIZE), arena=Arena(64, 1, 4, BLOCK_SIZE)) as engine:
        for max_tokens, num_lines in ((13, 1), (14, 0)):  # the last token of a reply is never run
            assert (
                generate_tokens(engine, prompt, greedy(max_tokens))[0][0]
                == (reference_replies(reference, prompt, max_tokens)[0])
            )
            assert _lines(engine)[0] == num_lines


def test_lines_outlive_the_lease() -> None:
    caches = [LateCache(16, 4)]

    def reattach() -> LateCache:
        caches.append(LateCache(16, 4))
        return caches[-1]

    arena = Arena(16, 1, 16, 4)
    desk = Desk(caches[0], HashRunner(32, 4), SchedulerLimits(), reattach=reattach, arena=arena)
    prompt, expected = [1, 2, 3, 4, 5, 6, 7], generate([1, 2, 3, 4, 5, 6, 7], 9)

    def run(num_rounds: int = 100) -> None:
        while num_rounds and desk.loop.generations:
            num_rounds -= 1
            desk.loop.run()
            while caches[-1].answer():
                pass

    line = desk.put(prompt, greedy_of_hashes(9))
    run(5)
    caches[-1].lose()
    run(1)  # a line says nothing to the cache, and so does not learn of it
    others = desk.put([9, 8, 7], greedy_of_hashes(3, n=2))
    run()
    assert len(caches) == 2
    assert take_hashes(line)[0] == expected
    assert take_hashes(others) == dict.fromkeys(range(2), generate([9, 8, 7], 3))
    assert line.num_computed_tokens <= 7 + 8 + 1  # but for what was not reported yet, nothing is computed again
    further = desk.put([*prompt, *expected, 8], greedy_of_hashes(4))
    num_before = len(desk.runner.rows)
    run()
    assert take_hashes(further)[0] == generate([*prompt, *expected, 8], 4)
    assert desk.runner.rows[num_before] == (15, 17)
    num_moves, unlike = arena.num_moves, desk.put(list(range(20, 36)), greedy_of_hashes(3))
    run()
    assert take_hashes(unlike)[0] == generate(list(range(20, 36)), 3)
    assert arena.num_moves == num_moves + 1, "no branch ran on the line, and so it made room"


def _half_computed() -> tuple[Desk, Generation, list[int]]:
    """A desk with a line of which 8 of 16 tokens are computed."""
    prompt = list(range(1, 17))
    limits = SchedulerLimits(max_batch_tokens=32, chunk_tokens=4)
    desk = Desk(PrefixCache(16, 4), HashRunner(32, 4), limits, arena=Arena(16, 1, 16, 4))
    line = desk.put(prompt, greedy_of_hashes(3))
    while len(desk.runner.rows) < 2:
        desk.loop.run()
    return desk, line, prompt


def test_who_waits_for_a_line_that_is_cancelled_goes_on_by_itself() -> None:
    desk, line, prompt = _half_computed()
    waiter = desk.put([*prompt, 20], greedy_of_hashes(3))
    desk.loop.run()
    assert desk.loop.stats().num_pending_branches == 1
    desk.loop.cancel(line)
    for _ in range(30):
        desk.loop.run()
    assert take_hashes(waiter)[0] == generate([*prompt, 20], 3)
    assert desk.runner.rows.count((0, 4)) == 1  # it goes on where the other one stood


def test_what_a_cancelled_line_has_not_computed_is_not_waited_for() -> None:
    desk, line, prompt = _half_computed()
    desk.loop.cancel(line)
    parting = desk.put([*prompt[:14], 20], greedy_of_hashes(3))
    for _ in range(30):
        desk.loop.run()
    assert take_hashes(parting)[0] == generate([*prompt[:14], 20], 3)
