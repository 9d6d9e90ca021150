"""The judge of the faithful benchmark: what it calls a difference, a miscount, and a history held."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.common.conversations import Histories, WorkloadMissingError, branching_order, read_trees
from bench.common.reference import ReferenceAnswer
from bench.common.stacks import Reply
from bench.faithful.follow import NUM_TOKENS, Difference, Outcome, Request, follow
from radixkv.generation.stream import Usage

REFERENCE = ReferenceAnswer(list(range(100, 100 + NUM_TOKENS)), [0.5 + index for index in range(NUM_TOKENS)])
REQUEST = Request("tree/0", [1, 2, 3, 4, 5])


class Model:
    """Says what the reference says but for `slips` (token index -> another token), and finds `held` tokens cached."""

    def __init__(self, slips: dict[int, int], held: Histories, excess: int = 0) -> None:
        self.slips = slips
        self.held = held
        self.excess = excess
        self.prompts: list[list[int]] = []

    def generate(self, prompt: list[int], num_tokens: int) -> Reply:
        self.prompts.append(list(prompt))
        start = len(prompt) - len(REQUEST.prompt)
        indices = range(start, start + num_tokens)
        token_ids = [self.slips.get(index, REFERENCE.token_ids[index]) for index in indices]
        num_computed = len(prompt) - self.held.num_held(prompt) + self.excess
        usage = Usage(len(prompt), len(prompt) - num_computed, num_tokens, num_computed + num_tokens - 1, 0.1)
        return Reply(token_ids, usage)


def judge(slips: dict[int, int], excess: int = 0) -> tuple[Outcome, Model]:
    held, outcome = Histories(), Outcome()
    model = Model(slips, held, excess)
    follow(model.generate, REQUEST, REFERENCE, held, outcome)
    return outcome, model


def test_the_reference_itself_is_found_faithful() -> None:
    outcome, model = judge({})
    assert outcome.differences == []
    assert outcome.miscounted == []
    assert outcome.num_tokens == NUM_TOKENS
    assert model.prompts == [REQUEST.prompt]


def test_after_a_difference_both_go_on_from_the_reference_token() -> None:
    outcome, model = judge({3: 7, 10: 8})
    assert outcome.differences == [
        Difference("tree/0", 3, 7, REFERENCE.token_ids[3], REFERENCE.gaps[3]),
        Difference("tree/0", 10, 8, REFERENCE.token_ids[10], REFERENCE.gaps[10]),
    ]
    assert model.prompts[1:] == [REQUEST.prompt + REFERENCE.token_ids[: index + 1] for index in (3, 10)]
    assert outcome.num_tokens == NUM_TOKENS


def test_a_difference_in_the_last_token_ends_the_request() -> None:
    outcome, model = judge({NUM_TOKENS - 1: 7})
    assert len(outcome.differences) == 1
    assert len(model.prompts) == 1


@pytest.mark.parametrize(("excess", "is_miscounted"), [(-1, True), (0, False), (1, False), (2, True)])
def test_computing_more_or_less_than_what_is_new_is_a_miscount(excess: int, is_miscounted: bool) -> None:
    outcome, _ = judge({}, excess)
    assert bool(outcome.miscounted) is is_miscounted


def test_a_history_holds_its_prefixes_and_nothing_else() -> None:
    held = Histories()
    held.add([1, 2, 3])
    held.add([1, 2, 9, 9])
    assert [held.num_held(probe) for probe in ([1, 2, 3, 4], [1, 2, 9], [2], [])] == [3, 3, 0, 0]
    assert len(held) == 5


def test_the_order_takes_every_path_once_and_goes_round_the_trees() -> None:
    order = branching_order([3, 1, 2], random.Random(1))
    assert sorted(order) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    assert [tree for tree, _ in order] == [0, 1, 2, 0, 2, 0]


def write_archive(folder: Path, documents: Sequence[object]) -> None:
    content = "\n".join(json.dumps(document) for document in documents).encode()
    with tarfile.open(folder / "oasst-trees.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("oasst-trees/en_100_tree.jsonl")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


def message(role: str, text: str, *replies: object) -> dict[str, object]:
    return {"role": role, "text": text, "replies": list(replies)}


def test_trees_are_read_as_paths_from_the_root_to_each_leaf(tmp_path: Path) -> None:
    branching = message(
        "prompter", "hello", message("assistant", "hi", message("prompter", "bye")), message("assistant", "yo")
    )
    line = message("prompter", "alone", message("assistant", "yes"))
    write_archive(
        tmp_path, [{"message_tree_id": name, "prompt": root} for name, root in (("a", branching), ("b", line))]
    )
    (tree,) = read_trees(tmp_path)
    assert tree.tree_id == "a"
    assert [[turn["content"] for turn in path] for path in tree.paths] == [["hello", "hi", "bye"], ["hello", "yo"]]
    assert [turn["role"] for turn in tree.paths[0]] == ["user", "assistant", "user"]


def test_missing_trees_are_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(WorkloadMissingError, match="--workloads"):
        read_trees(tmp_path)
