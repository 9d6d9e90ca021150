"""Real texts for the workloads, out of the archives in a folder; see `--workloads`."""

from __future__ import annotations

import gzip
import json
import tarfile
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.conversations import ROLES, WorkloadMissingError

__all__ = ["FewShot", "Material", "WorkloadMissingError"]

CANARY_END = "-----\n"
GAME24_LOG = "gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json"
GAME24_REPLIES = "gpt-4_0.7_naive_cot_sample_100_start900_end1000.json"


class FewShot(NamedTuple):
    """A task: worked examples, and the questions after them."""

    name: str
    examples: str
    questions: list[str]


class Material:
    """Contents of the archives of one folder. Each is opened once, at its first use.

    Every property raises WorkloadMissingError if its archive, or the expected content, is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _read(self, archive: str, *endings: str) -> dict[str, str]:
        """Texts of the archive's files with these endings, by their path; in the archive's order."""
        path = self.folder / archive
        if not path.is_file():
            raise WorkloadMissingError(f"no {archive} in {self.folder}; name its folder by --workloads")
        texts = {}
        with tarfile.open(path, "r:xz") as files:
            for member in files:
                if member.name.endswith(endings) and (content := files.extractfile(member)) is not None:
                    packed = content.read()
                    texts[member.name] = (gzip.decompress(packed) if member.name.endswith(".gz") else packed).decode()
        if not texts:
            raise WorkloadMissingError(f"no file with the ending {' or '.join(endings)} in {path}")
        return texts

    @cached_property
    def big_bench(self) -> dict[str, FewShot]:
        """Tasks by name. The file's line against training on them is not part of the prompt."""
        texts = self._read("big-bench-hard.tar.xz", ".txt", ".json")
        tasks = {}
        for name, text in texts.items():
            if "/cot-prompts/" not in name:
                continue
            task = Path(name).stem
            questions = json.loads(texts[f"big-bench-hard/bbh/{task}.json"])["examples"]
            tasks[task] = FewShot(task, text.partition(CANARY_END)[2], [example["input"] for example in questions])
        return tasks

    @cached_property
    def conversation_trees(self) -> list[dict[str, Any]]:
        """Roots: nested ``{"role", "content", "replies"}``, the root of a user."""
        text = self._read("oasst-trees.tar.xz", "en_100_tree.jsonl")
        return [_node(json.loads(line)["prompt"]) for line in "".join(text.values()).splitlines()]

    @cached_property
    def two_turns(self) -> list[list[str]]:
        """The user's texts in the two turns of each question."""
        text = self._read("mt-bench.tar.xz", "question.jsonl")
        return [json.loads(line)["turns"] for line in "".join(text.values()).splitlines()]

    @cached_property
    def agent_sessions(self) -> list[list[str]]:
        """The prompts of each session of the coding agent, in order."""
        texts = self._read("miniswe.tar.xz", ".jsonl")
        return [[json.loads(line)["input"] for line in text.splitlines()] for _, text in sorted(texts.items())]

    @cached_property
    def functions(self) -> list[str]:
        """Python functions to complete: signature and docstring."""
        text = self._read("human-eval.tar.xz", ".jsonl.gz")
        return [json.loads(line)["prompt"] for line in "".join(text.values()).splitlines()]

    @cached_property
    def games(self) -> list[list[dict[str, Any]]]:
        """The steps of each game of 24: ``x`` the numbers, ``new_ys`` the candidates, ``select_new_ys`` the kept ones."""
        [text] = self._read("tree-of-thought.tar.xz", GAME24_LOG).values()
        return [game["steps"] for game in json.loads(text)]

    @cached_property
    def game_replies(self) -> list[tuple[str, list[str]]]:
        """Of each game of 24: the numbers, and a hundred replies that GPT-4 drew at temperature 0.7."""
        [text] = self._read("tree-of-thought.tar.xz", GAME24_REPLIES).values()
        return [(steps[0]["x"], game["ys"]) for steps, game in zip(self.games, json.loads(text), strict=True)]


def _node(message: dict[str, Any]) -> dict[str, Any]:
    replies = [_node(reply) for reply in message["replies"]]
    return {"role": ROLES[message["role"]], "content": message["text"], "replies": replies}
