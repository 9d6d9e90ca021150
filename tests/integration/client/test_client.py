"""The client against a live service: what it refuses, what it tells, and what outlives breaks, pools and other holders."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from live_service import TTL_S, Clock

from radixkv import (
    AbortedError,
    AcquireOp,
    EvictedTokens,
    ExtendOp,
    InsertOp,
    InvalidArgumentError,
    LeaseError,
    LimitError,
    MatchOp,
    NamespaceMatch,
    NamespaceUsage,
    OutOfBlocksError,
    PinBudgetError,
    PoolHeldError,
    PoolShape,
    PrefixCache,
    QuotaError,
    RadixKVError,
    ReleaseOp,
    Retention,
    UnknownPoolError,
    UnknownSequenceError,
    connect,
    pack_tokens,
)
from radixkv.client import RemoteHolder
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import prefix_cache_pb2_grpc

PROMPT = pack_tokens(range(100))


def test_what_is_worth_more_outlives_what_is_worth_less(holder: RemoteHolder, clock: Clock) -> None:
    for first, priority, duration_s in ((1, 90, 10.0), (2, 20, None), (3, 35, None)):
        ranges = [Retention(0, 32, priority, duration_s)]
        opened = holder.acquire([first] * 40, retention=ranges)
        holder.insert(opened.seq_id, 40)
        holder.release(opened.seq_id)
    assert [(node.position, node.priority, node.retained_until_s) for node in holder.dump()] == [
        (0, 90, 10.0),
        (32, 35, 0.0),
        (0, 20, 0.0),
        (32, 35, 0.0),
        (0, 35, 0.0),
        (32, 35, 0.0),
    ]
    assert holder.retain([2] * 100, retention=[Retention(32)], namespace="nobody") == 0
    assert holder.retain([2] * 100, retention=[Retention(32, priority=0)]) == 40
    holder.evict(3)
    assert [holder.match([first] * 40).num_tokens for first in (1, 2, 3)] == [40, 0, 40]
    holder.evict(4)
    assert [holder.match([first] * 40).num_tokens for first in (1, 2, 3)] == [32, 0, 0]
    clock.now_s = 10.0
    assert [node.priority for node in holder.dump()] == [35]


def test_a_pin_over_its_budget_is_refused_with_what_is_pinned_but_no_tokens_of_it(holder: RemoteHolder) -> None:
    opened = holder.acquire(PROMPT)
    holder.insert(opened.seq_id, 100)
    holder.pin(PROMPT, ttl="1h")
    other = holder.acquire([1, 2, 3] * 200)
    holder.insert(other.seq_id, 600)
    with pytest.raises(PinBudgetError, match="block-seconds of its namespace") as refusal:
        holder.pin([1, 2, 3] * 200, ttl="1h")
    [pinned] = refusal.value.pins
    assert (pinned.tokens, pinned.num_tokens, pinned.num_blocks, pinned.ttl_s) == (b"", 100, 7, 3600.0)
    assert holder.unpin(PROMPT)
    assert holder.pins() == []


def test_a_quota_refuses_whom_it_bounds_and_tells_by_how_much(holder: RemoteHolder) -> None:
    usage = holder.set_quota("tenant", 4, 2)
    assert usage == NamespaceUsage("tenant", 0, 0, 0, 4, 2)
    with pytest.raises(QuotaError, match=r"7 blocks are needed, and of the 4 that namespace 'tenant'") as refusal:
        holder.acquire(PROMPT, namespace="tenant")
    assert (refusal.value.unit, refusal.value.num_needed, refusal.value.num_available) == ("blocks", 7, 4)
    opened = [holder.acquire([1], namespace="tenant") for _ in range(2)]
    with pytest.raises(QuotaError, match="1 sequences are needed"):
        holder.acquire([1], namespace="tenant")
    assert holder.acquire(PROMPT).num_stored_tokens == 0
    in_use = [(use.namespace, use.num_blocks_in_use, use.num_query_tokens) for use in holder.usage()]
    assert in_use == [("default", 7, 100), ("tenant", 2, 2)]
    for sequence in opened:
        holder.release(sequence.seq_id)
    assert holder.set_quota("tenant") == NamespaceUsage("tenant", 0, 0, 0, None, None)
    assert holder.usage("tenant")[0].block_quota is None


def test_a_quota_outlives_its_pool_and_readers_name_a_pool_or_all(service: ServiceThread) -> None:
    address = service.addresses[0]
    with connect(address, PoolShape(64, name="left")) as left, connect(address, PoolShape(32, name="right")):
        left.set_quota("tenant", 24)
        with grpc.insecure_channel(address) as channel:
            stub: Any = prefix_cache_pb2_grpc.PrefixCacheStub(channel)  # type: ignore[no-untyped-call]  # generated
            told = stub.Usage(readers.UsageRequest(namespace="tenant")).pools
            assert [pool.usages[0].HasField("block_quota") for pool in told] == [True, False]
            told = stub.SetQuota(readers.SetQuotaRequest(namespace="all", blocks=8)).pools
            assert [(pool.pool, pool.usage.block_quota) for pool in told] == [("left", 8), ("right", 8)]
            with pytest.raises(grpc.RpcError, match="which the other quotas leave of pool 'right'"):
                stub.SetQuota(readers.SetQuotaRequest(namespace="more", blocks=25))
    with connect(address, PoolShape(48, name="left")) as successor:
        assert [(use.namespace, use.block_quota) for use in successor.usage()] == [("all", 8), ("tenant", 24)]


def test_ops_after_a_failed_one_of_the_same_step_are_aborted(holder: RemoteHolder) -> None:
    results = holder.step([AcquireOp(bytes(4 * 10_000), seq_id=1), ExtendOp(1, 5), AcquireOp(PROMPT, seq_id=2)])
    assert isinstance(results[0], OutOfBlocksError)
    assert isinstance(results[1], AbortedError)
    assert getattr(results[2], "seq_id", None) == 2


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda holder: holder.acquire(b""), InvalidArgumentError),
        (lambda holder: holder.acquire([2**32]), InvalidArgumentError),
        (lambda holder: holder.acquire([-1]), InvalidArgumentError),
        (lambda holder: holder.acquire(b"abc"), InvalidArgumentError),
        (lambda holder: holder.acquire(PROMPT, reserve=-1), InvalidArgumentError),
        (lambda holder: holder.acquire(PROMPT, namespace=""), InvalidArgumentError),
        (lambda holder: holder.acquire(PROMPT, seq_id=2**64), InvalidArgumentError),
        (lambda holder: holder.acquire(PROMPT, retention=[Retention(4, 4)]), InvalidArgumentError),
        (lambda holder: holder.acquire(PROMPT, retention=[Retention(duration_s=True)]), InvalidArgumentError),
        (lambda holder: holder.retain(PROMPT, retention=[Retention(priority=101)]), InvalidArgumentError),
        (lambda holder: holder.retain(PROMPT, retention=[Retention()] * 65), InvalidArgumentError),
        (lambda holder: holder.retain(PROMPT, retention=Retention()), InvalidArgumentError),
        (lambda holder: holder.retain(PROMPT, retention=[Retention()], namespace=""), InvalidArgumentError),
        (lambda holder: holder.acquire(bytes(10_000_000)), OutOfBlocksError),
        (lambda holder: holder.acquire(bytes(40_000_000)), LimitError),
        (lambda holder: holder.match(bytes(40_000_000)), LimitError),
        (lambda holder: holder.step([ReleaseOp(1)] * 100_000), LimitError),
        (lambda holder: holder.fork(3, 1, n=100_000), LimitError),
        (lambda holder: holder.step(["acquire"]), InvalidArgumentError),
        (lambda holder: holder.step(ReleaseOp(1)), InvalidArgumentError),
        (lambda holder: holder.fork(1, 1, seq_ids=7), InvalidArgumentError),
        (lambda holder: holder.extend(77, 1), UnknownSequenceError),
        (lambda holder: holder.insert(77, 1), UnknownSequenceError),
        (lambda holder: holder.release(77), UnknownSequenceError),
        (lambda holder: holder.fork(77, 1), UnknownSequenceError),
        (lambda holder: holder.fork(3, 101), InvalidArgumentError),
        (lambda holder: holder.insert(3, 101), InvalidArgumentError),
        (lambda holder: holder.extend(3, 0), InvalidArgumentError),
        (lambda holder: holder.evict(-1), InvalidArgumentError),
        (lambda holder: holder.clear(7), InvalidArgumentError),
        (lambda holder: holder.set_quota("", 1), InvalidArgumentError),
        (lambda holder: holder.set_quota("tenant", 65), InvalidArgumentError),
        (lambda holder: holder.set_quota("tenant", 2**70), InvalidArgumentError),
        (lambda holder: holder.set_quota("tenant", 1, -1), InvalidArgumentError),
        (lambda holder: holder.usage(""), InvalidArgumentError),
    ],
)
def test_a_call_that_cannot_be_satisfied_gives_a_clear_error_and_changes_nothing(
    call: Callable[[RemoteHolder], object], error: type[RadixKVError], holder: RemoteHolder
) -> None:
    holder.acquire(PROMPT, seq_id=3)
    before = holder.stats()
    with pytest.raises(error) as caught:
        call(holder)
    assert str(caught.value)
    assert len(str(caught.value)) < 500
    holder.check()
    assert holder.stats() == before
    assert holder.extend(3, 101).first_changed == 7, "the stream runs on"


@pytest.mark.parametrize(
    ("shape", "argument"),
    [
        (PoolShape(64, block_size=0), "block_size"),
        (PoolShape(0), "num_blocks"),
        (PoolShape(2**31), "num_blocks"),
        (PoolShape(64, name=""), "name"),
    ],
)
def test_a_shape_out_of_bounds_is_refused_by_name(shape: PoolShape, argument: str, service: ServiceThread) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        connect(service.addresses[0], shape)
    assert caught.value.argument == argument
    with connect(service.addresses[0]) as reader, pytest.raises(UnknownPoolError):
        reader.check()


def test_an_address_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="address"):
        connect("nowhere")


def test_a_second_holder_is_refused_and_the_first_holds_on(service: ServiceThread, holder: RemoteHolder) -> None:
    holder.acquire(PROMPT, seq_id=1)
    with pytest.raises(PoolHeldError) as held:
        connect(service.addresses[0], PoolShape(64), wait_s=0.3)
    assert held.value.retry_after_s == TTL_S, "by the service's clock, which stands still"
    assert holder.extend(1, 101).first_changed == 7


def test_a_held_pool_is_waited_for_until_its_holder_detaches(service: ServiceThread) -> None:
    first = connect(service.addresses[0], PoolShape(64))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect, service.addresses[0], PoolShape(64), wait_s=300.0)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        first.close()
        with waiting.result(timeout=300) as second:
            assert second.stats().num_sequences == 0


@pytest.mark.parametrize("wait_s", [-1.0, float("nan")])
def test_a_time_to_wait_for_a_pool_that_is_none_is_refused_by_name(wait_s: float, service: ServiceThread) -> None:
    with pytest.raises(InvalidArgumentError, match="wait_s"):
        connect(service.addresses[0], PoolShape(64), wait_s=wait_s)


def test_an_interrupt_ends_the_wait_for_a_held_pool_at_once(service: ServiceThread, holder: RemoteHolder) -> None:
    assert holder.pool == PoolShape(64)
    program = """
