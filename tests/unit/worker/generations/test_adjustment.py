"""What a request asks of the logits is done to its own row, exactly, and to no other."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.generation.stream import FinishReason
from radixkv.worker.generations.reply import Reply, ReplyRules
from radixkv.worker.sampling.logit_processors import Addend, Adjustment, adjust
from radixkv.worker.sampling.sampler import Sampler, SamplerRow

VOCAB_SIZE = 50
STOP = 7


def _logits(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def _rules(**params: Any) -> ReplyRules:
    return ReplyRules(SamplingParams(**params), vocab_size=VOCAB_SIZE, stop_token_ids=[STOP])


def _reply(rules: ReplyRules, *token_ids: int) -> Reply:
    reply = rules.new_reply()
    for token_id in token_ids:
        reply.take(SampledToken(token_id, None, ()), False)
    return reply


def _bits(*allowed: int) -> bytes:
    mask = np.zeros(VOCAB_SIZE, np.uint8)
    mask[list(allowed)] = 1
    return np.packbits(mask, bitorder="little").tobytes()


def _addend(values: dict[int, float]) -> Addend:
    return Addend(np.array(list(values), np.int64), np.array(list(values.values()), np.float32))


def test_rows_that_ask_for_nothing_cost_no_copy() -> None:
    logits = _logits(3)
    assert adjust(logits, [None, None, None]) is logits


def test_each_row_is_adjusted_by_its_own_request_alone() -> None:
    logits = _logits(5)
    before = logits.clone()
    adjusted = adjust(
        logits,
        [
            Adjustment(bias=_addend({1: 2.5, 4: -1.0})),
            None,
            Adjustment(bias=_addend({4: 1.0}), penalties=_addend({4: -0.25, 5: -2.0})),
            Adjustment(banned_ids=np.array([0, 49])),
            Adjustment(allowed=_bits(3, 48), penalties=_addend({3: 1.0})),
        ],
    )
    expected = before.clone()
    expected[0, 1] += 2.5
    expected[0, 4] -= 1.0
    expected[2, 4] = expected[2, 4] + 1.0 - 0.25
    expected[2, 5] -= 2.0
    expected[3, [0, 49]] = -math.inf
    kept = before[4, [3, 48]].clone()
    expected[4] = -math.inf
    expected[4, 3], expected[4, 48] = kept[0] + 1.0, kept[1]
    assert torch.equal(adjusted, expected)
    assert torch.equal(logits, before)


def test_ids_behind_the_end_of_a_mask_are_not_allowed() -> None:
    adjusted = adjust(_logits(1), [Adjustment(allowed=b"\xff")])
    assert torch.isfinite(adjusted[0]).nonzero()[:, 0].tolist() == list(range(8))


def test_a_bias_decides_a_greedy_choice_and_leaves_the_told_log_probabilities_raw() -> None:
    logits = _logits(1)
    params = {"temperature": 0.0, "logprobs": 3, "logit_bias": {11: 100.0}}
    row = SamplerRow(SamplingParams(**params), 1, 0, 0, _reply(_rules(**params)).adjustment())
    [sampled] = Sampler().sample(logits, [row])
    raw = torch.log_softmax(logits, -1)[0]
    assert sampled.token_id == 11
    assert sampled.logprob == pytest.approx(raw[11].item())
    assert [token_id for token_id, _ in sampled.top] == raw.topk(3).indices.tolist()


def test_a_forced_token_is_taken_whatever_its_likelihood_and_its_log_probability_is_told() -> None:
    logits = _logits(2)
    params = SamplingParams(logprobs=0)
    rows = [SamplerRow(params, 1, 0, 5, forced_id=int(logits[0].argmin())), SamplerRow(params, 1, 0, 5)]
    forced, drawn = Sampler().sample(logits, rows)
    assert forced.token_id == int(logits[0].argmin())
    assert forced.logprob == pytest.approx(torch.log_softmax(logits, -1)[0].min().item())
    assert drawn == Sampler().sample(logits[1:], rows[1:])[0]


def test_penalties_count_the_replys_own_tokens_forced_ones_too() -> None:
    rules = _rules(presence_penalty=0.5, frequency_penalty=0.25, forced_token_ids=(3, 4), logit_bias={4: 1.0})
    logits = _logits(1)
    adjusted = adjust(logits, [_reply(rules, 4, 4, 9).adjustment()])[0]
    expected = logits[0].clone()
    expected[3] -= 0.75
    expected[4] = expected[4] + 1.0 - 1.25
    expected[9] -= 0.75
    torch.testing.assert_close(adjusted, expected, atol=1e-6, rtol=0)


def test_penalties_shift_what_is_drawn_as_the_definition_says() -> None:
    rules = _rules(presence_penalty=2.0, frequency_penalty=1.0, temperature=0.7)
    logits = _logits(1)[:, :8]
    drawn = (1, 2, 2, 6)
    adjustment = _reply(rules, *drawn).adjustment()
    num_draws = 4000
    rows = [SamplerRow(rules.sampling, 3, 0, position, adjustment) for position in range(num_draws)]
    tokens = Sampler().sample(logits.expand(num_draws, -1), rows)
    shares = torch.bincount(torch.tensor([token.token_id for token in tokens]), minlength=8) / num_draws
    penalised = logits[0].clone()
    for token_id, count in Counter(drawn).items():
        penalised[token_id] -= 2.0 + count
    torch.testing.assert_close(shares, torch.softmax(penalised / 0.7, -1), atol=0.03, rtol=0)


def test_no_stop_token_is_drawn_before_min_tokens() -> None:
    rules = _rules(min_tokens=3, forced_token_ids=(1,))
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, STOP] = 50.0
    chosen = []
    for drawn in ((), (2,), (2, 3)):
        row = SamplerRow(rules.sampling, 1, 0, 0, _reply(rules, *drawn).adjustment())
        chosen.append(Sampler().sample(logits, [row])[0].token_id)
    assert STOP not in chosen[:2]
    assert chosen[2] == STOP


@pytest.mark.parametrize(("allowed", "expected"), [((STOP, 8), {8}), ((STOP,), {STOP})])
def test_where_the_grammar_allows_only_stop_tokens_min_tokens_gives_way(
    allowed: tuple[int, ...], expected: set[int]
) -> None:
    adjustment = _rules(min_tokens=5).adjustment(Counter(), 0, _bits(*allowed))
    adjusted = adjust(_logits(1), [adjustment])[0]
    assert set(torch.isfinite(adjusted).nonzero()[:, 0].tolist()) == expected


def test_no_draw_depends_on_the_adjustments_of_its_neighbours() -> None:
    """Each row alone, in the whole batch, and in the batch backwards."""
    kinds: list[dict[str, Any]] = [
        {},
        {"logit_bias": {1: 5.0, 2: -3.0}},
        {"presence_penalty": 1.0, "frequency_penalty": -0.5},
        {"min_tokens": 9},
        {"temperature": 0.0, "logit_bias": {9: 4.0}},
        {"top_k": 5, "top_p": 0.9, "frequency_penalty": 2.0},
    ]
    logits = _logits(len(kinds) * 3)
    rows = [
        SamplerRow(SamplingParams(**kind, logprobs=1), 4, 0, index, _reply(_rules(**kind), 3, 3, index).adjustment())
        for index, kind in enumerate(kinds * 3)
    ]
    together = Sampler().sample(logits, rows)
    assert Sampler().sample(logits.flip(0), rows[::-1]) == together[::-1]
    for index, row in enumerate(rows):
        assert Sampler().sample(logits[index : index + 1], [row]) == [together[index]]


@pytest.mark.parametrize(
    ("params", "argument"),
    [
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"forced_token_ids": (1, VOCAB_SIZE)}, "forced_token_ids"),
        ({"forced_token_ids": (1, STOP, 2)}, "forced_token_ids"),
    ],
)
def test_what_the_vocabulary_or_the_end_of_a_reply_rules_out_is_refused(params: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        _rules(**params)
    assert refusal.value.argument == argument


def test_min_tokens_is_refused_where_every_token_ends_the_reply() -> None:
    with pytest.raises(InvalidArgumentError, match="min_tokens"):
        ReplyRules(SamplingParams(min_tokens=1), vocab_size=3, stop_token_ids=[0, 1, 2])


def test_the_score_of_a_reply_is_the_mean_of_what_was_drawn() -> None:
    reply = _rules(best_of=2, forced_token_ids=(1, 2)).new_reply()
    assert reply.score == 0
    for logprob in (-1.0, -2.0, -6.0):
        taken = reply.take(SampledToken(3, logprob, ()), False)
    assert reply.score == -3.0
    assert taken.reason is None
    assert reply.take(SampledToken(STOP, -3.0, ()), False).reason is FinishReason.STOP
    assert reply.num_tokens == 6
