"""Each planted bug is found by each test that is named beside it, and none where none was planted.

A few are planted with ``-m thorough``, the others with ``-m slow``.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.mutants.planting import ROOT

from .hunt import planted
from .planted_bugs import PLANTED_BUGS, PlantedBug

HUNT_TIMEOUT_S = 1700.0
pytestmark = pytest.mark.timeout(1800)  # the first waits for all


@pytest.fixture(scope="module")
def survivors(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Of each bug that was chosen the tests that do not notice it: one process hunts for all of them."""
    chosen = [item.callspec.params["bug"].name for item in request.session.items if _plants_a_bug(item)]
    hunt = [sys.executable, "-m", "tests.planted.hunt", *chosen]
    told = subprocess.run(hunt, cwd=ROOT, capture_output=True, text=True, timeout=HUNT_TIMEOUT_S, check=False)
    assert told.returncode == 0, told.stderr
    return dict(json.loads(line) for line in told.stdout.splitlines())


def _plants_a_bug(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.function is test_the_tests_find


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=pytest.mark.thorough if bug.is_quick else pytest.mark.slow)
        for bug in PLANTED_BUGS
    ],
)
def test_the_tests_find(bug: PlantedBug, survivors: dict[str, list[str]]) -> None:
    assert survivors[""] == [], "they fail where nothing is planted"
    assert survivors[bug.name] == []


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_every_bug_stands_where_its_code_does(bug: PlantedBug) -> None:
    assert planted(bug) != (ROOT / "radixkv" / bug.module).read_bytes()
