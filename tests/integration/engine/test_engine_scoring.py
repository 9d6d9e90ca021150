"""How likely prompts are: the log probabilities of transformers in fp32, whatever was cached, and no position run in vain."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from answers import collect, draw_prompt, generate_tokens, greedy, start_together
from scored import Scored, check, read_scores
from tiny_adapters import linear_paths, save_adapter
from tiny_models import VOCAB_SIZE, reference_model, reference_replies, save_model, save_wide
from torch import Tensor

from radixkv import InvalidArgumentError, PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import FinishReason
from radixkv.kernels.runtime.native_build import native_library
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.limits import SchedulerLimits

BLOCK_SIZE, LINE_BLOCKS = 8, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("llama")
    return save_model("llama", path)


@pytest.fixture(scope="module")
def reference(folder: str) -> Any:
    return reference_model(folder)


def make_engine(
    folder: str, num_blocks: int = 64, num_lines: int = 0, max_scored: int = 12, swap_blocks: int = 0
) -> Engine:
    runner = ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu")
    runner.allocate_pool(num_blocks + num_lines * LINE_BLOCKS, BLOCK_SIZE, swap_blocks)
    limits = SchedulerLimits(
        max_batch_tokens=32,
        chunk_tokens=16,
        max_scored_tokens=max_scored,
        preemption="swap" if swap_blocks else "recompute",
        swap_blocks=swap_blocks,
    )
    arena = Arena(num_blocks, num_lines, LINE_BLOCKS, BLOCK_SIZE) if num_lines else None
    return Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), limits=limits, arena=arena)


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    with make_engine(folder) as engine:
        yield engine
        engine.call(lambda cache: cache.check())
        assert engine.call(lambda cache: cache.stats()).num_sequences == 0


def sampling(num_top: int = 0, max_tokens: int = 0, start: int = 0, **others: Any) -> SamplingParams:
    given = {"temperature": 0, "ignore_eos": True, **others}
    return SamplingParams(max_tokens=max_tokens, prompt_logprobs=num_top, prompt_logprobs_start=start, **given)


def score(engine: Engine, prompt: list[int], asked: SamplingParams | None = None, **params: Any) -> Scored:
    return read_scores(engine.generate(GenerateParams(token_ids=prompt, sampling=asked or sampling(), **params)))


def num_computed(scored: Scored) -> int:
    assert scored.usage is not None
    return scored.usage.num_computed_tokens


# -- alone


def test_a_prompt_of_many_chunks_is_scored_as_by_transformers(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 1, 70)
    scored = score(engine, prompt, sampling(num_top=5))
    check(scored, reference, prompt, num_top=5)
    assert (scored.tokens, scored.reason) == ([], FinishReason.LENGTH)
    assert scored.usage is not None
    assert scored.usage[:4] == (70, 0, 0, 70)


def test_a_reply_follows_what_was_scored(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 2, 37)
    scored = score(engine, prompt, sampling(num_top=1, max_tokens=9))
    check(scored, reference, prompt, num_top=1)
    assert scored.tokens == reference_replies(reference, prompt, 9)[0]


def test_a_prompt_of_one_token_has_nothing_to_tell(engine: Engine) -> None:
    scored = score(engine, [7], sampling(max_tokens=1))
    assert (scored.logprobs, len(scored.tokens)) == ({}, 1)


@pytest.mark.parametrize("num_branches", [{"n": 3}, {"n": 1, "best_of": 3}, {"num_beams": 3}])
def test_branches_and_beams_score_their_prompt_once(
    engine: Engine, reference: Any, num_branches: dict[str, int]
) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 3, 30)
    scored = score(engine, prompt, sampling(num_top=2, max_tokens=5, **num_branches))
    check(scored, reference, prompt, num_top=2)
    plain = collect(
        engine.generate(
            GenerateParams(
                token_ids=prompt, sampling=SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, **num_branches)
            )
        )
    )
    assert scored.tokens == plain.branches[0].tokens


def test_no_reply_leaves_the_prompt_in_the_cache(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 4, 29)
    answers = collect(engine.generate(GenerateParams(token_ids=prompt, sampling=SamplingParams(max_tokens=0, n=2))))
    assert [(branch.tokens, branch.reason) for branch in answers.branches] == [([], FinishReason.LENGTH)] * 2
    tokens, usage = generate_tokens(engine, [*prompt, 5], greedy(6))
    assert tokens[0] == reference_replies(reference, [*prompt, 5], 6)[0]
    assert usage[:2] == (30, 29)


# -- what is cached


def test_under_a_scored_prefix_each_prompt_computes_its_own_tokens_and_one(engine: Engine, reference: Any) -> None:
    shots = draw_prompt(VOCAB_SIZE, 5, 51)
    score(engine, shots)
    for seed in range(6):
        prompt = [*shots, *draw_prompt(VOCAB_SIZE, 50 + seed, 7)]
        scored = score(engine, prompt, sampling(num_top=1))
        check(scored, reference, prompt, num_top=1)
        assert num_computed(scored) == 7 + 1
        again = score(engine, prompt, sampling(num_top=1, max_tokens=1))
        assert again.logprobs == scored.logprobs
        assert num_computed(again) == 1


def test_cached_positions_are_computed_again_from_the_first_that_is_asked_about(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 6, 60)
    generate_tokens(engine, prompt, greedy(1))  # cached, and nothing is known of its logits
    before = engine.call(lambda cache: cache.stats()).num_cached_blocks
    for start in (60, 55, 17, 0):
        scored = score(engine, prompt, sampling(num_top=3, start=start))
        check(scored, reference, prompt, start=start, num_top=3)
        assert num_computed(scored) == min(60 - max(1, start) + 1, 60)
    assert engine.call(lambda cache: cache.stats()).num_cached_blocks == before


def test_log_probabilities_behind_a_gap_are_remembered_when_the_gap_is_filled(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 7, 40)
    check(score(engine, prompt, sampling(start=30)), reference, prompt, start=30)
    assert num_computed(score(engine, prompt, sampling(start=30))) == 1
    scored = score(engine, prompt)
    check(scored, reference, prompt)
    assert num_computed(scored) == 40
    assert num_computed(score(engine, prompt)) == 1


def test_nothing_is_shared_across_namespaces_or_by_those_that_share_nothing(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 8, 33)
    for given in ({"namespace": "a"}, {"namespace": "b"}, {"sharing": "off"}, {"sharing": "off"}):
        scored = score(engine, prompt, **given)
        check(scored, reference, prompt)
        assert num_computed(scored) == 33
    assert num_computed(score(engine, prompt, namespace="b")) == 1


def test_forks_score_their_whole_history(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 9, 30)
    stream = engine.generate(GenerateParams(token_ids=prompt, sampling=greedy(100)))
    generation_id = stream.generation_id
    next(stream)
    while not getattr(next(stream), "token_ids", ()):
        pass
    running = engine.fork(ForkParams(generation_id=generation_id, position=30, sampling=sampling(max_tokens=3)))
    check(read_scores(running), reference, prompt)
    stream.close()
    history = [*prompt, *generate_tokens(engine, prompt, greedy(12))[0][0]]
    for position in (13, 30, 38):
        ended = engine.generate(GenerateParams(token_ids=prompt, sampling=greedy(12)))
        collect(ended)
        params = ForkParams(
            generation_id=ended.generation_id, position=position, token_ids=[5, 6], sampling=sampling(num_top=2)
        )
        check(read_scores(engine.fork(params)), reference, [*history[:position], 5, 6], num_top=2)


# -- together


@pytest.mark.parametrize(
    "given",
    [
        {"num_blocks": 64},
        {"num_blocks": 16, "max_scored": 3},
        {"num_blocks": 24, "num_lines": 2},
        {"num_blocks": 64, "max_scored": 1},
    ],
    ids=str,
)
def test_random_trees_of_prompts_at_once_are_scored_as_by_transformers(
    folder: str, reference: Any, given: dict[str, int]
) -> None:
    draws = random.Random(str(given))
    histories: list[list[int]] = [[]]
    with make_engine(folder, **given) as engine:
        for _ in range(8):
            asked = [ask_at_random(draws, histories) for _ in range(draws.randint(2, 7))]
            for params, stream in zip(asked, start_together(engine, asked), strict=True):
                scored, wanted, prompt = read_scores(stream), params.sampling, list(params.token_ids or ())
                if wanted.prompt_logprobs is not None:
                    check(scored, reference, prompt, wanted.prompt_logprobs_start, wanted.prompt_logprobs)
                if wanted.max_tokens:
                    assert scored.tokens == reference_replies(reference, prompt, wanted.max_tokens)[0]
        engine.call(lambda cache: cache.check())
        assert engine.call(lambda cache: cache.stats()).num_sequences == 0


def ask_at_random(draws: random.Random, histories: list[list[int]]) -> GenerateParams:
    """A prompt that goes on from anywhere in one of the histories, scored or not; it is one of them from then on."""
    trunk = draws.choice(histories)
    own = draw_prompt(VOCAB_SIZE, draws.getrandbits(30), draws.randint(1, 25))
    prompt = [*trunk[: draws.randint(0, len(trunk))], *own][:60]
    histories.append(prompt)
    if draws.random() < 0.2:
        return GenerateParams(token_ids=prompt, sampling=greedy(4))
    start = draws.choice([0, 0, draws.randint(0, len(prompt))])
    params = sampling(draws.choice([0, 1, 1, 4]), draws.choice([0, 1, 30]), start, n=draws.choice([1, 1, 3]))
    return GenerateParams(token_ids=prompt, sampling=params)


@pytest.mark.parametrize("swap_blocks", [0, 16])
def test_a_prompt_that_is_preempted_while_it_is_scored_is_told_once(
    folder: str, reference: Any, swap_blocks: int
) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 11, 40)
    with make_engine(folder, num_blocks=17, max_scored=1, swap_blocks=swap_blocks) as engine:
        others = [
            GenerateParams(token_ids=draw_prompt(VOCAB_SIZE, seed, 24), sampling=greedy(40), priority=1)
            for seed in (12, 13)
        ]
        *running, stream = start_together(engine, [*others, GenerateParams(token_ids=prompt, sampling=sampling())])
        scored = read_scores(stream)
        check(scored, reference, prompt)
        for params, one in zip(others, running, strict=True):
            assert read_scores(one).tokens == reference_replies(reference, list(params.token_ids or ()), 40)[0]
        stats = engine.stats().engine
        assert stats.num_preemptions > 0
        assert (stats.num_loaded_blocks > 0) == (num_computed(scored) == 40) == (swap_blocks > 0)


# -- what cannot be


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "prompt_logprobs_start": -1}, "prompt_logprobs_start"),
        ({"prompt_logprobs_start": 1}, "prompt_logprobs_start"),
        ({"prompt_logprobs": 0, "prompt_logprobs_start": 4}, "prompt_logprobs_start"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "num_beams": 2}, "max_tokens"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(engine: Engine, given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        engine.generate(GenerateParams(token_ids=[5, 6, 7], sampling=SamplingParams(**given)))
    assert caught.value.argument == name


def test_a_prompt_as_long_as_the_model_is_scored_where_no_token_is_to_follow(folder: str, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 10, 256)
    with make_engine(folder, num_blocks=32) as engine:
        check(score(engine, prompt), reference, prompt)
        with pytest.raises(InvalidArgumentError, match="at most 255 tokens"):
            score(engine, prompt, sampling(max_tokens=1))


# -- however it is computed


def forced_scores(engine: Engine, prompt: list[int], adapter: str = "") -> list[float]:
    """Log probabilities of the prompt but its first token, as they are told where a reply is forced to be it."""
    asked = SamplingParams(
        max_tokens=len(prompt), forced_token_ids=tuple(prompt[1:]), logprobs=0, temperature=0, ignore_eos=True
    )
    params = GenerateParams(token_ids=prompt[:1], sampling=asked, adapter=adapter, sharing="off")
    return [sampled.logprob or 0.0 for sampled in collect(engine.generate(params)).branches[0].logprobs[:-1]]


KINDS: dict[str, tuple[dict[str, Any], float]] = {
    "native decoder": ({"dtype": "bfloat16", "quantization": "int8"}, 0.2),
    "native decoder, deterministic": ({"dtype": "bfloat16", "quantization": "int8", "deterministic": True}, 0.0),
    "own code, deterministic": ({"dtype": "float32", "quantization": "none", "deterministic": True}, 0.0),
    "int8 KV": ({"dtype": "float32", "quantization": "none", "kv_dtype": "int8"}, 1e-3),
    "an adapter": ({"dtype": "float32", "quantization": "none"}, 1e-4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_however_it_is_computed_a_prompt_is_as_likely_as_a_reply(tmp_path: Path, kind: str) -> None:
    given, apart = KINDS[kind]
    if given["quantization"] == "int8" and native_library() is None:
        pytest.skip("there is no C++ compiler here")
    folder = save_wide("llama", tmp_path / "model", head_dim=32)
    adapter = "one" if kind == "an adapter" else ""
    if adapter:
        model = reference_model(folder)
        save_adapter(tmp_path / "adapter", model, linear_paths(model, "q_proj", "v_proj"), seed=1)
        given = {**given, "adapters": {adapter: tmp_path / "adapter"}}
    runner = ModelRunner(folder, num_blocks=64, block_size=BLOCK_SIZE, device="cpu", **given)
    assert runner.is_native == kind.startswith("native")
    limits = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16, max_scored_tokens=11)
    prompt = draw_prompt(VOCAB_SIZE, 20, 50)
    with Engine(runner, PrefixCache(64, BLOCK_SIZE), limits=limits, adapters=runner.adapter_names) as engine:
        expected = forced_scores(engine, prompt, adapter)
        if adapter:
            assert expected != pytest.approx(forced_scores(engine, prompt), abs=0.1)
        score(engine, prompt)  # of the model alone, which an adapter must not be told of
        for part in (prompt[:20], prompt, prompt):
            told = list(score(engine, part, adapter=adapter).logprobs.values())
            assert told == pytest.approx(expected[: len(part) - 1], rel=0, abs=apart)
        again = score(engine, prompt, sampling(num_top=2), adapter=adapter)  # computed again, all of it
        assert list(again.logprobs.values()) == pytest.approx(expected, rel=0, abs=apart)


class CountingRunner(HashRunner):
    """Keeps the widest answer of a forward, in rows of logits."""

    most_rows = 0

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        self.most_rows = max(self.most_rows, sum(row.num_logits for row in rows))
        return super().forward(rows, drawn_ids)


@pytest.mark.parametrize("overlaps", [False, True])
def test_no_forward_gives_more_logits_than_it_may_and_a_batch_under_way_changes_nothing(overlaps: bool) -> None:
    runner = CountingRunner(64, 8)
    prompts = [[1, 2, 3, 2, 1, 3, number, 1] for number in range(1, 7)]
    with Engine(runner, PrefixCache(64, 8), limits=SchedulerLimits(max_scored_tokens=5), overlaps=overlaps) as engine:
        asked = [
            GenerateParams(token_ids=prompt, sampling=sampling(1, number % 3)) for number, prompt in enumerate(prompts)
        ]
        found = [read_scores(stream) for stream in start_together(engine, asked)]
    assert runner.most_rows <= 5 + len(asked)
    for number, (each, prompt) in enumerate(zip(found, prompts, strict=True)):
        best = {position: generate(prompt[:position], 1)[0] for position in range(1, 8)}
        assert {position: top[0][0] for position, top in each.top.items()} == best
        assert {position for position, rank in each.ranks.items() if rank == 1} >= {
            position for position in best if best[position] == prompt[position]
        }
        assert each.tokens == generate(prompt, number % 3)
