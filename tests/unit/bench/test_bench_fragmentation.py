"""What bench.fragmentation counts, and how its three memories behave."""

from __future__ import annotations

import random

import pytest

from bench.fragmentation.replay import Memory, Paged, Reserve, Sharing, replay, requests_of
from bench.fragmentation.run import main
from radixkv.simulate import Shape


def branching(seed: int, num_requests: int = 80) -> list[Shape]:
    """Chats that go on, regenerate and edit, with requests of their own among them."""
    source = random.Random(seed)
    shapes: list[Shape] = []
    for index in range(num_requests):
        parent = source.randrange(max(0, index - 8), index) if index and source.random() < 0.8 else None
        most = 0 if parent is None else shapes[parent].prompt_tokens + shapes[parent].generated_tokens
        shared = source.randint(1, most) if most else 0
        prompt = shared + source.randint(1, 40) if source.random() < 0.8 or not shared else shared
        shapes.append(Shape(index * 0.3, prompt, source.randint(1, 30), parent if shared else None, shared))
    return shapes


REQUESTS = requests_of(branching(1), 0.05)
LONGEST = max(len(request.history) // 4 for request in REQUESTS)


def test_requests_have_the_prefixes_that_their_shapes_say() -> None:
    for request, shape in zip(REQUESTS, branching(1), strict=True):
        assert len(request.history) // 4 == shape.prompt_tokens + shape.generated_tokens
        if shape.parent is not None:
            parent = REQUESTS[shape.parent].history
            assert request.history[: 4 * shape.shared_tokens] == parent[: 4 * shape.shared_tokens]


def test_an_ample_cache_finds_all_that_an_earlier_request_has_computed() -> None:
    found = replay(Sharing(16 * 4096, 16), requests_of(branching(1), 0.001), 10_000).found
    slow = requests_of([shape._replace(arrival_s=shape.arrival_s * 1000) for shape in branching(1)], 0.05)
    alone = replay(Sharing(16 * 4096, 16), slow, 320).found
    for request, tokens in zip(slow, alone, strict=True):
        seen = [other.history[: 4 * (len(other.history) // 4 - 1)] for other in slow[: request.index]]
        most = max((common(request.history[: 4 * request.prompt], history) for history in seen), default=0)
        assert tokens == min(most, request.prompt - 1)
    assert sum(tokens or 0 for tokens in found) <= sum(tokens or 0 for tokens in alone)


def common(left: bytes, right: bytes) -> int:
    number = 0
    while left[4 * number : 4 * number + 4] == right[4 * number : 4 * number + 4] != b"":
        number += 1
    return number


@pytest.mark.parametrize("num_slots", [16 * 20, 16 * 60])
@pytest.mark.parametrize("way", ["reserve", "paged", "sharing"])
def test_all_are_served_and_everything_is_given_back(way: str, num_slots: int) -> None:
    memory: Memory
    memory = (
        Reserve(num_slots, 30)
        if way == "reserve"
        else Paged(num_slots, 16)
        if way == "paged"
        else Sharing(num_slots, 16)
    )
    found = replay(memory, REQUESTS, 64)
    assert memory.held() == 0
    assert None not in found.found
    if isinstance(memory, Sharing):
        memory.cache.check()


def test_a_small_pool_makes_requests_give_way_and_all_end_even_so() -> None:
    tight = replay(Paged(-(-LONGEST // 16) * 16 + 64, 16), REQUESTS, 320)
    assert tight.num_preempted > 0
    assert tight.num_computed > sum(request.prompt + request.generated - 1 for request in REQUESTS)


def test_what_is_reserved_is_held_from_the_start_and_lies_where_it_first_fits() -> None:
    requests = requests_of([Shape(0.0, 10, 5, None, 0), Shape(0.0, 20, 5, None, 0), Shape(0.0, 8, 5, None, 0)], 1.0)
    memory = Reserve(70, 10)
    assert [memory.start(request, request.prompt) for request in requests] == [0, 0, 0]
    assert memory.held() == 20 + 30 + 18
    memory.finish(requests[0])
    assert memory.start(requests[1], 20) is None  # 20 and 2 slots are free, no 30 of them together
    assert memory.start(requests[2], 8) == 0


def test_without_the_traces_it_says_so(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--workloads", str(tmp_path)]) == 2
    assert "no mooncake.tar.xz" in capsys.readouterr().err
