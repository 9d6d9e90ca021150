"""`repetition_penalty`, `bad_words` and `allowed_token_ids`, beside what transformers makes of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from radixkv import InvalidArgumentError, pack_tokens
from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.worker.generations.reply import Reply, ReplyRules
from radixkv.worker.sampling.bad_words import BadWords, spellings
from radixkv.worker.sampling.device_sampler import LaunchedDraws
from radixkv.worker.sampling.logit_processors import Adjustment
from radixkv.worker.sampling.sampler import Sampler, SamplerRow

VOCAB_SIZE = 24
NUM_DRAWS = 3000
PROMPT = [3, 5, 3, 17]
WORDS = [[7], [8, 9], [9, 9, 2], [17, 11]]


def logits_of(seed: int) -> Tensor:
    return torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 2


def reply_with(token_ids: list[int], words: list[list[int]] = [], **params: Any) -> tuple[Reply, SamplingParams]:  # noqa: B006  read alone
    sampling = SamplingParams(**params)
    rules = ReplyRules(sampling, vocab_size=VOCAB_SIZE, prompt=pack_tokens(PROMPT), bad_words=words)
    reply = rules.new_reply()
    for token_id in token_ids:
        reply.take(SampledToken(token_id, None, ()), is_full=False)
    return reply, sampling


def drawn(logits: Tensor, reply: Reply, sampling: SamplingParams, num_draws: int = 1) -> list[int]:
    rows = [SamplerRow(sampling, 11, 0, position, reply.adjustment()) for position in range(num_draws)]
    tokens = Sampler().sample(logits.expand(num_draws, -1).contiguous(), rows)
    assert LaunchedDraws(logits, rows, [0] * num_draws).tokens() == tokens, "a device draws the same"
    return [token.token_id for token in tokens]


def expected(logits: Tensor, said: list[int], penalty: float = 1.0, words: list[list[int]] | None = None) -> Tensor:
    """The distribution by transformers' own processors."""
    from transformers.generation.logits_process import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

    scores = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*PROMPT, *said]]), logits.clone())
    if words:
        scores = NoBadWordsLogitsProcessor(words)(torch.tensor([said]), scores)
    return torch.softmax(scores[0].double(), -1)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"repetition_penalty": 1.8}, []),
        ({"repetition_penalty": 0.6}, []),
        ({}, WORDS),
        ({"repetition_penalty": 3.0}, WORDS),
    ],
)
@pytest.mark.parametrize("said", [[], [5, 9, 8], [1, 9, 9], [20]])
def test_draws_are_distributed_as_the_reference_says(params: Any, words: list[list[int]], said: list[int]) -> None:
    logits, num_draws = logits_of(len(said)), NUM_DRAWS
    reply, sampling = reply_with(said, words, **params)
    wanted = expected(logits, said, params.get("repetition_penalty", 1.0), words)
    counts = Counter(drawn(logits, reply, sampling, num_draws))
    for token_id in range(VOCAB_SIZE):
        share = float(wanted[token_id])
        spread = 4.5 * (share * (1 - share) / num_draws) ** 0.5
        assert abs(counts[token_id] / num_draws - share) <= spread + 1e-9, f"token {token_id}"


def test_only_what_is_allowed_is_drawn_and_in_proportion() -> None:
    logits, allowed = logits_of(1), (2, 9, 23)
    reply, sampling = reply_with([4], allowed_token_ids=allowed)
    wanted = torch.softmax(logits[0, list(allowed)].double(), -1)
    counts = Counter(drawn(logits, reply, sampling, NUM_DRAWS))
    assert set(counts) == {*allowed}
    for token_id, share in zip(allowed, wanted.tolist(), strict=True):
        assert counts[token_id] / NUM_DRAWS == pytest.approx(share, abs=0.04)


def test_the_penalty_comes_between_bias_and_the_other_penalties() -> None:
    logits = logits_of(2)
    params = {"temperature": 0.0, "repetition_penalty": 2.0, "presence_penalty": 0.5, "logit_bias": {5: 1.0, 9: 1.0}}
    reply, _ = reply_with([9], **params)
    from radixkv.worker.sampling.logit_processors import adjust

    made = adjust(logits, [reply.adjustment()])[0]
    for token_id in (5, 9):
        biased = logits[0, token_id] + 1.0
        wanted = (biased / 2 if biased > 0 else biased * 2) - (0.5 if token_id == 9 else 0.0)
        assert made[token_id] == wanted
    untouched = [token_id for token_id in range(VOCAB_SIZE) if token_id not in {*PROMPT, 9}]
    assert torch.equal(made[untouched], logits[0, untouched])


def test_forked_replies_look_back_on_their_own_tokens() -> None:
    reply, _ = reply_with([9], WORDS)
    twin = reply.copy()
    reply.take(SampledToken(9, None, ()), is_full=False)
    twin.take(SampledToken(8, None, ()), is_full=False)
    banned = [list(one.adjustment().banned_ids) for one in (reply, twin)]  # type: ignore[union-attr]  # both ban something
    assert banned == [[2, 7], [7, 9]]


def test_what_alone_may_be_drawn_is_drawn_though_it_completes_a_word() -> None:
    reply, sampling = reply_with([8], [[8, 9]], allowed_token_ids=(9,))
    assert drawn(logits_of(0), reply, sampling) == [9]


@pytest.mark.parametrize(
    ("argument", "fields", "words"),
    [
        ("bad_words", {"allowed_token_ids": (7,)}, [[7]]),
        ("allowed_token_ids", {"allowed_token_ids": (VOCAB_SIZE,)}, []),
    ],
)
def test_what_leaves_nothing_to_draw_is_refused(argument: str, fields: Any, words: list[list[int]]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        reply_with([], words, **fields)
    assert refused.value.argument == argument


def test_a_word_is_spelled_at_the_beginning_and_behind_a_space() -> None:
    ids = {"ab": [1], " ab": [2], "c d": [3, 4], " c d": [9, 3, 4], "": []}
    assert spellings(" ab", ids.__getitem__) == [[1], [2]]
    assert spellings("c d", ids.__getitem__) == [[3, 4]], (
        "where the space is a token of its own, it is found behind that"
    )
    assert set(BadWords([[1], [2, 3]]).banned([2])) == {1, 3}


def test_masks_of_several_lengths_hold_in_one_batch() -> None:
    """A grammar's are of a multiple of four bytes, those of `allowed_token_ids` of as many as the vocabulary needs."""
    sampling = SamplingParams(temperature=0)
    masks = [b"\x20\x00\x00", b"\x00\x02\x00\x00\xff", b"\x04"]
    rows = [SamplerRow(sampling, 1, 0, 0, Adjustment(allowed=mask)) for mask in masks]
    logits = logits_of(3).expand(3, -1).contiguous()
    assert [token.token_id for token in Sampler().sample(logits, rows)] == [5, 9, 2]
