"""Draws follow the asked distribution, and depend on nothing but their own row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixkv.generation.params import SamplingParams
from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.sampling import sampler
from radixkv.worker.sampling.sampler import Sampler, SamplerRow

VOCAB_SIZE = 1500
NUM_DRAWS = 4000


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to draw."""
    if request.param == "torch":
        monkeypatch.setattr(sampler, "native_library", lambda: None)
    elif native_library() is None:
        pytest.skip("no compiled kernels here")


def random_logits(count: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def row(seed: int = 1, branch: int = 0, position: int = 0, **params: Any) -> SamplerRow:
    return SamplerRow(SamplingParams(**params), seed, branch, position)


def draw_many(logits: torch.Tensor, **params: Any) -> torch.Tensor:
    """Counts of `NUM_DRAWS` tokens drawn from one row of logits, at successive positions."""
    rows = [row(position=position, **params) for position in range(NUM_DRAWS)]
    tokens = Sampler().sample(logits.expand(NUM_DRAWS, -1), rows)
    return torch.bincount(torch.tensor([token.token_id for token in tokens]), minlength=logits.shape[-1])


def kept_by_definition(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """What the filters keep, entry by entry in float64."""
    probabilities = torch.softmax(logits.double() / temperature, -1).tolist()
    order = sorted(range(len(probabilities)), key=lambda index: -probabilities[index])
    order = order[:top_k] if top_k else order
    mass, total, kept = 0.0, sum(probabilities[index] for index in order), []
    for index in order:
        if mass >= top_p * total:
            break
        kept.append(index)
        mass += probabilities[index]
    return {index for index in kept if probabilities[index] >= min_p * probabilities[order[0]]}


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 1e-40}])
def test_greedy_takes_the_most_likely_token(greedy: dict[str, Any]) -> None:
    logits = random_logits(5)
    tokens = Sampler().sample(logits, [row(position=index, **greedy) for index in range(5)])
    assert [token.token_id for token in tokens] == logits.argmax(-1).tolist()


def test_draws_follow_the_tempered_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -float("inf"), 0.5])
    for temperature in (0.5, 1.0, 2.0):
        shares = draw_many(logits, temperature=temperature) / NUM_DRAWS
        expected = torch.softmax(logits / temperature, -1)
        torch.testing.assert_close(shares, expected, atol=0.03, rtol=0)
        assert shares[3] == 0


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.8},
        {"top_k": 6, "top_p": 0.9, "min_p": 0.1},
        {"top_p": 1e-9},
    ],
)
def test_filters_keep_exactly_what_they_define(filters: dict[str, Any]) -> None:
    logits = random_logits(1, seed=3, vocab_size=12)[0]
    expected = kept_by_definition(logits, 1.5, **{"top_k": 0, "top_p": 1.0, "min_p": 0.0, **filters})
    drawn = set(draw_many(logits, temperature=1.5, **filters).nonzero()[:, 0].tolist())
    likely = {index for index in expected if torch.softmax(logits[list(expected)] / 1.5, -1).min() > 1e-3}
    assert drawn <= expected
    assert likely <= drawn


@pytest.mark.parametrize("filters", [{"top_p": 0.97}, {"top_k": 1200}, {"top_k": 1300, "top_p": 0.99}])
def test_filters_that_keep_more_than_the_first_candidates_are_exact_too(filters: dict[str, Any]) -> None:
    logits = random_logits(1, seed=4)[0] / 30  # nearly flat: a thousand entries and more are kept
    expected = kept_by_definition(logits, 1.0, **{"top_k": 0, "top_p": 1.0, "min_p": 0.0, **filters})
    drawn = set(draw_many(logits, **filters).nonzero()[:, 0].tolist())
    assert 1024 < len(expected) < VOCAB_SIZE
    assert drawn <= expected
    assert len(drawn) > 1024 * 0.8


def test_a_draw_depends_on_its_own_row_alone() -> None:
    logits = random_logits(24, seed=5)
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.05, "temperature": 1.3},
        {"top_p": 0.999, "temperature": 5.0},
    ]
    rows = [row(seed=index % 3, branch=index % 2, position=index, **settings[index % 6]) for index in range(24)]
    together = Sampler().sample(logits, rows)
    alone = [Sampler().sample(logits[index : index + 1], [rows[index]])[0] for index in range(24)]
    backwards = Sampler().sample(logits.flip(0), rows[::-1])[::-1]
    assert together == alone == backwards


def test_both_ways_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(64, seed=8, vocab_size=20_000)
    settings: list[dict[str, Any]] = [
        {"temperature": 0.8},
        {"top_k": 50, "temperature": 2.0},
        {"top_p": 0.95},
        {"top_p": 0.999, "min_p": 0.01, "temperature": 3.0},
        {"top_k": 5000, "top_p": 0.9, "temperature": 10.0},
    ]
    rows = [row(seed=index, position=index, **settings[index % 5]) for index in range(64)]
    found = [token.token_id for token in Sampler().sample(logits, rows)]
    monkeypatch.setattr(sampler, "native_library", lambda: None)
    assert found == [token.token_id for token in Sampler().sample(logits, rows)]


def test_seed_branch_and_position_each_change_the_draws() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)

    def draws(**which: int) -> list[int]:
        start = which.pop("position", 0)
        return [Sampler().sample(logits, [row(position=start + i, **which)])[0].token_id for i in range(8)]

    base = draws()
    assert base == draws()
    assert len(set(base)) > 1
    assert base != draws(seed=2)
    assert base != draws(branch=1)
    assert base[3:] == draws(position=3)[:5]


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = random_logits(3, seed=6)
    rows = [row(logprobs=4, temperature=0.0), row(logprobs=0, temperature=0.3, top_k=5), row()]
    first, second, third = Sampler().sample(logits, rows)
    expected = torch.log_softmax(logits, -1)
    assert first.logprob == pytest.approx(expected[0].max().item())
    values, ids = expected[0].topk(4)
    assert [token_id for token_id, _ in first.top] == ids.tolist()
    assert [logprob for _, logprob in first.top] == pytest.approx(values.tolist())
    assert second.logprob == pytest.approx(expected[1, second.token_id].item())
    assert second.top == ()
    assert (third.logprob, third.top) == (None, ())


def test_more_logprobs_than_the_vocabulary_has_entries_answer_all_of_it() -> None:
    token = Sampler().sample(torch.zeros(1, 3), [row(logprobs=20)])[0]
    assert sorted(token_id for token_id, _ in token.top) == [0, 1, 2]
