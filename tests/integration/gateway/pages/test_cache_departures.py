"""What viewers of the tree are told of nodes that leave it: whether they ended, were evicted by a call, or for room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chat_stack import Watched, gibberish_engine
from tree_follower import Follower, follower
from tree_stack import TreeStack, tree_stack

from radixkv.core.tokens import pack_tokens
from radixkv.worker.generations.text import ChatText

SIZE = 4
NUM_BLOCKS = 8


@pytest.fixture(scope="module")
def worker(default_model: str) -> Iterator[tuple[Watched, ChatText]]:
    with gibberish_engine(default_model) as (engine, _, text):
        yield engine, text


@pytest.fixture
def stack(worker: tuple[Watched, ChatText]) -> Iterator[TreeStack]:
    with tree_stack(*worker, num_blocks=NUM_BLOCKS, block_size=SIZE) as stack:
        yield stack


@pytest.fixture
def eye(stack: TreeStack) -> Iterator[Follower]:
    with follower(stack.server.address) as eye:
        eye.wait_until(lambda: eye.status.get("state") == "live")
        yield eye


def keep(stack: TreeStack, first: int, length: int) -> None:
    """Leave a history cached that begins with a token of its own."""
    seq = stack.holder.acquire(range(first, first + length))
    stack.holder.insert(seq.seq_id, length)
    stack.holder.release(seq.seq_id)


def wait_until_listed(stack: TreeStack, eye: Follower) -> None:
    eye.wait_until(lambda: len(eye.nodes) == len(stack.holder.dump()))


def kinds(eye: Follower) -> dict[str, int]:
    """Blocks by kind, as the listings told."""
    sums: dict[str, int] = {}
    for _, kind, num_blocks in eye.left:
        sums[kind] = sums.get(kind, 0) + num_blocks
    return sums


def test_what_is_released_without_keep_has_ended(stack: TreeStack, eye: Follower) -> None:
    seq = stack.holder.acquire(range(10))
    stack.holder.insert(seq.seq_id, 10)
    eye.wait_until(lambda: len(eye.nodes) == 2)
    stack.holder.release(seq.seq_id, keep=False)
    eye.wait_until(lambda: not eye.nodes)
    assert set(kinds(eye)) == {"ended"}
    assert {kind for _, kind, _ in eye.gone} <= {"ended"}


def test_a_tail_whose_sequence_goes_on_has_ended(stack: TreeStack, eye: Follower) -> None:
    seq = stack.holder.acquire(range(6))
    stack.holder.insert(seq.seq_id, 6)
    eye.wait_until(lambda: any(row[6] for row in eye.nodes.values()))
    stack.holder.extend(seq.seq_id, 8)
    stack.holder.insert(seq.seq_id, 8, pack_tokens([6, 7]))
    eye.wait_until(lambda: len(eye.nodes) == 1)
    assert set(kinds(eye)) <= {"ended"}
    stack.holder.release(seq.seq_id)


@pytest.mark.parametrize("length", [8, 10, 3])
def test_what_a_call_evicts_is_told_so_tails_too(stack: TreeStack, eye: Follower, length: int) -> None:
    keep(stack, 0, length)
    wait_until_listed(stack, eye)
    stack.holder.evict(NUM_BLOCKS)
    eye.wait_until(lambda: not eye.nodes and kinds(eye) == {"evicted": -(-length // SIZE)})


def test_what_gives_way_to_others_is_told_so_also_where_a_leaf_loses_its_end_alone(
    stack: TreeStack, eye: Follower
) -> None:
    keep(stack, 0, 5 * SIZE)
    eye.wait_until(lambda: len(eye.nodes) == 1)
    keep(stack, 1000, 5 * SIZE)
    eye.wait_until(lambda: kinds(eye) == {"pressure": 2})
    assert len(eye.nodes) == 2
    keep(stack, 2000, NUM_BLOCKS * SIZE)
    eye.wait_until(lambda: kinds(eye) == {"pressure": 2 + 8})
    assert stack.holder.stats().num_evicted_blocks == 10


def test_a_tail_that_gives_way_is_told_so(stack: TreeStack, eye: Follower) -> None:
    keep(stack, 0, 2)
    eye.wait_until(lambda: len(eye.nodes) == 1)
    keep(stack, 1000, NUM_BLOCKS * SIZE)
    eye.wait_until(lambda: kinds(eye) == {"pressure": 1})
