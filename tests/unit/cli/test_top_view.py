"""What is shown of a worker follows from two readings of its stats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from radixkv.cli.views.top_view import Rates, Reading, View
from radixkv.core.api import CacheStats
from radixkv.generation.metrics import worker_metrics
from radixkv.generation.request import ModelInfo
from radixkv.generation.stats import EngineCounters, EngineStats, Percentiles, WorkerStats
from radixkv.stores.breaker import BreakerState
from radixkv.stores.stats import LevelStats

NONE = Percentiles()
MODEL = ModelInfo("tiny", 100, 40, 4, (0,), has_chat_template=False)


def engine(**changes: Any) -> EngineStats:
    counts = dict.fromkeys(EngineStats._fields, 0) | {
        "time_to_first_token": NONE,
        "inter_token": NONE,
        "waited": NONE,
    }
    return EngineStats(**(counts | changes))


def cache(**changes: Any) -> CacheStats:
    return CacheStats(**(dict.fromkeys(CacheStats._fields, 0) | {"num_blocks": 100, "num_free_blocks": 100} | changes))


def reading(time_s: float, *, pool: CacheStats | None = None, **changes: Any) -> Reading:
    return Reading(time_s, WorkerStats(engine(**changes), pool))


def view(now: Reading, rates: Rates | None = None) -> View:
    return View("host:1", MODEL, now, rates)


def bar(shown: View) -> str:
    (line,) = (line for line in shown.lines() if line.startswith("pool"))
    return line.partition("[")[2].rstrip("]")


def test_rates_are_of_the_interval() -> None:
    before = reading(
        10,
        num_forwards=5,
        num_computed_tokens=1000,
        num_generated_tokens=100,
        num_prompt_tokens=900,
        num_cached_tokens=300,
    )
    now = reading(
        12,
        num_forwards=9,
        num_computed_tokens=1500,
        num_generated_tokens=140,
        num_prompt_tokens=1700,
        num_cached_tokens=500,
        num_preemptions=6,
        num_finished=3,
        num_cancelled=1,
    )
    assert Rates.between(before, now) == Rates(
        prefill_tokens=230, decode_tokens=20, requests=2, preemptions=3, hit_rate=200 / 800
    )


def test_without_new_prompts_there_is_no_hit_rate() -> None:
    rates = Rates.between(reading(0, num_forwards=1), reading(1, num_forwards=2, num_generated_tokens=8))
    assert rates is not None
    assert rates.hit_rate is None
    assert rates.prefill_tokens == 0


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (reading(0, num_forwards=9), reading(1, num_forwards=2)),
        (reading(0, num_prompt_tokens=9), reading(1, num_forwards=2)),
        (reading(1), reading(1)),
    ],
)
def test_a_worker_that_was_started_anew_has_no_rates_yet(before: Reading, now: Reading) -> None:
    assert Rates.between(before, now) is None


def test_the_pool_is_drawn_to_scale_and_adds_up() -> None:
    pool = cache(num_free_blocks=50, num_cached_blocks=25, num_evictable_blocks=13, num_private_blocks=25)
    drawn = bar(view(reading(0, pool=pool)))
    assert drawn == "#" * 12 + "=" * 6 + "-" * 6 + "." * 24


@pytest.mark.parametrize(
    "pool",
    [
        cache(),
        cache(num_free_blocks=0, num_private_blocks=100),
        cache(
            num_blocks=100_000,
            num_free_blocks=99_997,
            num_private_blocks=1,
            num_cached_blocks=2,
            num_evictable_blocks=1,
        ),
        cache(num_blocks=4, num_free_blocks=1, num_private_blocks=1, num_cached_blocks=2, num_evictable_blocks=1),
    ],
)
def test_what_is_in_the_pool_is_seen_however_little_and_the_bar_keeps_its_width(pool: CacheStats) -> None:
    drawn = bar(view(reading(0, pool=pool)))
    assert len(drawn) == 48
    assert ("#" in drawn) == bool(pool.num_private_blocks)
    assert ("-" in drawn) == bool(pool.num_evictable_blocks)
    assert ("." in drawn) == bool(pool.num_free_blocks)


def screen(shown: View) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(shown.screen())
    return capture.get()


def test_screen_text_and_json_tell_the_same() -> None:
    now = reading(
        2,
        pool=cache(num_promised_blocks=7, num_missed_parted_tokens=1600, num_missed_evicted_tokens=320),
        num_running_branches=3,
        num_queued_branches=21,
        num_pending_branches=17,
        num_parked_branches=5,
        num_preemptions=11,
        num_prompt_tokens=1000,
        num_cached_tokens=625,
        time_to_first_token=Percentiles(0.04, 0.5, 1.25),
    )
    shown = view(now, Rates(1234.4, 56.0, 1.0, 2.0, 0.5))
    text = "\n".join(shown.lines())
    for written in (text, screen(shown)):
        for part in (
            "tiny at host:1",
            "3 running, 21 waiting, 17 pending, 5 swapped",
            "1,234 prefill, 56 decode",
            "50.0% now, 62.5% since the start",
            "p50 40 ms, p90 500 ms, p99 1.25 s",
            "11 (2.0/s)",
            "7 promised, of 100 in all",
            "0 tokens new, 1,600 parted from others, 320 evicted before",
        ):
            assert part in written
    as_dict = shown.as_dict()
    assert as_dict["engine"]["num_pending_branches"] == 17
    assert as_dict["engine"]["time_to_first_token"]["p99_s"] == 1.25
    assert as_dict["cache"]["num_promised_blocks"] == 7
    assert as_dict["rates_per_second"]["decode_tokens"] == 56.0


def test_a_cache_that_cannot_be_asked_hides_nothing_else() -> None:
    shown = view(reading(0, num_running_branches=2))
    for written in ("\n".join(shown.lines()), screen(shown)):
        assert "cannot be reached" in written
        assert "2 running" in written
    assert shown.as_dict()["cache"] is None


def test_a_block_store_has_a_line_and_each_of_its_levels_another() -> None:
    disk = LevelStats(
        "disk", 4 << 30, 3 << 29, 1200, 340, {"resting": 5, "cut": 1}, 1500, {}, {"EIO": 1}, 300, 10, 20, 0.1, 0.2
    )
    remote = LevelStats("remote", unwritten={"unavailable": 7}, breaker=BreakerState.OPEN)
    counts = engine(
        num_prompt_tokens=1000,
        num_loaded_tokens=250,
        num_store_loaded_blocks=16,
        num_store_unsaved_blocks=3,
        num_saves_left_out=2,
    )
    shown = view(Reading(0, WorkerStats(counts, None, levels=(disk, remote))))
    lines = shown.lines()
    assert lines[-3:] == [
        "block store  25.0% of prompt tokens found there since the start, 16 blocks loaded; 3 wait to be saved, "
        "2 saves left out",
        "disk         1,200 blocks, 1.50 GiB of 4.00 GiB; 340 read, 6 (cut 1, resting 5) missed, 1,500 written, 0 lost, "
        "300 evicted; 1 (EIO 1) faults",
        "remote       resting after a fault (open); 0 read, 0 missed, 0 written, 7 (unavailable 7) lost, 0 evicted; 0 faults",
    ]
    assert "resting after a fault (open)" in screen(shown)
    told = json.loads(json.dumps(shown.as_dict()))["levels"]
    assert [(level["level"], level["breaker"]) for level in told] == [("disk", "closed"), ("remote", "open")]
    assert told[0]["misses"] == {"resting": 5, "cut": 1}
    assert not any(line.startswith("block store") for line in view(reading(0)).lines())


def test_speculation_is_summed_up_once_there_is_any() -> None:
    assert not [line for line in view(reading(1)).lines() if line.startswith("speculation")]
    drafted = {
        "num_generated_tokens": 300,
        "num_draws": 200,
        "drafted_tokens": {"own": 100, "recent": 100},
        "accepted_tokens": {"own": 75, "recent": 25},
        "drafted_by_depth": (120, 80),
        "accepted_by_depth": (90, 10),
        "draft_s": 1.5,
    }
    (line,) = (line for line in view(reading(1, **drafted)).lines() if line.startswith("speculation"))
    assert "1.50 tokens a step; 100 of 200 guesses drawn (own 75 of 100, recent 25 of 100), by depth 75 12 %" in line


def test_metrics_tell_guesses_by_source_and_depth() -> None:
    counters = EngineCounters()
    counters.count_draft("own", 5, 3)
    counters.count_draft("recent", 20, 0)
    gauges = dict.fromkeys(EngineStats._fields, 0)
    metrics = list(worker_metrics(WorkerStats(EngineStats(**(gauges | counters.told())), None)))
    samples = {(sample.name, *sample.labels.values()): sample.value for metric in metrics for sample in metric.samples}
    assert samples["radixkv:draft_tokens_total", "own"] == 5
    assert samples["radixkv:accepted_draft_tokens_total", "own"] == 3
    assert samples["radixkv:draft_tokens_by_depth_total", "1"] == 2
    assert samples["radixkv:draft_tokens_by_depth_total", "16"] == 5
    assert samples["radixkv:accepted_draft_tokens_by_depth_total", "3"] == 1
