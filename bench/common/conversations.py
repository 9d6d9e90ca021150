"""Real conversation trees: OpenAssistant's, read from the workloads folder, as root-to-leaf paths in an order that
branches.

The folder is not part of the project. It holds ``oasst-trees.tar.xz`` with ``en_100_tree.jsonl``, one tree per line:
nested messages with ``role`` (``prompter`` or ``assistant``), ``text`` and ``replies``.
"""

from __future__ import annotations

import hashlib
import json
import random
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Histories", "Message", "WorkloadMissingError", "branching_order", "default_workloads", "read_trees"]

ARCHIVE = "oasst-trees.tar.xz"
TREES_FILE = "en_100_tree.jsonl"
ROLES = {"prompter": "user", "assistant": "assistant"}

Message = dict[str, str]
"""One turn: ``{"role": "user" | "assistant", "content": text}``."""


class WorkloadMissingError(RuntimeError):
    """The conversation trees are missing from their folder."""


class Tree(NamedTuple):
    """One conversation tree: its id, and its messages from the root to each leaf."""

    tree_id: str
    paths: list[list[Message]]


def default_workloads() -> Path:
    """``shared/workloads`` next to the project's folder."""
    return Path(__file__).resolve().parents[3] / "shared" / "workloads"


def read_trees(folder: Path) -> list[Tree]:
    """Every tree of the archive with at least two paths, in the archive's order.

    Raises:
        WorkloadMissingError: the archive, or the English trees in it, are missing.
    """
    archive = folder / ARCHIVE
    if not archive.is_file():
        raise WorkloadMissingError(f"no {ARCHIVE} in {folder}; name its folder by --workloads")
    with tarfile.open(archive, "r:xz") as files:
        member = next((member for member in files if Path(member.name).name == TREES_FILE), None)
        content = None if member is None else files.extractfile(member)
        if content is None:
            raise WorkloadMissingError(f"no {TREES_FILE} in {archive}")
        documents = [json.loads(line) for line in content]
    trees = [Tree(document["message_tree_id"], list(_paths(document["prompt"], []))) for document in documents]
    return [tree for tree in trees if len(tree.paths) > 1]


def _paths(node: dict[str, Any], above: list[Message]) -> Iterator[list[Message]]:
    path = [*above, {"role": ROLES[node["role"]], "content": node["text"]}]
    if not node["replies"]:
        yield path
    for reply in node["replies"]:
        yield from _paths(reply, path)


def branching_order(num_paths: Sequence[int], source: random.Random) -> list[tuple[int, int]]:
    """(tree, path) of every path: shuffled within each tree, the trees taking turns."""
    shuffled = [source.sample(range(count), count) for count in num_paths]
    longest = max(num_paths, default=0)
    return [(tree, paths[turn]) for turn in range(longest) for tree, paths in enumerate(shuffled) if turn < len(paths)]


class Histories:
    """Every prefix of every history so far, as digests in a dictionary: independent of any tree's code and design."""

    def __init__(self) -> None:
        self._prefixes: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Number of distinct prefixes, which is the number of tokens in a cache without eviction."""
        return len(self._prefixes)

    def num_held(self, token_ids: Sequence[int]) -> int:
        """Tokens of the longest prefix shared with an earlier history. O(n)."""
        for length, digest in enumerate(_prefix_digests(token_ids)):
            if digest not in self._prefixes:
                return length
        return len(token_ids)

    def add(self, token_ids: Sequence[int]) -> None:
        """Add a history of these tokens, prompt and reply. O(n)."""
        for length, digest in enumerate(_prefix_digests(token_ids), start=1):
            self._prefixes.setdefault(digest, length)


def _prefix_digests(token_ids: Sequence[int]) -> Iterator[bytes]:
    running = hashlib.blake2b(digest_size=16)
    for token_id in token_ids:
        running.update(token_id.to_bytes(4, "little"))
        yield running.digest()
