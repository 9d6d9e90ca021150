"""The measures of the tree benchmark. Each checks its results first, and again on every timed call, outside the clock.

Every measure returns samples in nanoseconds, by operation and then by system; `LIMIT` is the time of comparing a
prompt with its own copy.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from time import perf_counter_ns as clock
from typing import Any

from bench.tree.systems import Ours, System
from bench.tree.vllm import VLLMBlockPool
from bench.tree.workload import (
    OWN_TOKENS,
    PROMPT_TOKENS,
    SHARED_TOKENS,
    Contender,
    common_tokens,
    few_shot_prompts,
    interleave,
    random_tokens,
)
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens

__all__ = [
    "ALONE",
    "FORK_POSITIONS",
    "INSERT",
    "LIMIT",
    "Samples",
    "beside",
    "check_histories",
    "expect",
    "measure_decode_steps",
    "measure_few_shot",
    "measure_forks",
    "measure_inserts",
    "measure_requests",
]

LIMIT = "limit: a == b"
ALONE = ", limit alone beside"
INSERT = f"insert, {OWN_TOKENS:,} tokens under {SHARED_TOKENS:,}"
NUM_DECODE_STEPS = 64
FORK_POSITIONS = (80, 8000)
FEW_SHOT_TOKENS, SIBLING_TOKENS = 1024, 64

Samples = dict[str, dict[str, list[int]]]


def beside(peer: str) -> str:
    """Name of the measures in which only a peer and radixkv take turns."""
    return f", {peer} alone beside"


def expect(found: object, expected: object, what: str) -> None:
    """Stop the run on a wrong result: a fast wrong result has no speed."""
    if found != expected:
        raise AssertionError(f"{what}: {found!r} in place of {expected!r}")


def check_histories(
    systems: Sequence[System], prompts: Sequence[bytes], source: random.Random, num_probes: int
) -> None:
    """Full hits, and probes that diverge from a cached prompt anywhere, against a token-by-token oracle."""
    ours = systems[0]
    assert isinstance(ours, Ours)
    for system in systems:
        for prompt in prompts:
            expect(system.num_matched(system.match(system.key(prompt))), PROMPT_TOKENS, f"{system.name}: full hit")
    for _ in range(num_probes):
        prompt, cut = source.choice(prompts), source.randrange(PROMPT_TOKENS)
        probe = prompt[: cut * TOKEN_BYTES] + random_tokens(source, PROMPT_TOKENS - cut)
        longest = max(common_tokens(probe, other) for other in (prompt, *source.sample(list(prompts), 3)))
        expect(ours.num_matched(ours.match(probe)), longest, f"{ours.name}: match of a history that parts at {cut}")
    _check_tables(ours, prompts, num_probes)
    ours.cache.check()


def _check_tables(ours: Ours, prompts: Sequence[bytes], num_probes: int) -> None:
    """Two prompts share exactly the blocks of their common prefix."""
    block_bytes = ours.block_size * TOKEN_BYTES
    for left, right in itertools.pairwise(prompts[: num_probes + 1]):
        first, second = ours.acquire(left), ours.acquire(right)
        expect(first.num_cached_tokens, PROMPT_TOKENS - 1, "cached tokens of a full hit")
        expect(first.num_stored_tokens, PROMPT_TOKENS, "stored tokens of a full hit")
        expect(len(first.block_table), len(left) // block_bytes, "blocks of a table")
        num_shared = common_tokens(left, right) // ours.block_size
        expect(first.block_table[:num_shared] == second.block_table[:num_shared], True, "shared blocks")
        expect(set(first.block_table[num_shared:]) & set(second.block_table[num_shared:]), set(), "blocks in common")
        ours.release(first)
        ours.release(second)


def measure_requests(systems: Sequence[System], prompts: Sequence[bytes], num_rounds: int) -> Samples:
    """Match, acquire and release on full hits: radixkv and the limit taking turns, then with each peer, then with all of them.

    The calls in between affect how much of a system's memory is left in the processor's caches, so these measure different
    things: with one peer, which of the two is better for a program; with all, the cost of a cold call.
    """
    compare = _compare_timer(prompts)
    timers = {system.name: _request_timers(system, [system.key(prompt) for prompt in prompts]) for system in systems}

    def run(names: Sequence[str], where: str) -> Samples:
        contenders = {LIMIT: compare} | {f"{op}/{name}": timers[name][op] for name in names for op in timers[name]}
        taken = interleave(contenders, len(prompts), num_rounds)
        operations = dict.fromkeys(op for name in names for op in timers[name])
        return {
            f"{op}, {PROMPT_TOKENS:,} tokens{where}": {
                name: taken[f"{op}/{name}"] for name in names if op in timers[name]
            }
            | {LIMIT: taken[LIMIT]}
            for op in operations
        }

    ours, *peers = timers
    samples = run([ours], ALONE)
    for peer in peers:
        samples |= run([ours, peer], beside(peer))
    return samples | run([ours, *peers], "") if peers else samples


def _compare_timer(prompts: Sequence[bytes]) -> Contender:
    copies = [bytes(bytearray(prompt)) for prompt in prompts]

    def compare(item: int) -> int:
        prompt, copy = prompts[item], copies[item]
        start = clock()
        same = prompt == copy
        elapsed = clock() - start
        expect(same and prompt is not copy, True, "a prompt and its copy")
        return elapsed

    return compare


def _request_timers(system: System, keys: Sequence[Any]) -> dict[str, Contender]:
    match, acquire, release = system.match, system.acquire, system.release

    def time_match(item: int) -> int:
        key = keys[item]
        start = clock()
        answer = match(key)
        elapsed = clock() - start
        expect(system.num_matched(answer), PROMPT_TOKENS, f"{system.name}: match")
        return elapsed

    def time_acquire(item: int) -> int:
        key = keys[item]
        start = clock()
        held = acquire(key)
        elapsed = clock() - start
        expect(system.num_held(held), PROMPT_TOKENS, f"{system.name}: acquire")
        release(held)
        return elapsed

    def time_release(item: int) -> int:
        held = acquire(keys[item])
        start = clock()
        release(held)
        return clock() - start

    timers: dict[str, Contender] = {"match": time_match, "acquire": time_acquire, "release": time_release}
    if isinstance(system, VLLMBlockPool):
        timers["of a match, hashing"] = _hash_timer(system, keys)
    return timers


def _hash_timer(system: VLLMBlockPool, keys: Sequence[Any]) -> Contender:
    def time_hash(item: int) -> int:
        start = clock()
        request = system.hash(keys[item])
        elapsed = clock() - start
        expect(len(request.block_hashes), PROMPT_TOKENS // system.block_size, f"{system.name}: hashes")
        return elapsed

    return time_hash


def measure_inserts(systems: Sequence[System], prompts: Sequence[bytes], source: random.Random, n: int) -> Samples:
    """Insert of a tail of 4,096 tokens under a cached path of 4,096. Inserted tokens stay."""
    shared_bytes = SHARED_TOKENS * TOKEN_BYTES
    histories = [source.choice(prompts)[:shared_bytes] + random_tokens(source, OWN_TOKENS) for _ in range(n)]

    def contender(system: System) -> Contender:
        def time_insert(item: int) -> int:
            key = system.key(histories[item])
            expect(system.num_matched(system.match(key)), SHARED_TOKENS, f"{system.name}: before the insert")
            prepared = system.prepare_insert(histories[item])
            start = clock()
            system.insert(prepared)
            elapsed = clock() - start
            expect(system.num_matched(system.match(key)), PROMPT_TOKENS, f"{system.name}: after the insert")
            system.finish_insert(prepared)
            return elapsed

        return time_insert

    return {INSERT: interleave({system.name: contender(system) for system in systems}, n, 1)}


def measure_forks(ours: Ours, prompts: Sequence[bytes]) -> Samples:
    """Fork of a running sequence at 80 and at 8,000 tokens; no peer has the call."""
    cache = ours.cache

    def contender(position: int) -> Contender:
        def time_fork(item: int) -> int:
            parent = cache.acquire(prompts[item])
            start = clock()
            children = cache.fork(parent.seq_id, position)
            elapsed = clock() - start
            child = children[0]
            num_blocks = -(-position // ours.block_size)
            expect(child.num_stored_tokens, position, "stored tokens of a fork")
            expect(child.block_table, parent.block_table[:num_blocks], "blocks of a fork")
            cache.release(child.seq_id)
            cache.release(parent.seq_id)
            return elapsed

        return time_fork

    timers = {str(position): contender(position) for position in FORK_POSITIONS}
    samples = interleave(timers, len(prompts), 1)
    return {f"fork at {position:,} tokens": {ours.name: samples[str(position)]} for position in FORK_POSITIONS}


def measure_decode_steps(ours: Ours, prompts: Sequence[bytes]) -> Samples:
    """One decode step: extend by one token, then insert it. No peer publishes a running sequence's tokens."""
    cache, samples = ours.cache, []
    for number, prompt in enumerate(prompts):
        new_tokens = [pack_tokens([70_000 + number]) for _ in range(NUM_DECODE_STEPS)]
        seq_id = cache.acquire(prompt, reserve=NUM_DECODE_STEPS).seq_id
        for length, token in enumerate(new_tokens, start=PROMPT_TOKENS + 1):
            start = clock()
            cache.extend(seq_id, length)
            cache.insert(seq_id, length, token)
            samples.append(clock() - start)
        grown = prompt + b"".join(new_tokens)
        expect(cache.match(grown).num_tokens, PROMPT_TOKENS + NUM_DECODE_STEPS, "a history that was decoded")
        cache.release(seq_id, keep=False)
        expect(cache.match(grown).num_tokens, PROMPT_TOKENS, "a history after release without keep")
    cache.check()
    return {"decode step: extend + insert": {ours.name: samples}}


