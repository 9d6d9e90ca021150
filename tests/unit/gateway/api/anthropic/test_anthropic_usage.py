"""How the tokens of a prompt are told apart: computed, computed and pinned, read."""

from __future__ import annotations

import pytest

from radixkv.gateway.api.anthropic.usage import usage_of
from radixkv.generation.request import PrefixPin
from radixkv.generation.stream import Usage

SHORT, LONG = 300.0, 3600.0


@pytest.mark.parametrize(
    ("num_cached", "pins", "pinned", "told"),
    [
        (0, [], (), (100, 0, 0)),
        (30, [], (), (70, 0, 0)),
        (0, [(40, SHORT)], (40,), (60, 40, 0)),
        (30, [(40, SHORT)], (40,), (60, 10, 0)),
        (99, [(40, SHORT)], (40,), (1, 0, 0)),
        (0, [(40, LONG), (90, SHORT)], (40, 90), (10, 50, 40)),
        (0, [(40, LONG), (90, SHORT)], (0, 90), (10, 90, 0)),
        (0, [(40, LONG), (90, SHORT)], (40, 0), (60, 0, 40)),
        (0, [(40, SHORT), (90, LONG)], (40, 90), (10, 0, 90)),
        (50, [(40, LONG), (90, SHORT)], (40, 90), (10, 40, 0)),
        (0, [(40, LONG), (90, SHORT)], (0, 0), (100, 0, 0)),
    ],
)
def test_every_token_of_a_prompt_is_counted_once(
    num_cached: int, pins: list[tuple[int, float]], pinned: tuple[int, ...], told: tuple[int, int, int]
) -> None:
    usage = usage_of(Usage(100, num_cached, 7, 100, 0.1), [PrefixPin(*pin) for pin in pins], pinned)
    created = usage["cache_creation"]
    by_time = created["ephemeral_5m_input_tokens"], created["ephemeral_1h_input_tokens"]
    assert (usage["input_tokens"], *by_time) == told
    assert usage["cache_creation_input_tokens"] == sum(by_time)
    assert usage["input_tokens"] + sum(by_time) + usage["cache_read_input_tokens"] == 100
    assert (usage["cache_read_input_tokens"], usage["output_tokens"]) == (num_cached, 7)
