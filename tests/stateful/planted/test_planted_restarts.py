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
        "retention of blocks that were handed out anew",
        "client/block_records.py",
        "                self._retained.pop(block_id, None)\n",
        "                pass\n",
    ),
    PlantedBug(
        "retention without its end",
        "client/block_records.py",
        "None if said[1] == math.inf else said[1]",
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
        "        refused |= self._beyond_quotas(ops)\n",
        "",
    ),
    PlantedBug(
        "a dropped branch that is forgotten without what locks keep of it",
        "core/tree/allocation.py",
        "            kept += node.blocks\n",
        "            pass\n",
    ),
    PlantedBug(
        "a dropped branch of which older copies are told",
        "client/block_records.py",
        "for block_id in above:\n",
        "for block_id in above[-1:]:\n",
    ),
    PlantedBug(
        "a dropped branch whose end comes back with its beginning",
        "client/block_records.py",
        "            self._forget_parted(behind, trees, tables)\n",
        "            pass\n",
    ),
    PlantedBug(
        "what is computed after it was dropped is forgotten with it",
        "client/block_records.py",
        "block_id not in kept and self._serials[block_id] <= serial",
        "block_id not in kept",
    ),
    PlantedBug(
        "what a sequence took with it comes back",
        "core/sequences/lifecycle.py",
        "        note_withdrawn(forest, seq.root.namespace, history)\n",
        "        pass\n",
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
