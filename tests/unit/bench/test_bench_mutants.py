"""What `bench.mutants` plants is a bug of one line's, and what a run with it says is what its tests say."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.mutants.mutations import mutations
from bench.mutants.planting import ROOT
from bench.mutants.run import drawn

FUNCTION = b'''
LIMIT = 3
def judge(values: list[int] = [], most: int = LIMIT) -> bool:
    """Words."""
    if not values or most < 1:
        raise ValueError(f"{most + 1} is {1 + 2}")
    self.last = values[1:]
    _LOG.info("%d", 7)
    return max(values) + 1 <= most
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if not values or most < 1", "if (not (not values or most < 1))"),
        ("if not values or most < 1", "if (not values and most < 1)"),
        ("if not values or most < 1", "if (not values)"),
        ("if not values or most < 1", "if values or most < 1"),
        ("if not values or most < 1", "if not values or (most <= 1)"),
        ('raise ValueError(f"{most + 1} is {1 + 2}")', "pass"),
        ("self.last = values[1:]", "pass"),
        ("values[1:]", "values[:]"),
        ("max(values) + 1 <= most", "None"),
        ("max(values) + 1", "(max(values) - 1)"),
        ("max(values)", "min(values)"),
        ("<= most", "< most)"),
    ],
)
def test_a_change_is_one_that_a_developer_could_have_made(before: str, after: str) -> None:
    planted = [mutation.planted(FUNCTION).decode() for mutation in mutations(FUNCTION)]
    wanted = (
        FUNCTION.decode()
        .replace(before, after)
        .replace("return max(values) + 1 < most)", "return (max(values) + 1 < most)")
    )
    assert wanted in planted


def test_what_is_only_worded_annotated_or_run_at_import_is_left_alone() -> None:
    planted = [mutation.planted(FUNCTION).decode() for mutation in mutations(FUNCTION)]
    for kept in (
        "LIMIT = 3\n",
        "def judge(values: list[int] = [], most: int = LIMIT) -> bool:\n",
        '_LOG.info("%d", 7)',
    ):
        assert all(kept in each for each in planted)
    assert not any("ValueError" in each and 'f"{most + 1} is {1 + 2}"' not in each for each in planted)


@pytest.mark.parametrize("package", ["client", "service"])
def test_every_change_of_a_package_is_still_python_and_says_something_else(package: str) -> None:
    for path in sorted((ROOT / "radixkv" / package).glob("*.py")):
        source = path.read_bytes()
        unchanged = ast.dump(ast.parse(source))
        for mutation in mutations(source)[::10]:
            assert ast.dump(ast.parse(mutation.planted(source))) != unchanged


def test_a_seed_draws_the_same_changes_again() -> None:
    assert drawn(["client"], 5, 8) == drawn(["client"], 5, 8) != drawn(["client"], 6, 8)


@pytest.mark.parametrize(
    ("bug", "test", "verdict"),
    [
        ("    return tuple(tokens)\n", "test_it", "survives"),
        ("    return ()\n", "test_it", "found"),
        pytest.param("    return ()\n", "test_that_was_renamed", "not run", marks=pytest.mark.thorough),
        pytest.param("    return (\n", "test_it", "found", marks=pytest.mark.thorough),
    ],
)
def test_tests_run_with_the_text_that_is_planted_and_no_file_is_touched(
    tmp_path: Path, bug: str, test: str, verdict: str
) -> None:
    told = tmp_path / "test_it.py"
    told.write_text("from radixkv.client.notices import planted\ndef test_it(): assert planted([1]) == (1,)\n")
    command = (
        "import sys; from pathlib import Path; from bench.mutants.planting import run_planted;"
        "module, source, test, log = sys.argv[1:];"
        "print(run_planted(module, source.encode(), [test], Path(log), 300))"
    )
    module, log = "radixkv/client/notices.py", tmp_path / "log"
    source = (ROOT / module).read_text(encoding="utf-8") + f"\n\ndef planted(tokens):\n{bug}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", command, module, source, f"{told}::{test}", str(log)],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == verdict, log.read_text()
