"""Cached blocks are computed anew and compared: what was changed behind the cache's back is found, and nothing is disturbed."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest
import torch
from byte_model import save_byte_model

from radixkv import PoolShape, PrefixCache, connect, pack_tokens
from radixkv.cli.program import main
from radixkv.core.api import CacheHolder
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta
from radixkv.generation.verification import BlockVerdict
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.engine.verify import MAX_RELATIVE
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.run import Worker, WorkerConfig

LOCAL = "127.0.0.1:0"
PROMPT = [1 + place % 30 for place in range(21)]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine whose cache holds 32 tokens, eight blocks of four."""
    with Engine(runner := HashRunner(16, 4), PrefixCache(16, 4)) as engine:
        engine.runner = runner  # type: ignore[attr-defined]  # for the tests
        assert answer(engine) == generate(PROMPT, 12)
        yield engine


def answer(engine: Engine, prompt: list[int] = PROMPT, sampling: SamplingParams = GREEDY) -> list[int]:
    stream = engine.generate(GenerateParams(token_ids=prompt, sampling=sampling))
    return [token for event in stream if isinstance(event, Delta) for token in event.token_ids]


def places(holder: CacheHolder) -> list[tuple[int, bytes, int, int]]:
    """Of every block that is cached: where it begins, what it holds, its id, and what locks it; whatever edges they lie on."""
    return sorted(
        (node.position + 4 * index, node.tokens[16 * index : 16 * (index + 1)], block_id, node.lock_ref)
        for node in holder.dump()
        for index, block_id in enumerate(node.block_ids)
    )


def cached_blocks() -> list[bytes]:
    """Every full block, by the tokens up to and with it."""
    tokens = pack_tokens([*PROMPT, *generate(PROMPT, 12)][:32])
    return [tokens[: 16 * (place + 1)] for place in range(8)]


def test_blocks_that_are_right_agree_and_nothing_else_has_changed(engine: Engine) -> None:
    before = engine.call(places)
    found = [engine.verify_block(tokens) for tokens in cached_blocks()]
    assert [each.verdict for each in found] == [BlockVerdict.AGREES] * 8
    assert len({each.block_id for each in found}) == 8
    engine.call(lambda holder: holder.check())
    assert engine.call(places) == before
    assert engine.call(lambda holder: holder.stats().num_sequences) == 0
    assert answer(engine) == generate(PROMPT, 12)


@pytest.mark.parametrize("place", range(8))
def test_a_block_that_was_changed_differs_and_those_that_follow_it(engine: Engine, place: int) -> None:
    blocks = cached_blocks()
    block_id = engine.verify_block(blocks[place]).block_id
    engine.runner.pool.slots[block_id * 4 + 3] ^= 1  # type: ignore[attr-defined]
    verdicts = [engine.verify_block(tokens).verdict for tokens in blocks]
    wrong = {place, place + 1}  # the hash reads only the last value before it
    assert verdicts == [BlockVerdict.DIFFERS if number in wrong else BlockVerdict.AGREES for number in range(8)]


def test_what_is_not_cached_is_gone_and_computes_and_evicts_nothing(engine: Engine) -> None:
    num_rows = len(engine.runner.rows)  # type: ignore[attr-defined]
    before = engine.call(places)
    for length in (4, 32):  # as much as the pool has room for, and more
        assert engine.verify_block(pack_tokens([9] * length)).verdict is BlockVerdict.GONE
    assert engine.call(places) == before
    for namespace in ("other", "", "x" * 10_000):  # the last two can hold nothing
        assert engine.verify_block(cached_blocks()[2], namespace).verdict is BlockVerdict.GONE
    engine.call(lambda holder: holder.clear())
    assert engine.verify_block(cached_blocks()[2]).verdict is BlockVerdict.GONE
    assert len(engine.runner.rows) == num_rows  # type: ignore[attr-defined]


def test_a_pool_in_use_has_no_room_and_loses_nothing(engine: Engine) -> None:
    tokens = cached_blocks()[-1]
    opened = engine.call(lambda holder: holder.acquire(tokens + pack_tokens(range(32)), seq_id=900))
    assert engine.verify_block(tokens).verdict is BlockVerdict.NO_ROOM
    assert engine.call(lambda holder: holder.stats().num_sequences) == 1
    engine.call(lambda holder: holder.release(opened.seq_id, keep=False))
    assert engine.verify_block(tokens).verdict is BlockVerdict.AGREES
    engine.call(lambda holder: holder.check())


@pytest.mark.parametrize("tokens", [b"", pack_tokens([1, 2, 3]), pack_tokens([1, 2, 3, 40]), pack_tokens([1] * 68)])
def test_what_can_be_no_block_is_refused(engine: Engine, tokens: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="tokens"):
        engine.verify_block(tokens)


