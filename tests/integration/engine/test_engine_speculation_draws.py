"""With drafts, tokens and pairs of tokens are drawn as often as the definition says: Pearson's test over 20,000 draws."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from answers import collect
from drafts import LyingSource
from torch import Tensor

from radixkv import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.speculation.settings import SpeculationSettings

NUM_IDS, LENGTH = 6, 4
NUM_BRANCHES, FEW_REQUESTS, ALL_REQUESTS = 125, 10, 40
PROMPT = (3, 1, 3)
LOGITS = torch.randn(NUM_IDS, NUM_IDS, generator=torch.Generator().manual_seed(5))
LEAST_P = 1e-3
"""Seeds are fixed, so that a p-value changes with the code alone; the least of this code's 63 is 0.017."""

CASES: dict[str, dict[str, Any]] = {
    "cool": {"temperature": 0.8},
    "hot": {"temperature": 1.2},
    "nucleus": {"temperature": 0.8, "top_p": 0.8},
    "few": {"temperature": 1.2, "top_k": 3},
    "likely": {"temperature": 1.2, "min_p": 0.15},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.6, "frequency_penalty": 0.5, "repetition_penalty": 1.4},
    "bias": {"temperature": 1.2, "logit_bias": {0: 1.0, 4: -1.5}},
}
ALL_AT_ONCE = {key: value for case in CASES.values() for key, value in case.items()} | {"top_k": 5, "top_p": 0.95}
TRIALS = [
    pytest.param(case, ALL_REQUESTS, id=name, marks=pytest.mark.thorough)
    for name, case in {**CASES, "all at once, often": ALL_AT_ONCE}.items()
]


class ChainRunner(HashRunner):
    """The logits after a token depend on that token alone."""

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:  # noqa: ARG002
        last = [id_ for row in rows for id_ in row.token_ids[len(row.token_ids) - row.num_logits :]]
        logits = torch.full((len(last), self.vocab_size), -torch.inf)
        logits[:, :NUM_IDS] = LOGITS[last]
        return logits


def chances(said: Sequence[int], sampling: SamplingParams) -> list[float]:
    """Of each token to be drawn after the prompt and what was said, entry by entry in float64."""
    logits = LOGITS[(*PROMPT, *said)[-1]].double().tolist()
    for id_ in range(NUM_IDS):
        logits[id_] += dict(sampling.logit_bias).get(id_, 0.0)
        if id_ in (*PROMPT, *said):
            logits[id_] *= sampling.repetition_penalty ** (-1 if logits[id_] > 0 else 1)
        if id_ in said:
            logits[id_] -= sampling.presence_penalty + said.count(id_) * sampling.frequency_penalty
    of_all: list[float] = torch.softmax(torch.tensor(logits).double() / sampling.temperature, -1).tolist()
    ranked = sorted(range(NUM_IDS), key=lambda id_: -of_all[id_])[: sampling.top_k or NUM_IDS]
    total, mass, kept = sum(of_all[id_] for id_ in ranked), 0.0, dict[int, float]()
    for id_ in ranked:
        if mass < sampling.top_p * total and of_all[id_] >= sampling.min_p * of_all[ranked[0]]:
            kept[id_] = of_all[id_]
        mass += of_all[id_]
    return [kept.get(id_, 0.0) / sum(kept.values()) for id_ in range(NUM_IDS)]


def replies(sampling: SamplingParams, said: tuple[int, ...] = (), chance: float = 1.0) -> Iterator[tuple[Any, float]]:
    """Every reply, with its chance."""
    if len(said) == LENGTH:
        yield said, chance
        return
    for id_, share in enumerate(chances(said, sampling)):
        if share:
            yield from replies(sampling, (*said, id_), chance * share)


def p_value(found: Counter[Any], expected: Mapping[Any, float], total: int) -> float:
    """Of Pearson's test; cells of fewer than five are taken together."""
    assert found.keys() <= expected.keys(), "what cannot be drawn was drawn"
    rare = {cell for cell, chance in expected.items() if chance * total < 5}
    cells = [{cell} for cell in expected.keys() - rare] + [rare] * bool(rare)
    statistic = 0.0
    for cell in cells:
        wanted = total * sum(expected[one] for one in cell)
        statistic += (sum(found[one] for one in cell) - wanted) ** 2 / wanted
    if len(cells) == 1:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2), torch.tensor(statistic / 2)))


@pytest.mark.parametrize(
    ("given", "num_requests"), [pytest.param(ALL_AT_ONCE, FEW_REQUESTS, id="all at once"), *TRIALS]
)
def test_draws_are_as_frequent_as_defined(given: dict[str, Any], num_requests: int) -> None:
    sampling = SamplingParams(max_tokens=LENGTH, n=NUM_BRANCHES, ignore_eos=True, **given)
    # Drafts are likely ones, unlikely ones and any: a rule that favours or shuns what was drafted shifts every count.
    source = LyingSource(lambda branch: [int(LOGITS[branch.tokens[-1]].argmax()), 0, branch.index % 6], 0.3, NUM_IDS)
    runner = ChainRunner(512, 16)
    told: list[tuple[int, ...]] = []
    with Engine(runner, PrefixCache(512, 16), speculation=SpeculationSettings(always=True), sources=[source]) as engine:
        for seed in range(num_requests):
            one = GenerateParams(token_ids=PROMPT, sampling=replace(sampling, seed=seed))
            told += [tuple(branch.tokens) for branch in collect(engine.generate(one)).branches]
        stats = engine.stats().engine
    assert stats.num_generated_tokens == LENGTH * len(told) == 500 * num_requests
    num_drafted, num_accepted = sum(stats.drafted_tokens.values()), sum(stats.accepted_tokens.values())
    assert 0.1 * num_drafted < num_accepted < 0.9 * num_drafted
    exact = list(replies(sampling))
    for width in (1, 2):
        for start in range(LENGTH + 1 - width):
            expected: defaultdict[Any, float] = defaultdict(float)
            for reply, chance in exact:
                expected[reply[start : start + width]] += chance
            found = Counter(reply[start : start + width] for reply in told)
            assert p_value(found, expected, len(told)) > LEAST_P
