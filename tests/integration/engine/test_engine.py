"""What callers of an engine can count on besides right tokens: refusals, stops, ends, memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest
from torch import Tensor

from radixkv import (
    DeadlineExceededError,
    InvalidArgumentError,
    PrefixCache,
    Retention,
    UnavailableError,
    UnknownSequenceError,
)
from radixkv.core.api import CacheStats, StepOp, StepResult
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import BACKGROUND_PRIORITY, ForkParams, GenerateParams, Prompt, UnknownGenerationError
from radixkv.generation.stream import BranchFinished, Completed, Delta, FinishReason, GenerationStream, Started
from radixkv.testing.hash_model import EOS, VOCAB_SIZE, HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ForwardRow

NUM_BLOCKS, BLOCK_SIZE = 16, 4
CAPACITY = NUM_BLOCKS * BLOCK_SIZE


@pytest.fixture
def runner() -> HashRunner:
    return HashRunner(NUM_BLOCKS, BLOCK_SIZE, max_model_len=100)


@pytest.fixture
def engine(runner: HashRunner) -> Iterator[Engine]:
    with Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), num_remembered=3) as engine:
        yield engine
        runner.gate.open()


def _greedy(max_tokens: int = 8, *, ignore_eos: bool = True, stop_token_ids: tuple[int, ...] = ()) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos, stop_token_ids=stop_token_ids)


def _start(engine: Engine, prompt: Sequence[int], sampling: SamplingParams) -> GenerationStream:
    return engine.generate(GenerateParams(token_ids=prompt, sampling=sampling))


def _tokens(stream: GenerationStream) -> list[int]:
    return [token_id for event in stream if isinstance(event, Delta) for token_id in event.token_ids]


def _stats(engine: Engine) -> CacheStats:
    return engine.call(lambda holder: holder.stats())


@pytest.mark.parametrize(
    ("params", "argument"),
    [
        (GenerateParams(token_ids=[]), "prompt"),
        (GenerateParams(), "prompt"),
        (GenerateParams(token_ids=[1, VOCAB_SIZE]), "token_ids"),
        (GenerateParams(token_ids=[1, -1]), "tokens"),
        (GenerateParams(token_ids=b"12345"), "tokens"),
        (GenerateParams(token_ids=[1] * 100), "prompt"),
        (GenerateParams(token_ids=[1] * 10, sampling=_greedy(CAPACITY + 2 - 10)), "prompt + max_tokens"),
        (GenerateParams(text="no tokenizer"), "prompt"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_at_once(
    engine: Engine, params: GenerateParams, argument: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        engine.generate(params)
    assert refusal.value.argument == argument
    assert engine.stats().engine.num_generations == 0


def test_what_cannot_fit_is_told_with_prompt_max_tokens_and_pool(engine: Engine) -> None:
    with pytest.raises(InvalidArgumentError, match=r"10 \+ 56 tokens.*at most 65 tokens.*16 blocks of 4"):
        _start(engine, [1] * 10, _greedy(56))


def test_a_request_that_just_fits_the_pool_is_served(engine: Engine) -> None:
    prompt = [1, 2] * 5
    assert _tokens(_start(engine, prompt, _greedy(55))) == generate(prompt, 55)


def test_the_model_length_ends_a_branch() -> None:
    runner = HashRunner(NUM_BLOCKS, BLOCK_SIZE, max_model_len=20)
    with Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE)) as engine:
        stream = _start(engine, [3] * 15, _greedy(1000))
        events = list(stream)
    assert sum(isinstance(event, Delta) for event in events) == 5
    assert BranchFinished(0, FinishReason.LENGTH) in events


def test_a_stop_token_ends_a_branch_and_is_its_last_token(engine: Engine) -> None:
    expected = generate([7], 30)
    stop = next(token for token in expected[3:] if token != EOS)
    events = list(_start(engine, [7], _greedy(30, stop_token_ids=(stop,))))
    drawn = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
    assert drawn == expected[: expected.index(stop) + 1]
    assert BranchFinished(0, FinishReason.STOP, stop) in events


def test_a_request_goes_before_the_background_that_runs_already(engine: Engine, runner: HashRunner) -> None:
    runner.gate.close()
    background = engine.generate(GenerateParams(token_ids=[1] * 10, sampling=_greedy(20), priority=BACKGROUND_PRIORITY))
    time.sleep(0.05)  # mostly it waits at the gate by now
    person = _start(engine, [2] * 7, _greedy(5))
    runner.gate.open()
    assert _tokens(person) == generate([2] * 7, 5)
    assert _tokens(background) == generate([1] * 10, 20)
    assert runner.rows[0] == (0, 7)


def test_closing_a_stream_frees_its_blocks_within_a_step(engine: Engine, runner: HashRunner) -> None:
    runner.gate.close_after(4)
    stream = _start(engine, [1] * 9, _greedy(50))
    for _ in range(4):
        next(stream)
    stream.close()
    num_rows = len(runner.rows)
    runner.gate.open()
    stats = _stats(engine)
    assert stats.num_sequences == 0
    assert stats.num_private_blocks == 0
    assert len(runner.rows) <= num_rows + 1
    assert list(stream) == []


def test_a_dropped_stream_is_cancelled(engine: Engine) -> None:
    for _ in _start(engine, [1] * 9, _greedy(50)):
        break
    assert _stats(engine).num_sequences == 0
    assert engine.stats().engine.num_generations == 0


def test_closing_a_stream_wakes_a_consumer_that_waits(engine: Engine, runner: HashRunner) -> None:
    runner.gate.close()
    stream = _start(engine, [1] * 9, _greedy(50))
    next(stream)
    seen: list[object] = []
    consumer = threading.Thread(target=lambda: seen.extend(stream))
    consumer.start()
    stream.close()
    consumer.join(300)
    runner.gate.open()
    assert not consumer.is_alive()
    assert seen == []


def test_a_queued_request_can_be_cancelled(engine: Engine, runner: HashRunner) -> None:
    runner.gate.close()
    first = _start(engine, [1] * 60, _greedy(4))
    second = _start(engine, [2] * 60, _greedy(4))
    third = _start(engine, [3] * 60, _greedy(4))
    second.close()
    runner.gate.open()
    assert _tokens(first) == generate([1] * 60, 4)
    assert _tokens(third) == generate([3] * 60, 4)
    assert _tokens(second) == []


def test_a_fork_needs_a_known_generation_a_branch_and_a_position_of_its_history(engine: Engine) -> None:
    stream = _start(engine, [1, 2, 3], _greedy(4))
    assert len(_tokens(stream)) == 4
    known = stream.generation_id
    with pytest.raises(UnknownGenerationError, match="'nobody'"):
        engine.fork(ForkParams(generation_id="nobody"))
    for bad in (
        ForkParams(generation_id=known, branch=1),
        ForkParams(generation_id=known, branch=-1),
        ForkParams(generation_id=known, position=8),
        ForkParams(generation_id=known, position=-1),
        ForkParams(generation_id=known, position=0),
        ForkParams(generation_id=known, token_ids=[VOCAB_SIZE]),
    ):
        with pytest.raises(InvalidArgumentError):
            engine.fork(bad)


def test_the_least_recently_used_finished_generation_is_forgotten(engine: Engine) -> None:
    ids = []
    for number in range(4):
        stream = _start(engine, [number + 1], _greedy(2))
        list(stream)
        ids.append(stream.generation_id)
        if number == 2:
            list(engine.fork(ForkParams(generation_id=ids[0], sampling=_greedy(1))))
            # The fork was remembered too: with room for three, the second generation is gone.
    assert engine.stats().engine.num_remembered == 3
    with pytest.raises(UnknownSequenceError):
        engine.fork(ForkParams(generation_id=ids[1]))


def _priorities(engine: Engine) -> list[tuple[int, int]]:
    """Of every node, with its position."""
    return sorted({(node.position, node.priority) for node in engine.call(lambda holder: holder.dump())})


def test_prompt_and_reply_are_worth_what_was_said_of_their_positions(engine: Engine) -> None:
    retention = [Retention(0, 8, priority=90), Retention(8, None, priority=5)]
    params = GenerateParams(token_ids=[1, 2] * 4, sampling=_greedy(9), retention=retention)
    stream = engine.generate(params)
    reply = _tokens(stream)
    assert _priorities(engine) == [(0, 90), (8, 5)]
    fork = ForkParams(generation_id=stream.generation_id, position=12, token_ids=[3] * 8, sampling=_greedy(4))
    list(engine.fork(fork))
    assert set(_priorities(engine)) == {(0, 90), (8, 5), (12, 5), (20, 5)}, "a fork is worth what its parent is"
    engine.call(lambda holder: holder.evict(1))
    assert engine.call(lambda holder: holder.match([1, 2] * 4 + reply)).num_tokens >= 8


def test_a_fork_may_be_worth_something_else(engine: Engine) -> None:
    sampling = _greedy(20)
    stream = engine.generate(GenerateParams(token_ids=[1] * 8, sampling=sampling, retention=[Retention(priority=90)]))
    next(stream)
    fork = ForkParams(generation_id=stream.generation_id, sampling=_greedy(5), retention=[Retention(8, priority=10)])
    list(engine.fork(fork))
    assert len(_tokens(stream)) == 20
    assert [priority for position, priority in _priorities(engine) if position < 8] == [90]


@pytest.mark.parametrize(
    ("bad", "name"), [(Retention(4, 2), "end"), (Retention(priority=101), "priority"), (Retention(duration_s=0), "dur")]
)
def test_a_range_out_of_bounds_is_refused_by_name(bad: Retention, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"retention\[1\].{name}"):
        GenerateParams(token_ids=[1], retention=[Retention(), bad])
    with pytest.raises(InvalidArgumentError, match=rf"retention\[1\].{name}"):
        ForkParams(generation_id="any", retention=[Retention(), bad])


def test_namespaces_share_nothing(engine: Engine) -> None:
    for namespace in ("a", "b"):
        stream = engine.generate(GenerateParams(token_ids=[1] * 20, sampling=_greedy(1), namespace=namespace))
        list(stream)
        assert stream.usage is not None
        assert stream.usage.num_cached_tokens == 0


def test_a_closed_engine_ends_its_streams_and_takes_no_more(runner: HashRunner) -> None:
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    engine = Engine(runner, cache)
    stream = _start(engine, [1] * 9, _greedy(50))
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(UnavailableError, match="closed"):
        list(stream)
    with pytest.raises(UnavailableError, match="closed"):
        _start(engine, [1], _greedy())
    assert not engine.is_alive


def test_a_fault_of_the_model_ends_the_engine_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class FaultyRunner(HashRunner):
        def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:  # noqa: ARG002
            raise RuntimeError("out of memory")

    with Engine(FaultyRunner(NUM_BLOCKS, BLOCK_SIZE), PrefixCache(NUM_BLOCKS, BLOCK_SIZE)) as engine:
        stream = _start(engine, [1] * 9, _greedy(50))
        with pytest.raises(UnavailableError, match="out of memory"):
            list(stream)
        with pytest.raises(UnavailableError):
            _start(engine, [1], _greedy())
    assert "the engine has stopped" in caplog.text


def test_usage_tells_the_time_to_the_first_token(runner: HashRunner) -> None:
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    with Engine(runner, cache, clock=lambda: 10.0 * len(runner.rows)) as engine:
        *_, last = _start(engine, [1] * 9, _greedy(3))
    assert isinstance(last, Completed)
    assert last.usage.time_to_first_token_s == 10


def test_a_generation_ends_with_an_error_when_its_time_is_over(runner: HashRunner) -> None:
    now_s = [0.0]
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    with Engine(runner, cache, clock=lambda: now_s[0]) as engine:
        runner.gate.close_after(2)
        late = engine.generate(GenerateParams(token_ids=[1] * 9, sampling=_greedy(50), timeout_s=5))
        events = iter(late)
        assert isinstance(next(events), Started)
        assert isinstance(next(events), Delta)
        while runner.gate.is_open:
            pass
        now_s[0] = 5.0
        runner.gate.open()
        with pytest.raises(DeadlineExceededError, match="5 s"):
            list(events)
        assert _stats(engine).num_sequences == 0
        assert engine.stats().engine.num_expired == 1
        assert len(_tokens(_start(engine, [1] * 9, _greedy(3)))) == 3


class SilentCache(PrefixCache):
    """Answers no Step until it is told to."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._speaks = False
        self._steps: list[tuple[Future[list[StepResult]], list[StepResult]]] = []
        self._lock = threading.Lock()

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        future: Future[list[StepResult]] = Future()
        with self._lock:
            self._steps.append((future, self.step(ops)))
        if self._speaks:
            self.answer()
        return future

    def answer(self) -> None:
        with self._lock:
            self._speaks = True
            answered, self._steps = self._steps, []
        for future, results in answered:
            future.set_result(results)


