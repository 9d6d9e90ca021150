"""What shapes of requests say of prompts that they share."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from radixkv import pack_tokens
from radixkv.cli import main
from radixkv.gateway.http.recording import Recording
from radixkv.gateway.pages.replay import shapes_of_branches
from radixkv.simulate import Shape, branchings, read_trace, shapes_of

ROW = {"timestamp": 0, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]}


def common(left: list[int], right: list[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_prompt_parts_from_the_earlier_history_that_shares_most_with_it(seed: int) -> None:
    source = random.Random(seed)
    histories: list[tuple[str, list[int], list[int]]] = []
    for _ in range(60):
        namespace = source.choice("ab")
        prompt = [source.randrange(2) for _ in range(source.randint(1, 12))]
        histories.append((namespace, prompt, [source.randrange(2) for _ in range(source.randint(0, 5))]))
    found = branchings((name, pack_tokens(prompt), pack_tokens(reply)) for name, prompt, reply in histories)
    for place, (name, prompt, _) in enumerate(histories):
        lengths = {
            earlier: common(prompt, histories[earlier][1] + histories[earlier][2])
            for earlier in range(place)
            if histories[earlier][0] == name
        }
        most = max(lengths.values(), default=0)
        assert found[place].num_shared == most
        assert found[place].parent is None if most == 0 else lengths[found[place].parent or 0] == most


def mooncake(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_mooncake_s_blocks_and_replies_become_tokens(tmp_path: Path) -> None:
    later = {"timestamp": 1500, "input_length": 1300, "output_length": 3, "hash_ids": [1, 2, 3]}
    other = {"timestamp": 1600, "input_length": 600, "output_length": 3, "hash_ids": [1, 9]}
    same = {"timestamp": 1700, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 3]}
    shapes = shapes_of(read_trace(mooncake(tmp_path, [ROW, later, other, same])))
    assert shapes[0] == Shape(0.0, 1024, 7, None, 0)
    assert shapes[1] == Shape(1.5, 1300, 3, 0, 1024)
    assert (shapes[2].prompt_tokens, shapes[2].shared_tokens) == (600, 512)
    assert (shapes[3].parent, shapes[3].shared_tokens) == (1, 1300)


def test_texts_share_to_the_token(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a" * 40 + "\n" + "a" * 36 + "bbbb\n")
    assert shapes_of(read_trace(path))[1].shared_tokens == 9


def test_the_command_writes_what_the_page_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "shapes.jsonl"
    assert main(["replay", str(mooncake(tmp_path, [ROW, ROW | {"timestamp": 10}])), "--shapes", str(into)]) == 0
    assert "2 requests" in capsys.readouterr().out
    rows = [json.loads(line) for line in into.read_text().splitlines()]
    assert rows[1] == Shape(0.01, 1024, 7, 0, 1024)._asdict()


@pytest.mark.parametrize("length", ["7", -1, 1.5])
def test_a_reply_s_length_that_is_none_is_refused(tmp_path: Path, length: object) -> None:
    from radixkv.simulate import TraceError

    with pytest.raises(TraceError, match="line 1: output_length"):
        read_trace(mooncake(tmp_path, [ROW | {"output_length": length}]))


# -- what a gateway records


def record(recording: Recording, prompt: list[int], replies: list[list[int]], at_s: float, **whose: str) -> None:
    recorded = recording.begin(whose.get("namespace", "red"), whose.get("place", ""), at_s, 9, pack_tokens(prompt))
    for branch, reply in enumerate(replies):
        for number, token_id in enumerate(reply):
            recording.extend(recorded, branch, (token_id,), at_s + 1 + number / 4)
    recorded.num_found = 1


def test_a_recording_tells_drafts_and_turns_of_its_namespace_alone() -> None:
    recording = Recording()
    record(recording, [1, 2, 3], [[4, 5], [4, 6]], 10.0)
    record(recording, [1, 2, 3], [[7]], 10.5, namespace="blue")
    record(recording, [1, 2, 3, 4, 6, 9], [[1]], 12.0)
    record(recording, [1, 2, 3, 4, 6, 9], [[1]], 13.0, place="#adapter=french")
    shapes = shapes_of_branches(recording.branches("red"))
    assert [shape.arrival_s for shape in shapes] == [0.0, 0.0, 2.0, 3.0]
    assert [(shape.parent, shape.shared_tokens) for shape in shapes] == [(None, 0), (0, 3), (1, 5), (None, 0)]
    assert [shape.found_tokens for shape in shapes] == [1, None, 1, 1]
    assert [shape.generated_tokens for shape in shapes] == [2, 2, 1, 1]
    assert len(shapes_of_branches(recording.branches("blue"))) == 1
    assert recording.branches("green") == []
    assert recording.step_s("red") == 0.25
    assert recording.step_s("blue") is None


def test_a_recording_is_bounded_in_requests_and_in_tokens() -> None:
    by_requests = Recording(max_requests=3)
    for number in range(10):
        record(by_requests, [number], [[1]], float(number))
    assert [shape.arrival_s for shape in by_requests.branches("red")] == [7.0, 8.0, 9.0]
    by_tokens = Recording(max_tokens=100)
    first = by_tokens.begin("red", "", 0.0, 9, pack_tokens(range(60)))
    record(by_tokens, list(range(50)), [[1]], 1.0)
    by_tokens.extend(first, 0, (1, 2), 1.5)  # it had to go: nothing comes of it
    assert [branch.arrival_s for branch in by_tokens.branches("red")] == [1.0]
    record(by_tokens, list(range(40)), [[1] * 9], 2.0)
    assert len(by_tokens.branches("red")) == 2
    record(by_tokens, list(range(101)), [[1]], 3.0)
    assert by_tokens.branches("red") == []
