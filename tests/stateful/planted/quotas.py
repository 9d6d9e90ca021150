"""Bugs to plant in quotas."""

from __future__ import annotations

from .core import PlantedBug

__all__ = ["PLANTED_QUOTAS"]

PLANTED_QUOTAS = (
    PlantedBug(
        "a salt with books of its own",
        "namespaces.py",
        "    return namespace.partition(_ADAPTER)[0].partition(_SALT)[0]\n",
        "    return namespace\n",
    ),
    PlantedBug(
        "a clear that leaves what is derived",
        "tree/forest.py",
        "if covers(namespace, name)]",
        "if name == namespace]",
    ),
    PlantedBug(
        "a quota of blocks that bounds nobody",
        "tree/allocation.py",
        "    num_left = partition.num_blocks - partition.num_in_use\n",
        "    num_left = forest.num_available if account.has_quota else partition.num_blocks - partition.num_in_use\n",
    ),
    PlantedBug(
        "what others have as their own given to those without a quota",
        "tree/allocation.py",
        "    num_left = min(num_left, forest.num_available)\n",
        "    num_left = min(num_left, forest.num_available) if account.has_quota else forest.num_available\n",
    ),
    PlantedBug(
        "a share shrunk below what is in use that is still given out elsewhere",
        "tree/allocation.py",
        "    num_left = min(num_left, forest.num_available)\n",
        "",
    ),
    PlantedBug(
        "a refusal for the quota told as one for lack of blocks",
        "tree/allocation.py",
        "num_needed > 0 and account.has_quota:",
        "num_needed > 0 and account.max_sequences is not None:",
    ),
    PlantedBug(
        "a fork that counts as one sequence however many it opens",
        "cache/prefix_cache.py",
        "n * num_promised + cover_cost, num_sequences=n\n",
        "n * num_promised + cover_cost, num_sequences=1\n",
    ),
    PlantedBug(
        "a quota of sequences one too large",
        "tree/allocation.py",
        "account.num_sequences + num_sequences > most:",
        "account.num_sequences + num_sequences > most + 1:",
    ),
    PlantedBug(
        "forked sequences that nobody counts",
        "sequences/lifecycle.py",
        "    parent.root.account.num_sequences += 1\n",
        "",
    ),
    PlantedBug(
        "who is over its share makes its neighbours give way",
        "tree/allocation.py",
        '        missing -= _evict_from(forest, partition, min(missing, partition.num_borrowed + num_blocks), "quota")\n',
        "        pass\n",
    ),
    PlantedBug(
        "who is about to pass its share gives up only what it has borrowed before",
        "tree/allocation.py",
        "min(missing, partition.num_borrowed + num_blocks)",
        "min(missing, partition.num_borrowed)",
    ),
    PlantedBug(
        "who needs room gives up its own branches, borrowed or not",
        "tree/allocation.py",
        '        missing -= _evict_from(forest, partition, min(missing, partition.num_borrowed + num_blocks), "quota")\n',
        '        missing -= _evict_from(forest, partition, missing, "quota")\n',
    ),
    PlantedBug(
        "the share with most blocks gives way first, be they its own",
        "tree/allocation.py",
        "(len(each.policy) > 0, each.num_borrowed))",
        "(len(each.policy) > 0, each.num_held))",
    ),
    PlantedBug(
        "whoever gives way first gives way for all",
        "tree/allocation.py",
        "            missing = min(missing, max(1, partition.num_borrowed))\n",
        "",
    ),
    PlantedBug(
        "a quota that is raised and takes nothing from the common share",
        "tree/quotas.py",
        "        common.num_blocks += account.partition.num_blocks - num_blocks\n",
        "",
    ),
    PlantedBug(
        "a dropped quota whose blocks nobody gets",
        "tree/quotas.py",
        "    common.num_blocks += own.num_blocks\n",
        "",
    ),
    PlantedBug(
        "a quota that may take what another has",
        "tree/quotas.py",
        'check_int("blocks", num_blocks, 0, common.num_blocks + own_now)',
        'check_int("blocks", num_blocks, 0, forest.pool.num_blocks)',
    ),
    PlantedBug(
        "a quota that cannot be raised by what it has itself",
        "tree/quotas.py",
        "common.num_blocks + own_now)",
        "common.num_blocks)",
    ),
    PlantedBug(
        "leaves left to the eviction of the share that their namespace has left",
        "tree/accounts.py",
        "moved = sorted(leaves, key=lambda leaf: leaf.access_number)",
        "moved: list[Node] = []",
    ),
    PlantedBug(
        "an account closed with its last block, and its quota with it",
        "tree/accounts.py",
        "self.num_sequences or self.has_quota) and (",
        "self.num_sequences) and (",
    ),
    PlantedBug(
        "a cleared namespace that may use its quota once more",
        "cache/manage.py",
        "        self._forest.forget_if_idle(root.namespace)\n",
        "        self._forest.accounts.pop(root.namespace, None)\n",
    ),
    PlantedBug(
        "a new quota that drops the bound on sequences",
        "tree/quotas.py",
        "    account.max_sequences = max_sequences\n",
        "    account.max_sequences = max_sequences if num_blocks is None else None\n",
    ),
)