import sys, time
from radixkv import PoolShape, connect
sleep = time.sleep
time.sleep = lambda seconds: print("waits", flush=True) or sleep(seconds)
try:
    connect(sys.argv[1], PoolShape(64), wait_s=600.0)
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", program, service.addresses[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=300)
    assert (waiting.returncode, out.replace("waits\n", ""), err) == (0, "interrupted\n", "")


def test_integers_of_any_type_are_taken(holder: RemoteHolder) -> None:
    class Number:  # as a tensor of one element
        def __init__(self, value: int) -> None:
            self.value = value

        def __index__(self) -> int:
            return self.value

    seq_id: Any = Number(holder.acquire(range(40)).seq_id)
    length: Any = Number(41)
    assert holder.extend(seq_id, length).first_changed == 3
    holder.insert(seq_id, length, [1])
    holder.release(seq_id)
    assert holder.match([*range(40), 1]).num_tokens == 41


def test_submitted_steps_complete_in_order_across_breaks_and_beyond_the_window(holder: RemoteHolder) -> None:
    order: list[int] = []
    futures: list[Future[Any]] = [holder.submit([AcquireOp(PROMPT, seq_id=1)])]
    for number in range(1000):
        future = holder.submit([ExtendOp(1, 101 + number % 400)])
        future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]  # bound now
        futures.append(future)
        if number % 200 == 0:
            holder.interrupt()
    rooms = [future.result()[0] for future in futures]
    local = PrefixCache(64)
    assert rooms[0] == local.acquire(PROMPT, seq_id=1)
    assert rooms[1:] == [local.extend(1, 101 + number % 400) for number in range(1000)]
    assert order == list(range(1000))


