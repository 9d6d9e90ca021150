"""The benchmarks' shared helper: percentiles, bars, tables and the JSON file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.common.report import Bar, Report, Summary, Table, environment, percentile, print_table, summarise, write_json


def test_percentiles_interpolate_between_neighbours() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile(list(range(101)), 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="samples is empty"):
        percentile([], 0.5)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_its_bound_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


def test_a_summary_is_in_the_scaled_unit() -> None:
    summary = summarise([1000, 3000, 2000], 1e-3)
    assert summary._replace(p99=0.0) == Summary(n=3, p50=2.0, p99=0.0, min=1.0, max=3.0)
    assert summary.p99 == pytest.approx(2.98)


@pytest.mark.parametrize(
    ("bar", "passed", "word"),
    [
        (Bar("upper", 4.0, 4.0, "x"), True, "PASS"),
        (Bar("upper", 4.1, 4.0, "x"), False, "FAIL"),
        (Bar("lower", 19.0, 20.0, "x", at_least=True), False, "FAIL"),
        (Bar("lower", 20.0, 20.0, "x", at_least=True), True, "PASS"),
        (Bar("not a number", float("nan"), 20.0), False, "FAIL"),
        (Bar("no peer", None, 20.0, "x", at_least=True, reason="the peer is missing"), False, "UNMET"),
    ],
)
def test_a_bar_says_what_was_measured_and_what_was_asked(bar: Bar, passed: bool, word: str) -> None:
    assert bar.passed is passed
    assert bar.line().startswith(word)
    assert f"{bar.bound:g}" in bar.line()
    assert bar.reason in bar.line()


def test_a_run_with_an_unmet_bar_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("example", seed=3, bars=[Bar("met", 1.0, 2.0), Bar("peer", None, 2.0, reason="no wheel")])
    assert report.finish(tmp_path / "deep" / "example.json") == 1
    written = json.loads((tmp_path / "deep" / "example.json").read_text())
    assert [bar["passed"] for bar in written["bars"]] == [True, False]
    assert written["environment"]["seed"] == 3
    assert "no wheel" in capsys.readouterr().out


def test_a_run_whose_bars_are_met_exits_with_0() -> None:
    assert Report("example", seed=0, bars=[Bar("met", 1.0, 2.0)]).finish(None) == 0


def test_a_failed_write_leaves_the_old_result(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"value": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"value": float("nan")})
    assert json.loads(path.read_text()) == {"value": 1}


def test_the_environment_names_commit_machine_versions_date_and_seed() -> None:
    record = environment(11)
    assert record["seed"] == 11
    assert record["packages"]["radixkv"]
    assert record["commit"]
    assert record["cpu"]
    assert record["python"].startswith("3.")
    assert record["date"].endswith("+00:00")


def test_a_table_is_aligned_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table("title", ("operation", "p50"), [("match", "1.00"), ("a longer name", "12,345.00")]))
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "title"
    assert len({len(line) for line in lines[1:]}) == 1
