"""What viewers of the tree are told: the same id for the same node, differences, and nothing of anybody else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from radixkv import CacheStats, PrefixCache, pack_tokens
from radixkv.core.namespaces import derived_namespace, owner_of
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.backend.pools import PoolName
from radixkv.gateway.pages.cache_view import texts
from radixkv.gateway.pages.cache_view.gauges import KEPT_S, Gauges
from radixkv.gateway.pages.cache_view.nodes import Change, Departure, TreeState
from radixkv.gateway.pages.cache_view.observer import NUM_CHANGES, CacheObserver
from radixkv.gateway.pages.cache_view.viewer import ROWS_AT_ONCE, Viewer

SIZE = 4


class Watched:
    """A cache, and its tree as it was listed last."""

    def __init__(self, num_blocks: int = 256) -> None:
        self.cache = PrefixCache(num_blocks, SIZE)
        self.state = TreeState()
        self._ids = itertools.count(1)

    def store(self, text: str, namespace: str = "default") -> None:
        tokens = [ord(letter) for letter in text]
        seq = self.cache.acquire(tokens, namespace=namespace)
        self.cache.insert(seq.seq_id, len(tokens))
        self.cache.release(seq.seq_id)

    def look(self) -> Change:
        self.state, change = self.state.advance(1.0, self.cache.dump(), self._ids)
        return change

    def history(self, view_id: int) -> str:
        return bytes(self.state.history(view_id)[::4]).decode()

    def ids(self) -> dict[str, int]:
        return {self.history(view_id): view_id for view_id in self.state.nodes}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_first_listing_is_all_new_and_a_second_one_is_no_change(watched: Watched) -> None:
    watched.store("aaaabbbb")
    watched.store("aaaacccc")
    first = watched.look()
    assert sorted(first.changed) == sorted(watched.ids().values())
    assert set(watched.ids()) == {"aaaa", "aaaabbbb", "aaaacccc"}
    assert watched.look() == Change(2, (), ())


def test_a_split_leaves_the_id_to_the_upper_half(watched: Watched) -> None:
    watched.store("aaaabbbbcccc")
    watched.look()
    (whole,) = watched.state.nodes
    watched.store("aaaadddd")
    change = watched.look()
    ids = watched.ids()
    assert ids["aaaa"] == whole
    assert set(change.changed) == {whole, ids["aaaabbbbcccc"], ids["aaaadddd"]}
    assert change.gone == ()
    assert [node.view_id for node in watched.state.path(ids["aaaadddd"])] == [whole, ids["aaaadddd"]]


def test_a_tail_stays_the_same_node_while_it_grows(watched: Watched) -> None:
    seq = watched.cache.acquire([1, 2, 3, 4, 5])
    watched.cache.insert(seq.seq_id, 5)
    watched.look()
    before = set(watched.state.nodes)
    watched.cache.extend(seq.seq_id, 7)
    watched.cache.insert(seq.seq_id, 7, pack_tokens([6, 7]))
    change = watched.look()
    assert set(watched.state.nodes) == before
    assert len(change.changed) == 1
    (tail,) = [node for node in watched.state.nodes.values() if node.info.is_tail]
    assert (tail.num_tokens, tail.info.num_sequences) == (3, 1)


def test_what_was_evicted_is_gone_and_its_block_is_another_node(watched: Watched) -> None:
    watched = Watched(num_blocks=2)
    watched.store("aaaabbbb")
    watched.look()
    (old,) = watched.state.nodes
    watched.store("ccccdddd")
    change = watched.look()
    assert [(one.node.view_id, one.num_blocks) for one in change.gone] == [(old, 2)]
    assert old not in watched.state.nodes
    assert len(change.changed) == 1


def test_a_leaf_that_loses_its_end_is_told_and_one_that_is_split_is_not() -> None:
    watched = Watched(num_blocks=4)
    watched.store("aaaabbbbcccc")
    watched.look()
    watched.cache.evict(1)
    (end,) = watched.look().gone
    assert end.row() == [0, "ended", 1]
    assert set(watched.ids()) == {"aaaabbbb"}
    watched.store("aaaadddd")
    assert watched.look().gone == ()


def test_a_use_and_a_pin_change_a_node(watched: Watched) -> None:
    watched.store("aaaabbbb")
    watched.look()
    watched.cache.pin(pack_tokens([ord(letter) for letter in "aaaabbbb"]), ttl=60)
    assert len(watched.look().changed) == 1
    (node,) = watched.state.nodes.values()
    assert node.info.pinned_until_s > 0
    assert node.row()[10] == round(node.info.pinned_until_s, 2)


def test_blocks_lead_to_the_nodes_that_begin_with_them(watched: Watched) -> None:
    watched.store("aaaabbbb")
    watched.look()
    (node,) = watched.state.nodes.values()
    assert [found.view_id for found in watched.state.starting_at(node.info.block_ids)] == [node.view_id]
    assert not list(watched.state.starting_at([node.info.block_ids[1]]))


# -- viewers


class Shown:
    """An observer to which a cache's listings are shown by hand, and viewers of it."""

    def __init__(self) -> None:
        self.watched = Watched()
        self.observer = CacheObserver(PoolName("127.0.0.1:1", "default"), Backend(object()))  # type: ignore[arg-type]  # asked nothing

    def look(self) -> None:
        change = self.watched.look()
        self.observer.publish(self.watched.state, change)

    def viewer(self, namespace: str | None = None) -> Viewer:
        return Viewer(self.observer, lambda name: namespace is None or owner_of(name) == namespace)

    def close(self) -> None:
        self.observer.close()


