"""Bugs to plant in a copy of radixkv, each a small change of its text that the simulation must find."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PLANTED_BUGS", "PlantedBug"]


class PlantedBug(NamedTuple):
    """In `module` of the package, `text` (which is there exactly once) becomes `bug`."""

    name: str
    module: str
    text: str
    bug: str


PLANTED_BUGS = (
    PlantedBug(
        "a missed unlock: the tail left behind stays locked",
        "core/sequences/lifecycle.py",
        "nodes = (*seq.left_tails, seq.node)",
        "nodes = (seq.node,)",
    ),
    PlantedBug(
        "blocks freed while others still read them",
        "core/sequences/publish.py",
        "        if child.lock_ref:\n            seq.kept_blocks",
        "        if child.lock_ref > 1:\n            seq.kept_blocks",
    ),
    PlantedBug(
        "a copy op lost on its way",
        "core/cache/prefix_cache.py",
        "ops = self._copy_ops(source, taken, 0, filled)",
        "ops = ()",
    ),
    PlantedBug(
        "a copy one token too short",
        "core/cache/prefix_cache.py",
        "num_tokens = filled_bytes % self._forest.block_bytes // TOKEN_BYTES",
        "num_tokens = filled_bytes % self._forest.block_bytes // TOKEN_BYTES - 1",
    ),
    PlantedBug(
        "an append right taken while another holds it",
        "core/sequences/plan.py",
        " and child.writer is None",
        "",
    ),
    PlantedBug(
        "namespaces mixed: any root will do",
        "core/cache/prefix_cache.py",
        "known_root = forest.roots.get(namespace)",
        "known_root = forest.roots.get(namespace) or next(iter(forest.roots.values()), None)",
    ),
    PlantedBug(
        "a sequence that shares nothing reads what others left",
        "core/cache/prefix_cache.py",
        "known_root = forest.roots.get(namespace) if share_prefix else None",
        "known_root = forest.roots.get(namespace)",
    ),
    PlantedBug(
        "a sequence that shares nothing is everybody's once it is adopted",
        "client/ledger.py",
        "                not opened.tree,\n",
        "                True,\n",
    ),
    PlantedBug(
        "who waits for a sequence that ends is told nothing",
        "core/sequences/single_flight.py",
        '            self._tell("gone", seq.seq_id, watches)\n',
        "            pass\n",
    ),
    PlantedBug(
        "a stale incarnation accepted",
        "service/pools/table.py",
        "if hello.incarnation in self._retired:",
        "if not hello.incarnation:",
    ),
    PlantedBug(
        "a second holder accepted while the lease of the first runs",
        "service/pools/table.py",
        "        if pool is not None:\n            raise PoolHeldError(",
        "        if pool is not None and pool.stream is not None:\n            raise PoolHeldError(",
    ),
    PlantedBug(
        "the Step of a stale stream applied after another took over",
        "service/pools/table.py",
        "        if pool.stream is not stream:\n            raise",
        "        if pool.stream is None:\n            raise",
    ),
    PlantedBug(
        "a Step that is sent again applied again",
        "service/pools/table.py",
        "        if step.number < self.next_step:\n            return self._stored_answer(step.number)\n",
        "",
    ),
    PlantedBug(
        "a lease that no message renews",
        "service/pools/table.py",
        "        self._renew(pool)\n\n    def _renew",
        "\n    def _renew",
    ),
    PlantedBug(
        "a lease renewed after it has run out",
        "service/pools/table.py",
        "        if pool.expires_at_s <= self._now_s():\n            self.expire()\n",
        "",
    ),
    PlantedBug(
        "an acknowledgement that forgets one answer too many",
        "service/pools/table.py",
        "while self.answers and self.next_step - len(self.answers) <= through:",
        "while self.answers and self.next_step - len(self.answers) <= through + 1:",
    ),
    PlantedBug(
        "a new life of a pool that begins with the tree of the last",
        "service/pools/table.py",
        "        pool = self._pools[shape.name] = Pool(",
        '        self._trees = getattr(self, "_trees", {})\n'
        "        cache = self._trees.setdefault(shape.name, cache)\n"
        "        pool = self._pools[shape.name] = Pool(",
    ),
    PlantedBug(
        "a service that forgives for ever",
        "service/pools/table.py",
        "pool.expires_at_s += stalled_s",
        "pool.expires_at_s += 1000 * stalled_s",
    ),
    PlantedBug(
        "a stall that is forgiven at the next sweep, after messages have ended leases by it",
        "service/pools/table.py",
        "        if pool.expires_at_s <= self._now_s():\n            self.expire()\n",
        "        if pool.expires_at_s <= self.clock():\n            self.end(pool)\n",
    ),
    PlantedBug(
        "a stall forgiven again at every look",
        "service/pools/stalls.py",
        "        self._due_s = now_s\n",
        "",
    ),
    PlantedBug(
        "notices lost with the stream that brought them",
        "service/attach/session.py",
        "        for unacknowledged in attachment.pool.notices:\n            self._send(unacknowledged)\n",
        "",
    ),
    PlantedBug(
        "a goodbye after which the lease runs on",
        "service/attach/session.py",
        "            self.lost()\n            self._pools.end(pool)\n            self.is_over = True",
        "            self.lost()\n            self.is_over = True",
    ),
    PlantedBug(
        "unanswered Steps that are not sent again",
        "client/session.py",
        "            self._num_sent = 0\n            self._send_what_fits()\n",
        "            self._send_what_fits()\n",
    ),
    PlantedBug(
        "unanswered Steps sent again in the wrong order",
        "client/session.py",
        "request = unanswered[self._num_sent].request",
        "request = unanswered[-1 - self._num_sent].request",
    ),
    PlantedBug(
        "an answer acknowledged before it has come",
        "client/session.py",
        "            step.acknowledged_through = self._num_answered\n",
        "            step.acknowledged_through = step.number - 1\n",
    ),
    PlantedBug(
        "answers taken from a stream that is over",
        "client/session.py",
        "return self._opened_send is None or (send is not None and send is not self._opened_send)",
        "return False",
    ),
    PlantedBug(
        "a live sequence's block left in the free list of a restarted service",
        "core/tree/block_pool.py",
        "        for block_id in block_ids:\n            self._unclaimed[block_id] = 0\n",
        "        for block_id in block_ids[1:]:\n            self._unclaimed[block_id] = 0\n",
    ),
    PlantedBug(
        "a block handed out since told as cached",
        "core/tree/forest.py",
        "            self.records.forget(blocks)\n",
        "            pass\n",
    ),
    PlantedBug(
        "a Hello that was long on its way ends a newer stream",
        "service/pools/table.py",
        "if 0 < hello.stream_number < pool.stream_number:",
        "if hello.stream_number < 0:",
    ),
    PlantedBug(
        "a block adopted behind another history than the one that it was computed after",
        "core/tree/block_records.py",
        "below = self._waiting.pop(block.name, [])",
        "below = self._waiting.popitem()[1] if self._waiting else []",
    ),
    PlantedBug(
        "a holder that tells nothing where its first Hello was answered in vain",
        "service/pools/table.py",
        "resumed=not pool.is_older or pool.next_step > pool.first_step",
        "resumed=True",
    ),
    PlantedBug(
        "unanswered Steps lost with the service that knew them",
        "client/session.py",
        "        self._adoption = starmap(_Pending, steps)\n",
        "        self._adoption = starmap(_Pending, steps)\n        self._pending.clear()\n",
    ),
    PlantedBug(
        "a restarted service that is told nothing of what the pool holds",
        "client/session.py",
        "        self._adoption = starmap(_Pending, steps)\n",
        "        self._adoption = None\n",
    ),
    PlantedBug(
        "a router that comes back is not told what it has missed",
        "core/events/feed.py",
        "return number if first <= number <= self.next_number else None",
        "return max(first, number) if number <= self.next_number else None",
    ),
    PlantedBug(
        "a namespace's events go on for a router that has missed some",
        "core/events/feed.py",
        "        if number == self.next_in(namespace):\n            return self.next_number\n",
        "        if number <= self.next_in(namespace):\n            return self.next_number\n",
    ),
    PlantedBug(
        "the numbers of a restarted service's events begin anew",
        "service/pools/table.py",
        "            first_event_number=self._first_event_number(),\n",
        "            first_event_number=1,\n",
    ),
    PlantedBug(
        "what is cleared while a restarted service is told of it comes back",
        "core/cache/adopt.py",
        "        if self._is_cleared(namespace):\n            return 0\n",
        "",
    ),
    PlantedBug(
        "sequences of what was cleared come into sight as they are adopted",
        "core/cache/adopt.py",
        "if share_prefix and self._is_cleared(namespace):",
        "if False:",
    ),
    PlantedBug(
        "what a holder heard to be cleared is told to the next service",
        "client/ledger.py",
        "                self._hide(entry.namespace)\n",
        "                pass\n",
    ),
    PlantedBug(
        "what was cleared is matched until it is evicted",
        "core/cache/manage.py",
        "        del self._forest.roots[root.namespace]\n",
        "",
    ),
)
