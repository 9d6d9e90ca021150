"""Random histories of the disk level against a plain model: writes, uses, damage, erasures, restarts, and crashes that lose
what was not synced.

The model knows which blocks are stored, and when each was last used. It evicts as the contract has it, and shares no code with
the level. Planted mistakes show that the machine would notice them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sealed_blocks import BlockMaker

from radixkv.stores.block import SealedBlock
from radixkv.stores.disk import DiskLevel, index, level, table
from radixkv.stores.disk.index import Index
from radixkv.stores.disk.slots import SlotFile
from radixkv.stores.disk.table import BlockTable
from radixkv.stores.errors import SealError
from radixkv.stores.leaf_first import Entry, LeafFirst
from radixkv.stores.secrets.keys import NamespaceKeys, _State
from radixkv.stores.secrets.sealing import Sealer

NAMESPACES = ("alice", "bob")
HISTORIES = st.lists(st.integers(0, 1), min_size=1, max_size=5)
NUM_SLOTS, SIZES = 9, (8, 9, 12, 20)
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Syncs cost nothing there, and a crash is simulated anyway."""

CRASH_POINTS = ("before sync", "after sync", "before commit", "after commit")


class CrashError(BaseException):
    """The process ends here."""


class UnsyncedSlots(SlotFile):
    """A slot file that knows what a crash of the machine would lose, and crashes at a given point."""

    crash_at = ""
    crashed: Callable[[], None]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unsynced: list[tuple[int, bytes]] = []

    def _write_run(self, slot: int, blocks: Sequence[bytes]) -> None:
        for number in range(slot, slot + len(blocks)):
            self.unsynced.append((number, os.pread(self._fd, self.slot_bytes, number * self.slot_bytes)))
        super()._write_run(slot, blocks)

    def sync(self) -> None:
        self.reach("before sync")
        super().sync()
        self.unsynced = []
        self.reach("after sync")

    def reach(self, point: str) -> None:
        if self.crash_at == point:
            self.crash_at = ""
            self.crashed()
            raise CrashError


class CrashingIndex(Index):
    """An index whose commits a crash precedes or follows."""

    reach: Callable[[str], None] = staticmethod(lambda _: None)  # type: ignore[assignment]

    def commit(self, *arguments: Any, **named: Any) -> None:
        self.reach("before commit")
        super().commit(*arguments, **named)
        self.reach("after commit")


class DiskLevelMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="radixkv-disk-", dir=MEMORY))
        self.maker = BlockMaker(self.root / "key", 600)
        self.num_folders = 0
        self.folder = self.root / "0"
        self.num_slots = NUM_SLOTS
        self.now = 0
        self.used: dict[bytes, int] = {}
        self.parents: dict[bytes, bytes] = {}
        self.owners: dict[bytes, str] = {}
        self.forgotten: set[bytes] = set()  # and not yet deleted from the index, maybe
        self.damaged: set[bytes] = set()
        self.histories: set[tuple[str, tuple[int, ...]]] = set()
        self.erased: set[bytes] = set()
        self.disk = self.open()

    def open(self) -> DiskLevel:
        disk = self.maker.level(self.folder, self.num_slots)
        self.slots: UnsyncedSlots = disk._table.slots  # type: ignore[assignment]
        self.slots.crashed = self.copy_as_a_crash_leaves_it
        disk._table.index.reach = self.slots.reach  # type: ignore[attr-defined]
        return disk

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
            shutil.rmtree(self.root)

    # -- the model ----------------------------------------------------------------------------------------------------

    def touch(self, names: Sequence[bytes]) -> None:
        for name in reversed(names):
            above = name
            while above in self.used:
                self.now += 1
                self.used[above] = self.now
                above = self.parents[above]

    def evict(self, num_blocks: int, keep: set[bytes]) -> set[bytes]:
        evicted: set[bytes] = set()
        for _ in range(num_blocks):
            inner = {self.parents[name] for name in self.used}
            leaves = [name for name in self.used if name not in inner and name not in keep]
            if leaves:
                oldest = min(leaves, key=lambda name: self.used[name])
                evicted.add(oldest)
                del self.used[oldest]
        return evicted

    def stored(self) -> set[bytes]:
        return set(self.disk._table.tree.entries)

    def adopt_order(self) -> None:
        """After a crash the last uses may be lost: the order is the level's."""
        self.used = {name: number for number, name in enumerate(self.disk._table.tree.entries)}
        self.now = len(self.used)

    def chain(self, tokens: list[int], namespace: str) -> list[SealedBlock]:
        chain = self.maker.chain(tokens, namespace)
        self.histories.add((namespace, tuple(tokens)))
        self.parents.update((block.name, block.parent) for block in chain)
        self.owners.update((block.name, namespace) for block in chain)
        return chain

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(tokens=HISTORIES, namespace=st.sampled_from(NAMESPACES), start=st.sampled_from([0, 0, 1, 2, 3]))
    def write(self, tokens: list[int], namespace: str, start: int) -> None:
        chain = self.chain(tokens, namespace)[start:]
        before = self.stored()
        known = [block.name for block in chain if block.name in before]
        num_stored = self.disk.write(chain)
        after = self.stored()
        new = [block.name for block in chain if block.name in after - before]
        assert num_stored == sum(block.name in after for block in chain)
        assert new == [block.name for block in chain if block.name not in before][: len(new)], (
            "children without parents"
        )
        self.touch(known)
        keep = {block.name for block in chain} | {block.parent for block in chain}
        assert self.evict(len(before - after), keep) == before - after, "another block than the oldest leaf made room"
        self.used.update(dict.fromkeys(new, 0))
        self.touch(new)
        if len(new) < len(chain) - len(known):
            assert not self.evict(1, keep), "a block was left out while another could make room"
        self.damaged -= set(new)
        self.forgotten -= set(new)

    @rule(tokens=HISTORIES, namespace=st.sampled_from(NAMESPACES))
    def use(self, tokens: list[int], namespace: str) -> None:
        names = self.maker.names(tokens, namespace)
        self.disk.use(names)
        self.touch([name for name in names if name in self.used])

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Change a byte of a slot, or exchange two of them."""
        names = data.draw(st.lists(st.sampled_from(list(self.used)), min_size=1, max_size=2, unique=True))
        slots = [self.disk._table.tree.entries[name].slot for name in names]
        content = [os.pread(self.slots._fd, self.maker.sealed_bytes, slot * self.slots.slot_bytes) for slot in slots]
        if len(slots) == 1:
            position = data.draw(st.integers(24, self.maker.sealed_bytes - 1))
            changed = bytearray(content[0])
            changed[position] ^= 1
            content = [bytes(changed)]
        else:
            content.reverse()
        for slot, each in zip(slots, content, strict=True):
            os.pwrite(self.slots._fd, each, slot * self.slots.slot_bytes)
        self.damaged |= set(names)

    @rule(namespace=st.sampled_from(NAMESPACES))
    def erase(self, namespace: str) -> None:
        keys = self.maker.keys.erase(namespace)
        assert self.disk.erase(keys.id)
        self.erased.add(keys.id)
        self.histories = {each for each in self.histories if each[0] != namespace}
        self.used = {name: number for name, number in self.used.items() if self.owners[name] != namespace}
        self.forgotten = {name for name in self.forgotten if self.owners[name] != namespace}

    @rule()
    def restart(self) -> None:
        order = list(self.disk._table.tree.entries)
        self.disk.close()
        self.disk = self.open()
        self.forgotten = set()
        assert list(self.disk._table.tree.entries) == order, "the order of use was lost"

    @rule(num_slots=st.sampled_from(SIZES))
    def restart_with_another_size(self, num_slots: int) -> None:
        before = self.stored()
        self.disk.close()
        self.num_slots = num_slots
        self.disk = self.open()
        self.forgotten = set()
        gone = before - self.stored()
        assert len(gone) == max(len(before) - num_slots, 0), "a stored block was lost"
        assert self.evict(len(gone), set()) == gone, "another block than the oldest leaf had to go"

    @rule()
    def crash(self) -> None:
        self.copy_as_a_crash_leaves_it()
        self.begin_again(self.stored(), set())

    @rule(tokens=HISTORIES, namespace=st.sampled_from(NAMESPACES), point=st.sampled_from(CRASH_POINTS))
    def crash_while_writing(self, tokens: list[int], namespace: str, point: str) -> None:
        chain = self.chain(tokens, namespace)
        self.slots.crash_at = point
        before = self.stored()
        try:
            self.disk.write(chain)
        except CrashError:
            self.begin_again(before, {block.name for block in chain} - before)
        else:
            self.slots.crash_at = ""
            self.damaged -= self.stored() - before
            self.forgotten -= self.stored() - before
            self.adopt_order()

    def copy_as_a_crash_leaves_it(self) -> None:
        self.num_folders += 1
        copy = self.root / str(self.num_folders)
        shutil.copytree(self.folder, copy)
        with open(copy / self.slots_path, "r+b") as file:
            for slot, content in reversed(self.slots.unsynced):
                file.seek(slot * self.slots.slot_bytes)
                file.write(content)

    @property
    def slots_path(self) -> Path:
        return self.disk._folder.slots.relative_to(self.folder)

    def begin_again(self, before: set[bytes], on_their_way: set[bytes]) -> None:
        self.slots.crash_at = ""
        self.disk._table.index.reach = lambda _: None  # type: ignore[attr-defined]
        self.disk.close()
        self.folder = self.root / str(self.num_folders)
        self.disk = self.open()
        after = self.stored()
        assert after <= before | on_their_way | self.forgotten, "a block came back"
        gone = before - after
        num_ahead = self.num_slots // table.PART_AHEAD
        assert len(gone) <= (2 * len(on_their_way) + num_ahead if on_their_way else 0), "a stored block was lost"
        assert gone.isdisjoint(self.parents[name] for name in after), "a parent went before its children"
        self.damaged = self.damaged - (after & on_their_way) | (after & self.forgotten)
        self.forgotten -= after
        self.adopt_order()

    # -- what always holds --------------------------------------------------------------------------------------------

    @rule(writes_again=st.booleans())
    def read_everything(self, writes_again: bool) -> None:
        keys_of = self.maker.keys.of
        sealed, out = memoryview(bytearray(self.maker.sealed_bytes)), memoryview(bytearray(self.maker.data_bytes))
        names: dict[bytes, str] = {}
        histories: dict[bytes, list[int]] = {}
        for namespace, tokens in sorted(self.histories):
            for number, name in enumerate(self.maker.names(list(tokens), namespace), 1):
                assert names.setdefault(name, namespace) == namespace, "two namespaces share a name"
                histories[name] = list(tokens[:number])
        for name, namespace in names.items():
            if not self.disk.read(name, sealed):
                assert name not in self.used, "a stored block was not read"
                continue
            try:
                self.maker.sealer.open_into(keys_of(namespace), name, sealed, out)
            except SealError:
                assert name in self.damaged, "a stored block does not open"
                self.disk.forget(name)
                self.damaged.discard(name)
                self.forgotten.add(name)
                del self.used[name]
                if writes_again:
                    self.write(histories[name], namespace, 0)
            else:
                assert out == self.maker.data(name), "a wrong block opened"

    @invariant()
    def nothing_is_amiss(self) -> None:
        self.disk.check()
        assert self.stored() == set(self.used)
        for path in self.folder.rglob("index*"):
            content = path.read_bytes()
            assert not [each for each in self.erased if each in content], "an erased namespace left a trace"


def run(num_examples: int, *, derandomize: bool = True) -> None:
    run_state_machine_as_test(
        DiskLevelMachine,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=derandomize,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "SLOW_S", 300.0)  # a busy machine is no slow disk
    monkeypatch.setattr(table, "SlotFile", UnsyncedSlots)
    monkeypatch.setattr(table, "Index", CrashingIndex)
    monkeypatch.setattr(table, "PART_AHEAD", 4)  # so that few slots are enough for writes without a commit


def test_random_histories() -> None:
    run(25)


@pytest.mark.slow
def test_many_random_histories() -> None:
    run(1000, derandomize=False)


# -- planted mistakes -------------------------------------------------------------------------------------------------


def commit_before_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnsyncedSlots, "sync", lambda self: self.reach("after sync"))


def check_no_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_into(_: Sealer, keys: NamespaceKeys, _name: bytes, sealed: memoryview, out: memoryview) -> None:
        key = blake2b(bytes(sealed[:16]), digest_size=32, key=keys.seal_key, person=b"radixkv session").digest()
        counter = modes.CTR(bytes(sealed[16:24]) + bytes(7) + b"\x02")
        out[:] = Cipher(algorithms.AES(key), counter).decryptor().update(bytes(sealed[24:-16]))

    monkeypatch.setattr(Sealer, "open_into", open_into)


def leave_namespace_out(monkeypatch: pytest.MonkeyPatch) -> None:
    derive = _State._derive
    monkeypatch.setattr(_State, "_derive", lambda self, *_: derive(self, b"all", b"all"))


def evict_parents_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def evict(self: LeafFirst, num_blocks: int, keep: set[bytes] = frozenset()) -> list[tuple[bytes, Entry]]:  # type: ignore[assignment]
        chosen = [each for each in reversed(self.entries.items()) if each[0] not in keep][: max(num_blocks, 0)]
        for name, _ in chosen:
            self.remove(name)
        return chosen

    monkeypatch.setattr(LeafFirst, "evict", evict)


def touch_no_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    def touch(self: LeafFirst, names: Sequence[bytes]) -> None:
        for name in names:
            if name in self.entries:
                self.clock += 1
                self.used[name] = self.clock
                self.entries.move_to_end(name)

    monkeypatch.setattr(LeafFirst, "touch", touch)


def free_slots_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def evict(self: BlockTable, num_blocks: int, keep: set[bytes]) -> None:
        self.slots.free += [entry.slot for _, entry in self.tree.evict(num_blocks, keep)]

    monkeypatch.setattr(BlockTable, "_evict", evict)


def evict_what_is_being_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    evict = BlockTable._evict
    monkeypatch.setattr(BlockTable, "_evict", lambda self, num_blocks, _: evict(self, num_blocks, set()))


def read_labels_of_past_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotFile, "begin", lambda *_: None)


def read_no_labels_at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "unlisted", lambda *_: [])


def leave_the_log_after_an_erasure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "truncate_log", lambda _: None)


def leave_deleted_rows_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    configure = index._configure

    def configure_without(connection: sqlite3.Connection) -> None:
        configure(connection)
        connection.execute("PRAGMA secure_delete = OFF")

    monkeypatch.setattr(index, "_configure", configure_without)


def erase_from_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def erase(self: DiskLevel, namespace_id: bytes) -> bool:
        table = self._table
        for name in [name for name, entry in table.tree.entries.items() if entry.namespace_id == namespace_id]:
            table.slots.free.append(table.tree.entries[name].slot)
            table.tree.remove(name)
        return True

    monkeypatch.setattr(DiskLevel, "erase", erase)


def lose_the_order_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    touch = LeafFirst.touch

    def touch_unrecorded(self: LeafFirst, names: Sequence[bytes]) -> None:
        touch(self, names)
        self.used = {}

    monkeypatch.setattr(LeafFirst, "touch", touch_unrecorded)


def keep_what_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskLevel, "forget", lambda *_: None)


MISTAKES = [
    commit_before_sync,
    check_no_tag,
    leave_namespace_out,
    evict_parents_first,
    touch_no_parents,
    free_slots_before_the_commit,
    evict_what_is_being_extended,
    read_labels_of_past_epochs,
    read_no_labels_at_a_start,
    leave_the_log_after_an_erasure,
    leave_deleted_rows_readable,
    erase_from_memory_alone,
    lose_the_order_of_use,
    keep_what_does_not_open,
]


@pytest.mark.thorough
@pytest.mark.parametrize("plant", MISTAKES, ids=[plant.__name__ for plant in MISTAKES])
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, sqlite3.Error)):
        run(800)  # ends with the first that finds it
