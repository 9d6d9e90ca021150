"""Beams on real (tiny) models equal those of transformers, token for token, on pools of any size."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from answers import Answers, collect
from tiny_models import VOCAB_SIZE, reference_logits, reference_model, save_model

from radixkv import PrefixCache
from radixkv.core.api import CacheStats
from radixkv.core.tokens import unpack_tokens
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import EarlyStopping, SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta, FinishReason, Started
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.server import GenerationServer

FAMILIES = ("llama", "gpt2", "gemma2")
EOS = 2
TOLERANCE = 1e-4
EARLY_STOPPING = {EarlyStopping.HEURISTIC: False, EarlyStopping.ALWAYS: True, EarlyStopping.NEVER: "never"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: str) -> Any:
    return reference_model(folder)


@pytest.fixture(scope="module")
def engine(folder: str) -> Iterator[Engine]:
    with _engine(folder) as engine:
        yield engine


def _engine(folder: str, num_blocks: int = 64, block_size: int = 4, preemption: str = "recompute") -> Engine:
    runner = ModelRunner(folder, num_blocks=num_blocks, block_size=block_size, dtype="float32", device="cpu")
    if preemption == "swap":
        layers = runner.pool.layers
        runner.pool = KVPool(layers, num_blocks, block_size, torch.float32, runner.device, num_host_blocks=16)
    bounds = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16, preemption=preemption, swap_blocks=16)
    return Engine(runner, PrefixCache(num_blocks, block_size), limits=bounds)


def _prompt(seed: int, length: int = 9) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)


def _search(engine: Engine, prompt: Sequence[int], sampling: SamplingParams) -> Answers:
    return collect(engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)))


def _stats(engine: Engine) -> CacheStats:
    def read(cache: Any) -> CacheStats:
        cache.check()
        stats: CacheStats = cache.stats()
        return stats

    return engine.call(read)


def _expected(model: Any, prompt: Sequence[int], sampling: SamplingParams) -> list[tuple[list[int], float]]:
    """transformers' beams, best first, and their scores."""
    stops = {EOS, *sampling.stop_token_ids} if not sampling.ignore_eos else set(sampling.stop_token_ids)
    options: dict[str, Any] = {}
    if sampling.logit_bias:
        options["sequence_bias"] = [[[token], bias] for token, bias in sampling.logit_bias.items()]
    if sampling.min_tokens:
        options["min_new_tokens"] = sampling.min_tokens
    out = model.generate(
        torch.tensor([list(prompt)]),
        num_beams=sampling.num_beams,
        num_return_sequences=sampling.n,
        do_sample=False,
        max_new_tokens=sampling.max_tokens,
        length_penalty=sampling.length_penalty,
        early_stopping=EARLY_STOPPING[sampling.early_stopping],
        eos_token_id=sorted(stops) or None,
        pad_token_id=VOCAB_SIZE - 1,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    answers = []
    for tokens, score in zip(out.sequences[:, len(prompt) :].tolist(), out.sequences_scores.tolist(), strict=True):
        ends = [index + 1 for index, token in enumerate(tokens) if token in stops]
        answers.append((tokens[: ends[0]] if ends else tokens, score))
    return answers


def _assert_equal(answers: Answers, expected: Sequence[tuple[list[int], float]]) -> None:
    assert [answer.tokens for answer in answers.branches] == [tokens for tokens, _ in expected]
    scores = [answer.score for answer in answers.branches]
    assert scores == pytest.approx([score for _, score in expected], abs=TOLERANCE)


@pytest.mark.parametrize("early_stopping", list(EarlyStopping))
@pytest.mark.parametrize(
    "length_penalty", [1.0, -0.7, *(pytest.param(each, marks=pytest.mark.thorough) for each in (0.0, 2.0))]
)
def test_beams_are_those_of_transformers(
    engine: Engine, model: Any, length_penalty: float, early_stopping: EarlyStopping
) -> None:
    num_ended = 0
    for num_beams, seed in itertools.product((2, 3, 5), (1, 2)):
        sampling = SamplingParams(
            num_beams=num_beams,
            n=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_tokens=14,
            logit_bias={EOS: 4.0},  # so that beams end at different lengths
        )
        answers = _search(engine, _prompt(seed), sampling)
        _assert_equal(answers, _expected(model, _prompt(seed), sampling))
        num_ended += sum(answer.reason is FinishReason.STOP for answer in answers.branches)
    assert num_ended > 0
    stats = _stats(engine)
    assert (stats.num_sequences, stats.num_private_blocks) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"min_tokens": 6, "logit_bias": {EOS: 6.0}},
        {"logit_bias": {5: 3.0, 17: -20.0, 40: 2.5, EOS: 1.0}},
        {"stop_token_ids": (11, 23, 37), "logit_bias": {11: 2.0, 23: 2.0}},
        {"ignore_eos": True, "logit_bias": {EOS: 5.0}},
        {"n": 1},
    ],
    ids="+".join,
)
def test_what_a_request_asks_of_the_logits_holds_for_beams(engine: Engine, model: Any, options: dict[str, Any]) -> None:
    for num_beams, seed in ((4, 3), (3, 4), (8, 5)):
        given = {"n": num_beams, **options}
        sampling = SamplingParams(num_beams=num_beams, max_tokens=12, **given)
        _assert_equal(_search(engine, _prompt(seed), sampling), _expected(model, _prompt(seed), sampling))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("num_blocks", [6, 7, 9, 12])
