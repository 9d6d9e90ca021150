"""Map of the tests that run each line: a pytest plugin that writes it, for `bench.mutants`.

    RADIXKV_COVERING=unit.json python -m pytest -p bench.mutants.covering tests/unit

The file holds `{"seconds": {test: float}, "lines": {"radixkv/…py": {line: [test, …]}}}`, for tests
that passed alone. Needs `coverage`.
Lines run by another process are not recorded. Lines run by a module's fixture count for its first test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "radixkv"
_cover = coverage.Coverage(data_file=None, source=[str(PACKAGE)], config_file=False, omit=["*/v1/*"])
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_configure() -> None:
    _cover.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _cover.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    _cover.stop()
    data, lines = _cover.get_data(), {}
    for path in sorted(data.measured_files()):
        tests = {
            line: sorted({test for test in found if test in _seconds and test not in _failed})
            for line, found in data.contexts_by_lineno(path).items()
        }
        lines[str(Path(path).relative_to(PACKAGE.parent))] = {line: found for line, found in tests.items() if found}
    Path(os.environ["RADIXKV_COVERING"]).write_text(json.dumps({"seconds": _seconds, "lines": lines}), encoding="utf-8")
