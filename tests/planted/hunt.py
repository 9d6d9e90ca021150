"""Plants bugs one at a time, runs the tests that must find each, and prints a line of JSON per bug.

    python -m tests.planted.hunt NAME …        those, or all; with none planted first

A line holds the name of the bug ("" where none is planted) and the tests that do not notice it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from bench.mutants.planting import ROOT, prepare, run_planted

from .planted_bugs import PLANTED_BUGS, PlantedBug

TIMEOUT_S = 120.0


def planted(bug: PlantedBug) -> bytes:
    """The module with the bug."""
    source = (ROOT / "radixkv" / bug.module).read_text(encoding="utf-8")
    assert source.count(bug.text) == 1, f"{bug.module} has {source.count(bug.text)} of {bug.text!r}"
    return source.replace(bug.text, bug.bug).encode()


def survivors(bug: PlantedBug, log: Path) -> list[str]:
    """Those of its tests that do not notice it, or are not there."""
    path = f"radixkv/{bug.module}"
    return [
        test
        for test in bug.tests
        if run_planted(path, planted(bug), [f"tests/{test}"], log, TIMEOUT_S) not in {"found", "hangs"}
    ]


def main() -> None:
    """Hunt for each."""
    chosen = [bug for bug in PLANTED_BUGS if not sys.argv[1:] or bug.name in sys.argv[1:]]
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        tests = sorted({f"tests/{test}" for bug in chosen for test in bug.tests})
        module = "radixkv/__init__.py"
        verdict = run_planted(module, (ROOT / module).read_bytes(), tests, log, TIMEOUT_S * len(chosen))
        print(json.dumps(["", [] if verdict == "survives" else [log.read_text()]]), flush=True)
        for bug in chosen:
            print(json.dumps([bug.name, survivors(bug, log)]), flush=True)


if __name__ == "__main__":
    main()