def test_a_pool_too_small_for_all_beams_at_once_gives_the_same_ones(
    llama: str, num_blocks: int, preemption: str
) -> None:
    """6 blocks of 4 hold one sequence of 9 + 14 tokens: the beams then take turns."""
    model = reference_model(llama)
    sampling = SamplingParams(num_beams=4, n=4, max_tokens=14, logit_bias={EOS: 3.0})
    with _engine(llama, num_blocks, preemption=preemption) as engine:
        for seed in (1, 2):
            _assert_equal(_search(engine, _prompt(seed), sampling), _expected(model, _prompt(seed), sampling))
        assert engine.stats().engine.num_preemptions > 0
        stats = _stats(engine)
        assert (stats.num_sequences, stats.num_private_blocks) == (0, 0)


@pytest.mark.parametrize("num_blocks", [8, 14, 40])
def test_searches_and_plain_requests_share_a_pool_without_touching_each_other(llama: str, num_blocks: int) -> None:
    model = reference_model(llama)
    sampling = SamplingParams(num_beams=3, n=2, max_tokens=12, logit_bias={EOS: 3.0})
    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with _engine(llama, num_blocks) as engine:
        streams = [
            engine.generate(GenerateParams(token_ids=_prompt(seed), sampling=sampling if seed % 2 else plain))
            for seed in range(8)
        ]
        answers = [collect(stream) for stream in streams]
        for seed, answer in enumerate(answers):
            if seed % 2:
                _assert_equal(answer, _expected(model, _prompt(seed), sampling))
            else:
                tokens = _prompt(seed)
                for _ in range(plain.max_tokens):
                    tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
                assert answer.branches[0].tokens == tokens[9:]
        assert _stats(engine).num_sequences == 0


def test_beams_share_their_blocks_and_copy_no_more_than_a_last_block_each(llama: str) -> None:
    """A prompt of 10 whole blocks is stored once, and each further child of a beam copies less than a block."""
    prompt = _prompt(7, 40)
    with _engine(llama, num_blocks=64) as engine:
        before = _stats(engine)
        answers = _search(engine, prompt, SamplingParams(num_beams=4, n=4, max_tokens=12, ignore_eos=True))
        after = _stats(engine)
    num_forks = after.num_forks - before.num_forks
    assert num_forks > 0
    assert after.num_copied_tokens - before.num_copied_tokens <= 3 * 4 * 12
    assert answers.usage.num_computed_tokens <= 40 + 4 * 11
    assert answers.usage.num_cached_tokens == 0


