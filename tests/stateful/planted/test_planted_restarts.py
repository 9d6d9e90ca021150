"""The tests of what a restart keeps find each bug planted in what holders are told of, keep and tell again.

Every fifth bug is planted with ``-m thorough``, the others with ``-m slow``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.planted_bugs import PlantedBug
from simulation.test_planted_bugs import copy_package, plant

TESTS = Path(__file__).resolve().parents[2]

PLANTED_RESTARTS = (
    PlantedBug(
        "a pin that nobody is told of",
        "core/tree/pins.py",
        "            self._forest.journal.add(PinOp(tokens, ttl_s, root.namespace))\n",
        "            pass\n",
    ),
    PlantedBug(
        "an end of a pin that nobody is told of",
        "core/tree/pins.py",
        "        forest.journal.add(UnpinOp(pin.tokens, root.namespace))\n",
        "",
    ),
    PlantedBug(
        "retention that was given anew and is told as it was before",
        "core/tree/forest.py",
        "        self.note_retention(node)\n",
        "",
    ),
    PlantedBug(
        "retention that records leave out",
        "core/tree/block_records.py",
        "form, said = form | _IS_RETAINED, _RETENTION.pack(*retention)",
        "said = b''",
    ),
    PlantedBug(
        "retention without its end",
        "core/cache/adopt_blocks.py",
        "None if duration_s == math.inf else duration_s",
        "None",
    ),
    PlantedBug(
        "a quota that is told once, before the one that makes room for it",
        "client/ledger.py",
        "list(self._quotas.values()) * 2",
        "reversed(list(self._quotas.values()))",
    ),
    PlantedBug(
        "a quota from the holder that later lives of the pool do not get",
        "service/pools/table.py",
        "                self.quotas.keep(self.shape.name, op)\n",
        "                pass\n",
    ),
    PlantedBug(
        "quotas that a new holder is not told of",
        "service/quotas.py",
        "            cache.journal.add(SetQuotaOp(quota.namespace, quota.blocks, quota.sequences))\n",
        "            pass\n",
    ),
    PlantedBug(
        "more quotas by a Step than the service allows",
        "service/pools/table.py",
        "                    refused[index] = error\n",
        "                    pass\n",
    ),
    PlantedBug(
        "a dropped branch whose records stay",
        "core/tree/forest.py",
        "            self.records.forget(blocks)\n",
        "            pass\n",
    ),
    PlantedBug(
        "what a sequence took with it comes back with the part that stays of its block",
        "core/tree/surgery.py",
        "    forest.record_left(root, node)\n",
        "",
    ),
    PlantedBug(
        "a tail that its writer left and nobody has a record of",
        "core/sequences/lifecycle.py",
        "            forest.record_left(seq.root, node)\n",
        "",
    ),
    PlantedBug(
        "a journal without bound",
        "service/pools/table.py",
        "self.num_kept_notices + self.cache.journal.size_bytes // _JOURNAL_BYTES",
        "self.num_kept_notices",
    ),
)
THOROUGH_EVERY = 5


def run_tests(folder: Path) -> int:
    """The exit code of the tests over the copy in `folder`."""
    where = os.pathsep.join(map(str, (folder, TESTS.parent, TESTS)))
    options = ("-q", "-x", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "-m", "not slow")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(TESTS / "stateful" / "test_kept_over_restart.py")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": where, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert finished.returncode in (0, 1), finished.stdout + finished.stderr
    return finished.returncode


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=pytest.mark.slow if index % THOROUGH_EVERY else pytest.mark.thorough)
        for index, bug in enumerate(PLANTED_RESTARTS)
    ],
)
def test_a_planted_bug_is_found(bug: PlantedBug, tmp_path: Path) -> None:
    plant(copy_package(tmp_path), bug)
    assert run_tests(tmp_path) == 1


@pytest.mark.thorough
def test_nothing_is_found_in_an_unchanged_copy(tmp_path: Path) -> None:
    copy_package(tmp_path)
    assert run_tests(tmp_path) == 0
