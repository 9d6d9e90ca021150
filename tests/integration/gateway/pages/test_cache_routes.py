"""`/v1/radixkv/cache/`, without a browser: what is told, to whom, and who may do what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from chat_stack import Watched, gateway, gibberish_engine
from tree_follower import Follower, follower
from tree_stack import TreeStack, operators_file, tree_stack
from waiting import wait_until

from radixkv import Retention, connect
from radixkv.worker.generations.text import ChatText

SECRET = "The secret of the blue ones is kept well."
PUBLIC = "What the red ones know may be told."


@pytest.fixture(scope="module")
def worker(default_model: str) -> Iterator[tuple[Watched, ChatText]]:
    with gibberish_engine(default_model) as (engine, _, text):
        yield engine, text


@pytest.fixture
def stack(worker: tuple[Watched, ChatText]) -> Iterator[TreeStack]:
    with tree_stack(*worker) as stack:
        yield stack


@pytest.fixture
def eye(stack: TreeStack) -> Iterator[Follower]:
    with follower(stack.server.address) as eye:
        eye.wait_until(lambda: eye.status.get("state") == "live")
        yield eye


# -- what is told


def test_nodes_come_and_go_and_are_counted(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC)
    eye.wait_until(lambda: len(eye.nodes) == len(stack.holder.dump()))
    assert eye.hello["is_operator"]
    eye.wait_until(lambda: bool(eye.points))
    stack.holder.evict(1000)
    eye.wait_until(lambda: not eye.nodes)


def test_who_comes_late_is_told_what_the_figures_were_before(stack: TreeStack) -> None:
    observer = stack.server.app.state.cache_view.observer()
    with follower(stack.server.address) as early:
        early.wait_until(lambda: bool(early.points))
    num_read = observer.gauges.num_read
    with follower(stack.server.address) as late:
        late.wait_until(lambda: len(late.points) >= num_read)


def test_figures_are_read_while_nobody_looks(stack: TreeStack) -> None:
    wait_until(lambda: stack.server.app.state.cache_view.observer().gauges.num_read > 0)


def test_an_eviction_is_told_by_the_event_and_not_only_by_the_next_listing(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC + "12345678")
    eye.wait_until(lambda: bool(eye.nodes))
    stack.holder.evict(1000)
    eye.wait_until(lambda: bool(eye.gone))
    assert not stack.holder.dump()


def test_texts_are_told_on_demand(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC, PUBLIC[:20] + "can be otherwise.")
    eye.wait_until(lambda: len(eye.nodes) == len(stack.holder.dump()))
    labels = eye.post("/labels", {"ids": [*eye.nodes, 10**6]}).json()["labels"]
    assert set(map(int, labels)) == set(eye.nodes)
    found = eye.post("/search", {"text": "BE TOLD"}).json()
    assert found["is_complete"]
    (deepest,) = found["ids"]
    details = eye.client.get(f"/nodes/{deepest}").json()
    assert details["above"] + details["text"] in (PUBLIC, PUBLIC[:-1])
    ((role, said),) = labels[str(deepest)]
    assert role == ""
    assert said
    assert details["text"].strip().startswith(said)


def test_tokens_that_nobody_can_spell_are_told_as_ids(stack: TreeStack, eye: Follower) -> None:
    stack.holder.release(_computed(stack, [1 << 20, 2, 3, 4]))
    eye.wait_until(lambda: bool(eye.nodes))
    assert eye.post("/labels", {"ids": list(eye.nodes)}).json()["labels"].popitem()[1] == [["", "1048576 2 3 4"]]


def test_labels_tell_who_speaks_and_none_of_what_a_template_writes(stack: TreeStack, eye: Follower) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where does <|im_end|> stand?"}]
    first, second = ([*turns, {"role": "assistant", "content": text}] for text in ("At the end.", "Nowhere, I think."))
    for messages in (first, second):
        stack.holder.release(_computed(stack, stack.text.prompt_ids(messages)))
    eye.wait_until(lambda: len(eye.nodes) == len(stack.holder.dump()))
    labels = eye.post("/labels", {"ids": list(eye.nodes)}).json()["labels"]
    told = [tuple(turn) for label in labels.values() for turn in label]
    assert {role for role, _ in told} == {"system", "user", "assistant"}
    said = " ".join(text for _, text in told)
    assert "im_start" not in said
    assert said.count("im_end") <= 1
    assert {("assistant", "At the end."), ("assistant", "Nowhere, I think.")} & set(told)


def _computed(stack: TreeStack, tokens: list[int]) -> int:
    seq = stack.holder.acquire(tokens)
    stack.holder.insert(seq.seq_id, len(tokens))
    return seq.seq_id


def test_nobody_asks_the_service_while_nobody_looks(stack: TreeStack) -> None:
    with connect(stack.service.addresses[0]) as reader:
        assert reader.event_stats().num_event_subscribers == 0
        with follower(stack.server.address) as eye:
            eye.wait_until(lambda: eye.status.get("state") == "live")
            stack.store(PUBLIC)
            eye.wait_until(lambda: bool(eye.nodes))
            wait_until(lambda: reader.event_stats().num_event_subscribers == 1)
            state = stack.server.app.state.cache_view.observer().state
            assert state.nodes
        observer = stack.server.app.state.cache_view.observer()
        wait_until(lambda: not observer.state.nodes and not reader.event_stats().num_event_subscribers)
    assert eye.hello["run"] == stack.server.app.state.cache_view.run_id


def test_several_who_look_share_one_look(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC)
    with follower(stack.server.address) as other, connect(stack.service.addresses[0]) as reader:
        other.wait_until(lambda: bool(other.nodes))
        eye.wait_until(lambda: bool(eye.nodes))
        assert other.nodes.keys() == eye.nodes.keys()
        wait_until(lambda: reader.event_stats().num_event_subscribers == 1)


def test_who_looks_does_not_hold_up_the_end_of_the_server(worker: tuple[Watched, ChatText]) -> None:
    with tree_stack(*worker) as stack, follower(stack.server.address) as eye:
        eye.wait_until(lambda: eye.status.get("state") == "live")
        stack.server.close()
        assert not stack.server.is_alive


def test_without_a_service_it_says_how_to_name_one(worker: tuple[Watched, ChatText]) -> None:
    with gateway(worker[0]) as server:
        answer = httpx.get(f"http://{server.address}/v1/radixkv/cache/events")
    assert answer.status_code == 404
    assert "--service" in answer.json()["error"]["message"]


# -- what is done


def test_a_prefix_is_pinned_and_unpinned(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC)
    eye.wait_until(lambda: bool(eye.nodes))
    (first, *_) = eye.nodes
    told = eye.post(f"/nodes/{first}/pin", {"ttl_s": 200}).json()
    (pin,) = stack.holder.pins()
    assert (told["num_tokens"], told["ttl_s"]) == (pin.num_tokens, 200)
    assert pin.ttl_s == 200
    eye.wait_until(lambda: any(row[10] for row in eye.nodes.values()))
    details = eye.client.get(f"/nodes/{first}").json()
    assert [each["num_tokens"] for each in details["pins"]] == [pin.num_tokens]
    assert eye.post(f"/nodes/{first}/unpin", {"num_tokens": pin.num_tokens}).json() == {"was_pinned": True}
    assert stack.holder.pins() == []


def test_a_pin_beyond_the_budget_is_refused_with_a_reason(stack: TreeStack, eye: Follower) -> None:
    stack.store(*(f"{number} {PUBLIC * 6}" for number in range(3)))
    eye.wait_until(lambda: len(eye.nodes) == len(stack.holder.dump()))
    answers = [eye.post(f"/nodes/{view_id}/pin", {"ttl_s": 604800}) for view_id in eye.nodes]
    refused = [answer for answer in answers if answer.status_code == 409]
    assert refused
    assert refused[0].json()["error"]["code"] == "pin_budget"


def test_one_branch_is_evicted_and_no_other(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC, SECRET)
    eye.wait_until(lambda: len(eye.nodes) == len(stack.holder.dump()))
    (found,) = eye.post("/search", {"text": "red ones"}).json()["ids"]
    freed = eye.post(f"/nodes/{found}/evict").json()["num_blocks"]
    assert freed > 0
    assert stack.holder.match(stack.text.encode(SECRET, special=False)).num_tokens > 0
    eye.wait_until(lambda: len(eye.nodes) == len(stack.holder.dump()))
    assert eye.post(f"/nodes/{found}/evict").status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/labels", {"ids": ["1"]}),
        ("/labels", {"ids": list(range(2001))}),
        ("/search", {"text": ""}),
        ("/nodes/1/pin", {"ttl_s": 0}),
        ("/nodes/1/pin", {"ttl_s": 1e9}),
        ("/nodes/1/unpin", {"num_tokens": 0}),
        ("/evict", {"num_blocks": -1}),
        ("/evict", {"num_blocks": 1, "namespace": "x"}),
    ],
)
def test_what_is_out_of_its_bounds_is_refused(stack: TreeStack, eye: Follower, path: str, body: object) -> None:
    assert eye.post(path, body).status_code == 400
    assert not stack.holder.dump()


def test_a_page_of_elsewhere_cannot_evict_unasked(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC)
    eye.wait_until(lambda: bool(eye.nodes))
    (first, *_) = eye.nodes
    for path, body in ((f"/nodes/{first}/evict", "{}"), (f"/nodes/{first}/evict", ""), ("/evict", '{"num_blocks": 9}')):
        sent = {"Content-Type": "text/plain"}
        assert eye.client.post(path, content=body, headers=sent).status_code == 415
        assert eye.client.post(path, content=body, headers=sent | {"Origin": "http://elsewhere"}).status_code == 403
    assert stack.holder.dump()


def test_what_a_range_is_worth_and_for_how_long_is_told(stack: TreeStack, eye: Follower) -> None:
    stack.store(PUBLIC)
    stack.holder.retain(stack.text.encode(PUBLIC, special=False), retention=[Retention(priority=80, duration_s=600)])
    eye.wait_until(lambda: any(row[11] == 80 for row in eye.nodes.values()))
    (first, *_) = eye.nodes
    assert 500 < eye.client.get(f"/nodes/{first}").json()["retained_s"] <= 600


# -- tenants


@pytest.fixture
def tenants(worker: tuple[Watched, ChatText], tmp_path: Path) -> Iterator[TreeStack]:
    keys = operators_file(tmp_path / "keys.toml", ("red", "blue"), ("chief",))
    with tree_stack(*worker, keys_file=keys) as stack:
        stack.store(PUBLIC, namespace="red")
        stack.store(SECRET, namespace="blue")
        yield stack


def test_nothing_of_another_tenant_is_ever_sent(tenants: TreeStack) -> None:
    with follower(tenants.server.address, "red") as red, follower(tenants.server.address, "blue") as blue:
        red.wait_until(lambda: bool(red.nodes))
        blue.wait_until(lambda: bool(blue.nodes))
        assert not red.nodes.keys() & blue.nodes.keys()
        (theirs, *_) = blue.nodes
        for path, body in (("pin", {"ttl_s": 60}), ("unpin", {"num_tokens": 4}), ("evict", {})):
            assert red.post(f"/nodes/{theirs}/{path}", body).status_code == 404
        assert red.client.get(f"/nodes/{theirs}").status_code == 404
        assert red.post("/labels", {"ids": list(blue.nodes)}).json() == {"labels": {}}
        assert red.post("/search", {"text": "secret"}).json()["ids"] == []
        assert blue.post("/search", {"text": "secret"}).json()["ids"] == [theirs]
        tenants.holder.clear("blue")
        blue.wait_until(lambda: not blue.nodes)
        tenants.store(PUBLIC + " And more.", namespace="red")
        red.wait_until(lambda: len(red.nodes) == len(tenants.holder.dump("red")))
        assert red.gone == []
    assert b"blue" not in red.raw
    assert tenants.service.addresses[0].encode() not in red.raw


def test_an_operator_sees_all_and_alone_may_make_room(tenants: TreeStack) -> None:
    with follower(tenants.server.address, "red") as red, follower(tenants.server.address, "chief") as chief:
        chief.wait_until(lambda: len(chief.nodes) == len(tenants.holder.dump()))
        refusal = red.post("/evict", {"num_blocks": 1})
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (403, "not_an_operator")
        red.wait_until(lambda: bool(red.hello))
        assert not red.hello["is_operator"]
        assert chief.post("/evict", {"num_blocks": 1000}).json()["num_blocks"] > 0
    assert tenants.holder.dump() == []


def test_nobody_sees_anything_without_a_key(tenants: TreeStack) -> None:
    for path in ("events", "nodes/1"):
        assert httpx.get(f"http://{tenants.server.address}/v1/radixkv/cache/{path}").status_code == 401
