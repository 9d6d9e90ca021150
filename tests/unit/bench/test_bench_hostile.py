"""How the bench of hostile neighbours judges, and what it sends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.hostile.attacker import ATTACKS, find_attack
from bench.hostile.bodies import _fill, _Walk
from bench.hostile.neighbour import CHAT, WAYS, Sample
from bench.hostile.stack import keys_text, write_keys
from bench.hostile.trial import MORE_S, Trial, bound_s, first_token_s
from bench.hostile.wire import Attack
from radixkv.net.tenants import KeyRing

ATTACK = Attack("a", lambda *_: Counter(), frozenset({"400"}), "400")


def samples(*took_s: float, way: str = CHAT, failure: str = "") -> list[Sample]:
    return [Sample(way, float(number), each, failure) for number, each in enumerate(took_s)]


def test_the_bound_is_twice_the_undisturbed_p99_or_50_ms_more() -> None:
    assert bound_s(samples(0.01, 0.01), CHAT) == pytest.approx(0.01 + MORE_S)
    assert bound_s(samples(0.3, 0.3), CHAT) == pytest.approx(0.6)


def trial(**changes: object) -> Trial:
    made = Trial(
        ATTACK, samples(0.01), samples(0.02), Counter({"400": 3}), {"worker": 100 << 20}, {"worker": 120 << 20}
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_an_attack_that_nobody_feels_has_no_faults() -> None:
    assert trial().faults(0.99) == []
    assert not trial().is_lasting


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"disturbed": samples(0.02, 0.5)}, "first token"),
        ({"disturbed": samples(0.02, failure="HTTP 503")}, "failed"),
        ({"outcomes": Counter({"400": 1, "500": 1})}, "should not be"),
        ({"outcomes": Counter({"broken after 1 s": 1})}, "should not be"),
        ({"outcomes": Counter()}, "no answer"),
        ({"peak_bytes": {"worker": 300 << 20}}, "MiB"),
        ({"peak_bytes": {"worker": 1, "children": 300 << 20}}, "MiB"),
        ({"has_recovered": False}, "not served as before"),
        ({"ended": ["worker ended"]}, "worker ended"),
    ],
)
def test_every_bar_can_be_missed(changes: dict[str, object], word: str) -> None:
    assert word in " ".join(trial(**changes).faults(0.99))


def test_a_way_that_was_not_asked_has_no_time() -> None:
    assert first_token_s(samples(0.5), WAYS[-1], 0.5) == 0.0


def test_attacks_have_names_of_their_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert find_attack(ATTACKS[3].name) is ATTACKS[3]
    with pytest.raises(LookupError):
        find_attack("nobody's")


def test_every_list_and_map_of_a_schema_is_found_and_filled() -> None:
    part = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
    turn = {
        "type": "object",
        "properties": {
            "role": {"enum": ["user"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]},
        },
        "required": ["role"],
    }
    body = {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "messages": {"type": "array", "items": {"$ref": "#/components/schemas/Turn"}},
            "bias": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        "required": ["model", "messages"],
    }
    places = list(_Walk({"Turn": turn}, "small").places(body))
    assert {name for name, _, _ in places} == {".messages[]", ".messages[].content[]", ".bias{}"}
    for _, made, filling in places:
        sent = json.loads(_fill(made, filling, 4096))
        assert sent["model"] == "small"
        assert 2000 < len(json.dumps(sent, separators=(",", ":"))) < 8000


def test_the_keys_file_is_one_that_the_servers_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    write_keys(path)
    ring = KeyRing(path)
    limited, reader = ring.find("limited"), ring.find("team")
    assert limited is not None
    assert limited.limits.max_concurrent == 1
    assert reader is not None
    assert (reader.namespace, reader.roles) == ("team-x", frozenset({"reader"}))
    assert path.read_text() == keys_text()
