"""The worker as coroutines see it: the same events, one wake-up per burst, and nothing left behind by who stops listening."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from radixkv import PrefixCache
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, Generator, ModelInfo
from radixkv.generation.stream import Completed, Delta, GenerationEvent, GenerationStream, Started, StreamItem
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

NUM_BLOCKS = 1024


class Runner(HashRunner):
    """Where it pauses for a twentieth of a second, thousands of tokens last for minutes."""

    pause_s = 0.0

    def forward(self, rows: Any, drawn_ids: Any = None) -> Any:
        time.sleep(self.pause_s)
        return super().forward(rows, drawn_ids)


@pytest.fixture
def runner() -> Runner:
    return Runner(NUM_BLOCKS, 4)


@pytest.fixture
def engine(runner: HashRunner) -> Iterator[Engine]:
    with Engine(runner, PrefixCache(NUM_BLOCKS, 4)) as engine:
        yield engine
        runner.gate.open()


@pytest.fixture(params=["in process", "over gRPC"])
def generator(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Generator]:
    if request.param == "in process":
        yield engine
        return
    with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        yield client


def params(prompt: list[int], max_tokens: int = 20) -> GenerateParams:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return GenerateParams(token_ids=prompt, sampling=sampling)


async def read(stream: EventStream) -> list[int]:
    ids: list[int] = []
    async with stream:
        async for event in stream:
            if isinstance(event, Delta):
                ids += event.token_ids
    return ids


def run(generator: Generator, use: Callable[[Backend], Any]) -> Any:
    backend = Backend(generator)
    try:
        return asyncio.run(use(backend))
    finally:
        backend.close()


def test_every_stream_has_its_own_events_in_order(generator: Generator) -> None:
    async def use(backend: Backend) -> list[list[int]]:
        streams = [await backend.generate(params([1 + number % 39, 2, 3])) for number in range(60)]
        return list(await asyncio.gather(*map(read, streams)))

    replies = run(generator, use)
    assert replies == [generate([1 + number % 39, 2, 3], 20) for number in range(60)]


def test_a_stream_starts_with_its_prompt_and_ends_with_its_cost(generator: Generator) -> None:
    async def use(backend: Backend) -> None:
        async with await backend.generate(params([1, 2, 3], 4)) as stream:
            events = [event async for event in stream]
            assert await stream.take() == []
        assert isinstance(events[0], Started)
        assert list(unpack_tokens(events[0].prompt)) == [1, 2, 3]
        assert isinstance(events[-1], Completed)
        assert stream.usage == events[-1].usage
        forked = generator.fork(ForkParams(generation_id=stream.generation_id, sampling=params([1], 3).sampling))
        told = await asyncio.to_thread(list, forked)
        tokens = [token for event in told if isinstance(event, Delta) for token in event.token_ids]
        assert tokens == generate([1, 2, 3], 7)[4:]

    run(generator, use)


def test_what_comes_while_the_loop_is_busy_wakes_it_once(engine: Engine, runner: HashRunner) -> None:
    async def use(backend: Backend) -> int:
        loop = asyncio.get_running_loop()
        num_calls = 0
        plain = loop.call_soon_threadsafe

        def counted(*arguments: Any, **keywords: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            return plain(*arguments, **keywords)

        runner.gate.close()
        streams = [await backend.generate(params([1, 2, number % 40], 10)) for number in range(100)]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        runner.gate.open()
        while engine.stats().engine.num_generations:  # blocks the loop until more than 1,000 events have come
            pass
        replies = await asyncio.gather(*map(read, streams))
        assert sum(map(len, replies)) == 1000
        return num_calls

    assert run(engine, use) <= 2


def test_who_waits_for_events_leaves_the_loop_to_others(
    engine: Engine, runner: HashRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks = 0

    async def use(backend: Backend) -> None:
        runner.gate.close()
        stream = await backend.generate(params([1, 2, 3], 5))
        assert await stream.take()
        plain = stream._stream.take

        def counted() -> list[GenerationEvent]:
            nonlocal num_looks
            num_looks += 1
            assert num_looks < 100, "it looks again and again, and nobody else's turn comes"
            return plain()

        monkeypatch.setattr(stream._stream, "take", counted)
        waiting = asyncio.ensure_future(stream.take())
        for _ in range(10):
            await asyncio.sleep(0)
        runner.gate.open()
        assert await waiting

    run(engine, use)
    assert num_looks


def test_who_stops_listening_stops_the_generation(generator: Generator, engine: Engine) -> None:
    async def use(backend: Backend) -> None:
        stream = await backend.generate(params([1, 2], 3000))
        await stream.take()
        del stream
        gc.collect()
        other = await backend.generate(params([1, 3], 3000))
        await other.take()
        other.close()
        assert await other.take() == []
        while engine.stats().engine.num_generations:
            await asyncio.sleep(0)

    run(generator, use)


def test_who_is_cancelled_while_he_asks_leaves_no_generation(engine: Engine) -> None:
    async def use(backend: Backend) -> None:
        for _ in range(20):
            asking = asyncio.ensure_future(backend.generate(params([1, 2], 3000)))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        while engine.stats().engine.num_generations:
            await asyncio.sleep(0)

    run(engine, use)


def test_errors_reach_who_asks_and_who_listens(generator: Generator, engine: Engine, runner: Runner) -> None:
    runner.pause_s = 0.05

    async def use(backend: Backend) -> None:
        with pytest.raises(InvalidArgumentError):
            await backend.generate(params([1_000_000]))
        stream = await backend.generate(params([1, 2], 3000))
        assert await stream.take()
        runner.gate.open()
        await asyncio.to_thread(engine.close)
        with pytest.raises(UnavailableError):
            await read(stream)

    run(generator, use)


def test_all_streams_can_be_ended_with_an_error(generator: Generator, runner: Runner) -> None:
    runner.pause_s = 0.05

    async def use(backend: Backend) -> None:
        streams = [await backend.generate(params([1, number], 3000)) for number in range(2, 6)]
        backend.fail_all(UnavailableError("stopping"))
        for stream in streams:
            with pytest.raises(UnavailableError, match="stopping"):
                await read(stream)

    run(generator, use)


def test_a_worker_that_is_away_is_asked_again_after_waits_that_grow() -> None:
    asked: list[object] = []

    def away(token_ids: object) -> str:
        asked.append(token_ids)
        raise UnavailableError("away")

    async def use() -> None:
        backend = Backend(cast(Any, SimpleNamespace(detokenize=away)), patience_s=0.7)
        with pytest.raises(UnavailableError, match="away"):
            await backend.detokenize([1])
        backend.close()

    asyncio.run(use())
    assert 1 <= len(asked) <= 4, "at once, then after 0.05, 0.1 and 0.2 s more: the next would come too late"


@pytest.mark.parametrize(("timeout_s", "asked"), [(None, [None, None]), (10.5, [10.5, 0.5]), (10.0, [10.0])])
def test_a_request_whose_worker_is_lost_goes_on_for_the_rest_of_its_time(
    timeout_s: float | None, asked: list[float | None]
) -> None:
    now_s, timeouts = 1000.0, list[float | None]()

    def receive() -> UnavailableError | None:
        nonlocal now_s
        now_s += 10.0
        return UnavailableError("lost") if len(timeouts) == 1 else None

    def start(params: GenerateParams) -> GenerationStream:
        timeouts.append(params.timeout_s)
        return GenerationStream(str(len(timeouts)), receive, lambda: None)

    async def use() -> list[int]:
        asyncio.get_running_loop().time = lambda: now_s  # type: ignore[method-assign]
        backend = Backend(cast(Any, SimpleNamespace(generate=start)), patience_s=300.0)
        try:
            return await read(await backend.generate(replace(params([1]), timeout_s=timeout_s)))
        finally:
            backend.close()

    if len(asked) == 1:
        with pytest.raises(UnavailableError, match="lost"):
            asyncio.run(use())
    else:
        assert asyncio.run(use()) == []
    assert timeouts == asked


@pytest.mark.parametrize("after", [100, 101])
def test_a_reply_whose_worker_came_back_with_another_model_is_not_continued(after: int) -> None:
    """Its token ids are those of a tokenizer that is gone."""
    sizes, begun = iter([100, after]), list[GenerateParams]()

    def model() -> ModelInfo:
        vocab_size = next(sizes)
        return ModelInfo(f"of {vocab_size}", 4096, vocab_size, 4, (2,), has_chat_template=False)

    def start(params: GenerateParams) -> GenerationStream:
        begun.append(params)
        told: list[StreamItem] = [Started("1", b""), Delta(0, (7, 8), "")]
        told.append(UnavailableError("lost") if len(begun) == 1 else None)
        return GenerationStream("1", iter(told).__next__, lambda: None)

    async def use() -> list[int]:
        backend = Backend(cast(Any, SimpleNamespace(generate=start, model=model)), patience_s=300.0)
        try:
            await backend.model()
            return await read(await backend.generate(params([1])))
        finally:
            backend.close()

    if after == 101:
        with pytest.raises(UnavailableError, match="model"):
            asyncio.run(use())
    else:
        assert asyncio.run(use()) == [7, 8]
    assert len(begun) == (2 if after == 100 else 1)
