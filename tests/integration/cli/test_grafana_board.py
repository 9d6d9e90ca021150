"""The board for Grafana and the alert rules: what they ask Prometheus for is what a running gateway tells."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from typing import Any

import httpx
import pytest
import yaml
from chat_stack import chat_stack
from prometheus_client.parser import text_string_to_metric_families
from stored_engine import open_store
from waiting import wait_until

from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.gateway.http.metrics import VLLM_NAMES

ASKED = re.compile(r"radixkv:[a-z0-9_]+")
WIDTH = 24


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    text = (files("radixkv.gateway") / "grafana" / "radixkv.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@pytest.fixture(scope="module")
def told_text(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a gateway tells that has answered a request, of a worker whose remote block store nobody serves."""
    nobody = partial(open_store, tmp_path_factory.mktemp("store"), remote="redis://127.0.0.1:1")
    with ExitStack() as exits:
        patch = exits.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("radixkv.stores.store._FIRST_ERASURES_S", 0.2)  # its start waits for nobody's answer
        stack = exits.enter_context(chat_stack(default_model, store=nobody))
        asked = {"model": "gibberish", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        httpx.post(f"{stack.server.url}/chat/completions", json=asked).raise_for_status()
        wait_until(lambda: bool(stack.engine.stats().levels[1].unwritten))
        told = f"http://{stack.server.address}/metrics"
        wait_until(lambda: "radixkv:store_unwritten_blocks_total" in httpx.get(told).text)  # a second old at most
        return httpx.get(told).raise_for_status().text


@pytest.fixture(scope="module")
def told(told_text: str) -> dict[str, set[str]]:
    """The series by their name, and the labels that they bear."""
    series: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(told_text):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


def queries(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def family_of(series: str) -> str:
    """What a metric is called without what its kind adds."""
    return re.sub(r"_(total|bucket|count|sum|created)$", "", series)


def test_every_series_it_asks_for_is_told(board: dict[str, Any], told: dict[str, set[str]]) -> None:
    asked = {name for query in queries(board) for name in ASKED.findall(query)}
    assert asked
    assert asked <= set(told), asked - set(told)
    variables = [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    assert {name for query in variables for name in ASKED.findall(query)} <= set(told)


def test_it_groups_by_labels_that_these_series_have(board: dict[str, Any], told: dict[str, set[str]]) -> None:
    grouped = 0
    for query in queries(board):
        for labels, rest in re.findall(r"sum by \(([^)]*)\) \((.*)\)", query):
            names = ASKED.findall(rest)
            for label in labels.split(", "):
                assert all(label in told[name] for name in names), query
                grouped += 1
    assert grouped > 5


def test_every_metric_of_ours_stands_on_a_panel(board: dict[str, Any], told: dict[str, set[str]]) -> None:
    shown = {family_of(name) for query in queries(board) for name in ASKED.findall(query)}
    ours = {family_of(name) for name in told if name.startswith("radixkv:")}
    assert len(ours) > 25
    assert ours <= shown, ours - shown


def test_the_alert_rules_ask_for_what_is_told(told: dict[str, set[str]]) -> None:
    text = (files("radixkv.gateway") / "grafana" / "alerts.yaml").read_text(encoding="utf-8")
    (group,) = yaml.safe_load(text)["groups"]
    with RoutedGenerator(["127.0.0.1:1"]) as routed:  # a gateway over services tells these, too
        routed_names = {f"{metric.name}_total" for metric in routed.collect()}
    for rule in group["rules"]:
        asked = set(ASKED.findall(rule["expr"]))
        assert asked, rule
        assert asked <= set(told) | routed_names, asked - set(told)
        assert rule["for"], rule
        assert set(rule["annotations"]) == {"summary", "description"}, rule
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 4


def test_vllms_names_say_what_ours_do(told_text: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(told_text)}
    for ours, theirs in VLLM_NAMES.items():
        values = {
            name: [(sample.name.removeprefix(name), sample.value) for sample in families[name].samples]
            for name in (ours, theirs)
        }
        assert values[ours] == values[theirs] != [], theirs
        for sample in families[theirs].samples:
            assert {"model_name", "engine"} <= set(sample.labels) <= {"model_name", "engine", "le"}
            assert sample.labels["model_name"], "boards choose by it"


def test_grafana_can_import_it(board: dict[str, Any]) -> None:
    assert isinstance(board["schemaVersion"], int)
    assert board["title"]
    assert board["uid"]
    (source,) = [variable for variable in board["templating"]["list"] if variable["type"] == "datasource"]
    assert source["query"] == "prometheus"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == f"${{{source['name']}}}"
            assert not any("datasource" in target for target in panel["targets"]), "a query asks its panel's source"
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs) > 0


def test_no_panel_covers_another(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
