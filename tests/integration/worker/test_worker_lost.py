"""A worker that is lost, or is restarted, behind those who ask it: they wait, and what had begun goes on to the same tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from drafts import LyingSource
from grpc_health.v1 import health_pb2, health_pb2_grpc

from radixkv import PrefixCache, UnavailableError, pack_tokens
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.gateway.backend.resume import ResumableGeneration
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, Prompt
from radixkv.generation.stream import (
    BranchFinished,
    Completed,
    Delta,
    FinishReason,
    GenerationEvent,
    GenerationStream,
    PromptLogprobs,
    Started,
)
from radixkv.net import retry
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer
from radixkv.worker.speculation.settings import SpeculationSettings
from radixkv.worker.speculation.sources import DraftSource

NUM_BLOCKS, BLOCK_SIZE = 256, 4
PROMPT = [1, 2, 3, 4, 5]


class Life:
    """One life of a worker at an address."""

    def __init__(self, address: str, drafts: Sequence[DraftSource] | None = None) -> None:
        self.runner = HashRunner(NUM_BLOCKS, BLOCK_SIZE)
        speculation = SpeculationSettings(num_tokens=2, always=True) if drafts else None
        cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
        self.engine = Engine(self.runner, cache, speculation=speculation, sources=drafts)
        self.server = GenerationServer(self.engine, address).start()

    def end(self) -> None:
        self.server.stop()
        self.runner.gate.open()
        self.engine.close()


@contextmanager
def live(address: str, drafts: Sequence[DraftSource] | None = None) -> Iterator[Life]:
    life = Life(address, drafts)
    try:
        yield life
    finally:
        life.end()


def request(**sampling: Any) -> GenerateParams:
    """Draws that a seed decides."""
    chosen = SamplingParams(**{"max_tokens": 24, "temperature": 5.0, "seed": 7, "ignore_eos": True, **sampling})
    return GenerateParams(token_ids=PROMPT, sampling=chosen)


def replies(events: list[GenerationEvent], num_branches: int) -> list[list[int]]:
    told: list[list[int]] = [[] for _ in range(num_branches)]
    for event in events:
        if isinstance(event, Delta):
            told[event.branch] += event.token_ids
    return told


def ends(events: list[GenerationEvent]) -> list[BranchFinished]:
    return sorted((event for event in events if isinstance(event, BranchFinished)), key=lambda end: end.branch)


def undisturbed(address: str, params: GenerateParams) -> list[GenerationEvent]:
    with live(address), GenerationClient(address) as client:
        return list(client.generate(params))


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"logprobs": 2},
        {"n": 3},
        {"n": 2, "best_of": 4},
        {"num_beams": 3, "temperature": 0.0},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"forced_token_ids": (9, 8, 7)},
        {"stop_token_ids": (11, 12, 13), "min_tokens": 12},
    ],
)
@pytest.mark.parametrize(("num_forwards", "is_drafted"), [(1, False), (2, False), (9, False), (2, True), (4, True)])
def test_a_generation_goes_on_with_the_next_worker_to_the_same_tokens(
    sampling: dict[str, Any], num_forwards: int, is_drafted: bool, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/worker"
    params = request(**sampling)
    expected = undisturbed(address, params)
    said = replies(expected, params.sampling.n)
    source = LyingSource(lambda branch: said[branch.index % len(said)][len(branch.tokens) - len(PROMPT) :], 0.3, 40)
    drafts = [source] if is_drafted else None

    async def use(stack: ExitStack) -> list[GenerationEvent]:
        first = Life(address, drafts)
        first.runner.gate.close_after(num_forwards)
        with GenerationClient(address, retries=False) as client:
            backend = Backend(client, patience_s=300)
            events: list[GenerationEvent] = []
            async with await backend.generate(params) as stream:
                while first.runner.gate.is_open:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(first.end)
                stack.enter_context(live(address, drafts))
                async for event in stream:
                    events.append(event)
            backend.close()
            return events

    with ExitStack() as stack:
        events = asyncio.run(use(stack))
    assert replies(events, params.sampling.n) == replies(expected, params.sampling.n)
    assert ends(events) == ends(expected)
    assert sum(isinstance(event, Started) for event in events) == 1
    assert isinstance(events[-1], Completed)
    assert isinstance(expected[-1], Completed)
    assert events[-1].usage.num_generated_tokens == expected[-1].usage.num_generated_tokens


def test_a_request_waits_for_a_worker_that_is_not_there_yet_and_no_longer_than_it_may(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"

    async def use(stack: ExitStack) -> None:
        with GenerationClient(address, retries=False) as client:
            for patience_s, params in ((0.2, request()), (30.0, GenerateParams(token_ids=PROMPT, timeout_s=0.2))):
                hasty = Backend(client, patience_s=patience_s)
                with pytest.raises(UnavailableError, match="cannot be reached"):
                    await hasty.generate(params)
                assert not await hasty.is_alive()
                hasty.close()
            backend = Backend(client, patience_s=300.0)
            waiting = [asyncio.ensure_future(backend.generate(request())) for _ in range(20)]
            asking = asyncio.ensure_future(backend.tokenize(Prompt(token_ids=[1, 2])))
            await asyncio.sleep(0.3)
            assert not any(one.done() for one in (*waiting, asking))
            stack.enter_context(live(address))
            assert await asking == bytes([1, 0, 0, 0, 2, 0, 0, 0])
            for one in waiting:
                async with await one as stream:
                    assert [event async for event in stream]
            backend.close()

    with ExitStack() as stack:
        asyncio.run(use(stack))


def test_nobody_waits_for_a_worker_behind_a_gateway_that_ends_everything(tmp_path: Path) -> None:
    async def use() -> None:
        with GenerationClient(f"unix:{tmp_path}/nobody", retries=False) as client:
            backend = Backend(client, patience_s=3600)
            waiting = asyncio.ensure_future(backend.generate(request()))
            await asyncio.sleep(0.1)
            backend.fail_all(UnavailableError("the server is stopping"))
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(waiting, 300)
            backend.close()

    asyncio.run(use())


def test_a_stream_that_is_closed_while_it_waits_for_a_worker_waits_no_longer(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"

    async def use() -> None:
        num_tries = 0
        first = Life(address)
        first.runner.gate.close_after(2)
        with GenerationClient(address, retries=False) as client:
            backend = Backend(client, patience_s=3600)
            stream = await backend.generate(request())
            generate = client.generate

            def counted(params: GenerateParams) -> GenerationStream:
                nonlocal num_tries
                num_tries += 1
                return generate(params)

            client.generate = counted  # type: ignore[method-assign]  # it counts, and answers as before
            while first.runner.gate.is_open:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(first.end)
            following = asyncio.ensure_future(to_its_end(stream))
            while num_tries < 2:
                await asyncio.sleep(0.01)
            assert not following.done()
            stream.close()
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(following, 300)
            backend.close()

    asyncio.run(use())


def test_a_stream_that_was_closed_before_its_worker_was_lost_is_not_begun_at_the_next(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"

    async def use() -> None:
        first = Life(address)
        first.runner.gate.close_after(2)
        with GenerationClient(address, retries=False) as client:
            backend = Backend(client, patience_s=300)
            stream = await backend.generate(request())
            while first.runner.gate.is_open:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(first.end)
            begun: list[GenerateParams] = []
            client.generate = begun.append  # type: ignore[method-assign,assignment]  # nothing may call it
            stream.close()
            with suppress(UnavailableError):
                await asyncio.wait_for(to_its_end(stream), 300)
            assert not begun
            backend.close()

    asyncio.run(use())


def test_a_stream_that_is_closed_just_as_the_next_worker_takes_it_leaves_nothing_running_there(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"

    async def use(stack: ExitStack) -> None:
        first = Life(address)
        first.runner.gate.close_after(2)
        with GenerationClient(address, retries=False) as client:
            backend = Backend(client, patience_s=300)
            stream = await backend.generate(request(max_tokens=200))
            generate, loop = client.generate, asyncio.get_running_loop()

            async def close() -> None:
                stream.close()

            def taken_and_closed(params: GenerateParams) -> GenerationStream:
                taken = generate(params)
                asyncio.run_coroutine_threadsafe(close(), loop).result(300)
                return taken

            while first.runner.gate.is_open:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(first.end)
            client.generate = taken_and_closed  # type: ignore[method-assign]  # it answers as before
            second = stack.enter_context(live(address))
            second.runner.gate.close()
            await asyncio.wait_for(to_its_end(stream), 300)
            second.runner.gate.open()
            while second.engine.stats().engine.num_generations:
                await asyncio.sleep(0.01)
            assert second.engine.stats().engine.num_cancelled == 1
            backend.close()

    with ExitStack() as stack:
        asyncio.run(use(stack))


async def to_its_end(stream: EventStream) -> None:
    async for _ in stream:
        pass


def test_a_stream_that_would_go_on_otherwise_ends_with_an_error() -> None:
    resumable = ResumableGeneration(request(n=2))
    resumable.fresh([Started("first", b""), Delta(0, (1, 2), "ab"), Delta(1, (3,), "c")])
    assert resumable.again(None).token_ids == b""
    rest = resumable.fresh(
        [Started("second", b""), Delta(1, (3, 4), "cd"), Delta(0, (1,), "a"), Delta(0, (2, 5), "be")]
    )
    assert rest == [Delta(1, (4,), "d"), Delta(0, (5,), "e")]
    resumable.again(None)
    with pytest.raises(UnavailableError, match="ask again"):
        resumable.fresh([Delta(0, (1, 9), "ax")])


def test_a_text_goes_on_as_the_ids_that_it_was_read_as() -> None:
    resumable = ResumableGeneration(GenerateParams(text="a text", sampling=SamplingParams(seed=3, n=2)))
    assert resumable.again(None).text == "a text"
    resumable.fresh([Started("first", pack_tokens([1, 2]))])
    again = resumable.again(None)
    assert (again.text, again.token_ids) == (None, pack_tokens([1, 2]))
    scored = ResumableGeneration(request(prompt_logprobs=1))
    scored.fresh([Started("first", pack_tokens([1, 2]))])
    assert scored.again(None).sampling == scored.params.sampling, "nothing was told: all of it is asked for again"


def test_an_end_that_was_told_is_not_told_again() -> None:
    resumable = ResumableGeneration(request(n=2))
    end = BranchFinished(0, FinishReason.STOP)
    resumable.fresh([Started("first", b""), Delta(0, (1,), "a"), end])
    resumable.again(None)
    other = BranchFinished(1, FinishReason.LENGTH)
    assert resumable.fresh([Delta(0, (1,), "a"), end, Delta(1, (2,), "b"), other]) == [Delta(1, (2,), "b"), other]


def test_of_a_prompt_only_what_was_not_told_is_scored_again() -> None:
    resumable = ResumableGeneration(request(prompt_logprobs=1))
    first, rest = (
        PromptLogprobs(start, (-1.0,) * count, (1,) * count, (5,) * count, (-1.0,) * count)
        for start, count in ((1, 2), (3, 2))
    )
    resumable.fresh([Started("first", pack_tokens(PROMPT)), first])
    assert resumable.again(None).sampling.prompt_logprobs_start == 3
    assert resumable.fresh([Started("second", pack_tokens(PROMPT)), rest]) == [rest]
    with Engine(HashRunner(NUM_BLOCKS, BLOCK_SIZE), PrefixCache(NUM_BLOCKS, BLOCK_SIZE)) as engine:
        events = list(engine.generate(resumable.again(None)))  # all are told
    assert not any(isinstance(event, PromptLogprobs) for event in events)


def test_the_seed_of_a_request_that_names_none_is_kept() -> None:
    resumable = ResumableGeneration(request(seed=None))
    assert resumable.params.sampling.seed is not None
    assert resumable.again(1.5).sampling.seed == resumable.params.sampling.seed
    assert resumable.again(1.5).timeout_s == 1.5


# -- a worker that drains


def test_a_draining_worker_ends_what_runs_and_takes_nothing_new(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"
    with live(address) as life, GenerationClient(address, retries=False) as client:
        life.runner.gate.close_after(3)
        stream = client.generate(request())
        assert not life.server.drain(0.05)
        with pytest.raises(UnavailableError, match="stopping"):
            client.generate(request())
        assert client.model().vocab_size == life.runner.vocab_size
        with grpc.insecure_channel(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert check.status == health_pb2.HealthCheckResponse.NOT_SERVING
        life.runner.gate.open()
        assert isinstance(list(stream)[-1], Completed)
        assert life.server.drain(300)


def test_a_client_that_was_refused_finds_the_next_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 1.0)  # a busy machine takes longer for the next one
    monkeypatch.setattr(retry, "_LONGEST_WAIT_S", 60.0)
    address = f"unix:{tmp_path}/worker"
    expected = undisturbed(address, request())
    with live(address) as first, GenerationClient(address) as client:
        assert replies(list(client.generate(request())), 1) == replies(expected, 1)
        first.server.refuse()
        with ExitStack() as stack:

            def restart() -> None:
                first.end()
                stack.enter_context(live(address))

            timer = threading.Timer(0.2, restart)
            timer.start()
            events = list(client.generate(request()))
            timer.join()
    assert replies(events, 1) == replies(expected, 1)
