"""Bugs to plant in retention."""

from __future__ import annotations

from .core import PlantedBug

__all__ = ["PLANTED_RETENTION"]

PLANTED_RETENTION = (
    PlantedBug(
        "the highest priority first",
        "eviction/priorities.py",
        "self._queues.peekitem(0)[1]",
        "self._queues.peekitem(-1)[1]",
    ),
    PlantedBug(
        "priorities that go before those of other namespaces",
        "tree/accounts.py",
        "        leaf = self.policy.take(self.num_taken)\n",
        "        leaf = min(self.policy.nodes(), key=lambda each: (getattr(each, 'leaf', each).priority, each.access_number))\n"
        "        self.policy.remove(leaf)\n",
    ),
    PlantedBug(
        "a leaf whose turn comes and that stays as if it had just been used",
        "eviction/priorities.py",
        "Place(self, place.leaf, place.oldest)",
        "Place(self, place.leaf, leaf if leaf.access_number > place.leaf.access_number else place.leaf)",
    ),
    PlantedBug(
        "a leaf that stays and is paid for by two",
        "eviction/priorities.py",
        "if place.num_owed > 0 else",
        "if place.num_owed >= 0 else",
    ),
    PlantedBug(
        "a release without keep that says what its history is worth all the same",
        "sequences/lifecycle.py",
        "        publish_for_good(forest, seq)\n        if seq.retention and not seq.root.is_hidden:\n    ",
        "        publish_for_good(forest, seq)\n    if seq.retention and not seq.root.is_hidden:\n",
    ),
    PlantedBug(
        "forks that say nothing of what they are worth",
        "sequences/lifecycle.py",
        "    child.retention = parent.retention\n",
        "",
    ),
    PlantedBug(
        "a range that begins at the block that holds its first token",
        "tree/retain.py",
        "forest.table_length(position) * forest.block_bytes)",
        "position // forest.block_size * forest.block_bytes)",
    ),
    PlantedBug(
        "of ranges that overlap the earlier",
        "tree/retain.py",
        "in reversed(self._spans)",
        "in self._spans",
    ),
    PlantedBug(
        "a range that is given to the whole edge in which it begins",
        "tree/retain.py",
        "if part.start_bytes < bound < part.end_bytes and given.changes_at(part, bound):",
        "if part.start_bytes < bound < part.end_bytes and given.changes_at(part, bound) and bound == given.bounds[-1]:",
    ),
    PlantedBug(
        "what is said again does not last anew",
        "tree/retain.py",
        "            has.since_s = self._now_s\n",
        "            pass\n",
    ),
    PlantedBug(
        "ranges said of what lies behind the prompt too",
        "cache/manage.py",
        "retain_path(self._forest, root, node, ranges, end_bytes=walk.matched_bytes)",
        "retain_path(self._forest, root, node, ranges)",
    ),
    PlantedBug(
        "a use that puts no end off",
        "tree/forest.py",
        "            node.extras.retention.since_s = now_s\n",
        "            pass\n",
    ),
    PlantedBug(
        "a priority past its time that stays",
        "eviction/retention.py",
        "while self.entries and self.entries[0][0] <= now_s:",
        "while self.entries and self.entries[0][0] <= 0:",
    ),
    PlantedBug(
        "a priority that ends while its branch is in use",
        "eviction/retention.py",
        "            if node.lock_ref:\n",
        "            if node.lock_ref > 9:\n",
    ),
    PlantedBug(
        "a split whose upper half is ordinary",
        "tree/surgery.py",
        "    if node.retention is not None:\n        upper.retention",
        "    if node.retention is not None and node.lock_ref:\n        upper.retention",
    ),
    PlantedBug(
        "a merge of what is worth different",
        "tree/surgery.py",
        "    if not _retained_alike(node, child):\n        return\n",
        "",
    ),
    PlantedBug(
        "a retained edge that grows with what is published below it",
        "sequences/publish.py",
        "node.lock_ref == 1 and not node.children and node.retention is None:",
        "node.lock_ref == 1 and not node.children:",
    ),
    PlantedBug(
        "a full tail that is worth something else than the edge that absorbs it",
        "sequences/publish.py",
        "is_alone and parent.parent and parent.retention is tail.retention is None:",
        "is_alone and parent.parent:",
    ),
    PlantedBug(
        "a tail that takes another's place and not its priority",
        "tree/surgery.py",
        "    heir.retention = None if node.retention is None else node.retention.copy()\n",
        "",
    ),
)
