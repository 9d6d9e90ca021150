"""Forced tokens, best_of, penalties and grammars through an engine, on a tiny model that reads and writes bytes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import transformers as tf
from answers import Answers, collect
from byte_model import EOS, VOCAB_SIZE, save_byte_model

from radixkv import InvalidArgumentError, PrefixCache
from radixkv.core.api import CacheStats
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import Grammar, SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, Generator
from radixkv.generation.stream import BranchFinished, Delta, FinishReason
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.server import GenerationServer

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 0},
            "moods": {"type": "array", "items": {"enum": ["ok", "no"]}},
        },
        "required": ["age", "moods"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def model(folder: str) -> Any:
    return tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def _engine(folder: str, num_blocks: int = 128, block_size: int = 4) -> Engine:
    runner = ModelRunner(folder, num_blocks=num_blocks, block_size=block_size, dtype="float32", device="cpu")
    limits = SchedulerLimits(max_batch_tokens=64, chunk_tokens=16)
    return Engine(runner, PrefixCache(num_blocks, block_size), text=ChatText(folder), limits=limits)


@pytest.fixture(scope="module")
def engine(folder: str) -> Iterator[Engine]:
    with _engine(folder) as engine:
        yield engine


@pytest.fixture(scope="module", params=["in process", "over gRPC"])
def generator(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Generator]:
    if request.param == "in process":
        yield engine
        return
    with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        yield client


def _prompt(seed: int, length: int = 9) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=length)


def _ask(generator: Generator, prompt: Sequence[int], **sampling: Any) -> Answers:
    return collect(generator.generate(GenerateParams(token_ids=prompt, sampling=SamplingParams(**sampling))))


def _logprobs(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Raw log probabilities of every token behind the prompt, [len(tokens), vocab]."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].float(), -1)


def _idle(engine: Engine) -> CacheStats:
    def read(cache: Any) -> CacheStats:
        cache.check()
        stats: CacheStats = cache.stats()
        return stats

    stats = engine.call(read)
    assert (stats.num_sequences, stats.num_private_blocks) == (0, 0)
    return stats


# -- forced tokens


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_a_reply_begins_with_the_forced_tokens_and_goes_on_as_behind_a_prompt_of_them(
    generator: Generator, model: Any, n: int, logprobs: int | None
) -> None:
    prompt, forced = _prompt(1), tuple(b"Answer: ")
    answers = _ask(
        generator,
        prompt,
        forced_token_ids=forced,
        n=n,
        temperature=0,
        max_tokens=14,
        ignore_eos=True,
        logprobs=logprobs,
    )
    rest = _ask(generator, [*prompt, *forced], temperature=0, max_tokens=6, ignore_eos=True).branches[0]
    assert len(answers.branches) == n
    for answer in answers.branches:
        assert answer.tokens == [*forced, *rest.tokens]
        assert answer.text == "Answer: " + rest.text
        assert answer.reason is FinishReason.LENGTH
        if logprobs is None:
            assert answer.logprobs == []
        else:
            expected = _logprobs(model, prompt, answer.tokens)
            told = torch.tensor([sampled.logprob for sampled in answer.logprobs])
            chosen = expected.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
            torch.testing.assert_close(told, chosen, atol=1e-4, rtol=0)
    assert answers.usage.num_generated_tokens == n * 14
    assert answers.usage.num_prompt_tokens == len(prompt)


def test_forced_tokens_are_run_with_the_prompt_and_not_one_by_one(folder: str) -> None:
    with _engine(folder) as engine:
        before = engine.stats().engine.num_forwards
        answers = _ask(engine, _prompt(2), forced_token_ids=tuple(b"abc"), max_tokens=4, ignore_eos=True)
        assert engine.stats().engine.num_forwards - before == 1
    assert answers.usage.num_computed_tokens == 9 + 3


def test_forced_tokens_that_another_has_computed_are_found_in_the_cache(folder: str) -> None:
    prompt, forced = _prompt(3, 12), tuple(b"12345678")
    with _engine(folder) as engine:
        first = _ask(engine, prompt, forced_token_ids=forced, temperature=0, max_tokens=12, ignore_eos=True)
        again = _ask(engine, prompt, forced_token_ids=forced, temperature=0, max_tokens=12, ignore_eos=True)
    assert again.branches == first.branches
    assert again.usage.num_cached_tokens == 12
    assert again.usage.num_computed_tokens == 4  # the last forced token, for its logits, and 3 drawn


@pytest.mark.parametrize(
    ("sampling", "argument"),
    [
        ({"forced_token_ids": (1, EOS, 2)}, "forced_token_ids"),
        ({"forced_token_ids": (VOCAB_SIZE,)}, "forced_token_ids"),
        ({"forced_token_ids": tuple(b"stop here"), "stop": ("op",)}, "forced_token_ids"),
        ({"forced_token_ids": tuple(b"no"), "grammar": Grammar("regex", "yes|maybe")}, "forced_token_ids"),
        ({"logit_bias": {VOCAB_SIZE + 5: 1.0}}, "logit_bias"),
        ({"grammar": Grammar("regex", "a(b")}, "grammar.text"),
        ({"grammar": Grammar("json_schema", '{"type": 3}')}, "grammar.text"),
        ({"forced_token_ids": (1,) * 1015, "max_tokens": 1016}, "prompt"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    generator: Generator, engine: Engine, sampling: dict[str, Any], argument: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        _ask(generator, _prompt(1), **sampling)
    assert argument in str(refusal.value)
    assert engine.stats().engine.num_generations == 0


@pytest.mark.parametrize(
    ("sampling", "argument"), [({"stop": ("x",)}, "stop"), ({"grammar": Grammar("json_object")}, "grammar")]
)
def test_what_needs_text_is_refused_by_a_worker_without_a_tokenizer(
    folder: str, sampling: dict[str, Any], argument: str
) -> None:
    runner = ModelRunner(folder, num_blocks=8, block_size=4, dtype="float32", device="cpu")
    with (
        Engine(runner, PrefixCache(8, 4)) as engine,
        pytest.raises(InvalidArgumentError, match="tokenizer") as refusal,
    ):
        _ask(engine, [1, 2], max_tokens=4, **sampling)
    assert refusal.value.argument == argument


# -- best_of


def test_best_of_answers_the_likeliest_replies_first(generator: Generator, model: Any) -> None:
    prompt = _prompt(4)
    sampling: dict[str, Any] = {"seed": 6, "max_tokens": 10, "temperature": 1.3}
    every = _ask(generator, prompt, **sampling, n=6)
    best = _ask(generator, prompt, **sampling, n=2, best_of=6)
    scored = []
    for answer in every.branches:
        logprobs = _logprobs(model, prompt, answer.tokens).gather(1, torch.tensor(answer.tokens)[:, None])
        scored.append((float(logprobs.mean()), answer.tokens))
    scored.sort(reverse=True)
    assert [answer.tokens for answer in best.branches] == [tokens for _, tokens in scored[:2]]
    assert [answer.score for answer in best.branches] == pytest.approx([score for score, _ in scored[:2]], abs=1e-4)
    assert [answer.text for answer in best.branches] == [
        next(a.text for a in every.branches if a.tokens == tokens) for _, tokens in scored[:2]
    ]
    assert best.usage.num_generated_tokens == sum(len(answer.tokens) for answer in every.branches)
    assert all(answer.logprobs == [] for answer in best.branches)
    assert all(answer.score is None for answer in every.branches)


def test_best_of_tells_nothing_before_all_have_ended_and_then_one_branch_after_the_other(engine: Engine) -> None:
    sampling = SamplingParams(n=3, best_of=5, max_tokens=6, seed=3, logprobs=1)
    events = list(engine.generate(GenerateParams(token_ids=_prompt(5), sampling=sampling)))[1:-1]
    branches = [event.branch for event in events if isinstance(event, (Delta, BranchFinished))]
    assert branches == sorted(branches)
    assert set(branches) == {0, 1, 2}
    scores = [event.score for event in events if isinstance(event, BranchFinished)]
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    assert all(len(event.logprobs) == 1 for event in events if isinstance(event, Delta))


def test_answered_branches_of_best_of_are_forked_by_their_answered_numbers(engine: Engine, model: Any) -> None:
    answers = _ask(engine, _prompt(6), n=3, best_of=6, max_tokens=8, seed=9, temperature=1.2)
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    for branch, answer in enumerate(answers.branches):
        for position in (len(_prompt(6)) + len(answer.tokens), len(_prompt(6)) + 2):
            params = ForkParams(generation_id=answers.generation_id, branch=branch, position=position, sampling=greedy)
            forked = collect(engine.fork(params)).branches[0].tokens
            history = [*_prompt(6), *answer.tokens][:position]
            assert forked[0] == int(_logprobs(model, history, forked)[0].argmax())
    _idle(engine)
    with pytest.raises(InvalidArgumentError, match="branch"):
        engine.fork(ForkParams(generation_id=answers.generation_id, branch=3, sampling=greedy))


# -- penalties, bias, min_tokens


def test_penalties_and_bias_and_min_tokens_act_at_every_step_as_defined(generator: Generator, model: Any) -> None:
    """Each token of a greedy reply is the most likely one of the logits, adjusted here from the model's own."""
    prompt, forced = _prompt(7), (101, 101)
    bias = {EOS: 9.0, 104: 1.5, 105: -3.0}
    answer = _ask(
        generator,
        prompt,
        temperature=0,
        max_tokens=24,
        min_tokens=12,
        forced_token_ids=forced,
        logit_bias=bias,
        presence_penalty=1.2,
        frequency_penalty=0.4,
    ).branches[0]
    counts = Counter(forced)
    logprobs = _logprobs(model, prompt, answer.tokens)
    for index, token_id in enumerate(answer.tokens[2:], 2):
        row = logprobs[index].clone()
        for biased, value in bias.items():
            row[biased] += value
        for counted, count in counts.items():
            row[counted] -= 1.2 + 0.4 * count
        if index < 12:
            row[EOS] = -torch.inf
        assert token_id == int(row.argmax()), index
        counts[token_id] += 1
    assert len(answer.tokens) >= 12