def test_usage_counts_what_every_beam_took(llama: str) -> None:
    with _engine(llama) as engine:
        usage = _search(engine, _prompt(1), SamplingParams(num_beams=3, max_tokens=5, ignore_eos=True)).usage
    assert usage.num_prompt_tokens == 9
    assert usage.num_generated_tokens == 3 * 5
    assert usage.num_computed_tokens == 9 + 3 * 4
    assert usage.time_to_first_token_s > 0


def test_log_probabilities_of_beams_are_those_of_the_raw_distribution(llama: str) -> None:
    model = reference_model(llama)
    prompt = _prompt(3)
    sampling = SamplingParams(num_beams=3, n=2, max_tokens=6, logprobs=2, logit_bias={5: 3.0}, ignore_eos=True)
    with _engine(llama) as engine:
        answers = _search(engine, prompt, sampling)
    for answer in answers.branches:
        logprobs = torch.log_softmax(reference_logits(model, prompt + answer.tokens)[len(prompt) - 1 : -1], -1)
        told = [sampled.logprob for sampled in answer.logprobs]
        assert [sampled.token_id for sampled in answer.logprobs] == answer.tokens
        chosen = logprobs.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(told), chosen, atol=TOLERANCE, rtol=0)
        for row, sampled in zip(logprobs, answer.logprobs, strict=True):
            assert [token for token, _ in sampled.top] == row.topk(2).indices.tolist()


def test_forced_tokens_come_before_the_search(llama: str) -> None:
    """The search is the one behind prompt and forced tokens; these are answered with it, and count as generated."""
    model = reference_model(llama)
    forced = (9, 8, 7)
    sampling = SamplingParams(num_beams=3, n=3, max_tokens=11, forced_token_ids=forced)
    rest = SamplingParams(num_beams=3, n=3, max_tokens=8)
    expected = [([*forced, *tokens], score) for tokens, score in _expected(model, [*_prompt(1), *forced], rest)]
    with _engine(llama) as engine:
        _assert_equal(_search(engine, _prompt(1), sampling), expected)


def test_presence_and_frequency_penalties_change_the_beams(llama: str) -> None:
    sampling = {"num_beams": 3, "max_tokens": 16, "ignore_eos": True}
    with _engine(llama) as engine:
        plain = _search(engine, _prompt(4), SamplingParams(**sampling)).branches[0].tokens
        varied = _search(engine, _prompt(4), SamplingParams(**sampling, presence_penalty=2.0, frequency_penalty=2.0))
    assert len(set(varied.branches[0].tokens)) > len(set(plain))


def test_answered_beams_can_be_forked_at_any_token(llama: str) -> None:
    model = reference_model(llama)
    greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    with _engine(llama) as engine:
        answers = _search(engine, _prompt(2), SamplingParams(num_beams=4, n=3, max_tokens=10, ignore_eos=True))
        for branch, answer in enumerate(answers.branches):
            history = _prompt(2) + answer.tokens
            for position in (len(history), len(history) - 1, len(history) - 4, 9):
                params = ForkParams(
                    generation_id=answers.generation_id, branch=branch, position=position, sampling=greedy
                )
                forked = collect(engine.fork(params)).branches[0].tokens
                tokens = history[:position]
                for token in forked:
                    assert token == int(reference_logits(model, tokens)[-1].argmax())
                    tokens.append(token)
                assert len(forked) == 5


def test_a_search_under_way_can_be_forked_at_its_prompt_and_can_be_cancelled(llama: str) -> None:
    with _engine(llama) as engine:
        sampling = SamplingParams(num_beams=4, max_tokens=100, ignore_eos=True)
        stream = engine.generate(GenerateParams(token_ids=_prompt(2), sampling=sampling))
        fork = ForkParams(generation_id=stream.generation_id, sampling=SamplingParams(temperature=0, max_tokens=3))
        forked = engine.fork(fork)
        started = next(forked)
        assert isinstance(started, Started)
        assert list(unpack_tokens(started.prompt)) == _prompt(2)
        assert len(collect([started, *forked]).branches[0].tokens) > 0
        stream.close()
        assert _stats(engine).num_sequences == 0