def test_the_time_of_one_that_waits_is_over_though_nothing_happens(runner: HashRunner) -> None:
    cache = SilentCache(NUM_BLOCKS, BLOCK_SIZE)
    with Engine(runner, cache) as engine:
        waiting = engine.generate(GenerateParams(token_ids=[2] * 9, sampling=_greedy(50), timeout_s=0.2))
        with pytest.raises(DeadlineExceededError):
            list(waiting)
        cache.answer()
        assert _tokens(_start(engine, [2] * 9, _greedy(4))) == generate([2] * 9, 4)


def test_stats_count_what_was_asked_found_computed_and_drawn(engine: Engine, runner: HashRunner) -> None:
    list(_start(engine, [1] * 20, _greedy(3)))
    list(_start(engine, [1] * 20, _greedy(3)))
    runner.gate.close()
    _start(engine, [1] * 20, _greedy(3)).close()
    runner.gate.open()
    engine.call(lambda _holder: None)
    stats, cache, *_ = engine.stats()
    assert (stats.num_finished, stats.num_cancelled, stats.num_failed) == (2, 1, 0)
    assert stats.num_prompt_tokens >= 40
    assert 19 <= stats.num_cached_tokens <= 38
    assert stats.num_computed_tokens >= 20 + 2 + 1 + 2
    assert stats.num_generated_tokens >= 6
    assert stats.time_to_first_token.p99_s >= stats.time_to_first_token.p50_s > 0
    assert stats.inter_token.p50_s > 0
    assert cache is not None
    assert cache.num_blocks == NUM_BLOCKS


def test_what_has_come_to_its_end_is_counted_to_the_token(engine: Engine) -> None:
    for _ in range(2):
        assert len(_tokens(_start(engine, [1] * 20, _greedy(3)))) == 3
    stats = engine.stats().engine
    assert (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_generated_tokens) == (40, 19, 6)
    assert stats.num_computed_tokens == 20 + 2 + 1 + 2
    assert (stats.num_lines, stats.num_moved_lines, stats.num_preemptions, stats.num_remembered) == (0, 0, 0, 2)
    assert stats.waited.p99_s >= stats.waited.p50_s > 0


def test_tokenize_reads_token_ids_behind_a_history(engine: Engine) -> None:
    assert engine.tokenize(Prompt(token_ids=[3]), [1, 2]) == engine.tokenize(Prompt(token_ids=[1, 2, 3]))
    with pytest.raises(InvalidArgumentError):
        engine.detokenize([1])
