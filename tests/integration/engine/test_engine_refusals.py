"""What an engine refuses before it begins, each bound at its last value, and what it tells while its cache is away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from radixkv import PrefixCache
from radixkv.core.api import PoolShape
from radixkv.core.errors import InvalidArgumentError, LimitError, UnavailableError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, PrefixPin
from radixkv.generation.stream import Completed, Delta
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine import engine as engine_module
from radixkv.worker.engine.engine import Engine
from radixkv.worker.run import WorkerConfig, _Lease

PROMPT = [1, 2, 3, 4, 5]


def asked(**fields: Any) -> GenerateParams:
    return GenerateParams(token_ids=PROMPT, sampling=SamplingParams(max_tokens=2, temperature=0), **fields)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(HashRunner(64, 4), PrefixCache(64, 4), adapters=("one", "two")) as engine:
        yield engine


def test_an_adapter_that_is_not_served_is_refused_with_those_that_are(engine: Engine) -> None:
    with pytest.raises(InvalidArgumentError, match="adapter is 'three'; it must be one of one, two"):
        engine.generate(asked(adapter="three"))
    with Engine(HashRunner(16, 4), PrefixCache(16, 4)) as plain:
        with pytest.raises(InvalidArgumentError, match="it must be left out: none is served"):
            plain.generate(asked(adapter="one"))
        assert list(plain.generate(asked()))


@pytest.mark.parametrize("num_tokens", [0, 6])
def test_a_pin_lies_within_the_prompt(engine: Engine, num_tokens: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"pins is .*; it must be between 1 and 5 tokens"):
        engine.generate(asked(pins=(PrefixPin(1, 60.0), PrefixPin(num_tokens, 60.0))))
    *_, end = engine.generate(asked(pins=(PrefixPin(1, 60.0), PrefixPin(5, 60.0))))
    assert isinstance(end, Completed)
    assert end.pinned == (1, 5)


def test_a_request_without_sharing_pins_nothing(engine: Engine) -> None:
    *_, end = engine.generate(asked(pins=(PrefixPin(5, 60.0),), sharing="off"))
    assert isinstance(end, Completed)
    assert end.pinned == ()


def test_no_more_generations_run_and_wait_than_a_bound(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_GENERATIONS", 2)
    long = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
    streams = [engine.generate(GenerateParams(token_ids=PROMPT, sampling=long)) for _ in range(2)]
    for stream in streams:
        while not isinstance(next(stream), Delta):
            pass
    with pytest.raises(LimitError, match="2 generations run and wait already") as refused:
        engine.generate(asked())
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s > 0
    for stream in streams:
        stream.close()
    engine.call(lambda _: None)
    assert list(engine.generate(asked())), "there is room again"


def test_while_the_cache_is_away_stats_tell_of_the_engine_alone() -> None:
    cache, told = PrefixCache(64, 4), PrefixCache(64, 4)
    is_away, lease = False, _Lease(WorkerConfig(service="unix:nobody"), PoolShape(64, 4))

    def cache_stats() -> Any:
        if is_away:
            return lease.stats()
        return told.stats(), told.block_times()

    with Engine(HashRunner(64, 4), cache, cache_stats=cache_stats) as engine:
        assert list(engine.generate(asked()))
        found = engine.stats()
        assert found.cache is not None
        is_away = True
        alone = engine.stats()
        assert (alone.cache, alone.block_times) == (None, None)
        assert alone.engine.num_finished == found.engine.num_finished == 1


def test_a_stream_that_nobody_reads_is_cut_off_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_UNREAD_EVENTS", 4)
    now_s = iter(range(10**9))
    with Engine(HashRunner(64, 4), PrefixCache(64, 4), clock=lambda: 20.0 * next(now_s)) as engine:
        long = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
        unread = engine.generate(GenerateParams(token_ids=PROMPT, sampling=long))
        while engine.stats().engine.num_failed == 0:
            assert list(engine.generate(asked()))
        with pytest.raises(LimitError, match="this stream was not read"):
            list(unread)
        assert engine.stats().engine.num_generations == 0


def test_a_closed_engine_answers_every_call_by_its_end() -> None:
    engine = Engine(HashRunner(16, 4), PrefixCache(16, 4))
    with engine:
        assert engine.is_alive
    assert not engine.is_alive
    with pytest.raises(UnavailableError):
        engine.generate(asked())
    with pytest.raises(UnavailableError):
        engine.call(lambda _: None)
    engine.close()