def test_a_lost_answer_comes_back_the_same(holder: RemoteHolder) -> None:
    """The stream breaks right after each Step was sent: many answers get lost on the way."""
    opened = []
    for seq_id in range(1, 41):
        future = holder.submit([AcquireOp(pack_tokens([seq_id]), seq_id=seq_id)])
        holder.interrupt()
        opened.append(future.result()[0])
    local = PrefixCache(64)
    assert opened == [local.acquire([seq_id], seq_id=seq_id) for seq_id in range(1, 41)]
    assert holder.stats() == local.stats()


def test_calls_from_many_threads_are_each_applied_once(holder: RemoteHolder) -> None:
    def grow(seq_id: int) -> None:
        holder.acquire([seq_id], seq_id=seq_id)
        for length in range(2, 30):
            holder.extend(seq_id, length)
        holder.release(seq_id)

    threads = [threading.Thread(target=grow, args=(seq_id,)) for seq_id in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert holder.stats().num_queries == 4
    assert holder.stats().num_free_blocks == 64


def test_a_router_asks_all_pools_at_once(service: ServiceThread) -> None:
    address = service.addresses[0]
    with (
        connect(address, PoolShape(64, name="left")) as left,
        connect(address, PoolShape(32, name="right")) as right,
        connect(address, pool_name="right") as reader,
    ):
        left.acquire(PROMPT, seq_id=1)
        left.insert(1, 60)
        right.acquire(PROMPT, seq_id=1)
        right.insert(1, 30)
        assert {name: match.num_tokens for name, match in reader.match_all(PROMPT).items()} == {"left": 60, "right": 30}
        assert {name: stats.num_blocks for name, stats in reader.stats_all().items()} == {"left": 64, "right": 32}
        assert reader.match(PROMPT).num_tokens == 30
        reader.check()


def test_a_reader_asks_and_changes_the_pool_and_the_namespace_that_it_names_and_no_other(
    service: ServiceThread,
) -> None:
    """Both pools hold the same in two namespaces; every call is one of the left pool's second namespace."""
    address = service.addresses[0]
    with connect(address, PoolShape(64, name="left")) as left, connect(address, PoolShape(64, name="right")) as right:
        for holder in (left, right):
            for namespace in ("default", "tenant"):
                opened = holder.acquire(PROMPT, namespace=namespace)
                holder.insert(opened.seq_id, 100)
                holder.release(opened.seq_id)
                holder.pin(PROMPT, ttl="1h", namespace=namespace)
                holder.set_quota(namespace, 20)

        def others() -> list[object]:
            return [
                (
                    [pin.ttl_s for pin in holder.pins(namespace)],
                    [node.priority for node in holder.dump(namespace)],
                    [(use.num_blocks, use.block_quota) for use in holder.usage(namespace)],
                )
                for holder, namespace in ((left, "default"), (right, "default"), (right, "tenant"))
            ]

        def ttls() -> list[float]:
            return [pin.ttl_s for pin in reader.pins("tenant")]

        before = others()
        with connect(address, pool_name="left") as reader:
            assert reader.match(PROMPT, namespace="tenant").num_tokens == 100
            assert reader.pin(PROMPT, ttl=60, namespace="tenant").ttl_s == 60
            assert ttls() == [60]
            assert reader.retain(PROMPT, retention=[Retention(priority=90)], namespace="tenant") == 100
            assert {node.priority for node in reader.dump("tenant")} == {90}
            assert reader.set_quota("tenant", 10).block_quota == 10
            assert reader.unpin(PROMPT, namespace="tenant")
            assert (ttls(), len(reader.pins("default")), len(reader.pins())) == ([], 1, 1)
            assert reader.evict_branch(PROMPT[:4], namespace="tenant") == 7
            assert (reader.usage("tenant")[0].num_blocks, reader.stats().num_cached_blocks) == (0, 7)
            assert others() == before
            assert reader.clear("default") == 7
            assert (left.match(PROMPT).num_tokens, right.match(PROMPT).num_tokens) == (0, 100)


def test_a_miss_is_explained_by_one_pool_or_by_all(service: ServiceThread, clock: Clock) -> None:
    address = service.addresses[0]
    with (
        connect(address, PoolShape(64, name="left")) as left,
        connect(address, PoolShape(32, name="right")) as right,
        connect(address, pool_name="right") as reader,
    ):
        for holder, length in ((left, 100), (right, 32)):
            holder.acquire(PROMPT[: 4 * length], seq_id=1)
            holder.insert(1, length)
            holder.release(1)
        right.acquire([*range(32), 7, 7], seq_id=2, namespace="salted")
        right.insert(2, 34)
        left.evict(100)
        clock.now_s += 8
        asked = [*range(32), 7, 7, 7]
        explained = reader.explain_all(asked, other_namespaces=["salted"])
        assert explained["left"].evicted == EvictedTokens(32, 8.0, "evict")
        assert explained["left"].elsewhere is None
        assert explained["right"] == right.explain(asked, other_namespaces=["salted"])
        assert (explained["right"].cause, explained["right"].num_tokens) == ("ended", 32)
        assert explained["right"].elsewhere == NamespaceMatch("salted", 34)
        with connect(address, pool_name="none") as nobody, pytest.raises(UnknownPoolError):
            nobody.explain(asked)


def test_events_are_followed_as_they_happen(holder: RemoteHolder) -> None:
    holder.acquire(PROMPT, seq_id=1)
    holder.insert(1, 32)
    following = holder.follow_events()
    reset, first, synced = (next(following) for _ in range(3))
    assert (reset.kind, first.kind, synced.kind) == ("reset", "stored", "synced")
    assert (first.position, first.tokens, first.parent_hash) == (0, PROMPT[: 4 * 32], None)
    holder.insert(1, 64)
    second = next(following)
    assert (second.kind, second.position, second.tokens) == ("stored", 32, PROMPT[4 * 32 : 4 * 64])
    assert second.parent_hash == first.block_hashes[-1]
    assert second.sequence_number == synced.sequence_number + 1
    assert holder.events(second.sequence_number) == [second]
    assert holder.event_stats().num_event_subscribers == 1
    following.close()  # type: ignore[attr-defined]  # a generator


def test_a_new_life_of_a_pool_has_numbers_that_no_earlier_one_had(service: ServiceThread) -> None:
    numbers = []
    for _ in range(2):
        with connect(service.addresses[0], PoolShape(16)) as holder:
            numbers.append(holder.events()[-1].sequence_number)
            holder.acquire(PROMPT[:256], seq_id=1)
            holder.insert(1, 64)
            numbers.append(holder.events(numbers[-1] + 1)[-1].sequence_number)
    assert numbers == sorted(set(numbers))


def test_the_service_s_policy_is_had_by_name_and_told_in_the_stats() -> None:
    for eviction in ("hit-density", "slru"):
        config = ServiceConfig(addresses=("127.0.0.1:0",), eviction=eviction)
        with ServiceThread(config) as service, connect(service.addresses[0], PoolShape(8)) as holder:
            assert holder.stats().eviction == eviction
    with pytest.raises(InvalidArgumentError, match="eviction is 'mru'; it must be one of"):
        ServiceConfig(eviction="mru")


def test_an_op_is_what_it_was_when_it_was_sent(tmp_path: Path) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/cache",))
    prompt: Any = [1, 2, 3, 4]
    drawn: Any = [5, 6, 7, 8]
    with ServiceThread(config) as service:
        holder = connect(service.addresses[0], PoolShape(64, 4), patience_s=300)
        sent = holder.submit([AcquireOp(prompt, seq_id=1), ExtendOp(1, 8), InsertOp(1, 8, drawn)])
        prompt[:], drawn[:] = [9] * 6, [8] * 3
        assert not any(isinstance(result, RadixKVError) for result in sent.result())
    with ServiceThread(config), holder:
        holder.release(1)
        assert holder.match(range(1, 9)).num_tokens == 8


def test_a_callback_that_raises_costs_the_lease_and_hangs_nobody(service: ServiceThread) -> None:
    def broken(_freed: array[int]) -> None:
        raise ZeroDivisionError

    with connect(service.addresses[0], PoolShape(64), on_freed=broken) as holder:
        opened = holder.acquire(range(40))
        with pytest.raises(LeaseError, match="ZeroDivisionError"):
            holder.submit([ReleaseOp(opened.seq_id, keep=False)]).result(300)
        with pytest.raises(LeaseError, match="ZeroDivisionError"):
            holder.submit([MatchOp(b"")]).result(300)
