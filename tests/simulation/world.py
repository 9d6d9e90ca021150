"""One run: a service, workers, clients, readers and faults from one seed; what is checked on the way, and at the end."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import NamedTuple

from radixkv.core.api import NodeInfo, PoolShape
from radixkv.core.eviction import POLICIES
from radixkv.core.tokens import unpack_tokens
from radixkv.service.config import ServiceConfig
from radixkv.service.pools.table import Pool

from .clears import Clears
from .clock import Note, Simulator, ViolationError
from .faults import Faults
from .model import kv_of
from .network import Network
from .processes.branches import Memory
from .processes.clients import TOGETHER_S, Client, Histories, Reader
from .processes.router import Router
from .processes.service import SimulatedService
from .processes.worker import SimulatedWorker

__all__ = ["Outcome", "simulate"]

TTL_S = 0.3
ACTIVE_S = 1.2
MAX_HISTORY = 18
DRAIN_S = 30.0
AUDIT_EVERY = 8


class Outcome(NamedTuple):
    """What came of a run. `violation`: what must never be, and was; empty if nothing."""

    seed: int
    violation: str
    counts: Counter[str]
    num_events: int
    trace: list[Note]


def simulate(seed: int) -> Outcome:
    """Run one seed to its end, or to the first violation."""
    world = _World(seed)
    violation = ""
    try:
        world.run()
    except ViolationError as error:
        violation = str(error)
    except Exception as error:  # whatever the product raises where it must not
        violation = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-4:])}"
    simulator = world.simulator
    return Outcome(seed, violation, simulator.counts, simulator.num_events, simulator.trace)


class _World:
    def __init__(self, seed: int) -> None:
        self.simulator = simulator = Simulator(seed)
        rng = simulator.rng
        self._network = network = Network(simulator)
        config = ServiceConfig(
            lease_ttl_s=TTL_S,
            max_unacknowledged_steps=rng.choice((2, 3, 256)),
            max_unacknowledged_notices=rng.choice((1, 65_536)),
            eviction=rng.choice(sorted(POLICIES)),
            max_kept_events=rng.choice((4, 4096)),
        )
        self._service = SimulatedService(simulator, network, config)
        shapes = [
            PoolShape(rng.randint(5, 12), rng.randint(2, 4), f"pool{index}") for index in range(rng.choice((1, 1, 2)))
        ]
        chunk, patience_s = rng.randint(1, 4), rng.choice((None, 1.0))
        self._workers = [
            SimulatedWorker(simulator, network, f"worker{index}", shape, chunk, patience_s)
            for index, shape in enumerate(shapes)
        ]
        self._rival = (
            SimulatedWorker(simulator, network, "rival", shapes[0], chunk, patience_s) if rng.random() < 0.25 else None
        )
        everyone = [*self._workers, *([self._rival] if self._rival is not None else [])]
        self._service.clears = Clears(everyone)
        longest = min(MAX_HISTORY, *(shape.num_blocks * shape.block_size for shape in shapes))
        histories = Histories(simulator, longest)
        self._client = Client(simulator, network, histories, [worker.process.name for worker in everyone])
        self._reader = Reader(simulator, network, histories, [shape.name for shape in shapes])
        self._routers = [
            Router(
                simulator, network, f"router{index}", rng.choice(shapes), rng.choice((None, None, "default", "other"))
            )
            for index in range(rng.choice((0, 0, 1, 2)))
        ]
        self._faults = Faults(simulator, network, self._service, everyone, self._reader)
        self._num_checked = 0
        self._drops_quotas = True
        self._plan(everyone)

    def _plan(self, workers: list[SimulatedWorker]) -> None:
        simulator, rng = self.simulator, self.simulator.rng
        for worker in workers:
            simulator.after(rng.random() * (0.4 if worker is self._rival else 0.02), None, None, worker.start)
        for _ in range(rng.randint(2, 4)):
            at_s = rng.random() * (ACTIVE_S - TOGETHER_S)
            simulator.after(at_s, None, None, self._client.ask_together, rng.randint(1, 4))
        for _ in range(rng.choice((0, 2, 6))):
            simulator.after(rng.random() * ACTIVE_S, None, None, self._reader.ask)
        for router in self._routers:
            simulator.after(rng.random() * ACTIVE_S / 2, None, None, router.start)
        self._faults.plan(rng.choice((0, 2, 4, 8, 12)), ACTIVE_S)

    def run(self) -> None:
        """The active time, then peace until all is done, then what must hold."""
        self.simulator.run(ACTIVE_S, self._check)
        self.simulator.note("faults end")
        self._faults.stop()
        if self._rival is not None:
            self._client.worker_names.remove("rival")
            if self._rival.process.is_up:
                self._rival.leave()
            self._rival.is_leaving = True
        self._drop_quotas()
        self.simulator.run(self.simulator.now_s + DRAIN_S, self._check, self._is_idle)
        if not self._is_idle():
            raise ViolationError(
                f"requests {sorted(self._client.open_requests)} are not answered, long after the last fault"
            )
        self._drops_quotas = False  # so that the holder is told of the last time
        self.simulator.run(self.simulator.now_s + 2 * TTL_S, self._check)
        self.simulator.run(self.simulator.now_s + 2 * TTL_S, self._check, self._are_told)
        self._check_end()

    def _drop_quotas(self) -> None:
        """Again and again: a quota that was set for a pool goes over to its next life."""
        pools = {name: pool.cache for name, pool in self._service.table().items()}
        if not self._drops_quotas:
            return
        self._service.pools.quotas.set(pools, "other", None, None)
        self.simulator.after(TTL_S, None, None, self._drop_quotas)

    def _is_idle(self) -> bool:
        has_jobs = any(worker.process.is_up and worker.jobs for worker in self._workers)
        is_rival_gone = self._rival is None or not self._rival.process.is_up
        is_attached = all(worker.holder is not None and worker.holder.session.is_attached for worker in self._workers)
        is_told = all(router.is_following for router in self._routers)
        return not self._client.num_open and not has_jobs and is_rival_gone and is_attached and is_told

    def _are_told(self) -> bool:
        """Pins and retention end at rest, too, and holders are told of it."""
        return not any(pool.notices or pool.cache.journal.size_bytes for pool in self._service.table().values())

    # -- after every event

    def _check(self) -> None:
        service = self._service
        if not service.has_acted:
            return
        service.has_acted = False
        table = service.table()
        service.book.check(table, service.clock())
        for pool in table.values():
            pool.cache.check()
            self._num_checked += 1
            if self._num_checked % AUDIT_EVERY == 0:
                self._audit(pool)

    def _audit(self, pool: Pool) -> None:
        """What the cache says is cached lies in the slots of the worker whose memory it is, to the last token, once the worker
        has carried out what it was answered: answers are applied in order, so nobody reads a block before. And nothing of it
        was cleared since it was computed.
        """
        for worker in (*self._workers, self._rival):
            if worker is None or worker.incarnation != pool.incarnation or not worker.process.is_up:
                continue
            memory = worker.memory_when_applied()
            nodes: dict[int, NodeInfo] = {}
            histories: dict[int, list[int]] = {0: []}
            for node in pool.cache.dump():
                nodes[node.node_id] = node
                before = histories[node.parent_id]
                history = histories[node.node_id] = before + unpack_tokens(bytes(node.tokens))
                self._audit_node(memory, node, history, len(before))

    def _audit_node(self, memory: Memory, node: NodeInfo, history: list[int], start: int) -> None:
        kv, size = kv_of(node.namespace, history), memory.block_size
        for index in range(start, len(history)):
            block = node.block_ids[(index - start) // size]
            slot = block * size + index % size
            if memory.slots[slot] != kv[index]:
                raise ViolationError(f"block {block} is cached for {history} at position {index}, and holds other KV")
            if slot in memory.cleared:
                raise ViolationError(f"block {block} is cached for {history} at position {index}, which was cleared")

    def _check_end(self) -> None:
        table = self._service.table()
        names = sorted(worker.shape.name for worker in self._workers)
        if sorted(table) != names:
            raise ViolationError(f"pools {sorted(table)} are attached at the end, not {names}")
        for name, pool in table.items():
            pool.cache.check()
            self._audit(pool)
            self._check_routers(name, pool)
            stats = pool.cache.stats()
            if stats.num_sequences or stats.num_private_blocks or stats.num_promised_blocks:
                raise ViolationError(f"pool {name} keeps sequences or their blocks though nothing runs: {stats}")
            if stats.num_free_blocks + stats.num_cached_blocks != stats.num_blocks:
                raise ViolationError(f"pool {name} has lost blocks: {stats}")
            if pool.answers or pool.notices or pool.cache.take_notices():
                raise ViolationError(f"pool {name} keeps answers or notices that its holder has had")

    def _check_routers(self, name: str, pool: Pool) -> None:
        for router in self._routers:
            if router.pool_name == name:
                router.check(pool.cache)
