"""What a worker's stream does with a consumer that does not read, and what of its messages is no stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixkv import PrefixCache
from radixkv.core.errors import InvalidArgumentError, LimitError, RadixKVError, UnknownSequenceError
from radixkv.generation import wire
from radixkv.generation.client import GenerationClient
from radixkv.generation.metrics import latency_metrics, worker_metrics
from radixkv.generation.params import Grammar, SampledToken, SamplingParams
from radixkv.generation.request import MAX_PINS, GenerateParams, PrefixPin, Prompt, UnknownGenerationError, check_pins
from radixkv.generation.stats import EngineCounters, EngineStats, WorkerStats
from radixkv.generation.stream import (
    UNREAD_S,
    BranchFinished,
    Completed,
    Delta,
    EventQueue,
    FinishReason,
    GenerationEvent,
    PromptLogprobs,
    Started,
    StreamItem,
    Usage,
)
from radixkv.v1 import generation_pb2 as pb

DELTA = Delta(0, (1,), "a")


class Watch:
    """A queue of three places by a clock that the test moves, and how often it was overrun."""

    def __init__(self, max_unread: int | None = 3) -> None:
        self.now_s = 100.0
        self.num_overrun = 0
        self.queue = EventQueue(max_unread, clock=lambda: self.now_s)
        self.queue.bound(self._overrun)

    def _overrun(self) -> None:
        self.num_overrun += 1

    def put(self, number: int, item: StreamItem = DELTA, *, after_s: float = 0.0) -> None:
        for _ in range(number):
            self.now_s += after_s
            self.queue.put(item)


def test_a_full_queue_that_is_read_in_time_is_never_overrun() -> None:
    watch = Watch()
    watch.put(5)
    for _ in range(20):
        watch.put(1, after_s=UNREAD_S - 0.1)
        watch.queue.get()
    assert watch.num_overrun == 0
    assert watch.queue.qsize() == 5


def test_a_full_queue_of_which_nothing_is_taken_is_overrun_once_and_takes_the_error_alone() -> None:
    watch = Watch()
    watch.put(3, after_s=UNREAD_S)
    assert watch.num_overrun == 0, "it was not full"
    watch.put(1)
    watch.put(1, after_s=UNREAD_S - 0.1)
    assert watch.num_overrun == 0
    watch.put(1, after_s=0.1)
    assert watch.num_overrun == 1
    size = watch.queue.qsize()
    watch.put(5, after_s=UNREAD_S)
    assert (watch.num_overrun, watch.queue.qsize()) == (1, size)
    watch.put(1, LimitError("not read"))
    watch.put(1, None)
    assert watch.queue.qsize() == size + 2


def test_what_is_taken_begins_the_time_anew() -> None:
    watch = Watch()
    watch.put(5)
    for _ in range(3):
        watch.queue.get()
        watch.put(1, after_s=UNREAD_S)
        watch.put(1, after_s=UNREAD_S - 0.1)
        assert watch.num_overrun == 0
    watch.put(1, after_s=UNREAD_S)
    assert watch.num_overrun == 1


@pytest.mark.parametrize("max_unread", [None, 3])
def test_without_a_bound_or_somebody_to_tell_nothing_is_dropped(max_unread: int | None) -> None:
    queue = EventQueue(max_unread, clock=iter(range(0, 10**6, 1000)).__next__)
    if max_unread is None:
        queue.bound(lambda: pytest.fail("there is no bound"))
    for _ in range(50):
        queue.put(DELTA)
    assert queue.qsize() == 50


def test_a_listener_is_told_at_once_and_of_every_further_item() -> None:
    queue, told = EventQueue(), []
    queue.put(DELTA)
    queue.listen(lambda: told.append(queue.qsize()))
    queue.put(DELTA)
    assert told == [1, 2]


def test_of_a_prompt_s_scores_each_position_has_its_own() -> None:
    scored = PromptLogprobs(
        5, (-1.0, -2.0, -3.0), (1, 2, 3), (10, 11, 20, 21, 30, 31), (-0.1, -0.2, -0.3, -0.4, -0.5, -0.6)
    )
    assert scored.end == 8
    assert [scored.top(index) for index in range(3)] == [
        ((10, -0.1), (11, -0.2)),
        ((20, -0.3), (21, -0.4)),
        ((30, -0.5), (31, -0.6)),
    ]


def test_pins_have_a_bound_in_number_and_in_time() -> None:
    check_pins([PrefixPin(1, 1.0)] * MAX_PINS)
    with pytest.raises(InvalidArgumentError, match=f"{MAX_PINS + 1} prefixes.*at most {MAX_PINS}"):
        check_pins([PrefixPin(1, 1.0)] * (MAX_PINS + 1))
    with pytest.raises(InvalidArgumentError, match="ttl"):
        check_pins([PrefixPin(1, 1.0), PrefixPin(1, 0.0)])


def test_an_unknown_generation_is_named() -> None:
    error = UnknownGenerationError("g-1")
    assert isinstance(error, UnknownSequenceError)
    assert str(error) == "no generation 'g-1' runs here or is still remembered"
    assert error.generation_id == "g-1"


def stats() -> EngineStats:
    counters = EngineCounters()
    for value in range(1, 101):
        counters.waited.add(value / 10)
    counters.num_failed, counters.num_cancelled = 3, 4
    gauges = {name: 0 for name in EngineStats._fields if name.startswith("num_")}
    return EngineStats(**{**gauges, **counters.told()})


def test_a_worker_s_metrics_are_with_and_without_its_cache() -> None:
    alone = {family.name: family for family in worker_metrics(WorkerStats(stats(), None))}
    assert alone["radixkv:requests_failed"].samples[0].value == 3
    assert alone["radixkv:requests_cancelled"].samples[0].value == 4
    assert "radixkv:kv_sequences" not in alone
    cache = PrefixCache(8)
    both = {family.name for family in worker_metrics(WorkerStats(stats(), cache.stats(), cache.block_times()))}
    assert both > set(alone)
    assert {"radixkv:kv_sequences", "radixkv:kv_block_lifetime_seconds"} <= both


def test_latencies_are_told_by_their_quantiles() -> None:
    families = {family.name: family for family in latency_metrics(stats())}
    waited = {
        sample.labels["quantile"]: sample.value for sample in families["radixkv:recent_queue_time_seconds"].samples
    }
    told = stats().waited
    assert waited == {"0.50": told.p50_s, "0.90": told.p90_s, "0.99": told.p99_s}
    assert told.p50_s < told.p90_s < told.p99_s
    assert families["radixkv:generation_tokens"].samples[0].value == 0
    assert len(families) == 4


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda chat: setattr(chat.messages[0], "fields_json", "{"), "messages.fields_json is '{'; it must be JSON: "),
        (
            lambda chat: setattr(chat.messages[0], "fields_json", "[]"),
            "messages.fields_json is '[]'; it must be a JSON object",
        ),
        (lambda chat: setattr(chat, "tools_json", "{}"), "a JSON array"),
        (lambda chat: setattr(chat, "template_arguments_json", "[]"), "a JSON object"),
    ],
)
def test_a_field_that_is_no_json_of_its_kind_is_named(change: Any, complaint: str) -> None:
    proto = wire.prompt_to_proto(Prompt(messages=[{"role": "user", "content": "hi", "name": "n"}]))
    assert wire.prompt_from_proto(proto).messages == [{"role": "user", "content": "hi", "name": "n"}]
    change(proto.messages)
    with pytest.raises(InvalidArgumentError) as refused:
        wire.prompt_from_proto(proto)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(),
        Prompt(token_ids=b"\x01\x00\x00\x00"),
        Prompt(text="hi"),
        Prompt(text=""),
        Prompt(messages=[], tools=[]),
        Prompt(
            messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so", "tool_calls": [{}]}],
            tools=[{"type": "function"}],
            template_arguments={"thinks": True},
        ),
        Prompt(messages=[{"role": "assistant", "content": "so"}], tools=[], continue_final_message=True),
    ],
)
def test_a_prompt_comes_over_the_wire_as_it_was(prompt: Prompt) -> None:
    assert wire.prompt_from_proto(wire.prompt_to_proto(prompt)) == prompt


def test_a_message_without_a_text_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidArgumentError, match="a role and a content each, both texts"):
        wire.prompt_to_proto(Prompt(messages=[{"role": "user", "content": [1]}]))


@pytest.mark.parametrize("grammar", [None, Grammar("json_object"), Grammar("regex", "a+"), Grammar("lark", "start: x")])
def test_a_grammar_comes_over_the_wire_as_it_was(grammar: Grammar | None) -> None:
    params = GenerateParams(text="x", sampling=SamplingParams(grammar=grammar, seed=1))
    assert wire.generate_from_proto(wire.generate_to_proto(params)).sampling.grammar == grammar


@pytest.mark.parametrize("has_cache", [True, False])
def test_stats_come_over_the_wire_as_they_were(has_cache: bool) -> None:
    cache = PrefixCache(8)
    told = WorkerStats(stats(), cache.stats(), cache.block_times()) if has_cache else WorkerStats(stats(), None)
    assert wire.stats_from_proto(wire.stats_to_proto(told)) == told


EVENTS = [
    Started("g", b"\x01\x00\x00\x00"),
    PromptLogprobs(1, (-1.0,), (3,), (7, 8), (-0.5, -0.75)),
    Delta(1, (5, 6), "ab", (SampledToken(5, -0.5, ((5, -0.5),)), SampledToken(6, -0.25, ())), 3),
    DELTA,
    BranchFinished(0, FinishReason.STOP, "END", None),
    BranchFinished(1, FinishReason.STOP, 17, -0.5),
    BranchFinished(2, FinishReason.LENGTH),
    Completed(Usage(4, 3, 2, 1, 0.5), (3, 0)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_over_the_wire_as_it_was(event: GenerationEvent) -> None:
    for response in (pb.GenerateResponse, pb.ForkGenerationResponse):
        assert wire.event_from_proto(wire.event_to_proto(event, response)) == event
    assert wire.event_from_proto(pb.GenerateResponse()) is None, "one of a later version is passed over"


class Call:
    """The answers of a call, and whether it was cancelled."""

    def __init__(self, *events: GenerationEvent) -> None:
        self._events = events
        self.is_cancelled = False

    def __iter__(self) -> Iterator[pb.GenerateResponse]:
        return (wire.event_to_proto(event, pb.GenerateResponse) for event in self._events)

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_stream_that_does_not_begin_with_its_beginning_is_cancelled_and_said(tmp_path: Path) -> None:
    with GenerationClient(f"unix:{tmp_path}/nobody") as client:
        call = Call(DELTA)
        with pytest.raises(RadixKVError, match="began a stream with Delta"):
            client._stream(call)
        assert call.is_cancelled
        good = Call(EVENTS[0], EVENTS[-1])
        stream = client._stream(good)
        assert stream.generation_id == "g"
        assert list(stream) == [EVENTS[0], EVENTS[-1]]
        assert not good.is_cancelled
