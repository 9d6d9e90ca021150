"""Bugs to plant in what `waits`, `share_prefix`, matches in a Step and block times add to the core."""

from __future__ import annotations

from .core import PlantedBug

__all__ = ["PLANTED_WAITS"]

PLANTED_WAITS = (
    PlantedBug(
        "of several lengths reached at once only the first is told",
        "sequences/single_flight.py",
        "num_reached = bisect_right(watches, seq.num_computed)",
        "num_reached = 1",
    ),
    PlantedBug(
        "a notice told twice: what was published is watched on",
        "sequences/single_flight.py",
        "            del watches[:num_reached]\n",
        "            del watches[: num_reached - 1]\n",
    ),
    PlantedBug(
        "a notice told again to who takes notices again",
        "sequences/single_flight.py",
        "        self._notices.clear()\n",
        "        self._notices.clear() if len(taken) > 1 else None\n",
    ),
    PlantedBug(
        "a notice told before all of its tokens match",
        "sequences/single_flight.py",
        "if watches is not None and watches[0] <= seq.num_computed:\n"
        "            num_reached = bisect_right(watches, seq.num_computed)",
        "if watches is not None and watches[0] <= seq.num_computed + 1:\n"
        "            num_reached = bisect_right(watches, seq.num_computed + 1)",
    ),
    PlantedBug(
        "a provider released, and its waiters not told that it is gone",
        "cache/prefix_cache.py",
        "        if self._single_flight.is_active:\n            self._single_flight.ended(seq)\n",
        "",
    ),
    PlantedBug(
        "a provider released without keep as though it were still there",
        "cache/prefix_cache.py",
        "        if self._single_flight.is_active:\n            self._single_flight.ended(seq)\n",
        "        if self._single_flight.is_active and keep:\n            self._single_flight.ended(seq)\n",
    ),
    PlantedBug(
        "a clear that leaves those waiting who wait for what it cleared",
        "cache/manage.py",
        "                if seq.root is root:\n",
        "                if False:\n",
    ),
    PlantedBug(
        "a clear that sends those away who wait in another namespace",
        "cache/manage.py",
        "                if seq.root is root:\n",
        "                if True:\n",
    ),
    PlantedBug(
        "an intent left behind: a later sequence of the same id waits for itself",
        "sequences/single_flight.py",
        "        if seq.seq_id in self._intents:\n            self._withdraw(seq)\n        watches",
        "        watches",
    ),
    PlantedBug(
        "a wait for a sequence that has computed all it will",
        "sequences/single_flight.py",
        "        is_intent = reach - seq.num_computed >= self._block_size and",
        "        is_intent = reach >= self._block_size and",
    ),
    PlantedBug(
        "a wait for tokens that nobody has room for",
        "sequences/single_flight.py",
        "        reach = min(len(seq.tokens) // TOKEN_BYTES, seq.room)\n        is_intent",
        "        reach = len(seq.tokens) // TOKEN_BYTES\n        is_intent",
    ),
    PlantedBug(
        "a wait for another namespace",
        "sequences/single_flight.py",
        "intents = self._by_namespace.get(namespace)\n",
        "intents = next(iter(self._by_namespace.values()), None)\n",
    ),
    PlantedBug(
        "a wait for less than a block",
        "sequences/single_flight.py",
        "if seq is None or num_tokens - num_matched < self._block_size:",
        "if seq is None or num_tokens <= num_matched:",
    ),
    PlantedBug(
        "only one of a prompt's neighbours is looked at",
        "sequences/single_flight.py",
        "intents.islice(max(index - 1, 0), index + 1)",
        "intents.islice(index, index + 1)",
    ),
    PlantedBug(
        "room that an extend gave is not waited for",
        "cache/prefix_cache.py",
        "            self._single_flight.update(seq)\n        return ExtendResult",
        "            pass\n        return ExtendResult",
    ),
    PlantedBug(
        "an insert that tells nobody",
        "cache/prefix_cache.py",
        "        publish(self._forest, seq)\n        if self._single_flight.is_active:",
        "        publish(self._forest, seq)\n        if not self._single_flight.is_active:",
    ),
    PlantedBug(
        "an acquire that waits counts as a query",
        "cache/prefix_cache.py",
        "            if pending is not None:\n",
        "            if pending is not None:\n                self._counters.count_query(length, 0)\n",
    ),
    PlantedBug(
        "an acquire that waits opens a sequence all the same",
        "cache/prefix_cache.py",
        "            if pending is not None:\n",
        "            if pending is not None:\n                self.acquire(packed, namespace=namespace, seq_id=seq_id)\n",
    ),
    PlantedBug(
        "ops go on upon a sequence that waits to be opened",
        "cache/steps.py",
        "            if isinstance(result, Pending):\n",
        "            if False:\n",
    ),
    PlantedBug(
        "a match in a Step that looks into one namespace only",
        "cache/steps.py",
        "cache.match_device(op.tokens, namespace=op.namespace)",
        "cache.match_device(op.tokens)",
    ),
    PlantedBug(
        "an unshared block matched: its tree is there for everyone",
        "cache/prefix_cache.py",
        "            if share_prefix:\n",
        "            if True:\n",
    ),
    PlantedBug(
        "an unshared sequence that matches what is cached",
        "cache/prefix_cache.py",
        "known_root = forest.roots.get(namespace) if share_prefix else None",
        "known_root = forest.roots.get(namespace)",
    ),
    PlantedBug(
        "an unshared sequence that leaves its blocks behind",
        "tree/forest.py",
        "        if root.is_hidden:\n            while",
        "        if root.is_hidden and self.roots.get(root.namespace):\n            while",
    ),
    PlantedBug(
        "an evicted leaf whose time is not taken",
        "tree/allocation.py",
        "    forest.times.evicted(leaf, now_s)\n",
        "",
    ),
)
