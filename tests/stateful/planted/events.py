"""Bugs in what readers of events are told, to plant in a copy of the core; the state machine must find each."""

from __future__ import annotations

from .core import PlantedBug

__all__ = ["PLANTED_EVENTS"]

PLANTED_EVENTS = (
    PlantedBug(
        "an eviction that nobody is told of",
        "tree/forest.py",
        "        self.record_removed(node)\n        parent = self.detach(root, node)",
        "        parent = self.detach(root, node)",
    ),
    PlantedBug(
        "blocks that take another's place untold",
        "tree/surgery.py",
        "    node.stored_s = forest.clock()\n    forest.record_stored(root, node, node.key, blocks)",
        "    node.stored_s = forest.clock()",
    ),
    PlantedBug(
        "a block told of when its tail begins, not when it is full",
        "sequences/publish.py",
        "    forest.record_stored(seq.root, tail, key, tail.blocks)\n",
        "",
    ),
    PlantedBug(
        "a namespace cleared without a word of its blocks",
        "cache/manage.py",
        "        self._forest.record_cleared(root)\n",
        "",
    ),
    PlantedBug(
        "the parent of appended blocks is looked for above their node",
        "tree/forest.py",
        "        return node.blocks[index - 1]\n",
        "        return node.blocks[0]\n",
    ),
    PlantedBug(
        "what a sequence computes after a clear is announced",
        "tree/forest.py",
        "if events.is_recording and not root.is_hidden:",
        "if events.is_recording:",
    ),
    PlantedBug(
        "what is freed of a cleared namespace is told of once more",
        "events/feed.py",
        "        for block in blocks:\n            self._namespaces[block] = None\n",
        "",
    ),
    PlantedBug(
        "a node that grew since is told of as it is now",
        "events/feed.py",
        "        for first in range(0, num_blocks, MAX_EVENT_BLOCKS):",
        "        num_blocks, num_bytes = len(blocks), len(tokens)\n"
        "        for first in range(0, num_blocks, MAX_EVENT_BLOCKS):",
    ),
    PlantedBug(
        "a walk that goes on behind a node that is gone",
        "tree/walk.py",
        "                if bytes(child.key) > path[position:]:\n                    levels.append(iter((child,)))\n",
        "",
    ),
    PlantedBug(
        "a walk that starts over below where it stopped",
        "tree/walk.py",
        "levels.append(above.children.following(head))",
        "levels.append(above.children.following(path[position + block_bytes :]))",
    ),
    PlantedBug(
        "a snapshot tells of children whose parents it has not come to",
        "events/subscription.py",
        "            if entry.parent_block != NO_BLOCK and not self._known[entry.parent_block]:\n"
        "                return None\n",
        "",
    ),
    PlantedBug(
        "a snapshot that forgets what it was told of meanwhile",
        "events/subscription.py",
        "            for block in event.block_ids:\n                self._known[block] = 1\n        elif",
        "            pass\n        elif",
    ),
    PlantedBug(
        "a reader of one namespace is told of another",
        "events/subscription.py",
        "return self._namespace is None or entry.event.namespace == self._namespace",
        "return True",
    ),
    PlantedBug(
        "numbers of a namespace that count others",
        "events/feed.py",
        "        return self._namespace_numbers.setdefault(namespace, self.next_number)",
        "        self._namespace_numbers[namespace] = self.next_number\n        return self.next_number",
    ),
)
