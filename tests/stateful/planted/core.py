"""Bugs to plant in a copy of the core, each a small change of its text that the state machine must find."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PLANTED_BUGS", "PlantedBug"]


class PlantedBug(NamedTuple):
    """In `module` of the core, `text` (which is there exactly once) becomes `bug`."""

    name: str
    module: str
    text: str
    bug: str


PLANTED_BUGS = (
    PlantedBug(
        "a missed unlock: the tail left behind stays locked",
        "sequences/lifecycle.py",
        "nodes = (*seq.left_tails, seq.node)",
        "nodes = (seq.node,)",
    ),
    PlantedBug(
        "a missed unlock: whoever gets a copy keeps its lock on the source",
        "sequences/publish.py",
        "    surgery.leave(forest, seq.root, node)\n",
        "",
    ),
    PlantedBug(
        "only the node itself is locked, not its ancestors",
        "tree/forest.py",
        "            if above.lock_ref > 1:\n                break\n            if above.parent",
        "            if above.lock_ref > 1 or above is not node:\n                break\n            if above.parent",
    ),
    PlantedBug(
        "an append right returned early: at the first growth of the tail",
        "sequences/publish.py",
        "        seq.published_bytes = target\n    return False",
        "        seq.published_bytes = target\n        tail.writer = None\n    return False",
    ),
    PlantedBug(
        "an append right taken while another holds it",
        "sequences/plan.py",
        " and child.writer is None",
        "",
    ),
    PlantedBug(
        "an append right taken though more is published than was read",
        "sequences/publish.py",
        "return len(seq.node.key) == fill and seq.node.writer is None",
        "return len(seq.node.key) >= fill and len(seq.node.key) < forest.block_bytes and seq.node.writer is None",
    ),
    PlantedBug(
        "a copy one token too short",
        "cache/prefix_cache.py",
        "num_tokens = filled_bytes % self._forest.block_bytes // TOKEN_BYTES",
        "num_tokens = filled_bytes % self._forest.block_bytes // TOKEN_BYTES - 1",
    ),
    PlantedBug(
        "a copy op lost on its way",
        "cache/prefix_cache.py",
        "ops = self._copy_ops(source, taken, 0, filled)",
        "ops = ()",
    ),
    PlantedBug(
        "a copy from the first block of a node, not the last",
        "sequences/publish.py",
        "source = node.blocks[-1]",
        "source = node.blocks[0]",
    ),
    PlantedBug(
        "a split that gives the upper node one block too many",
        "tree/surgery.py",
        "    node.blocks = node.blocks[num_upper:]\n",
        "    node.blocks = node.blocks[num_upper - 1 :]\n",
    ),
    PlantedBug(
        "a stale child index: the lower node keeps its old head after a split",
        "tree/surgery.py",
        "    node.head = bytes(node.key[: forest.block_bytes])\n    node.blocks",
        "    node.blocks",
    ),
    PlantedBug(
        "a split that forgets the lock",
        "tree/surgery.py",
        "upper.lock_ref = 1 if node.lock_ref else 0",
        "upper.lock_ref = 0",
    ),
    PlantedBug(
        "a locked leaf left in the eviction queue",
        "tree/forest.py",
        "                if above.queue_entry is not None:\n                    account.leaves.remove(above)",
        "                if above.queue_entry is not None and above is not node:\n"
        "                    account.leaves.remove(above)",
    ),
    PlantedBug(
        "blocks freed twice: what was published still counts as private",
        "sequences/publish.py",
        "    seq.private_from = end_block\n    forest.record_stored",
        "    seq.private_from = first_block\n    forest.record_stored",
    ),
    PlantedBug(
        "blocks leaked: duplicates kept until release are never freed",
        "sequences/sequence.py",
        "return self.table[self.private_from :] + self.kept_blocks",
        "return self.table[self.private_from :]",
    ),
    PlantedBug(
        "a promise that outlives its sequence",
        "sequences/lifecycle.py",
        "    promise(forest, seq, 0, 0)\n",
        "",
    ),
    PlantedBug(
        "a promise that is not drawn down",
        "cache/prefix_cache.py",
        "promise(forest, seq, seq.promised_table_length, min(seq.num_promised, num_promised))",
        "promise(forest, seq, seq.promised_table_length, seq.num_promised)",
    ),
    PlantedBug(
        "a fork's promise without the block for its copy",
        "cache/prefix_cache.py",
        "num_promised = promised_length - table_length + (shares_last and reserve > 0)",
        "num_promised = promised_length - table_length",
    ),
    PlantedBug(
        "a need that leaves out what the call locks",
        "sequences/plan.py",
        "num_needed = num_taken + num_promised + num_locked",
        "num_needed = num_taken + num_promised",
    ),
    PlantedBug(
        "namespaces mixed: any root will do",
        "cache/prefix_cache.py",
        "known_root = forest.roots.get(namespace)",
        "known_root = forest.roots.get(namespace) or next(iter(forest.roots.values()), None)",
    ),
    PlantedBug(
        "num_stored one too high",
        "sequences/lifecycle.py",
        "seq.num_stored = seq.num_computed = walk.matched_bytes // TOKEN_BYTES",
        "seq.num_stored = seq.num_computed = min(len(tokens), walk.matched_bytes + TOKEN_BYTES) // TOKEN_BYTES",
    ),
    PlantedBug(
        "a swap that frees the new blocks",
        "tree/surgery.py",
        "    forest.give_back(root.account, node.blocks)\n",
        "    forest.give_back(root.account, blocks)\n",
    ),
    PlantedBug(
        "a swap under those who read: locked nodes give way too",
        "sequences/publish.py",
        "        if child.lock_ref:\n            seq.kept_blocks",
        "        if child.lock_ref > 1:\n            seq.kept_blocks",
    ),
    PlantedBug(
        "first_changed that points past the copied block",
        "cache/prefix_cache.py",
        "return ExtendResult(first_changed, taken, ops)",
        "return ExtendResult(old_length, taken, ops)",
    ),
    PlantedBug(
        "a child's table copied from a parent that keeps duplicates",
        "cache/prefix_cache.py",
        "if seq.table_is_the_path() and end <= seq.published_bytes:",
        "if end <= seq.published_bytes:",
    ),
    PlantedBug(
        "a merge under someone who stands in between",
        "tree/surgery.py",
        " or node.has_standers():",
        ":",
    ),
    PlantedBug(
        "eviction of the most recently used leaf",
        "eviction/policy.py",
        "number, node = heappop(self._heap)",
        "number, node = self._heap.pop(self._heap.index(max(self._heap)))",
    ),
    PlantedBug(
        "recency that is never refreshed",
        "tree/forest.py",
        "        node.last_access_s = now_s\n",
        "",
    ),
    PlantedBug(
        "eviction before the call is known to fail",
        "cache/prefix_cache.py",
        "        allocation.check_capacity(forest, owner, account, plan.num_needed, num_sequences=1)\n",
        "        allocation.evict(forest, plan.num_needed - forest.pool.num_free)\n"
        "        allocation.check_capacity(forest, owner, account, plan.num_needed, num_sequences=1)\n",
    ),
    PlantedBug(
        "release without keep that keeps",
        "sequences/lifecycle.py",
        "        if not keep:\n            withdraw(forest, seq.root, left)\n",
        "",
    ),
    PlantedBug(
        "release without keep that takes what others used",
        "sequences/publish.py",
        "if node.used_bytes > node.start_bytes:",
        "if node.used_bytes > node.end_bytes:",
    ),
    PlantedBug(
        "a branch evicted that begins inside a block, of which one sibling alone goes",
        "tree/allocation.py",
        "    return list(walk.node.children.beginning_with(rest)) if walk.node.children else []\n",
        "    return [walk.child] if walk.child is not None else []\n",
    ),
    PlantedBug(
        "a branch evicted whose parent is no evictable leaf after it",
        "tree/allocation.py",
        "        forest.queue_if_leaf(root, parent)\n    forest.forget_if_empty(root)\n",
        "    forest.forget_if_empty(root)\n",
    ),
    PlantedBug(
        "a branch evicted without its own node",
        "tree/allocation.py",
        "        for node in reversed([top, *forest.nodes(top)]):",
        "        for node in reversed([*forest.nodes(top)]):",
    ),
    PlantedBug(
        "a clear after which open sequences go on publishing to newcomers",
        "cache/manage.py",
        "        del self._forest.roots[root.namespace]\n",
        "",
    ),
    PlantedBug(
        "a cleared tree whose nodes stay when their sequences end",
        "cache/manage.py",
        "        root.is_hidden = True\n",
        "",
    ),
    PlantedBug(
        "a match that stamps",
        "cache/reads.py",
        "        return MatchResult(matched, matched)",
        "        for node in () if root is None else self._forest.nodes(root):\n            node.last_access_s += 1\n"
        "        return MatchResult(matched, matched)",
    ),
    PlantedBug(
        "a match rounded down to whole blocks among siblings",
        "tree/forest.py",
        "return Walk(node, nearest, common, position + common)",
        "return Walk(node, None, 0, position)",
    ),
    PlantedBug(
        "a failed op that lets the rest of its Step go on",
        "cache/steps.py",
        "            results.append(error)\n            failed.update(",
        "            results.append(error)\n            failed.difference_update(",
    ),
    PlantedBug(
        "only one of the siblings is looked at",
        "nodes/node.py",
        "return [head for head in self if head.startswith(first_token)]",
        "return [head for head in self if head.startswith(first_token)][:1]",
    ),
    PlantedBug(
        "a tail that steps aside while others read it, and is forgotten",
        "sequences/publish.py",
        "        seq.left_tails.append(tail)\n",
        "        pass\n",
    ),
    PlantedBug(
        "children who still name the node that gave way as their parent",
        "tree/surgery.py",
        "        child.parent = heir\n",
        "        pass\n",
    ),
    PlantedBug(
        "a longer common edge than there is",
        "sequences/publish.py",
        "    return low * forest.block_bytes",
        "    return max(low, limit // forest.block_bytes) * forest.block_bytes",
    ),
    PlantedBug(
        "an extend that gives less room than it says",
        "cache/prefix_cache.py",
        "num_taken = forest.table_length(num_tokens) - old_length + needs_copy",
        "num_taken = forest.table_length(num_tokens - 1) - old_length + needs_copy",
    ),
)