def test_a_running_generation_can_be_forked_into_a_search(llama: str) -> None:
    """From a position in the middle, with tokens forced behind it, while the parent runs on."""
    model = reference_model(llama)
    greedy = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with _engine(llama) as engine:
        parent = engine.generate(GenerateParams(token_ids=_prompt(1), sampling=greedy))
        tokens: list[int] = []
        while len(tokens) < 10:
            event = next(parent)
            tokens += event.token_ids if isinstance(event, Delta) else ()
        history = _prompt(1) + tokens[:7]
        forced = (50, 51, 52, 53, 54, 55)
        sampling = SamplingParams(num_beams=3, n=3, max_tokens=14, forced_token_ids=forced)
        params = ForkParams(generation_id=parent.generation_id, position=len(history), sampling=sampling)
        answers = collect(engine.fork(params))
        rest = SamplingParams(num_beams=3, n=3, max_tokens=8)
        expected = _expected(model, [*history, *forced], rest)
        _assert_equal(answers, [([*forced, *found], score) for found, score in expected])
        assert answers.usage.num_cached_tokens >= len(history) - 1
        tokens += [token for event in parent if isinstance(event, Delta) for token in event.token_ids]
    assert tokens == _go_on_greedily(model, _prompt(1), 60)


def _go_on_greedily(model: Any, prompt: Sequence[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def test_beams_come_over_grpc_as_they_are(llama: str) -> None:
    sampling = SamplingParams(
        num_beams=4, n=3, max_tokens=9, length_penalty=0.5, early_stopping=EarlyStopping.ALWAYS, logit_bias={EOS: 3.0}
    )
    params = GenerateParams(token_ids=_prompt(1), sampling=sampling)
    with _engine(llama) as engine:
        here = collect(engine.generate(params))
        with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
            there = collect(client.generate(params))
    _assert_equal(there, _expected(reference_model(llama), _prompt(1), sampling))
    assert [one.tokens for one in there.branches] == [one.tokens for one in here.branches]


@pytest.mark.parametrize("options", [{"num_beams": 4, "n": 2}, {"n": 3}, {"n": 2, "best_of": 3}])
def test_branches_of_a_generation_that_shares_no_prefix_answer_the_same_and_leave_nothing(
    llama: str, options: dict[str, Any]
) -> None:
    sampling = SamplingParams(max_tokens=9, ignore_eos=True, seed=3, **options)
    with _engine(llama) as engine:
        expected = _search(engine, _prompt(5, 13), sampling)
        params = GenerateParams(token_ids=_prompt(5, 13), sampling=sampling, sharing="off", namespace="apart")
        answers = collect(engine.generate(params))
        assert [one.tokens for one in answers.branches] == [one.tokens for one in expected.branches]
        assert answers.usage.num_cached_tokens == 0
        again = GenerateParams(token_ids=_prompt(5, 13), sampling=sampling, namespace="apart")
        assert collect(engine.generate(again)).usage.num_cached_tokens == 0


@pytest.mark.slow
def test_beams_of_the_default_model_are_those_of_transformers() -> None:
    from radixkv.worker.loading.default_model import resolve_model

    folder = str(resolve_model(None, progress=False))
    model, text = reference_model(folder), ChatText(folder)
    with _engine(folder, num_blocks=256, block_size=16) as engine:
        for num_beams, length_penalty, seed in ((2, 1.0, 1), (4, 1.0, 2), (4, 0.0, 3), (3, 1.5, 4)):
            ids = text.prompt_ids([{"role": "user", "content": _QUESTIONS[seed]}])
            sampling = SamplingParams(
                num_beams=num_beams, n=num_beams, max_tokens=24, length_penalty=length_penalty, min_tokens=3
            )
            _assert_equal(_search(engine, ids, sampling), _expected(model, ids, sampling))


_QUESTIONS = {
    1: "Name three colours.",
    2: "What is the capital of France?",
    3: "Write one line about rain.",
    4: "Say yes or no: is water wet?",
}
