"""Replay: traces in every format, rates that an independent model gets as well, and what a person sees of it."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from radixkv import InvalidArgumentError
from radixkv.cli import main
from radixkv.core.eviction import POLICIES
from radixkv.simulate import Trace, TraceError, parse_capacities, read_trace, replay, trace_of_texts

ROOT = Path(__file__).resolve().parents[3]


def mooncake(folder: Path, rows: Sequence[tuple[int, int, list[int]]], name: str = "trace.jsonl") -> Path:
    path = folder / name
    records = [
        {"timestamp": time, "input_length": length, "output_length": 1, "hash_ids": ids} for time, length, ids in rows
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def chats(folder: Path, num_requests: int, seed: int = 0) -> Path:
    """Chats of some length that grow and come back, with a last block that is seldom full."""
    source, next_id, rows = random.Random(seed), 1, []
    open_chats: list[list[int]] = []
    for number in range(num_requests):
        if not open_chats or source.random() < 0.3:
            open_chats.append([0])
        chat = source.choice(open_chats)
        num_new = source.randint(1, 4)
        ids = [*chat, *range(next_id, next_id + num_new)]
        next_id += num_new
        is_full = source.random() < 0.3
        length = 512 * len(ids) - (0 if is_full else source.randint(1, 511))
        chat[:] = ids if is_full else ids[:-1]
        rows.append((number * 1000, length, ids))
    return mooncake(folder, rows)


def infinite_rate(trace: Trace) -> float:
    """Blocks seen before, from a set of prefixes."""
    seen: set[tuple[int, ...]] = set()
    hit = total = 0
    for request, row in zip(trace.requests, trace.block_numbers(), strict=True):
        prefixes = [tuple(row[: end + 1]) for end in range(len(row))]
        num_found = next((index for index, prefix in enumerate(prefixes) if prefix not in seen), len(prefixes))
        hit += min(request.num_tokens, num_found * trace.tokens_per_block)
        total += request.num_tokens
        seen.update(prefixes)
    return hit / total


def lru_rate(trace: Trace, num_blocks: int) -> float:
    """LRU over single blocks, the end of a prompt older than its beginning."""
    order: dict[int, None] = {}
    hit = total = 0
    for request, row in zip(trace.requests, trace.block_numbers(), strict=True):
        num_found = next((index for index, block in enumerate(row) if block not in order), len(row))
        hit += min(request.num_tokens, num_found * trace.tokens_per_block)
        total += request.num_tokens
        for block in reversed(row[:num_blocks]):
            order.pop(block, None)
            order[block] = None
        while len(order) > num_blocks:
            del order[next(iter(order))]
    return hit / total


def test_mooncake_s_blocks_become_blocks_of_the_cache(tmp_path: Path) -> None:
    trace = read_trace(mooncake(tmp_path, [(0, 1024, [4, 5]), (1500, 1100, [4, 5, 6]), (2000, 1024, [4, 5])]))
    assert [request.num_tokens for request in trace.requests] == [1024, 1100, 1024]
    assert [request.time_s for request in trace.requests] == [0.0, 1.5, 2.0]
    assert [list(row) for row in trace.block_numbers()] == [[0, 1], [0, 1, 2], [0, 1]]
    assert (trace.num_blocks, trace.longest_blocks, trace.tokens_per_block) == (3, 3, 512)
    rate = replay(trace, "lru", 3)
    assert (rate.num_tokens, rate.num_hit_tokens) == (3148, 1024 + 1024)


def test_an_infinite_cache_and_lru_find_what_a_model_of_them_finds(tmp_path: Path) -> None:
    trace = read_trace(chats(tmp_path, 300))
    assert replay(trace, "infinite", 1).rate == pytest.approx(infinite_rate(trace))
    for num_blocks in (100, 200, 400):  # whole leaves go, so a small cache holds a little less
        assert replay(trace, "lru", num_blocks).rate == pytest.approx(lru_rate(trace, num_blocks), abs=0.02)


def test_no_policy_passes_the_one_that_knows_the_future_nor_that_one_a_cache_without_end(tmp_path: Path) -> None:
    trace = read_trace(chats(tmp_path, 400, seed=5))
    infinite = replay(trace, "infinite", 1).rate
    for num_blocks in (30, 100):
        belady = replay(trace, "belady", num_blocks).rate
        assert belady <= infinite
        for policy in POLICIES:
            assert replay(trace, policy, num_blocks).rate <= belady + 0.005, policy


def test_the_warm_up_is_served_and_not_counted(tmp_path: Path) -> None:
    trace = read_trace(mooncake(tmp_path, [(0, 512, [1]), (1, 512, [2]), (2, 512, [1]), (3, 512, [3])]))
    assert replay(trace, "lru", 8).rate == 0.25
    assert replay(trace, "lru", 8, warm_up=0.5).rate == 0.5


def test_a_prompt_longer_than_the_cache_is_served_as_far_as_it_fits(tmp_path: Path) -> None:
    trace = read_trace(mooncake(tmp_path, [(0, 2048, [1, 2, 3, 4]), (1, 2048, [1, 2, 3, 4])]))
    assert replay(trace, "hit-density", 2).num_hit_tokens == 1024


def test_conversations_make_a_request_for_each_reply(tmp_path: Path) -> None:
    line = [
        {"role": "user", "content": "a" * 58},
        {"role": "assistant", "content": "b" * 53},
        {"role": "user", "content": "more"},
    ]
    (tmp_path / "1.json").write_text(json.dumps({"messages": line}))
    reply = {"role": "assistant", "text": "yes", "replies": []}
    tree = {"prompt": {"role": "prompter", "text": "why?", "replies": [reply, reply | {"text": "no"}]}}
    (tmp_path / "2.jsonl").write_text(json.dumps(tree) + "\n")
    trace = read_trace(tmp_path)
    assert len(trace.requests) == 4
    assert [len(row) for row in trace.block_numbers()] == [2, 3, 1, 1]
    assert replay(trace, "lru", 16).num_hit_tokens == 16 + trace.requests[3].num_tokens


def test_prompts_are_read_one_per_line_as_text_or_as_json(tmp_path: Path) -> None:
    plain, as_json = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    plain.write_text("tell me a story\n\ntell me a story\n")
    as_json.write_text('"tell me a story"\n{"prompt": "tell me a story"}\n{"input": "tell me a story"}\n')
    assert [len(read_trace(path).requests) for path in (plain, as_json)] == [2, 3]
    assert replay(read_trace(plain), "lru", 4).rate == 0.5


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no request"),
        (
            '{"hash_ids": [1, 2], "input_length": 512, "timestamp": 0}\n',
            r"line 1: 512 tokens have 1 blocks .* 2 hash_ids",
        ),
        ('{"hash_ids": [1], "input_length": 512, "timestamp": 0}\n{"hash_ids"\n', r"line 2: no JSON"),
        ('{"hash_ids": [-1], "input_length": 5, "timestamp": 0}\n', r"line 1: hash_ids, input_length and timestamp"),
        ('{"question": "what?"}\n', r"line 1: neither a text, nor an object with hash_ids, prompt, input or text"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=complaint):
        read_trace(path)


def test_a_folder_without_conversations_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no \.json or \.jsonl file"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="is not there"):
        read_trace(tmp_path / "nothing")
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(TraceError, match=r"x\.json, conversation 1: no list or tree of messages"):
        read_trace(tmp_path)


def test_capacities_are_shares_or_blocks() -> None:
    assert parse_capacities("1%, 50%,7", 1000) == [10, 500, 7]
    assert parse_capacities("0.01%", 100) == [1]
    for text in ("", "0%", "-5", "x", "1.5", "inf%"):
        with pytest.raises(InvalidArgumentError, match="--capacity"):
            parse_capacities(text, 100)


def test_texts_share_prefixes_as_far_as_they_agree() -> None:
    trace = trace_of_texts("texts", ["a" * 130, "a" * 70])
    assert [list(row) for row in trace.block_numbers()] == [[0, 1, 2], [0, 3]]


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, points = chats(tmp_path, 120), tmp_path / "points.json"
    arguments = ["--policy", "hit-density,lru", "--capacity", "10%,25%", "--json", str(points), "--warm-up", "0.5"]
    assert main(["replay", str(trace), *arguments]) == 0
    output = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line}
    written = json.loads(points.read_text())
    assert written["num_requests"] == 120
    for policy in ("hit-density", "lru", "belady", "infinite"):
        rates = [f"{point['hit_rate']:.4f}" for point in written["points"] if point["policy"] == policy]
        assert rows[policy] == rates
        assert len(rates) == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "mru"], "--policy is 'mru'; it must be one of adaptive, hit-density, lru"),
        (["--capacity", "0%"], "--capacity is '0%'; it must be a share such as 5%"),
        (["--warm-up", "1"], "--warm-up is 1.0; it must be at least 0 and below 1"),
        (["--block-size", "0"], "--block-size is 0; it must be at least 1"),
        (
            ["--json", "/no/such/folder/x.json"],
            "--json is '/no/such/folder/x.json'; it must be in a folder that is there",
        ),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("tell me\n")
    assert main(["replay", str(path), *arguments]) == 1
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_an_interrupt_ends_it_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("radixkv.simulate.replay", interrupted)
    assert main(["replay", str(chats(tmp_path, 5)), "--json", str(tmp_path / "points.json")]) == 130
    assert not (tmp_path / "points.json").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed (radixkv[plot])"
)
def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    assert main(["replay", str(chats(tmp_path, 60)), "--capacity", "10%,50%", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_readme_s_example_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(
        r"^\$ radixkv (replay conversation_trace\.jsonl.*)$",
        (ROOT / "radixkv" / "core" / "README.md").read_text(),
        re.M,
    )
    chats(tmp_path, 80).rename(tmp_path / "conversation_trace.jsonl")
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