def test_an_adapter_that_is_not_served_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidArgumentError, match="adapter"):
        engine.verify_block(cached_blocks()[0], "default#adapter=style")


def test_replies_are_the_same_while_blocks_are_verified(engine: Engine) -> None:
    blocks, replies = cached_blocks(), []
    writer = threading.Thread(target=lambda: replies.extend(answer(engine, [5, 6, 7], GREEDY) for _ in range(10)))
    writer.start()
    while writer.is_alive():
        for tokens in blocks:
            assert engine.verify_block(tokens).verdict in (BlockVerdict.AGREES, BlockVerdict.GONE, BlockVerdict.NO_ROOM)
    writer.join()
    assert replies == [generate([5, 6, 7], 12)] * 10
    engine.call(lambda holder: holder.check())


# -- a real model, over gRPC, by the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_byte_model(tmp_path_factory.mktemp("bytes") / "model")


@pytest.fixture(params=["auto", "int8"])
def worker(folder: str, request: pytest.FixtureRequest) -> Iterator[Worker]:
    torch.set_num_threads(1)
    with ServiceThread(ServiceConfig(addresses=(LOCAL,))) as service:
        config = WorkerConfig(
            model=folder,
            service=service.addresses[0],
            listen=LOCAL,
            num_blocks=64,
            block_size=16,
            device="cpu",
            dtype="float32",
            kv_dtype=request.param,
        )
        with Worker(config) as worker:
            for text in ("A tree has a root. " * 5, "A tree has a root. " * 3 + "And leaves. " * 4):
                stream = worker.engine.generate(GenerateParams(text=text, sampling=GREEDY))
                assert list(stream)
            worker.engine.call(lambda _holder: None)  # once all that was answered is told to the service
            yield worker


def check(worker: Worker, *more: str) -> int:
    return main(["check", "--service", worker.config.service or "", "--deep", "--worker", worker.address, *more])


def test_the_command_finds_what_was_changed_in_a_real_pool(worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(worker, "--seed", "1") == 0
    told = capsys.readouterr().out
    found = re.search(r"pool default: (\d+) blocks in .* s: (\d+) agree \(within (.*)%\), 0 differ", told)
    assert found is not None, told
    assert found[1] == found[2]
    assert float(found[3]) <= 100 * MAX_RELATIVE, "of one that differs by more none agrees"
    assert int(found[1]) >= 10
    for change in (_one_layer, _one_value, _swapped):
        _changed_is_found(worker, capsys, change)
    worker.engine.call(lambda holder: holder.clear())
    assert check(worker) == 0
    assert "no full block is cached" in capsys.readouterr().out


def _changed_is_found(worker: Worker, capsys: pytest.CaptureFixture[str], change: object) -> None:
    pool = worker.runner.pool
    tensors = [tensor for cache in pool.caches for tensor in cache.tensors]
    before = [tensor.clone() for tensor in tensors]
    nodes = worker.engine.call(lambda holder: holder.dump())
    block_ids = [block_id for node in nodes if not node.is_tail for block_id in node.block_ids]
    assert callable(change)
    change(pool, block_ids)
    assert check(worker) == 1
    told = capsys.readouterr().out
    assert f"BROKEN: block {block_ids[-1]} of namespace 'default'" in told
    for tensor, values in zip(tensors, before, strict=True):
        tensor.copy_(values)
    assert check(worker) == 0
    capsys.readouterr()


def _one_layer(pool: KVPool, block_ids: list[int]) -> None:
    pool.caches[-1].v[block_ids[-1]] = 0


def _one_value(pool: KVPool, block_ids: list[int]) -> None:
    """The largest that it can be, as a flipped bit of an exponent makes one."""
    block = pool.caches[-1].k[block_ids[-1]].view(-1)
    block[7] = 127 if block.dtype is torch.int8 else 1e4
    if pool.caches[-1].k_scales is not None:
        pool.caches[-1].k_scales[block_ids[-1]] *= 64


def _swapped(pool: KVPool, block_ids: list[int]) -> None:
    one, other = block_ids[0], block_ids[-1]
    for cache in pool.caches:
        for tensor in cache.tensors:
            tensor[[one, other]] = tensor[[other, one]]


@pytest.mark.parametrize(
    ("arguments", "told"), [(["--deep"], "--worker"), (["--deep", "--worker", LOCAL, "--blocks", "0"], "--blocks")]
)
def test_what_the_command_cannot_do_is_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 1
    assert told in capsys.readouterr().err


def test_a_worker_of_another_pool_is_told_of(worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    service = worker.config.service or ""
    with connect(service, PoolShape(16, name="another")) as holder:
        holder.acquire(range(40), seq_id=1)
        holder.insert(1, 40)
        assert check(worker, "--pool", "another") == 0
        assert "is that the worker of pool another?" in capsys.readouterr().out
