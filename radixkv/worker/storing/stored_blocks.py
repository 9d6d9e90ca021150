"""The pool's blocks by name: saved before they are overwritten or when the worker is idle, loaded when a branch starts.

    computed     a block that a forward has filled, or that was loaded, has a name until something is written to it
    handed out   an answer gives a block to a sequence: its unsaved content is copied to a row first
    idle         unsaved blocks are saved, the oldest first, at a bounded rate; in a busy worker in a share of its time
    drain        the rest, when the worker stops
    opened       a branch gets the blocks of its history that the host level has, and awaits those of the other levels; other
                 branches run meanwhile

Names depend on content alone, so they outlive evictions, leases and cache services. A block that has not come in the time that
computing would take is computed; one that comes later is used where computing has not reached it. Of the engine's thread.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_int32
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from torch import Tensor

from radixkv.core.api import Copy, HintOp
from radixkv.core.namespaces import adapter_of
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.core.tree.journal import Dropped
from radixkv.generation.erasure import StoredPrefix
from radixkv.generation.stats import EngineCounters
from radixkv.stores.costs import MAX_IDLE_SHARE, Choice, Kind, LoadMeter, PrefillMeter, choose
from radixkv.stores.hints import mask
from radixkv.stores.host import Kept, Row
from radixkv.stores.loading import Landed, Load
from radixkv.stores.saving import Unsaved
from radixkv.stores.secrets.keys import NamespaceKeys
from radixkv.stores.secrets.names import names_of
from radixkv.stores.store import BlockStore
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.model.runner import Pool, Runner, forward_unless
from radixkv.worker.scheduling.batch import Row as BatchRow

__all__ = ["StoredBlocks"]

_SAVED_AT_ONCE = 8
_NO_ROW_S = 0.05
"""An idle worker tries again after this time where all rows are in use."""

_BUSY_SHARE = 0.05
"""Most of a busy worker's time that saves take."""

LEAST_WAIT_S = 0.02
"""Least wait for a load, however fast the model computes."""

_FIRST_WAIT_S = 1.0
"""Wait for a load before any prompt has been timed."""

_DRAIN_S = 20.0

_MAX_HANGING = 32
"""Loads of a level that were given up and have not ended; with more of them nothing is read from it."""


class _Held(NamedTuple):
    """The content of a block."""

    name: bytes
    parent: bytes
    keys: NamespaceKeys


class _Loading(NamedTuple):
    """Blocks of a sequence of a branch that are loaded.

    `start`: computed positions when it began. `indices`: in the table, of each name of the load. `chain`: names of the blocks
    from index `first` on, after that of the block before them. The branch waits `idle_s` seconds, and `block_s` more for each
    block that has landed.
    """

    branch: Branch
    seq_id: int
    load: Load
    start: int
    indices: Sequence[int]
    first: int
    chain: Sequence[bytes]
    idle_s: float
    block_s: float

    @property
    def is_wanted(self) -> bool:
        """Whether its branch still has that sequence."""
        return self.branch.seq_id == self.seq_id and self.branch.phase is Phase.RUNNING

    @property
    def waits_until_s(self) -> float:
        """When its branch stops waiting, on the store's clock."""
        return self.load.started_s + self.idle_s + self.load.num_landed * self.block_s


