"""Draws that a device is sent are those of the sampler, whatever is asked of their neighbours, and nothing in them waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from waits import Waits

from radixkv.generation.params import SamplingParams
from radixkv.worker.sampling import device_sampler, sampler
from radixkv.worker.sampling.device_sampler import LaunchedDraws
from radixkv.worker.sampling.logit_processors import Addend, Adjustment, Repetition
from radixkv.worker.sampling.sampler import Sampler, SamplerRow

FEW = 12


@pytest.fixture(autouse=True, scope="module")
def drawn_by_torch() -> Iterator[None]:
    """The sampler draws as it does on a device, rather than by the compiled kernel of a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "native_library", lambda: None)
        yield


ADJUSTMENTS = (
    None,
    Adjustment(bias=Addend(np.array([1, 3]), np.array([2.5, -9.0], np.float32)), banned_ids=np.array([0, 7])),
    Adjustment(penalties=Addend(np.array([2]), np.array([-4.0], np.float32)), allowed=b"\xfe\x0f"),
    Adjustment(
        repetition=Repetition(np.array([0, 2, 5, 11]), 1.7),
        penalties=Addend(np.array([5]), np.array([-1.0], np.float32)),
    ),
)


@st.composite
def sampler_rows(draw: st.DrawFn) -> SamplerRow:
    params = SamplingParams(
        temperature=draw(st.sampled_from((0.0, 0.3, 1.0, 1.0, 5.0))),
        top_k=draw(st.sampled_from((0, 0, 1, 3, 128, 129, 1024, 1025, 5000))),
        top_p=draw(st.sampled_from((1.0, 1.0, 0.999999, 0.95, 0.5, 1e-9))),
        min_p=draw(st.sampled_from((0.0, 0.0, 0.02, 1.0))),
        logprobs=draw(st.sampled_from((None, None, 0, 2, 20))),
    )
    forced_id = draw(st.sampled_from((None, None, None, 5)))
    seed, branch, position = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 3)), draw(st.integers(0, 99))
    return SamplerRow(
        params, seed, branch, position, draw(st.sampled_from(ADJUSTMENTS)), forced_id, draw(st.booleans())
    )


def plain(**params: Any) -> SamplerRow:
    return SamplerRow(SamplingParams(**params), seed=7, branch=0, position=1)


@settings(max_examples=150)
@given(
    rows=st.lists(sampler_rows(), min_size=1, max_size=6),
    num_entries=st.sampled_from((FEW, 100, 128, 129, 1000, 1024, 1025, 2500)),
    spread=st.sampled_from((0.01, 1.0, 8.0)),
    seed=st.integers(0, 1000),
)
@example(rows=[plain(top_p=0.97), plain(top_k=1200, top_p=0.9), plain()], num_entries=2500, spread=0.01, seed=0)
def test_draws_are_those_of_the_sampler(rows: list[SamplerRow], num_entries: int, spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows) + 1, num_entries, generator=generator) * spread
    sources = torch.randint(len(logits), (len(rows),), generator=generator).tolist()
    expected = Sampler().sample(logits[sources], rows)
    draws = LaunchedDraws(logits, rows, sources)
    logits.fill_(torch.nan)  # by later work of the device
    assert draws.tokens() == expected
    assert draws.token_ids.tolist() == [token.token_id for token in expected]


@pytest.mark.parametrize("count", [1, 4])
def test_rows_in_the_order_of_the_logits_are_drawn_from_as_they_lie(count: int) -> None:
    logits = torch.randn(count, 300, generator=torch.Generator().manual_seed(count))
    rows = [plain(top_p=0.9, logprobs=3)._replace(position=index) for index in range(count)]
    assert LaunchedDraws(logits, rows, range(count)).tokens() == Sampler().sample(logits, rows)


def test_nothing_waits_for_the_device_before_the_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels themselves are launches; here their definition stands in for them, which waits."""
    monkeypatch.setattr(
        device_sampler, "draw_reference", lambda _, options: torch.zeros(len(options), dtype=torch.int64)
    )
    logits = torch.randn(7, 2000, generator=torch.Generator().manual_seed(0))
    rows = [
        plain(temperature=0.0),
        plain(top_p=0.9, logprobs=5),
        plain(top_k=40, min_p=0.1),
        plain()._replace(forced_id=3),
        *(plain(top_p=0.5)._replace(adjustment=adjustment) for adjustment in ADJUSTMENTS[1:]),
    ]
    with Waits() as waits:
        draws = LaunchedDraws(logits, rows, [5, 0, 1, 2, 3, 3, 4])
    assert waits.found == set()
    with Waits() as waits:
        Sampler().sample(logits, rows)
    assert waits.found
    assert len(draws.tokens()) == len(rows)
