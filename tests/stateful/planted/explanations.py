"""Bugs to plant in explanations, in the record of what was evicted, and in the counters of what was missed."""

from __future__ import annotations

from .core import PlantedBug

__all__ = ["PLANTED_EXPLANATIONS"]

PLANTED_EXPLANATIONS = (
    PlantedBug(
        "an evicted leaf that is not remembered",
        "tree/allocation.py",
        "    forest.evicted.note(root.namespace, leaf, reason, now_s)\n",
        "",
    ),
    PlantedBug(
        "a call of evict told as pressure",
        "cache/manage.py",
        'allocation.evict(self._forest, num_blocks, "evict")',
        "allocation.evict(self._forest, num_blocks)",
    ),
    PlantedBug(
        "a cleared namespace of which only what nobody used is remembered",
        "tree/forest.py",
        '            self.evicted.note(root.namespace, node, "clear", now_s)\n',
        '            if not node.lock_ref:\n                self.evicted.note(root.namespace, node, "clear", now_s)\n',
    ),
    PlantedBug(
        "an evicted edge whose key goes on growing with a sequence",
        "eviction/evicted.py",
        "            key = bytes(key)  # its sequence may lengthen it later\n",
        "            pass\n",
    ),
    PlantedBug(
        "a place that is known by its position alone",
        "eviction/evicted.py",
        "        self._num_places += 1\n",
        "        self._num_places = parent.end_bytes\n",
    ),
    PlantedBug(
        "an edge taken as evicted to its end, whatever it shares with the prompt",
        "eviction/evicted.py",
        "                common_end = position + common_prefix_bytes(tokens, position, edge.key, len(edge.key))\n",
        "                common_end = min(common_end, len(tokens))\n",
    ),
    PlantedBug(
        "one record of evictions for all namespaces",
        "eviction/evicted.py",
        "            return namespace\n",
        '            return "default"\n',
    ),
    PlantedBug(
        "what hung below an evicted edge forgotten with it",
        "eviction/evicted.py",
        "            for start, place in edge.places:\n",
        "            for start, place in ():\n",
    ),
    PlantedBug(
        "what hung below a lengthened edge taken for cut off",
        "eviction/evicted.py",
        "                if position <= matched_bytes:\n",
        "                if position == matched_bytes:\n",
    ),
    PlantedBug(
        "siblings counted that share less than the prompt matches",
        "inspect/explain.py",
        "            if len(node.key) > common:\n                yield node\n",
        "            yield node\n",
    ),
    PlantedBug(
        "a sibling's tokens from the beginning of its edge",
        "inspect/explain.py",
        "nearest.key[walk.common_bytes : walk.common_bytes + forest.block_bytes]",
        "nearest.key[: forest.block_bytes]",
    ),
    PlantedBug(
        "a look at another namespace that nobody named",
        "inspect/explain.py",
        "    for name in other_namespaces:\n",
        "    for name in forest.roots:\n",
    ),
    PlantedBug(
        "missed tokens counted of what shares nothing",
        "cache/prefix_cache.py",
        "        if share_prefix and len(packed) // forest.block_bytes >",
        "        if len(packed) // forest.block_bytes >",
    ),
    PlantedBug(
        "a prompt that parts counted as new where its sibling shares nothing of the block",
        "inspect/explain.py",
        "        return bool(walk.node.children)\n",
        "        return False\n",
    ),
)