def test_the_draws_are_the_same_when_branches_are_preempted(folder: str) -> None:
    """What a reply has counted, and how far it has come in its grammar, outlives its sequence."""
    sampling: dict[str, Any] = {"n": 3, "seed": 4, "max_tokens": 20, "frequency_penalty": 1.5, "temperature": 1.1}
    grammar = Grammar("regex", "[a-p]+([0-9]{2}[a-p]){3,}")
    with _engine(folder) as ample, _engine(folder, num_blocks=9) as tiny:
        for extra in ({"ignore_eos": True}, {"grammar": grammar}, {"best_of": 4, "min_tokens": 15}):
            answers, expected = (_ask(engine, _prompt(8), **sampling, **extra).branches for engine in (tiny, ample))
            assert [(answer.tokens, answer.text) for answer in answers] == [(one.tokens, one.text) for one in expected]
        assert tiny.stats().engine.num_preemptions > 0
        _idle(tiny)


# -- grammars


def test_every_reply_fits_its_schema_or_ends_by_length(generator: Generator) -> None:
    num_fitting = 0
    grammar = Grammar("json_schema", SCHEMA)
    streams = [
        generator.generate(
            GenerateParams(token_ids=_prompt(seed), sampling=SamplingParams(seed=seed, max_tokens=120, grammar=grammar))
        )
        for seed in range(20)
    ]
    for stream in streams:
        [answer] = collect(stream).branches
        if answer.reason is FinishReason.STOP:
            value = json.loads(answer.text)
            assert set(value) == {"age", "moods"}
            assert isinstance(value["age"], int)
            assert value["age"] >= 0
            assert set(value["moods"]) <= {"ok", "no"}
            num_fitting += 1
        else:
            assert len(answer.tokens) == 120
    assert num_fitting >= 5


