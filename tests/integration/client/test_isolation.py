"""What a tenant can count of its own request does not depend on what another tenant has cached, or is computing just now.

Whether the clock tells it is measured by `bench.isolation`.
"""

from __future__ import annotations

import pytest
from waiting import wait_until

from radixkv import OutOfBlocksError, PoolShape, PrefixCache, connect
from radixkv.core.api import AcquireOp
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Usage
from radixkv.service import ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine

PROMPT = list(range(1, 30))


def cost(engine: Engine, runner: HashRunner, namespace: str) -> tuple[Usage, list[tuple[int, int]], int]:
    """What a request costs: its usage but for the time, the positions that were run, the rounds of the engine."""
    runner.rows.clear()
    before = engine.stats().engine.num_forwards
    sampling = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    stream = engine.generate(GenerateParams(token_ids=PROMPT, namespace=namespace, sampling=sampling))
    for _ in stream:
        pass
    assert stream.usage is not None
    rows = runner.rows.copy()
    return stream.usage._replace(time_to_first_token_s=0.0), rows, engine.stats().engine.num_forwards - before


def test_anothers_prefix_costs_what_a_fresh_one_costs_and_ones_own_does_not() -> None:
    runner = HashRunner(256, 4)
    with Engine(runner, PrefixCache(256, 4)) as engine:
        fresh = cost(engine, runner, "owner")
        assert cost(engine, runner, "prober") == fresh
        own = cost(engine, runner, "owner")
    assert own[0].num_cached_tokens == len(PROMPT) - 1
    assert own != fresh


def test_nobody_waits_for_a_prefix_that_another_tenant_is_computing() -> None:
    cache = PrefixCache(64, 4)
    cache.acquire(PROMPT, namespace="owner")
    [mine] = cache.step([AcquireOp(PROMPT, namespace="owner", waits=True)])
    [others] = cache.step([AcquireOp(PROMPT, namespace="prober", waits=True)])
    assert type(mine).__name__ == "Pending"
    assert type(others).__name__ == "AcquireResult"


@pytest.mark.parametrize("is_known", [False, True])
def test_an_error_for_lack_of_blocks_tells_load_and_not_content(is_known: bool) -> None:
    cache = PrefixCache(8, 4)
    content = PROMPT if is_known else [1000 + token for token in PROMPT]
    sequence = cache.acquire(content, namespace="owner")
    cache.insert(sequence.seq_id, num_computed=len(content))
    with pytest.raises(OutOfBlocksError) as raised:
        cache.acquire(PROMPT, namespace="prober")
    assert (raised.value.num_needed, raised.value.num_available) == (8, 0)


def test_a_reader_of_one_namespace_sees_the_same_whatever_lies_in_another(service: ServiceThread) -> None:
    answers = []
    for name in ("empty", "full"):
        with connect(service.addresses[0], PoolShape(64, 4, name)) as holder:
            if name == "full":
                sequence = holder.acquire(PROMPT, namespace="owner")
                holder.insert(sequence.seq_id, num_computed=len(PROMPT))
            explained = holder.explain(PROMPT, namespace="prober")
            answers.append(
                (holder.match(PROMPT, namespace="prober"), explained, holder.dump("prober"), holder.pins("prober"))
            )
            answers[-1] += (holder.usage("prober"), [event.kind for event in holder.events(namespace="prober")])
    assert answers[0] == answers[1]


def test_a_cancelled_request_of_another_tenant_leaves_nothing_to_be_found() -> None:
    runner = HashRunner(256, 4)
    with Engine(runner, PrefixCache(256, 4)) as engine:
        stream = engine.generate(GenerateParams(token_ids=PROMPT, namespace="owner"))
        stream.close()
        wait_until(lambda: not engine.stats().engine.num_generations)
        assert cost(engine, runner, "prober")[0].num_cached_tokens == 0