def measure_few_shot(systems: Sequence[System], source: random.Random, num_siblings: int, n: int) -> Samples:
    """Match under a few-shot parent of 1,024 tokens that has one sibling, and that has `num_siblings`."""
    prompts = few_shot_prompts(source, num_siblings, FEW_SHOT_TOKENS, SIBLING_TOKENS)
    samples: Samples = {}
    for loaded in (prompts[:1], prompts):
        probes = [source.choice(loaded) for _ in range(n)]
        for system in systems:
            system.reset()
            for prompt in loaded:
                system.load(prompt)
        # A history that diverges from its sibling inside a block is matched to the token.
        ours = systems[0]
        for probe in probes[:50]:
            parted = probe[: -20 * TOKEN_BYTES] + random_tokens(source, 20)
            expect(ours.num_matched(ours.match(parted)), len(probe) // TOKEN_BYTES - 20, "match inside a block")
        operation = f"match under {len(loaded):,} siblings"
        samples[operation] = _time_matches(systems, probes, FEW_SHOT_TOKENS + SIBLING_TOKENS)
    return samples


def _time_matches(systems: Sequence[System], probes: Sequence[bytes], num_expected: int) -> dict[str, list[int]]:
    def contender(system: System) -> Contender:
        keys = [system.key(probe) for probe in probes]

        def time_match(item: int) -> int:
            key = keys[item]
            start = clock()
            answer = system.match(key)
            elapsed = clock() - start
            expect(system.num_matched(answer), num_expected, f"{system.name}: match of a sibling")
            return elapsed

        return time_match

    return interleave({system.name: contender(system) for system in systems}, len(probes), 1)
