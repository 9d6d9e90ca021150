"""Real loads as traces of prefixes: Mooncake's, and texts of the workloads folder in several orders of arrival.

Only Mooncake's and the coding agent's requests have times of arrival; the other orders are our assumptions:

    grouped     as in the files: task after task, tree after tree
    turns       one request of each task, chat or session after another, round by round
    shuffled    drawn at random, a chat's own requests in their order
"""

from __future__ import annotations

import json
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bench.common.conversations import WorkloadMissingError
from radixkv.simulate import Trace, read_trace, trace_of_texts
from radixkv.simulate.parsing import tree_requests

__all__ = [
    "MOONCAKE",
    "WORKLOADS",
    "agent_sessions",
    "chat_trees",
    "few_shot_questions",
    "in_turns",
    "read_workload",
]

MOONCAKE = "Mooncake conversation"
NUM_SHOTS = 8

Groups = list[list[str]]
"""Requests of one task, chat or session each, in their order."""


def read_workload(name: str, folder: Path, seed: int) -> Trace:
    """A workload by its name in `WORKLOADS`.

    Raises:
        WorkloadMissingError: its archive is missing in the folder.
    """
    return WORKLOADS[name](folder, random.Random(seed))


def _members(folder: Path, archive: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Files of an archive with this suffix, by name."""
    path = folder / f"{archive}.tar.xz"
    if not path.is_file():
        raise WorkloadMissingError(f"no {path.name} in {folder}; name its folder by --workloads")
    with tarfile.open(path, "r:xz") as files:
        members = sorted((member for member in files if member.name.endswith(suffix)), key=lambda member: member.name)
        for member in members:
            content = files.extractfile(member)
            assert content is not None, "a file with that ending is a file"
            yield member.name.rpartition("/")[2].partition(".")[0], content.read()


def _mooncake(folder: Path, _source: random.Random) -> Trace:
    ((_, content),) = _members(folder, "mooncake", "conversation_trace.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "conversation_trace.jsonl"
        path.write_bytes(content)
        return read_trace(path)


def _agent_calls(folder: Path) -> list[tuple[float, str, str]]:
    """Time in seconds, session and prompt of every call of the coding agent, by time."""
    lines = [line for _, content in _members(folder, "miniswe", ".jsonl") for line in content.splitlines()]
    calls = [json.loads(line) for line in lines]
    return sorted((call["timestamp"] / 1e6, call["session_id"], call["input"]) for call in calls)


def agent_sessions(folder: Path) -> Groups:
    """Prompts of the coding agent, by session."""
    sessions: dict[str, list[str]] = {}
    for _, session, prompt in _agent_calls(folder):
        sessions.setdefault(session, []).append(prompt)
    return list(sessions.values())


def _tasks(folder: Path) -> Groups:
    """The questions of every BIG-Bench Hard task, each after the three worked examples of its task."""
    shots = {
        name: content.decode().partition("-----\n")[2]  # the text before asks not to be used for training
        for name, content in _members(folder, "big-bench-hard", ".txt")
    }
    return [
        [
            f"{shots[name]}\n\nQ: {item['input']}\nA: Let's think step by step."
            for item in json.loads(content)["examples"]
        ]
        for name, content in _members(folder, "big-bench-hard", ".json")
    ]


def chat_trees(folder: Path) -> Groups:
    """Histories of the OpenAssistant trees, by tree."""
    ((_, content),) = _members(folder, "oasst-trees", "en_100_tree.jsonl")
    return [tree_requests(json.loads(line)["prompt"]) for line in content.splitlines()]


def few_shot_questions(folder: Path) -> Groups:
    """Every test question of GSM8K after the same eight worked examples."""
    files: dict[str, list[dict[str, Any]]] = {
        name: [json.loads(line) for line in content.splitlines()]
        for name, content in _members(folder, "gsm8k", ".jsonl")
    }
    shots = "".join(
        f"Question: {item['question']}\nAnswer: {item['answer']}\n\n" for item in files["train"][:NUM_SHOTS]
    )
    return [[f"{shots}Question: {item['question']}\nAnswer:" for item in files["test"]]]


def _grouped(groups: Groups, _source: random.Random) -> list[str]:
    return [request for group in groups for request in group]


def in_turns(groups: Groups, _source: random.Random | None = None) -> list[str]:
    """One request of each group after another, round by round."""
    return [request for turn in zip_longest(*groups) for request in turn if request is not None]


def _shuffled(groups: Groups, source: random.Random) -> list[str]:
    """Chats keep the order of their own requests; for similar questions this makes no difference."""
    turns = [index for index, group in enumerate(groups) for _ in group]
    source.shuffle(turns)
    waiting = [iter(group) for group in groups]
    return [next(waiting[index]) for index in turns]


def _in_order(
    read: Callable[[Path], Groups], order: Callable[[Groups, random.Random], Sequence[str]]
) -> Callable[[Path, random.Random], Trace]:
    def load(folder: Path, source: random.Random) -> Trace:
        return trace_of_texts(read.__name__, order(read(folder), source))

    return load


def _agent_arrivals(folder: Path, _source: random.Random) -> Trace:
    return trace_of_texts("agent", [(time_s, prompt) for time_s, _, prompt in _agent_calls(folder)])


WORKLOADS: dict[str, Callable[[Path, random.Random], Trace]] = {
    MOONCAKE: _mooncake,
    "coding agent, as it arrived": _agent_arrivals,
    "coding agent, in turns": _in_order(agent_sessions, in_turns),
    "coding agent, shuffled": _in_order(agent_sessions, _shuffled),
    "BIG-Bench Hard, grouped by task": _in_order(_tasks, _grouped),
    "BIG-Bench Hard, in turns": _in_order(_tasks, in_turns),
    "BIG-Bench Hard, shuffled": _in_order(_tasks, _shuffled),
    "chat trees, tree by tree": _in_order(chat_trees, _grouped),
    "chat trees, in turns": _in_order(chat_trees, in_turns),
    "chat trees, shuffled": _in_order(chat_trees, _shuffled),
    "GSM8K, few-shot": _in_order(few_shot_questions, _grouped),
}
