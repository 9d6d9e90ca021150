"""With drafts every stream is, event by event, what it is without them, whatever the drafts say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from answers import collect, start_together
from byte_model import EOS, VOCAB_SIZE, save_byte_model
from drafted_streams import assert_same, cases, told, uncached
from drafts import LyingSource
from tiny_models import save_wide

from radixkv import PrefixCache, unpack_tokens
from radixkv.core.errors import InvalidArgumentError, QuotaError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import BranchFinished, Delta
from radixkv.kernels.runtime.native_build import native_library
from radixkv.testing import hash_model
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.branch import Branch
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.comparison import rows_agree
from radixkv.worker.speculation.settings import SpeculationSettings
from radixkv.worker.speculation.sources import Agreement, Draft, Source

BLOCK_SIZE, NUM_BLOCKS = 8, 256
PROMPT = "one two three one two three one two "
ALWAYS = SpeculationSettings(always=True)
LIES = {"true": 0.0, "nearly true": 0.1, "half true": 0.5, "wrong": 1.0}

CASES = cases(EOS)


class Stack(NamedTuple):
    """An engine without drafts, one whose source knows its replies, and one with the usual sources."""

    plain: Engine
    drafted: Engine
    usual: Engine
    source: LyingSource
    known: dict[tuple[tuple[int, ...], int], list[int]]

    def learn(self, prompt: str, events: dict[int, list[Any]]) -> None:
        ids = tuple(unpack_tokens(self.plain.tokenize(GenerateParams(text=prompt))))
        for branch, of_branch in events.items():
            self.known[ids, branch] = [
                id_ for event in of_branch if isinstance(event, Delta) for id_ in event.token_ids
            ]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if native_library() is None:
        pytest.skip("there is no C++ compiler here")
    folder = tmp_path_factory.mktemp("model")
    save_byte_model(folder)  # for its tokenizer
    save_wide("llama", folder, head_dim=32, vocab_size=VOCAB_SIZE, eos_token_id=EOS, max_position_embeddings=1024)
    text = ChatText(str(folder))
    known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def knows(branch: Branch) -> list[int]:
        generation = branch.generation
        prompt = tuple(unpack_tokens(generation.prompt))
        return known.get((prompt, branch.index), [])[len(branch.tokens) - len(prompt) :]

    def engine(**settings: Any) -> Engine:
        runner = ModelRunner(
            str(folder),
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            dtype="bfloat16",
            device="cpu",
            quantization="int8",
        )
        assert runner.is_native
        return Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), text=text, **settings)

    source = LyingSource(knows, 0.0, VOCAB_SIZE + 8)
    usual = replace(ALWAYS, num_tokens=5)
    with engine() as plain, engine(speculation=ALWAYS, sources=[source]) as drafted, engine(speculation=usual) as ours:
        yield Stack(plain, drafted, ours, source, known)


@pytest.mark.parametrize("name", CASES)
def test_streams_are_the_same_event_by_event(stack: Stack, name: str) -> None:
    sampling, prompt = CASES[name], f"{name}: {PROMPT}"
    params = GenerateParams(text=prompt, sampling=sampling)
    expected = told(stack.plain.generate(params))
    again = told(stack.plain.generate(params))
    stack.learn(prompt, expected.events)
    for turn, lies in enumerate(LIES.values()):
        stack.source.lies = lies
        found = told(stack.drafted.generate(params))
        assert_same(found, again if turn else expected)
        if not lies and name not in {"ranked", "beams"}:  # what is known of these is not what is drawn
            assert found.num_accepted > 0
    assert_same(told(stack.usual.generate(params)), expected)
    assert_same(told(stack.usual.generate(params)), again)


@pytest.mark.parametrize("length", range(1, 20))
def test_a_stop_string_ends_the_reply_at_every_place_of_a_draft(stack: Stack, length: int) -> None:
    sampling = SamplingParams(
        max_tokens=40, temperature=0.8, seed=11, ignore_eos=True, allowed_token_ids=tuple(range(33, 127))
    )
    whole, _ = (told(engine.generate(GenerateParams(text=PROMPT, sampling=sampling))) for engine in stack[:2])
    stack.learn(PROMPT, whole.events)
    stack.source.lies = 0.0
    text = "".join(event.text for event in whole.events[0] if isinstance(event, Delta))
    stopped = replace(sampling, stop=(text[max(0, length - 3) : length],))
    params = GenerateParams(text=PROMPT, sampling=stopped)
    expected, found = told(stack.plain.generate(params)), told(stack.drafted.generate(params))
    assert found.events == expected.events
    assert isinstance(found.events[0][-1], BranchFinished)
    assert found.events[0][-1].stop == stopped.stop[0]
    assert found.usage[1] == expected.usage[1] <= length


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_so_does_the_last_token_that_was_asked_for(stack: Stack, max_tokens: int) -> None:
    whole, _ = (told(engine.generate(GenerateParams(text=PROMPT, sampling=CASES["greedy"]))) for engine in stack[:2])
    stack.learn(PROMPT, whole.events)
    stack.source.lies = 0.0
    params = GenerateParams(text=PROMPT, sampling=replace(CASES["greedy"], max_tokens=max_tokens))
    found = told(stack.drafted.generate(params))
    assert found.events == told(stack.plain.generate(params)).events
    assert found.usage[1] == max_tokens


def test_requests_side_by_side_get_the_streams_that_they_get_alone(stack: Stack) -> None:
    names = [name for name in CASES if CASES[name].num_beams == 1]
    asked = [GenerateParams(text=f"{name}, with others: {PROMPT}", sampling=CASES[name]) for name in names]
    stack.source.lies = 0.2
    alone = [told(stack.plain.generate(params)) for params in asked]
    for params, one in zip(asked, alone, strict=True):
        stack.learn(params.text or "", one.events)
    for stream, one in zip(start_together(stack.drafted, asked), alone, strict=True):
        assert_same(uncached(told(stream))._replace(usage=one.usage), uncached(one))


def test_a_fork_from_within_a_drafted_reply_continues_it(stack: Stack) -> None:
    params = GenerateParams(text=f"fork: {PROMPT}", sampling=CASES["drawn"])
    replies = []
    stack.source.lies = 0.0
    for engine in (stack.plain, stack.drafted):
        stream = engine.generate(params)
        whole = told(stream)
        stack.learn(f"fork: {PROMPT}", whole.events)
        length = len(f"fork: {PROMPT}")
        forks = [
            engine.fork(ForkParams(generation_id=stream.generation_id, position=length + at, sampling=CASES["greedy"]))
            for at in (1, 7, 16, 33)
        ]
        replies.append([told(fork).events for fork in forks])
    assert replies[0] == replies[1]


def test_a_prediction_is_drafted_and_changes_nothing(stack: Stack) -> None:
    sampling = replace(CASES["greedy"], allowed_token_ids=tuple(range(33, 127)))
    prompt = f"prediction: {PROMPT}"
    expected = told(stack.plain.generate(GenerateParams(text=prompt, sampling=sampling)))
    reply = "".join(event.text for event in expected.events[0] if isinstance(event, Delta))
    stack.usual.generate(GenerateParams(text=prompt, sampling=replace(sampling, max_tokens=0)))
    for prediction in (reply, reply[10:], "x" + reply, "", "nothing of the kind", "x" * 1_000_000, "\ud7ff\x00"):
        asked = replace(sampling, prediction=prediction, speculation="own")
        found = told(stack.usual.generate(GenerateParams(text=prompt, sampling=asked)))
        assert_same(uncached(found)._replace(usage=expected.usage), uncached(expected))
        if prediction == reply:
            assert found.num_accepted > 20
    with pytest.raises(InvalidArgumentError, match="prediction"):
        SamplingParams(prediction="x" * (1 << 20) + "x")


def test_a_row_of_several_tokens_has_the_bits_of_one_by_one(tmp_path: Path) -> None:
    if native_library() is None:
        pytest.skip("there is no C++ compiler here")
    folder = save_wide("llama", tmp_path, head_dim=32)
    for deterministic in (False, True):
        runner = ModelRunner(
            folder,
            num_blocks=32,
            block_size=4,
            dtype="bfloat16",
            quantization="int8",
            device="cpu",
            deterministic=deterministic,
        )
        assert rows_agree(runner, 17)
        assert not rows_agree(runner, 64), "the pool is too small to tell"


# -- over a model whose tokens are wrong if its KV is


class Recorded(NamedTuple):
    """An engine, its runner, and how many positions were run in all."""

    engine: Engine
    runner: HashRunner


def oracle(branch: Branch) -> list[int]:
    return hash_model.generate(list(branch.tokens), 24)


def hashing(lies: float, num_blocks: int = 64, block_size: int = 4, **settings: Any) -> Recorded:
    runner = HashRunner(num_blocks, block_size)
    source = LyingSource(oracle, lies, hash_model.VOCAB_SIZE + 5)
    given = {"speculation": ALWAYS, "sources": [source], **settings}
    return Recorded(Engine(runner, PrefixCache(num_blocks, block_size), **given), runner)


def ask(engine: Engine, prompt: list[int], max_tokens: int = 30, **more: Any) -> list[int]:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return collect(engine.generate(GenerateParams(token_ids=prompt, sampling=sampling, **more))).branches[0].tokens


@pytest.mark.parametrize("lies", LIES.values(), ids=LIES)
def test_only_accepted_tokens_are_published(lies: float) -> None:
    engine, _ = hashing(lies)
    with engine:
        reply = ask(engine, [1, 2, 3], 30)
        assert reply == hash_model.generate([1, 2, 3], 30)
        engine.call(lambda cache: cache.check())
        history = [1, 2, 3, *reply]
        for other in range(hash_model.VOCAB_SIZE):
            for length in range(3, len(history)):
                probe = [*history[:length], other]
                num_matched = engine.call(lambda cache, probe=probe: cache.match(probe).num_tokens)  # type: ignore[misc]
                assert num_matched == length + (other == history[length] and length < len(history) - 1)
        assert ask(engine, history, 5) == hash_model.generate(history, 5)


def test_drafts_take_fewer_steps_and_the_same_positions_count() -> None:
    plain, drafted = hashing(0.0, speculation=None), hashing(0.0)
    figures = []
    for engine, _ in (plain, drafted):
        with engine:
            ask(engine, [1, 2, 3], 41)
            figures.append(engine.stats().engine)
    assert figures[1].num_computed_tokens == figures[0].num_computed_tokens
    assert figures[1].num_generated_tokens == figures[0].num_generated_tokens == 41
    assert figures[1].num_draws * 2 < figures[0].num_draws == 41
    assert sum(figures[1].accepted_tokens.values()) == 41 - figures[1].num_draws
    assert sum(figures[1].drafted_by_depth) == sum(figures[1].drafted_tokens.values())


def test_figures_are_those_of_a_count_from_outside() -> None:
    engine, runner = hashing(0.3, num_blocks=256)
    plain = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    drafted = [plain, replace(plain, n=3), replace(plain, stop_token_ids=(7, 9)), replace(plain, logprobs=2)]
    apart = [replace(plain, max_tokens=6, num_beams=3), replace(plain, forced_token_ids=(5, 6, 7), logprobs=0)]
    num_drafted = num_accepted = num_draws = num_tokens = num_rejected = 0
    with engine:
        for number, sampling in enumerate([*drafted, *(replace(one, speculation="none") for one in apart)]):
            runner.rows.clear()
            answers = collect(engine.generate(GenerateParams(token_ids=[number], sampling=sampling)))
            told_tokens = sum(len(branch.tokens) for branch in answers.branches)
            if sampling in drafted:
                num_drafted += sum(end - start - 1 for start, end in runner.rows if start)
                num_draws += sum(start > 0 for start, _ in runner.rows) + sampling.n
                num_tokens += told_tokens
            num_accepted += answers.usage.num_accepted_tokens
            num_rejected += answers.usage.num_rejected_tokens
            if number == len(drafted) - 1:
                stats = engine.stats().engine
        rest = engine.stats().engine
    assert (stats.num_draws, stats.num_generated_tokens) == (num_draws, num_tokens)
    assert num_accepted + num_rejected == num_drafted > num_accepted > 50
    assert stats.drafted_tokens == {"own": num_drafted}
    assert stats.accepted_tokens == {"own": num_accepted}
    assert sum(stats.drafted_by_depth) == num_drafted
    assert sum(stats.accepted_by_depth) == num_accepted
    assert rest.num_draws - stats.num_draws == rest.num_generated_tokens - stats.num_generated_tokens > 6, "one a step"


class SameLie(LyingSource):
    """Drafts one lie, however long, after none, one or two tokens of the truth."""

    def __init__(self, lie: list[int]) -> None:
        super().__init__(oracle, 0.0, 1)
        self._lie = lie

    def find(self, branch: Branch, limit: int, least: int = 0) -> Draft:  # noqa: ARG002
        tokens = [*oracle(branch)[: len(branch.tokens) % 3], *self._lie]
        return Draft(Source.OWN, 3, tokens, [Agreement.ONE] * len(tokens))


@pytest.mark.parametrize(
    "lie",
    [
        [hash_model.EOS] * 8,
        [hash_model.VOCAB_SIZE - 1, hash_model.VOCAB_SIZE, 1, 2],
        [2**32 - 1] * 4,
        [1] * 1000,
        [],
    ],
    ids=["ends of a reply", "no token at its end", "no token at all", "longer than any room", "nothing"],
)
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_source_that_always_lies_changes_no_reply(lie: list[int], ignore_eos: bool) -> None:
    engine, runner = hashing(0.0, num_blocks=64, sources=[SameLie(lie)])
    with engine:
        for first in range(4):
            sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=ignore_eos)
            found = collect(engine.generate(GenerateParams(token_ids=[first, 2], sampling=sampling)))
            expected = hash_model.generate([first, 2], 30, None if ignore_eos else hash_model.EOS)
            assert found.branches[0].tokens == expected
        engine.call(lambda cache: cache.check())
    assert max(end for _, end in runner.rows) <= 2 + 30 - 1, "the last token of a reply is never run"


def recent(engine: Engine) -> int:
    """Tokens drafted so far from replies that have ended."""
    return engine.stats().engine.drafted_tokens.get("recent", 0)


def usual_sources() -> Engine:
    return hashing(0.0, num_blocks=256, sources=None).engine


def test_a_reply_is_drafted_in_its_namespace_alone() -> None:
    with usual_sources() as engine:
        ask(engine, [1, 2, 3], namespace="one")
        ask(engine, [1, 2, 3], namespace="another")
        ask(engine, [1, 2, 3], namespace="one", cache_salt="salt")
        ask(engine, [1, 2, 3], namespace="one", sharing="off")
        ask(engine, [1, 2, 3], namespace="third", sharing="off")
        ask(engine, [1, 2, 3], namespace="third")
        assert recent(engine) == 0
        ask(engine, [1, 2, 3], namespace="one")
        assert recent(engine) > 0


def test_a_request_may_have_fewer_sources_or_none() -> None:
    with usual_sources() as engine:
        sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

        def drafted(speculation: str) -> dict[str, int]:
            params = GenerateParams(token_ids=[1, 2, 3] * 4, sampling=replace(sampling, speculation=speculation))
            before = engine.stats().engine.drafted_tokens
            assert collect(engine.generate(params)).branches[0].tokens == hash_model.generate([1, 2, 3] * 4, 30)
            after = engine.stats().engine.drafted_tokens
            return {source: number - before.get(source, 0) for source, number in after.items()}

        for fewer in ("none", "own"):
            drafted(fewer)
        assert drafted("all").get("recent", 0) == 0, "they left nothing behind"
        assert drafted("all")["recent"] > 0
        assert drafted("own").get("recent", 0) == 0
        assert sum(drafted("none").values()) == 0
    with pytest.raises(InvalidArgumentError, match="speculation"):
        SamplingParams(speculation="some")


def test_after_a_clear_nothing_is_drafted_from_what_was_said_before() -> None:
    with usual_sources() as engine:
        ask(engine, [1, 2, 3], namespace="one")
        ask(engine, [1, 2, 3], namespace="other")
        ask(engine, [1, 2, 3], namespace="one", cache_salt="salt")
        engine.erase("one")
        ask(engine, [1, 2, 3], namespace="one")
        ask(engine, [1, 2, 3], namespace="one", cache_salt="salt")
        assert recent(engine) == 0
        ask(engine, [1, 2, 3], namespace="other")
        assert recent(engine) > 0


def test_a_reply_that_runs_at_a_clear_is_not_kept() -> None:
    engine, runner = hashing(0.0, num_blocks=256, sources=None)
    with engine:
        runner.gate.close_after(3)
        sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        stream = engine.generate(GenerateParams(token_ids=[1, 2, 3], sampling=sampling, namespace="one"))
        events = iter(stream)
        while not isinstance(next(events), Delta):
            pass
        runner.gate.open()
        engine.erase("one")
        assert collect(events)
        num_before = recent(engine)
        ask(engine, [1, 2, 3], namespace="one")
        assert num_before == 0
        assert recent(engine) == 0


def test_a_reply_that_runs_at_a_clear_is_drafted_from_nothing_that_was_said_before() -> None:
    engine, runner = hashing(
        0.0, num_blocks=256, sources=None, speculation=SpeculationSettings(num_tokens=4, always=True)
    )
    with engine:
        for namespace in ("one", "other"):
            ask(engine, [1, 2, 3], 60, namespace=namespace)
        runner.gate.close_after(4)
        sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        streams = [
            engine.generate(GenerateParams(token_ids=[1, 2, 3], sampling=sampling, namespace=namespace))
            for namespace in ("one", "other")
        ]
        while runner.gate.is_open:
            time.sleep(0.001)
        engine.erase("one")  # is read before the batch after the next, which is the fifth
        runner.gate.open()
        used = [collect(stream).usage.num_accepted_tokens for stream in streams]
        assert used[0] <= 5 * 4 < 40 < used[1]


def test_a_full_pool_and_a_quota_end_drafts_and_not_replies() -> None:
    engine, _ = hashing(0.0, num_blocks=9)
    with engine:
        streams = start_together(
            engine,
            [
                GenerateParams(
                    token_ids=[1, 2, 3 + at], sampling=SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
                )
                for at in range(3)
            ],
        )
        for at, stream in enumerate(streams):
            assert collect(stream).branches[0].tokens == hash_model.generate([1, 2, 3 + at], 24)
        engine.call(lambda cache: cache.check())
        engine.call(lambda cache: cache.set_quota("small", 3))
        with pytest.raises(QuotaError):
            ask(engine, [1, 2, 3], 24, namespace="small")
        assert ask(engine, [1, 2, 3], 8, namespace="small") == hash_model.generate([1, 2, 3], 8)


def test_limits_hold_with_drafts() -> None:
    engine, runner = hashing(0.0, num_blocks=256, limits=SchedulerLimits(max_batch_tokens=8, chunk_tokens=8))
    with engine:
        asked = [
            GenerateParams(token_ids=[at, 2], sampling=SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
            for at in range(1, 6)
        ]
        for at, stream in enumerate(start_together(engine, asked), start=1):
            assert collect(stream).branches[0].tokens == hash_model.generate([at, 2], 30)
        assert max(end - start for start, end in runner.rows) <= 8


def test_a_reply_ends_at_the_longest_sequence_in_the_middle_of_a_draft() -> None:
    for length in range(20, 26):
        runner = HashRunner(64, 4, max_model_len=length)
        source = LyingSource(oracle, 0.0, hash_model.VOCAB_SIZE)
        replies = []
        options: dict[str, Any] = {"speculation": ALWAYS, "sources": [source]}
        for drafts in ({}, options):
            with Engine(runner, PrefixCache(64, 4), **drafts) as engine:
                replies.append(ask(engine, [1, 2, 3], 60))
        assert replies[0] == replies[1] == hash_model.generate([1, 2, 3], len(replies[0]))
        assert len(replies[0]) < 60
        assert max(end for _, end in runner.rows) < length
