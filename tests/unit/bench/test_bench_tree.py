"""The tree benchmark's own parts: its oracle, its turns, its verdict without the peer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.common.report import Summary
from bench.tree.bars import bars, leaves_of
from bench.tree.eviction import GROWTH, GROWTH_LEAVES, one_leaf_of
from bench.tree.measures import ALONE, INSERT, LIMIT, check_histories
from bench.tree.peers import find_peers
from bench.tree.sglang import load_sglang
from bench.tree.systems import Ours
from bench.tree.vllm import load_vllm
from bench.tree.wheel import PeerMissingError
from bench.tree.workload import (
    PROMPT_TOKENS,
    SHARED_TOKENS,
    branching_prompts,
    common_tokens,
    few_shot_prompts,
    interleave,
    leaf_prompts,
)
from radixkv import pack_tokens


def test_the_oracle_counts_common_tokens() -> None:
    left, right = pack_tokens([1, 2, 3, 4]), pack_tokens([1, 2, 9, 4])
    assert [common_tokens(left, other) for other in (right, left, left[:8], b"")] == [2, 4, 2, 0]


def test_prompts_share_what_the_workload_says() -> None:
    prompts = branching_prompts(random.Random(0), 20)
    assert {len(prompt) // 4 for prompt in prompts} == {PROMPT_TOKENS}
    assert common_tokens(prompts[0], prompts[10]) == SHARED_TOKENS
    assert common_tokens(prompts[0], prompts[1]) == SHARED_TOKENS // 2


def test_leaves_and_siblings_hang_under_their_parents() -> None:
    parents, leaves = leaf_prompts(random.Random(0), 200, 64, 32)
    assert len(parents) == 2
    assert all(leaf.startswith(parents[index % 2]) for index, leaf in enumerate(leaves))
    siblings = few_shot_prompts(random.Random(0), 3, 100, 60)
    assert common_tokens(siblings[0], siblings[1]) == 104


def test_contenders_take_turns_and_each_gets_every_item_once_a_round() -> None:
    calls: list[tuple[str, int]] = []

    def contender(name: str, nanoseconds: int) -> object:
        def run(item: int) -> int:
            calls.append((name, item))
            return nanoseconds

        return run

    samples = interleave({"a": contender("a", 1), "b": contender("b", 2)}, 6, 2)  # type: ignore[dict-item]  # closures
    assert samples == {"a": [1] * 12, "b": [2] * 12}
    for name in "ab":
        assert sorted(item for who, item in calls if who == name) == sorted([*range(6), *range(6)])
    assert all({calls[turn][0], calls[turn + 1][0]} == {"a", "b"} for turn in range(0, len(calls), 2))
    assert all(calls[turn][1] != calls[turn + 1][1] for turn in range(0, len(calls), 2))


def test_a_wrong_match_stops_the_run() -> None:
    source = random.Random(0)
    prompts = branching_prompts(source, 12)
    ours = Ours(num_blocks=6144)
    for prompt in prompts:
        ours.load(prompt)
    check_histories([ours], prompts, source, num_probes=5)
    ours.num_matched = lambda answer: answer.num_tokens - 1  # type: ignore[method-assign]  # an off-by-one
    with pytest.raises(AssertionError, match="full hit"):
        check_histories([ours], prompts, source, num_probes=5)


def test_without_the_peers_their_bars_are_unmet_and_say_why(tmp_path: Path) -> None:
    with pytest.raises(PeerMissingError, match="--peer fetch"):
        load_sglang(tmp_path)
    with pytest.raises(PeerMissingError, match="--peer fetch"):
        load_vllm(tmp_path, num_blocks=16)
    peers = find_peers("use", 16, tmp_path)
    assert peers.systems == []
    microsecond = Summary(1, 1.0, 1.0, 1.0, 1.0)
    tokens = f"{PROMPT_TOKENS:,} tokens"
    operations = [f"{call}, {tokens}{ALONE}" for call in ("match", "acquire")]
    operations += ["fork at 80 tokens", "fork at 8,000 tokens", INSERT, one_leaf_of(100_000)]
    operations += [one_leaf_of(num_leaves, GROWTH) for num_leaves in GROWTH_LEAVES]
    figures = {operation: {Ours.name: microsecond, LIMIT: microsecond} for operation in operations}
    memory = {leaves_of(num_tokens): {"radixkv, traced": 4.5} for num_tokens in (64, 4096)}
    verdicts = bars(figures, memory, peers)
    unmet = [bar.line() for bar in verdicts if not bar.passed]
    assert len(unmet) == 3
    assert all(line.startswith("UNMET") and "--peer fetch" in line for line in unmet)
    without_memory = [bar for bar in bars(figures, {}, peers) if bar.value is None]
    assert len(without_memory) == 5
