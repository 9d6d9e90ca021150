"""A punctured point has no value, every other keeps its own."""

from __future__ import annotations

import random

from radixkv.stores.secrets.cover import DEPTH, Cover, CoverNode

WHOLE = Cover([CoverNode(0, 0, bytes(32))])
END = 1 << DEPTH


def some_points(seed: int) -> list[int]:
    """Neighbours, ends and points far apart."""
    draw = random.Random(seed)
    return [0, 1, 2, 3, END - 1, END - 2, END // 2, END // 2 - 1, *(draw.randrange(END) for _ in range(12))]


def test_a_punctured_point_has_no_value_and_every_other_keeps_its_own() -> None:
    points = some_points(1)
    values = {point: WHOLE.leaf(point) for point in points}
    assert len(set(values.values())) == len(points)
    assert None not in values.values()
    random.Random(2).shuffle(points)
    cover = WHOLE
    for index, point in enumerate(points, 1):
        cover = cover.puncture(point)
        assert [node.start for node in cover.nodes] == sorted(node.start for node in cover.nodes)
        assert {each for each in values if cover.leaf(each) is None} == set(points[:index])
        assert all(cover.leaf(each) == values[each] for each in points[index:])
        assert cover.puncture(point) is cover


def test_no_seed_of_a_cover_is_on_the_way_to_a_punctured_point() -> None:
    points = some_points(3)
    cover = WHOLE
    for point in points:
        cover = cover.puncture(point)
    assert not [point for point in points for node in cover.nodes if node.start <= point < node.end]
    assert sum(node.end - node.start for node in cover.nodes) == END - len(points)


def test_neighbours_share_their_way() -> None:
    cover = WHOLE
    for point in range(1000, 1512):
        cover = cover.puncture(point)
    assert len(cover.nodes) <= DEPTH + 10


def test_first_is_the_first_point_that_is_left() -> None:
    cover = WHOLE
    for point in (8, 9, 10, 15):
        cover = cover.puncture(point)
    assert [cover.first(start, 16) for start in (0, 7, 8, 10, 11, 14, 15)] == [0, 7, 11, 11, 11, 14, None]
    assert cover.first(15, 17) == 16


def test_an_intersection_lacks_what_either_lacks() -> None:
    for seed in range(8):
        points = some_points(seed)
        left, right = WHOLE, WHOLE
        for point in points[::2]:
            left = left.puncture(point)
        for point in points[1::3]:
            right = right.puncture(point)
        both = WHOLE
        for point in {*points[::2], *points[1::3]}:
            both = both.puncture(point)
        assert left.intersect(right).nodes == right.intersect(left).nodes == both.nodes
        assert left.intersect(WHOLE).nodes == left.nodes
