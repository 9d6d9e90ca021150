"""What is remembered of scored prompts, and the log probabilities of logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from radixkv import pack_tokens
from radixkv.generation.stream import PromptLogprobs
from radixkv.worker.sampling.score_logits import SLICE_ROWS, launch_scores
from radixkv.worker.sampling.scoring import MAX_PIECE, PromptScores, ScoreMemory, Scores


def scores_of(tokens: list[int], start: int) -> Scores:
    """Made up: each tells its token and position."""
    at = np.arange(start, len(tokens))
    ids = np.array(tokens[start:], np.int32)
    return Scores(
        (-at - ids / 1000).astype(np.float32), at.astype(np.int32), ids[:, None], -at[:, None].astype(np.float32)
    )


def keep(memory: ScoreMemory, tokens: list[int], start: int = 1, namespace: str = "a") -> None:
    memory.keep(namespace, pack_tokens(tokens), start, scores_of(tokens, start))


def recall(memory: ScoreMemory, tokens: list[int], start: int = 1, namespace: str = "a") -> int:
    """How many are remembered; they are those that were kept."""
    found = memory.recall(namespace, pack_tokens(tokens), start)
    expected = scores_of(tokens, start).of(slice(len(found.logprobs)))
    for column, values in zip(found, expected, strict=True):
        assert column.tolist() == values.tolist()
    return len(found.logprobs)


def test_what_is_remembered_is_exact_to_the_token_and_the_namespace() -> None:
    memory = ScoreMemory(64)
    keep(memory, [1, 2, 3, 4, 5])
    keep(memory, [1, 2, 3, 6])
    assert recall(memory, [1, 2, 3, 4, 5, 7]) == 4
    assert recall(memory, [1, 2, 3, 6, 5]) == 3
    assert recall(memory, [1, 2, 3, 7]) == 2
    assert recall(memory, [1, 2, 3, 4, 5], start=3) == 2
    assert recall(memory, [2, 2, 3]) == recall(memory, [1]) == recall(memory, [1, 2, 3], namespace="b") == 0


def test_what_was_not_told_of_is_not_remembered_until_it_is() -> None:
    memory = ScoreMemory(64)
    tokens = list(range(20))
    keep(memory, tokens, start=12)
    assert (recall(memory, tokens), recall(memory, tokens, start=12), recall(memory, tokens, start=11)) == (0, 8, 0)
    keep(memory, tokens[:8])
    assert recall(memory, tokens) == 7
    keep(memory, tokens[:12], start=8)
    assert recall(memory, tokens) == 19


def test_the_longest_unused_is_forgotten_and_too_much_is_not_taken() -> None:
    memory = ScoreMemory(40)
    shots = list(range(20))
    keep(memory, [*shots, 30])
    for question in range(100, 200):
        assert recall(memory, [*shots, question]) == 19  # in use, whatever else comes
        keep(memory, [*shots, question, 1, 2], start=20)
        assert recall(memory, [*shots, question, 1, 2]) == 22
    assert recall(memory, [*shots, 30]) == 19
    keep(memory, list(range(500, 600)))
    assert recall(memory, list(range(500, 600))) == 0


def test_a_long_prompt_is_told_in_pieces_and_nothing_twice() -> None:
    memory, tokens = ScoreMemory(), list(range(2 * MAX_PIECE + 9))
    keep(memory, tokens[: MAX_PIECE + 5])
    prompt = PromptScores("a", pack_tokens(tokens), 0, 1, memory)
    told: list[PromptLogprobs] = [*prompt.recall(), *prompt.recall()]
    assert prompt.num_left == MAX_PIECE + 4
    told += prompt.take(3, scores_of(tokens, 3))
    assert [(event.start, event.end) for event in told] == [
        (1, MAX_PIECE + 1),
        (MAX_PIECE + 1, MAX_PIECE + 5),
        (MAX_PIECE + 5, 2 * MAX_PIECE + 5),
        (2 * MAX_PIECE + 5, 2 * MAX_PIECE + 9),
    ]
    assert [rank for event in told for rank in event.ranks] == tokens[1:]
    assert prompt.num_left == 0


def test_more_most_likely_tokens_than_are_remembered_are_not_recalled() -> None:
    memory, tokens = ScoreMemory(64), [1, 2, 3, 4]
    keep(memory, tokens)
    assert [list(PromptScores("a", pack_tokens(tokens), 0, n, memory).recall()) != [] for n in (0, 1, 2)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("num_rows", [1, SLICE_ROWS, 2 * SLICE_ROWS + 3])
def test_logits_of_any_number_of_rows_are_scored_alike(num_rows: int) -> None:
    draws = torch.Generator().manual_seed(3)
    logits = torch.randn(num_rows + 7, 50, generator=draws)
    rows = torch.randperm(num_rows + 7, generator=draws)[:num_rows].tolist()
    ids = torch.randint(0, 50, (num_rows,), generator=draws).tolist()
    found = launch_scores(logits, rows, ids, 3)()
    for index, (row, token_id) in enumerate(zip(rows, ids, strict=True)):
        alone = launch_scores(logits[row : row + 1], [0], [token_id], 3)()
        for column, values in zip(found, alone, strict=True):
            assert column[index].tolist() == values[0].tolist()
        total = math.log(sum(math.exp(value) for value in logits[row].tolist()))
        assert found.logprobs[index] == pytest.approx(float(logits[row, token_id]) - total, abs=1e-5)
        assert found.ranks[index] == 1 + int((logits[row] > logits[row, token_id]).sum())
        assert found.top_ids[index].tolist() == logits[row].topk(3).indices.tolist()
