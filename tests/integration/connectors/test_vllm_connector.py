"""The vLLM connector under vLLM's own scheduler: replies are those without any cache, whatever was loaded, lost or evicted."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own
        from vllm_engine import BLOCK_SIZE, Engine, reply_of
except ImportError:
    BLOCK_SIZE, Engine, reply_of = 1, None, None

from radixkv import PoolHeldError, PoolShape, connect
from radixkv.service import ServiceConfig, ServiceThread

pytestmark = pytest.mark.skipif(Engine is None, reason="vLLM is not importable here: its connector needs its interface")
PROMPT = [(7 * n) % 50 for n in range(43)]
WHOLE = len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE
HOST = {"num_blocks": 64}


@pytest.fixture(params=[(1, True), (1, False), (2, True)], ids=["in turn", "first model runner", "a step ahead"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    depth, is_v2 = request.param
    engine = Engine(48, HOST, depth=depth, is_v2=is_v2)
    yield engine
    engine.close()


def computed_by(engine: Engine, *args: Any, **options: Any) -> int:
    """Tokens computed for a request whose reply is checked."""
    before = engine.num_computed
    num_new = options.pop("num_new", 6)
    adapter = options.get("adapter", 0)
    assert engine.run(*args, num_new, **options) == reply_of(args[1], num_new, adapter)
    return engine.num_computed - before


def test_a_prefix_outlives_its_eviction_by_vllm(engine: Engine) -> None:
    assert computed_by(engine, "first", PROMPT) == len(PROMPT) + 5
    engine.evict()
    assert computed_by(engine, "second", PROMPT) == len(PROMPT) - WHOLE + 5
    assert not engine.num_failed_blocks


def test_without_eviction_vllm_uses_its_own_blocks_and_saves_only_what_is_new(engine: Engine) -> None:
    computed_by(engine, "first", PROMPT)
    computed_by(engine, "second", PROMPT + [1] * 9)
    engine.evict()
    assert computed_by(engine, "third", PROMPT + [1] * 9) < len(PROMPT + [1] * 9) - WHOLE + 5


def test_a_reply_is_saved_too(engine: Engine) -> None:
    reply = engine.run("first", PROMPT, 30)
    engine.evict()
    turn = [*PROMPT, *reply, 3, 4, 5]
    saved = (len(PROMPT) + 29) // BLOCK_SIZE * BLOCK_SIZE
    late = BLOCK_SIZE  # a step ahead, the last block's tokens are known only when it is too late to save it
    assert computed_by(engine, "second", turn) - (len(turn) - saved + 5) in (0, late)


def test_forks_share_the_blocks_before_the_token_at_which_they_part(engine: Engine) -> None:
    computed_by(engine, "first", PROMPT)
    edited = [*PROMPT[:22], 9, *PROMPT[23:]]
    engine.evict()
    assert computed_by(engine, "edited", edited) == len(PROMPT) - 20 + 5
    engine.evict()
    assert computed_by(engine, "again", edited) == len(PROMPT) - WHOLE + 5
    engine.evict()
    assert computed_by(engine, "first again", PROMPT) == len(PROMPT) - WHOLE + 5


def test_salts_and_adapters_share_nothing(engine: Engine) -> None:
    computed_by(engine, "plain", PROMPT)
    for options in ({"salt": "a"}, {"salt": "b"}, {"adapter": 1}, {"adapter": 2}, {"salt": "a", "adapter": 1}):
        engine.evict()
        assert computed_by(engine, f"new {options}", PROMPT, **options) == len(PROMPT) + 5
        engine.evict()
        assert computed_by(engine, f"old {options}", PROMPT, **options) == len(PROMPT) - WHOLE + 5


def test_an_aborted_request_leaves_what_it_computed(engine: Engine) -> None:
    engine.add("first", PROMPT)
    engine.step()
    engine.abort("first")
    engine.drain()
    engine.evict()
    assert computed_by(engine, "second", PROMPT) == len(PROMPT) - 24 + 5


def test_a_preempted_request_gets_its_tokens_back(engine: Engine) -> None:
    prompts = {name: [n] * 2 + PROMPT for n, name in enumerate("abcd")}
    requests = {name: engine.add(name, prompt, 60) for name, prompt in prompts.items()}
    engine.drain()
    assert sum(request.num_preemptions for request in requests.values())
    assert {name: list(request.output_token_ids) for name, request in requests.items()} == {
        name: reply_of(prompt, 60) for name, prompt in prompts.items()
    }
    assert engine.num_computed < 4 * (len(PROMPT) + 61) + 4 * len(PROMPT)
    assert not engine.num_failed_blocks


def test_blocks_that_a_worker_lost_are_computed_again(engine: Engine) -> None:
    computed_by(engine, "first", PROMPT)
    engine.evict()
    engine.workers[1].lose_memory()
    computed_by(engine, "second", PROMPT)
    assert engine.num_failed_blocks == WHOLE // BLOCK_SIZE
    for name in ("third", "fourth"):
        engine.evict()
        computed_by(engine, name, PROMPT)
    assert engine.num_failed_blocks == WHOLE // BLOCK_SIZE, "what could not be loaded is not matched again"
    engine.evict()
    assert computed_by(engine, "fifth", PROMPT) == len(PROMPT) - WHOLE + 5


def test_a_reset_forgets_all_that_was_saved(engine: Engine) -> None:
    computed_by(engine, "first", PROMPT)
    engine.evict()
    assert engine.scheduler.reset_connector_cache()
    assert computed_by(engine, "second", PROMPT) == len(PROMPT) + 5
    engine.evict()
    assert computed_by(engine, "third", PROMPT) == len(PROMPT) - WHOLE + 5


def test_a_host_pool_smaller_than_the_requests_saves_what_fits() -> None:
    engine = Engine(48, {"num_blocks": 8})
    requests = {n: engine.add(str(n), [n, *PROMPT]) for n in range(3)}
    engine.drain()
    assert all(list(requests[n].output_token_ids) == reply_of([n, *PROMPT], 6) for n in requests)


def test_a_request_aborted_while_it_waits_for_its_load_leaves_nothing_behind(engine: Engine) -> None:
    computed_by(engine, "first", PROMPT)
    engine.evict()
    engine.add("second", PROMPT)
    output = engine.scheduler.schedule()
    assert output.kv_connector_metadata.plan.loads
    engine.abort("second")
    engine.scheduler.update_from_output(output, engine.execute(output))
    engine.drain()
    engine.evict()
    assert computed_by(engine, "third", PROMPT) == len(PROMPT) - WHOLE + 5


def test_a_pool_of_a_service_goes_on_over_its_restart(tmp_path: Any) -> None:
    address = f"unix:{tmp_path}/s"
    config = ServiceConfig(addresses=(address,), lease_ttl_s=10.0)
    with ServiceThread(config):
        engine = Engine(48, {**HOST, "address": address, "timeout_s": 20})
        computed_by(engine, "first", PROMPT)
        with connect(address, pool_name="vllm") as reader:
            assert reader.match(PROMPT).num_tokens == len(PROMPT)
        engine.add("running", [1, 2, *PROMPT], 12)
        engine.step()
    with ServiceThread(config):
        engine.drain()
        assert list(engine.requests["running"].output_token_ids) == reply_of([1, 2, *PROMPT], 12)
        engine.evict()
        assert computed_by(engine, "second", PROMPT) == len(PROMPT) - WHOLE + 5
        with connect(address, pool_name="vllm") as reader:
            reader.check()
        engine.close()


def test_without_its_service_an_engine_goes_on_and_later_saves_again(tmp_path: Any) -> None:
    address = f"unix:{tmp_path}/s"
    config = ServiceConfig(addresses=(address,), lease_ttl_s=30.0)
    with ServiceThread(config):
        engine = Engine(48, {**HOST, "address": address, "timeout_s": 0.2})
        computed_by(engine, "first", PROMPT)
    engine.evict()
    assert computed_by(engine, "second", PROMPT) == len(PROMPT) + 5
    with ServiceThread(config), connect(address, pool_name="vllm") as reader:
        for n in range(200):
            engine.evict()
            if computed_by(engine, f"third-{n}", PROMPT) < len(PROMPT):
                break
        else:
            raise AssertionError("the returned service is not used")
        reader.check()
        engine.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
@pytest.mark.parametrize("depth", [1, 2])
def test_random_loads_have_the_replies_of_no_cache(seed: int, depth: int) -> None:
    chance = random.Random(seed)
    engine = Engine(40, {"num_blocks": 30}, depth=depth, is_v2=seed != 1)
    prompts = [[chance.randrange(50) for _ in range(chance.randrange(2, 50))] for _ in range(4)]
    checked: dict[str, tuple[list[int], int, int]] = {}
    for n in range(60):
        if chance.random() < 0.6:
            base = chance.choice(prompts)
            prompt = base[: chance.randrange(1, len(base) + 1)] + [
                chance.randrange(50) for _ in range(chance.randrange(1, 12))
            ]
            prompts[chance.randrange(4)] = prompt[:70]
            num_new, adapter = chance.randrange(1, 20), chance.choice([0, 0, 0, 1])
            engine.add(str(n), prompt, num_new, adapter=adapter, salt=chance.choice([None, None, "salt"]))
            checked[str(n)] = (prompt, num_new, adapter)
        if chance.random() < 0.1 and checked:
            name = chance.choice(list(checked))
            engine.abort(name)
            del checked[name]
        if chance.random() < 0.1:
            chance.choice(engine.workers).lose_memory()
        if chance.random() < 0.1:
            engine.drain()
            engine.evict()
        if chance.random() < 0.05:
            engine.scheduler.reset_connector_cache()
        engine.step()
    engine.drain()
    assert {name: list(engine.requests[name].output_token_ids) for name in checked} == {
        name: reply_of(*made) for name, made in checked.items()
    }


def test_options_out_of_bounds_and_other_models_are_rejected_by_name() -> None:
    for extra, named in (
        ({}, "num_blocks is None"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"num_blocks": True}, "num_blocks is True"),
        ({**HOST, "adress": "x"}, "adress"),
    ):
        with pytest.raises(ValueError, match=named):
            Engine(48, extra)


def test_a_pool_that_another_engine_holds_is_not_shared(tmp_path: Any) -> None:
    address = f"unix:{tmp_path}/s"
    with (
        ServiceThread(ServiceConfig(addresses=(address,))),
        connect(address, PoolShape(8, name="vllm")),
        pytest.raises(PoolHeldError),
    ):
        Engine(48, {**HOST, "address": address})
