"""What callers of an engine can count on besides right tokens: refusals, stops, ends, memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from hash_model import EOS, VOCAB_SIZE, HashRunner, generate
from torch import Tensor

from radixkv import InvalidArgumentError, PrefixCache, UnavailableError, UnknownSequenceError
from radixkv.core.api import CacheStats
from radixkv.worker.engine import Engine
from radixkv.worker.model import ForwardRow
from radixkv.worker.request import (
    BranchFinished,
    Completed,
    Delta,
    FinishReason,
    ForkParams,
    GenerateParams,
    GenerationStream,
    Prompt,
    UnknownGenerationError,
)
from radixkv.worker.sampling import SamplingParams

NUM_BLOCKS, BLOCK_SIZE = 16, 4
CAPACITY = NUM_BLOCKS * BLOCK_SIZE


@pytest.fixture
def runner() -> HashRunner:
    return HashRunner(NUM_BLOCKS, BLOCK_SIZE, max_model_len=100)


@pytest.fixture
def engine(runner: HashRunner) -> Iterator[Engine]:
    with Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), num_remembered=3) as engine:
        yield engine
        runner.gate.set()


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
    assert engine.stats().num_generations == 0


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


def test_closing_a_stream_frees_its_blocks_within_a_step(engine: Engine, runner: HashRunner) -> None:
    runner.close_gate_after(4)
    stream = _start(engine, [1] * 9, _greedy(50))
    for _ in range(4):
        next(stream)
    stream.close()
    num_rows = len(runner.rows)
    runner.gate.set()
    stats = _stats(engine)
    assert stats.num_sequences == 0
    assert stats.num_private_blocks == 0
    assert len(runner.rows) <= num_rows + 1
    assert list(stream) == []


def test_a_dropped_stream_is_cancelled(engine: Engine) -> None:
    for _ in _start(engine, [1] * 9, _greedy(50)):
        break
    assert _stats(engine).num_sequences == 0
    assert engine.stats().num_generations == 0


def test_closing_a_stream_wakes_a_consumer_that_waits(engine: Engine, runner: HashRunner) -> None:
    runner.gate.clear()
    stream = _start(engine, [1] * 9, _greedy(50))
    next(stream)
    seen: list[object] = []
    consumer = threading.Thread(target=lambda: seen.extend(stream))
    consumer.start()
    stream.close()
    consumer.join(10)
    runner.gate.set()
    assert not consumer.is_alive()
    assert seen == []


def test_a_queued_request_can_be_cancelled(engine: Engine, runner: HashRunner) -> None:
    runner.gate.clear()
    first = _start(engine, [1] * 60, _greedy(4))
    second = _start(engine, [2] * 60, _greedy(4))
    third = _start(engine, [3] * 60, _greedy(4))
    second.close()
    runner.gate.set()
    assert _tokens(first) == generate([1] * 60, 4)
    assert _tokens(third) == generate([3] * 60, 4)
    assert _tokens(second) == []


def test_requests_are_served_first_come_first_served(engine: Engine, runner: HashRunner) -> None:
    """A small one does not overtake a large one that waits for blocks."""
    runner.gate.clear()
    finished: list[str] = []
    streams = {
        "first": _start(engine, [1] * 40, _greedy(20)),
        "large": _start(engine, [2] * 60, _greedy(2)),
        "small": _start(engine, [3] * 2, _greedy(1)),
    }
    threads = [
        threading.Thread(target=lambda name, stream: (list(stream), finished.append(name)), args=item)
        for item in streams.items()
    ]
    for thread in threads:
        thread.start()
    runner.gate.set()
    for thread in threads:
        thread.join(10)
    small_end = next(index for index, row in enumerate(runner.rows) if row == (0, 2))
    large_end = next(index for index, row in enumerate(runner.rows) if row == (0, 60))
    assert large_end < small_end
    assert sorted(finished) == ["first", "large", "small"]


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
    assert engine.stats().num_remembered == 3
    with pytest.raises(UnknownSequenceError):
        engine.fork(ForkParams(generation_id=ids[1]))


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
        def forward(self, rows: Sequence[ForwardRow]) -> Tensor:  # noqa: ARG002
            raise RuntimeError("out of memory")

    with Engine(FaultyRunner(NUM_BLOCKS, BLOCK_SIZE), PrefixCache(NUM_BLOCKS, BLOCK_SIZE)) as engine:
        stream = _start(engine, [1] * 9, _greedy(50))
        with pytest.raises(UnavailableError, match="out of memory"):
            list(stream)
        with pytest.raises(UnavailableError):
            _start(engine, [1], _greedy())
    assert "the engine has stopped" in caplog.text


def test_usage_tells_the_time_to_the_first_token() -> None:
    times = iter(range(0, 1000, 10))
    with Engine(
        HashRunner(NUM_BLOCKS, BLOCK_SIZE), PrefixCache(NUM_BLOCKS, BLOCK_SIZE), clock=lambda: next(times)
    ) as engine:
        *_, last = _start(engine, [1] * 9, _greedy(3))
    assert isinstance(last, Completed)
    assert last.usage.time_to_first_token_s == 10


def test_tokenize_reads_token_ids_behind_a_history(engine: Engine) -> None:
    assert engine.tokenize(Prompt(token_ids=[3]), [1, 2]) == engine.tokenize(Prompt(token_ids=[1, 2, 3]))
    with pytest.raises(InvalidArgumentError):
        engine.detokenize([1])