@pytest.mark.parametrize("options", [{}, {"ignore_eos": True}, {"min_tokens": 30}, {"temperature": 0}, {"best_of": 5}])
def test_branches_follow_their_grammar_apart_and_end_with_it(engine: Engine, options: dict[str, Any]) -> None:
    grammar = Grammar("lark", 'start: ("red" | "green" | "blue") (", " ("red" | "green" | "blue")){2}')
    answers = _ask(engine, _prompt(3), n=5, seed=2, max_tokens=60, grammar=grammar, **options)
    for answer in answers.branches:
        assert len(answer.text.split(", ")) == 3
        assert set(answer.text.split(", ")) <= {"red", "green", "blue"}
        assert answer.reason is FinishReason.STOP
        assert answer.tokens == list(answer.text.encode())
    if "temperature" not in options:
        assert len({answer.text for answer in answers.branches}) > 1


def test_a_grammar_goes_on_behind_the_beginning_that_was_forced(engine: Engine) -> None:
    """So a reply that was cut in the middle of its JSON can be gone on with."""
    whole = '{"age": 41, "moods": ["ok"'
    answer = _ask(
        engine,
        _prompt(3),
        seed=5,
        max_tokens=200,
        forced_token_ids=tuple(whole.encode()),
        grammar=Grammar("json_schema", SCHEMA),
    ).branches[0]
    assert answer.text.startswith(whole)
    assert answer.reason is FinishReason.STOP
    assert json.loads(answer.text)["moods"][0] == "ok"