@pytest.fixture
def shown() -> Iterator[Shown]:
    shown = Shown()
    yield shown
    shown.close()


def told(viewer: Viewer, name: str) -> list[Any]:
    return [data for event, data in viewer.take() if event == name]


def test_a_viewer_is_told_all_and_then_differences(shown: Shown) -> None:
    shown.watched.store("aaaabbbb")
    shown.look()
    viewer = shown.viewer()
    (first,) = told(viewer, "tree")
    assert (first["reset"], first["done"], len(first["nodes"])) == (True, True, 1)
    assert told(viewer, "tree") == []
    shown.watched.store("aaaacccc")
    shown.look()
    shown.watched.store("aaaadddd")
    shown.look()
    (second,) = told(viewer, "tree")
    assert (second["reset"], second["gone"]) == (False, [])
    assert len(second["nodes"]) == 4
    shown.watched.cache.clear()
    shown.look()
    (third,) = told(viewer, "tree")
    assert sorted(row[0] for row in third["gone"]) == sorted(row[0] for row in second["nodes"])


def test_a_viewer_who_is_far_behind_begins_anew(shown: Shown) -> None:
    shown.watched.store("aaaa")
    shown.look()
    viewer = shown.viewer()
    told(viewer, "tree")
    for number in range(NUM_CHANGES + 1):
        shown.watched.store(f"aaaa{number:04}")
        shown.look()
    events = told(viewer, "tree")
    assert events[0]["reset"]
    assert sum(len(event["nodes"]) for event in events) == len(shown.watched.state.nodes)


def test_many_nodes_are_told_in_parts(shown: Shown) -> None:
    shown.watched = Watched(8192)
    for number in range(2 * ROWS_AT_ONCE):
        shown.watched.store(f"{number:04}")
    shown.look()
    events = told(shown.viewer(), "tree")
    assert [len(event["nodes"]) for event in events] == [ROWS_AT_ONCE, ROWS_AT_ONCE]
    assert [event["reset"] for event in events] == [True, False]
    assert [event["done"] for event in events] == [False, True]


def test_a_tenant_is_told_of_no_node_but_his_own(shown: Shown) -> None:
    for namespace in ("red", "blue", derived_namespace("red", adapter="fine"), "red2"):
        shown.watched.store(f"{namespace:12}", namespace)
    shown.look()
    viewer = shown.viewer("red")
    (event,) = told(viewer, "tree")
    own = {
        node.view_id
        for node in shown.watched.state.nodes.values()
        if node.info.namespace in ("red", "red#adapter=fine")
    }
    assert {row[0] for row in event["nodes"]} == own
    assert len(told(shown.viewer(), "tree")[0]["nodes"]) == 4
    shown.watched.cache.clear("blue")
    shown.look()
    assert told(viewer, "tree") == []


def test_a_node_that_leaves_is_told_at_once_and_to_its_owner_alone(shown: Shown) -> None:
    shown.watched.store("aaaabbbb", "red")
    shown.look()
    red, blue = shown.viewer("red"), shown.viewer("blue")
    (node,) = shown.watched.state.nodes.values()
    for viewer in (red, blue):
        list(viewer.take())
        viewer.left([Departure(node, kind="evicted")])
    assert told(red, "gone") == [{"gone": [[node.view_id, "evicted", 2]]}]
    assert told(blue, "gone") == []


def test_a_status_is_told_once(shown: Shown) -> None:
    viewer = shown.viewer()
    assert told(viewer, "status") == [shown.observer.status]
    assert told(viewer, "status") == []


# -- gauges


def stats(**changes: Any) -> CacheStats:
    return CacheStats(**(dict.fromkeys(CacheStats._fields, 0) | {"eviction": "lru"} | changes))


def test_points_are_kept_for_ten_minutes_and_each_is_told_once() -> None:
    gauges = Gauges()
    for second in range(0, int(KEPT_S) + 20, 5):
        gauges.add(float(second), stats(num_blocks=second), None)
    assert [point.num_blocks for point in gauges.since(gauges.num_read - 2)] == [KEPT_S + 10, KEPT_S + 15]
    assert gauges.since(0)[0].num_blocks == 15
    assert gauges.since(gauges.num_read) == []


def test_a_viewer_is_told_every_point_from_the_first_on_and_each_once(shown: Shown) -> None:
    viewer, late = shown.viewer(), shown.viewer()
    for count in (1, 2):
        shown.observer.gauges.add(float(count), stats(num_blocks=count), None)
        (points,) = told(viewer, "points")
        assert [point.num_blocks for point in points["points"]] == [count]
        assert told(viewer, "points") == []
    (points,) = told(late, "points")
    assert [point.num_blocks for point in points["points"]] == [1, 2]


@pytest.mark.parametrize(("num_searched", "is_complete"), [(12, True), (11, False)])
def test_a_search_that_reads_no_further_tells_so(
    num_searched: int, is_complete: bool, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_SEARCHED_TOKENS", num_searched)
    for text in ("aaaabbbb", "aaaacccc"):
        watched.store(text)
    watched.look()

    async def run(function: Callable[[], Any]) -> Any:
        return function()

    reader = SimpleNamespace(spell=lambda ids: [bytes([token_id]) for token_id in ids])
    search = texts.NodeTexts(Backend(cast(Any, reader)), run).search("AB", watched.state, lambda _: True)
    found = asyncio.run(search)
    assert found == texts.Found([watched.ids()["aaaabbbb"]], is_complete)