class StoringRunner:
    """A runner that reports which blocks it is going to write."""

    def __init__(self, runner: Runner, overwritten: Callable[[Sequence[int]], None]) -> None:
        self.vocab_size = runner.vocab_size
        self.max_model_len = runner.max_model_len
        self.eos_token_ids = runner.eos_token_ids
        self.pool = runner.pool
        self._runner = runner
        self._overwritten = overwritten

    @property
    def num_uncaptured_sizes(self) -> int:
        """Of the runner."""
        return self._runner.num_uncaptured_sizes

    def carry_out(self, ops: Sequence[Copy]) -> None:
        """Carry out block copies."""
        self._overwritten([op.dst for op in ops])
        self._runner.carry_out(ops)

    @property
    def takes_drawn_ids(self) -> bool:
        """As the runner's."""
        return self._runner.takes_drawn_ids

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        """Compute all rows."""
        self._will_write(rows)
        return self._runner.forward(rows, drawn_ids)

    def forward_unless(
        self, is_unwanted: c_int32, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None
    ) -> Tensor | None:
        """See `Interruptible`."""
        self._will_write(rows)
        return forward_unless(self._runner, is_unwanted, rows, drawn_ids)

    def _will_write(self, rows: Sequence[ForwardRow]) -> None:
        size = self.pool.block_size
        for row in rows:
            end = row.start + len(row.token_ids)
            self._overwritten(row.block_table[max(row.start, row.num_stored) // size : -(-end // size)])


class StoredBlocks:
    """Follows the blocks of one pool.

    Args:
        store: where they are saved.
        runner: of the pool, whose host slots hold the store's rows.
        counters: of the engine.
        clock: seconds, monotonic.

    Attributes:
        loaded_tokens_per_s: of the disk level, by recent loads; 0: not measured.
    """

    def __init__(
        self,
        store: BlockStore,
        runner: Runner,
        counters: EngineCounters,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._counters = counters
        pool = self._pool = runner.pool
        self._block_size = pool.block_size
        self._block_bytes = pool.block_size * TOKEN_BYTES
        self.loaded_tokens_per_s = 0.0
        self._prefill = PrefillMeter(clock)
        self._meters = {is_remote: LoadMeter(clock) for is_remote in (False, True)}
        self._ran: Sequence[BatchRow] = ()
        self._copied: set[int] = set()  # blocks to which parts of others were copied with the last answers
        self._clock = clock
        self._held: list[_Held | None] = [None] * pool.num_blocks
        self._hashes = array("Q", bytes(8 * pool.num_blocks))  # by which the service names what is held
        self.runner = StoringRunner(runner, self._overwritten)
        self._unsaved: dict[int, None] = {}  # blocks, the oldest first
        self._loading: list[_Loading] = []
        self._readers_copy = pool.copies_at_once and not store.host.num_kept
        self._next_save_s = -math.inf
        self._busy_s = 0.0  # that saves may still take while batches run

    @property
    def num_unsaved(self) -> int:
        """Blocks that wait to be saved, or are being saved."""
        return len(self._unsaved) + self._store.num_in_flight

    @property
    def next_s(self) -> float:
        """When a round is due without a message: for a save, or because a load has taken too long."""
        waits = (one.waits_until_s for one in self._loading if one.is_wanted and one.branch.is_loading)
        return min(self._next_save_s if self._unsaved else math.inf, min(waits, default=math.inf))

    # -- names --------------------------------------------------------------------------------------------------------

    def ran(self, rows: Sequence[BatchRow]) -> None:
        """These rows have been launched: blocks that they fill have names."""
        self._ran = rows
        for branch, start, end in rows:
            self._name(branch, max(start, branch.num_stored) // self._block_size, end // self._block_size)
            if branch.loaded:
                self._skip_loaded(branch)

    def advanced(self, branch: Branch) -> None:
        """A position that was run ahead of its token counts as computed: a block that it fills has a name."""
        end, num_left = divmod(branch.num_computed, self._block_size)
        if not num_left:
            self._name(branch, end - 1, end)

    def timed(self, batch_s: float) -> None:
        """The rows launched last took so long: measure their prompts' part."""
        num_positions = sum(end - start for _, start, end in self._ran)
        for _, start, end in self._ran:
            self._prefill.computed(start, end - start, batch_s * (end - start) / num_positions)
        self._ran = ()

    def _name(self, branch: Branch, first: int, end: int) -> None:
        """Blocks [first, end) of a branch's table hold its history now. One that began before an erasure is not stored."""
        if first >= end or not self._is_stored(branch):
            return
        keys, names = self._names(branch, first, end)
        if branch.generation.stored_under not in (b"", keys.id):
            return
        branch.generation.stored_under = keys.id
        for index, name in enumerate(names[1:]):
            block_id = branch.block_table[first + index]
            self._held[block_id] = _Held(name, names[index], keys)
            self._unsaved[block_id] = None

    def _is_stored(self, branch: Branch) -> bool:
        generation = branch.generation
        return generation.terms.shares_prefix and not self._store.is_clearing(generation.namespace)

    def _names(self, branch: Branch, first: int, end: int) -> tuple[NamespaceKeys, list[bytes]]:
        """Names of blocks [first - 1, end) of a branch's history. O(blocks after the last one whose name is known)."""
        generation = branch.generation
        keys = self._store.keys_of(generation.namespace)
        name = self._store.root(keys, generation.adapter)
        known = first
        while known:
            held = self._held[branch.block_table[known - 1]]
            if held is not None and held.keys.id == keys.id:
                name = held.name
                break
            known -= 1
        tokens = branch.packed_tokens[known * self._block_bytes : end * self._block_bytes]
        if self._store.hints is not None:
            above = self._hashes[branch.block_table[known - 1]] if known else namespace_hash(generation.namespace)
            hashes = chained_hashes(above, tokens, self._block_bytes)
            for block_id, block_hash in zip(branch.block_table[known:end], hashes, strict=False):
                self._hashes[block_id] = block_hash
        return keys, [name, *names_of(keys, name, tokens, self._block_bytes)][first - known :]

    # -- saving -------------------------------------------------------------------------------------------------------

    def handed_out(self, block_ids: Sequence[int], copies: Sequence[Copy]) -> None:
        """Sequences are going to write these blocks, by these copies first: save what they hold, before anything queued later
        on the device. Until they are written none has a name, not even that of which a part stays.
        """
        self._copied = {copy.dst for copy in copies}
        self._overwritten(block_ids)

    def _overwritten(self, block_ids: Sequence[int]) -> None:
        unsaved: list[tuple[int, _Held]] = []
        for block_id in block_ids:
            held = self._held[block_id]
            if held is not None:
                self._held[block_id] = None
                if not self._store.is_saved(held.name):
                    unsaved.append((block_id, held))
        while unsaved and (num_saved := self._save(unsaved)):
            del unsaved[:num_saved]
        self._counters.num_saves_left_out += len(unsaved)

    def save_some(self, batch_s: float | None) -> None:
        """Save blocks now, if it is time. `batch_s`: time of the batch that ran in this round; None: the worker is idle."""
        if not self._unsaved:
            return
        now_s = self._clock()
        if batch_s is None:
            if now_s >= self._next_save_s:
                num_saved = self._save(self._take_unsaved(_SAVED_AT_ONCE))
                rest_s = num_saved * self._store.block_bytes / self._store.save_rate if num_saved else _NO_ROW_S
                self._next_save_s = now_s + rest_s
            return
        self._busy_s = min(batch_s, self._busy_s + _BUSY_SHARE * batch_s)
        if self._busy_s > 0:
            self._save(self._take_unsaved(1))
            self._busy_s -= self._clock() - now_s

    def drain(self) -> None:
        """Save all that is left, before the worker stops. Loads are given up."""
        for one in self._loading:
            one.load.cancel()
            self._store.host.give_back(block.row for block in one.load.take() if block.row)
        until_s = self._clock() + _DRAIN_S
        while self._store.is_sealed and self._unsaved and self._clock() < until_s:
            if not self._save(self._take_unsaved(_SAVED_AT_ONCE)) and not self._store.flush(until_s - self._clock()):
                return

    def _take_unsaved(self, count: int) -> list[tuple[int, _Held]]:
        """The next blocks to save, as many as there are rows."""
        taken: list[tuple[int, _Held]] = []
        while self._unsaved and len(taken) < min(count, self._store.num_free_rows):
            del self._unsaved[block_id := next(iter(self._unsaved))]
            held = self._held[block_id]
            if held is not None and not self._store.is_saved(held.name):
                taken.append((block_id, held))
        return taken

    def _save(self, blocks: Sequence[tuple[int, _Held]]) -> int:
        """Save as many of these blocks as there are rows; returns how many."""
        rows = self._store.take_rows(len(blocks))
        if rows:
            chosen = blocks[: len(rows)]
            self._pool.save([block_id for block_id, _ in chosen], [row.slot for row in rows])
            wait = self._pool.fence()
            self._store.save(
                [
                    Unsaved(*held, row._replace(wait=wait), mask(held.keys.hint_key, held.name, self._hashes[block_id]))
                    for (block_id, held), row in zip(chosen, rows, strict=True)
                ]
            )
        for block_id, held in blocks[len(rows) :]:  # a load has taken their rows
            if self._held[block_id] is held:
                self._unsaved[block_id] = None
        return len(rows)

    def erased(self, namespace_id: bytes) -> None:
        """Keys have been destroyed: blocks computed under them are not saved any more. O(blocks)."""
        for block_id, held in enumerate(self._held):
            if held is not None and held.keys.id == namespace_id:
                self._held[block_id] = None

    def cleared(self, namespace: str) -> None:
        """A namespace has been cleared, after `begin_clear`: erase it, and save no block of it. O(blocks)."""
        keys = self._store.keys.of(namespace)
        for block_id, held in enumerate(self._held):
            if held is not None and held.keys.name_key == keys.name_key:
                self._held[block_id] = None
        self._store.clear(namespace)

    def dropped(self, entry: Dropped) -> None:
        """A branch has been dropped on purpose: delete what is stored of it, as far as it is not in use. O(blocks).

        Where it ends within a block, what is stored of its siblings in that block goes, too.
        """
        keys = self._store.keys.of(entry.namespace)
        root = self._store.root(keys, adapter_of(entry.namespace))
        names = [root, *names_of(keys, root, entry.tokens, self._block_bytes)]
        is_whole = len(names) > 1 and len(entry.tokens) % self._block_bytes == 0
        kept = {held.name for block_id in entry.kept if (held := self._held[block_id]) is not None}
        gone = [names[-2] if is_whole and names[-1] not in kept else names[-1]]
        below: dict[bytes, list[tuple[int, bytes]]] = {}
        for block_id, held in enumerate(self._held):
            if held is not None and held.name not in kept:
                below.setdefault(held.parent, []).append((block_id, held.name))
        for parent in gone:
            for block_id, name in below.pop(parent, ()):
                self._held[block_id] = None
                gone.append(name)
        self._store.drop(keys.id, gone)

    # -- hints --------------------------------------------------------------------------------------------------------

    def take_hints(self) -> list[HintOp]:
        """The next changes below the pool to be reported to the service."""
        return self._store.hints.take() if self._store.hints is not None else []

    def tell_again(self) -> None:
        """A new service, or a new life of the pool, knows nothing of what lies below it."""
        if self._store.hints is not None:
            self._store.hints.tell_again()

    # -- exports ------------------------------------------------------------------------------------------------------

    def find(self, names: Sequence[bytes]) -> dict[bytes, int]:
        """The blocks of the pool that hold these names now. O(blocks)."""
        wanted = set(names)
        return {held.name: block_id for block_id, held in enumerate(self._held) if held and held.name in wanted}

    def copy_out(self, places: Mapping[bytes, int]) -> dict[bytes, Row | None]:
        """Copy blocks that still hold these names to rows, which the caller gives back. None: no row is free for it."""
        held = {
            name: block_id for name, block_id in places.items() if (one := self._held[block_id]) and one.name == name
        }
        rows = self._store.take_rows(len(held))
        self._pool.save(list(held.values())[: len(rows)], [row.slot for row in rows])
        wait = self._pool.fence()
        return dict(zip_longest(held, [row._replace(wait=wait) for row in rows]))

    # -- loading ------------------------------------------------------------------------------------------------------

    def opened(self, branch: Branch) -> None:
        """A branch has a sequence: it awaits the blocks after its cached ones that the store has."""
        if not self._is_stored(branch):
            return
        generation = branch.generation
        generation.stored_under = generation.stored_under or self._store.keys.of(generation.namespace).id
        if branch.is_line:
            return
        self._name(branch, -(-branch.num_stored // self._block_size), branch.num_computed // self._block_size)
        first, rest = divmod(branch.num_computed, self._block_size)
        # a copy of a part of a block may be replaced
        first += rest > 0 and branch.block_table[first] not in self._copied
        end = min(len(branch.tokens) // self._block_size, -(-branch.first_logit // self._block_size))
        if first >= end:
            return
        keys, names = self._names(branch, first, end)
        if rows := self._store.host.find(names[1:]):
            self._fill(branch, list(enumerate(rows, first)), names, first, keys)
            self._store.host.give_back(rows, self._pool.fence())
            first += len(rows)
            names = names[len(rows) :]
        num_on_disk = self._store.count_on_disk(names[1:])
        self._load(branch, first, names[: num_on_disk + 1], keys, is_remote=False)
        if self._store.remote is not None:
            self._load(branch, first + num_on_disk, names[num_on_disk:], keys, is_remote=True)

    def _load(
        self, branch: Branch, first: int, chain: Sequence[bytes], keys: NamespaceKeys, *, is_remote: bool
    ) -> None:
        """Load blocks from index `first` on, or the last of them, as costs are; `chain` begins with the block before them."""
        is_hanging = [one.load.is_cancelled and one.load.is_remote == is_remote for one in self._loading]
        if len(chain) < 2 or sum(is_hanging) >= _MAX_HANGING:
            return
        num_blocks, size = len(chain) - 1, self._block_size
        indices: Sequence[int] = range(first, first + num_blocks)
        prefill = self._prefill.cost()
        compute_s = _FIRST_WAIT_S if prefill is None else prefill.seconds(first * size, num_blocks * size)
        idle_s = max(LEAST_WAIT_S, MAX_IDLE_SHARE * compute_s)
        choice = self._choose(num_blocks, first, is_remote=is_remote)
        if choice.kind is Kind.COMPUTE:
            return
        if choice.kind is Kind.BOTH:
            indices, idle_s = indices[: choice.num_loaded] if is_remote else indices[: -choice.num_loaded - 1 : -1], 0.0
        self._meters[is_remote].begins()
        names = [chain[index - first + 1] for index in indices]
        copy = None
        if idle_s and self._readers_copy:
            copy = partial(_copy, self._pool, branch.block_table[first : first + num_blocks])
        load = self._store.load(names, keys, max(LEAST_WAIT_S, 2 * compute_s), is_remote=is_remote, copy=copy)
        block_s = compute_s / num_blocks
        self._loading.append(
            _Loading(branch, branch.seq_id, load, branch.num_computed, indices, first, chain, idle_s, block_s)
        )
        branch.is_loading |= idle_s > 0

    def find_stored(self, tokens: bytes, namespace: str, num_cached_tokens: int) -> StoredPrefix:
        """Whole blocks' tokens, after the cached ones, on host and disk level, up to the first that is missing. Any thread."""
        if self._store.is_clearing(namespace):
            return StoredPrefix()
        keys = self._store.keys_of(namespace)
        names = names_of(keys, self._store.root(keys, adapter_of(namespace)), tokens, self._block_bytes)
        first = -(-num_cached_tokens // self._block_size)
        num_in_host = self._store.host.count(names[first:])
        num_on_disk = self._store.count_on_disk(names[first + num_in_host :])
        num_blocks = num_in_host + num_on_disk
        choice = self._choose(num_blocks, first)
        load_s, way = (choice.load_s, choice.kind.value) if num_on_disk else (0.0, "load" if num_in_host else "")
        return StoredPrefix(num_blocks * self._block_size, load_s, choice.compute_s, way)

    def _choose(self, num_blocks: int, first: int, *, is_remote: bool = False) -> Choice:
        """How to get so many blocks of a level, from index `first` on; the remote one may lack them."""
        size, meter = self._block_size, self._meters[is_remote]
        return choose(
            num_blocks,
            size,
            first * size,
            meter.cost(),
            self._prefill.cost(),
            is_stale=meter.is_stale,
            is_from_front=is_remote,
        )

    def end_copies(self) -> None:
        """Blocks of branches that have ended may get other owners from now on: no reader writes to them. O(loads)."""
        for one in self._loading:
            if not one.is_wanted:
                one.load.end_copies()

    def take_landed(self) -> bool:
        """Copy blocks that have come into the pool. Returns whether a branch got further or no longer waits."""
        has_news = False
        for one in list(self._loading):
            branch, load, is_wanted = one.branch, one.load, one.is_wanted
            waited_s = self._clock() - load.started_s
            is_over, is_late = load.is_over, self._clock() > load.until_s  # before the last blocks are taken
            gives_up = not (is_over or load.is_cancelled) and (is_late or not is_wanted)
            has_waited = waited_s >= max(one.idle_s, LEAST_WAIT_S)
            if has_waited and not load.num_landed and (gives_up or (is_over and (is_late or load.is_cancelled))):
                self._meters[load.is_remote].loaded(0, waited_s, waited_s)  # so that the level is not waited for again
            if gives_up:
                load.cancel()
            if landed := load.take():
                has_news |= self._take(one, landed, is_wanted=is_wanted)
            if is_over:
                self._loading.remove(one)
                if load.num_landed:
                    first_s, last_s = load.first_s - load.started_s, load.last_s - load.started_s
                    self._meters[load.is_remote].loaded(load.num_landed, first_s, last_s)
                    self._rate_disk()
            if is_wanted and branch.is_loading:
                loads = [other for other in self._loading if other.branch is branch and other.is_wanted]
                branch.is_loading = self._clock() < max((other.waits_until_s for other in loads), default=-math.inf)
                if not branch.is_loading:
                    has_news = True
                    for other in loads:
                        other.load.end_copies()
        return has_news

    def _rate_disk(self) -> None:
        cost = self._meters[False].cost()
        if cost is not None and cost.block_s:
            self.loaded_tokens_per_s = self._block_size / cost.block_s

    def _take(self, one: _Loading, landed: Sequence[Landed], *, is_wanted: bool) -> bool:
        branch = one.branch
        useful: list[tuple[int, Row | None]] = []
        for block in landed:
            start = one.indices[block.place] * self._block_size
            is_next = branch.num_computed == one.start and start + self._block_size > one.start
            if is_wanted and (is_next or start >= branch.num_computed):
                useful.append((one.indices[block.place], block.row))
        if useful:
            self._fill(branch, useful, one.chain, one.first, one.load.keys)
        host, keys_id = self._store.host, one.load.keys.id
        if host.num_kept:
            hint_key = one.load.keys.hint_key if is_wanted and self._store.hints is not None else None
            kept = []
            for block in landed:
                index = one.indices[block.place]
                parent, name = one.chain[index - one.first : index - one.first + 2]
                hint = mask(hint_key, name, self._hashes[branch.block_table[index]]) if hint_key else b""
                assert block.row is not None, "readers copy only where no rows are kept"
                kept.append(Kept(name, parent, keys_id, block.row, hint))
            host.keep(kept)
        host.give_back((block.row for block in landed if block.row), self._pool.fence())
        return bool(useful)

    def _fill(
        self,
        branch: Branch,
        blocks: Sequence[tuple[int, Row | None]],
        chain: Sequence[bytes],
        first: int,
        keys: NamespaceKeys,
    ) -> None:
        """Copy rows into blocks of a branch, by their index in its table; None: that is done. `chain`, `first`: as in
        `_Loading`.
        """
        table = branch.block_table
        rows = [(row.slot, table[index]) for index, row in blocks if row is not None]
        self._pool.load([slot for slot, _ in rows], [block_id for _, block_id in rows])
        for index, _ in blocks:
            block_id = table[index]
            parent, name = chain[index - first : index - first + 2]
            self._held[block_id] = _Held(name, parent, keys)
            branch.loaded.add(index * self._block_size)
        self._counters.num_store_loaded_blocks += len(blocks)
        self._skip_loaded(branch)

    def _skip_loaded(self, branch: Branch) -> None:
        """Count loaded blocks that follow the computed positions as computed."""
        generation, before = branch.generation, branch.num_computed
        while (start := branch.num_computed // self._block_size * self._block_size) in branch.loaded:
            branch.loaded.remove(start)
            branch.num_computed = start + self._block_size
        if branch.num_computed > before:
            branch.num_computed = min(branch.num_computed, branch.first_logit)
            if generation.num_cached_tokens is not None and branch.seq_id == generation.first_seq_id:
                num_found = max(0, min(branch.num_computed, generation.num_prompt_tokens) - before)
                generation.num_cached_tokens += num_found
                generation.num_loaded_tokens += num_found
                self._counters.num_loaded_tokens += num_found


def _copy(pool: Pool, block_ids: Sequence[int], place: int, row: Row) -> None:
    pool.load([row.slot], [block_ids[place]])