def test_a_fork_can_have_a_grammar_and_what_is_forked_may_have_had_one(engine: Engine) -> None:
    digits = SamplingParams(grammar=Grammar("regex", "[0-9]{6}"), max_tokens=20, seed=1)
    first = collect(engine.generate(GenerateParams(token_ids=_prompt(2), sampling=digits)))
    for position in (len(_prompt(2)), len(_prompt(2)) + 3, len(_prompt(2)) + 6):
        params = ForkParams(generation_id=first.generation_id, position=position, sampling=digits)
        answer = collect(engine.fork(params)).branches[0]
        assert len(answer.text) == 6
        assert answer.text.isdigit()


def test_a_stop_string_still_ends_a_reply_with_a_grammar(engine: Engine) -> None:
    answer = _ask(engine, _prompt(1), grammar=Grammar("regex", "a{5}b{5}"), stop=("bb",), max_tokens=20).branches[0]
    assert (answer.text, answer.stop, answer.reason) == ("aaaaa", "bb", FinishReason.STOP)


def test_log_probabilities_with_a_grammar_are_those_of_the_raw_distribution(engine: Engine, model: Any) -> None:
    answer = _ask(engine, _prompt(1), grammar=Grammar("regex", "[x-z]{5}"), logprobs=0, seed=1).branches[0]
    expected = _logprobs(model, _prompt(1), answer.tokens).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    told = torch.tensor([sampled.logprob for sampled in answer.logprobs])
    torch.testing.assert_close(told, expected, atol=1e-4, rtol=0)


def test_a_grammar_too_costly_to_follow_ends_its_own_generation_alone(engine: Engine) -> None:
    """Readings of its text multiply until a bound is met: an error for who asked, and nothing for the others."""
    ambiguous = Grammar("lark", 'start: s\ns: "a" | s s | s s s | s s s s')
    plain = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    other = engine.generate(GenerateParams(token_ids=_prompt(5), sampling=plain))
    with pytest.raises(InvalidArgumentError, match=r"grammar.*simple enough"):
        _ask(engine, _prompt(1), grammar=ambiguous, max_tokens=400, n=2, logit_bias={EOS: -100.0})
    assert len(collect(other).branches[0].tokens) == 300
    _idle(engine)


@pytest.mark.slow
def test_the_default_model_writes_json_that_fits_a_schema() -> None:
    from radixkv.worker.loading.default_model import resolve_model

    folder = str(resolve_model(None, progress=False))
    message = [{"role": "user", "content": "Describe a person as JSON with an age and moods (ok or no)."}]
    num_fitting = 0
    with _engine(folder, num_blocks=256, block_size=16) as engine:
        streams = [
            engine.generate(
                GenerateParams(
                    messages=message,
                    sampling=SamplingParams(seed=seed, max_tokens=100, grammar=Grammar("json_schema", SCHEMA)),
                )
            )
            for seed in range(20)
        ]
        for stream in streams:
            answer = collect(stream).branches[0]
            if answer.reason is FinishReason.STOP:
                value = json.loads(answer.text)
                assert isinstance(value["age"], int)
                assert set(value["moods"]) <= {"ok", "no"}
                num_fitting += 1
            else:
                assert len(answer.tokens) == 100
    assert num_fitting >= 15
