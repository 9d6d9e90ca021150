"""The key file: the keys of every namespace, derived from it without contact, and their erasure.

    point of a namespace = BLAKE2b-56(secret, owner) · generation, 24 bits         generation: the first that is not erased
    leaf                 = value of the cover at that point (`cover.py`)
    id = AES(secret, point)       hint key = BLAKE2b(leaf)       name key, seal key = BLAKE2b(leaf, namespace)

Erasing replaces the file by one whose cover lacks the point. No copy of anything sealed under the leaf opens with the file as
it is then; the namespace goes on with its next generation, which shares nothing with the last. Two hosts that start with copies
of one file derive equal keys, until one of them erases: its point is then the tombstone for the other. After all generations of
an owner its points come from another hash. With the file an id leads back to its point: a block of an erased generation is
known by its id, and no list of them grows.

    file:  magic | secret 32 | number of ids 4 | of nodes 4 | ids, 16 each | nodes: start 10, depth, seed 32 | digest 32

The ids are of an earlier version; none is written. An erased namespace adds up to 2.5 KiB, and its further erasures next to
nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from filelock import FileLock, Timeout

from radixkv.core.namespaces import owner_of
from radixkv.stores.errors import StoreKeyError
from radixkv.stores.secrets.cover import DEPTH, SEED_BYTES, Cover, CoverNode

__all__ = ["ID_BYTES", "POINT_BYTES", "NamespaceKeys", "StoreKeys"]

MAGIC = b"radixkv store key 1\n"
SECRET_BYTES, DIGEST_BYTES, COUNT_BYTES = 32, 32, 4
ID_BYTES = 16
POINT_BYTES = DEPTH // 8
GENERATION_BITS = 24
NODE_BYTES = POINT_BYTES + 1 + SEED_BYTES
LOCK_S = 10.0
MAX_CACHED = 1 << 16


class NamespaceKeys(NamedTuple):
    """Keys of one generation of a namespace.

    Attributes:
        id: 16 bytes, under which its blocks and those of the same owner's namespaces are stored; reveals nothing of them.
        name_key, seal_key: 32 bytes each, of the namespace.
        point: 10 bytes, the tombstone of this generation once it is erased.
        hint_key: 32 bytes, of all namespaces under this id.
    """

    id: bytes
    name_key: bytes
    seal_key: bytes
    point: bytes
    hint_key: bytes


@dataclass(slots=True, eq=False, repr=False)
class _State:
    """One content of the key file. Immutable but for the cache of what is derived from it."""

    secret: bytes
    cover: Cover
    stamp: tuple[int, ...] = ()
    cache: dict[str, NamespaceKeys] = field(default_factory=dict)

    def keys_of(self, namespace: str) -> NamespaceKeys:
        keys = self.cache.get(namespace)
        if keys is None:
            if len(self.cache) >= MAX_CACHED:
                self.cache.clear()
            keys = self.cache[namespace] = self._derive(owner_of(namespace).encode(), namespace.encode())
        return keys

    def _derive(self, owner: bytes, namespace: bytes) -> NamespaceKeys:
        point, turn = None, 0
        while point is None:
            digest = blake2b(
                owner,
                digest_size=(DEPTH - GENERATION_BITS) // 8,
                key=self.secret,
                salt=turn.to_bytes(blake2b.SALT_SIZE, "big"),
                person=b"radixkv point",
            ).digest()
            start = int.from_bytes(digest, "big") << GENERATION_BITS
            point, turn = self.cover.first(start, start + (1 << GENERATION_BITS)), turn + 1
        leaf = self.cover.leaf(point)
        assert leaf is not None, "a point that is not erased has a value"
        name_key, seal_key = (
            blake2b(namespace, digest_size=32, key=leaf, person=person).digest()
            for person in (b"radixkv name", b"radixkv seal")
        )
        return NamespaceKeys(
            _id_of(self.secret, point), name_key, seal_key, point.to_bytes(POINT_BYTES, "big"), _hint_key_of(leaf)
        )

    def is_erased(self, point: int) -> bool:
        return self.cover.first(point, point + 1) is None

    def to_bytes(self) -> bytes:
        parts = [MAGIC, self.secret]
        parts += [number.to_bytes(COUNT_BYTES, "big") for number in (0, len(self.cover.nodes))]
        parts += [
            node.start.to_bytes(POINT_BYTES, "big") + bytes((node.depth,)) + node.seed for node in self.cover.nodes
        ]
        content = b"".join(parts)
        return content + _digest(content)


class StoreKeys:
    """The keys of a key file, which is created where missing. For any thread; processes may share the file.

    Args:
        path: of the file; it must be readable by its owner alone (mode 0600).

    Raises:
        StoreKeyError: the file is readable by others, damaged, or of another kind; or it cannot be read or created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser().resolve()
        self._changing = threading.Lock()
        self._lock = FileLock(f"{self._path}.lock", mode=0o600, thread_local=False)
        if not self._path.exists():
            with self._locked(), contextlib.suppress(FileExistsError):
                self._create()
        self._state = self._read()

    @property
    def pending(self) -> Path:
        """Of the file next to it, which keeps what remote levels have yet to delete."""
        return self._path.with_name(f"{self._path.name}.pending")

    def of(self, namespace: str) -> NamespaceKeys:
        """Keys of the namespace's generation that is not erased, by whichever process. Cached: about 2 µs. Never raises."""
        return self._current().keys_of(namespace)

    def erase(self, namespace: str) -> NamespaceKeys:
        """Destroy the keys of a namespace and of those derived from its owner, durably when it returns. They have new ones from
        then on.

        Returns:
            the destroyed keys: their `id` and `point` are for the levels.

        Raises:
            StoreKeyError: the file cannot be replaced; nothing is erased.
        """
        with self._changing, self._locked():
            state = self._merged()
            keys = state.keys_of(namespace)
            self._replace(state, int.from_bytes(keys.point, "big"))
        return keys

    def hint_key(self, namespace_id: bytes) -> bytes | None:
        """That of the keys of an id; None: they are destroyed, or of another file."""
        state = self._current()
        point = _point_of(state.secret, namespace_id)
        leaf = None if point is None else state.cover.leaf(point)
        return None if leaf is None else _hint_key_of(leaf)

    def erased(self, ids: Iterable[bytes]) -> set[bytes]:
        """Those of some ids whose keys are destroyed: a level may hold blocks of them from before, and deletes them."""
        state = self._current()
        points = {each: _point_of(state.secret, each) for each in ids}
        return {each for each, point in points.items() if point is not None and state.is_erased(point)}

    def puncture(self, point: bytes) -> bytes | None:
        """Carry out a tombstone of another host: destroy the keys of a point, durably when it returns.

        Returns:
            the id whose blocks are to be deleted; None: it is destroyed already.

        Raises:
            StoreKeyError: the tombstone has another length, or the file cannot be replaced; nothing is erased.
        """
        if len(point) != POINT_BYTES:
            raise StoreKeyError(f"a tombstone has {POINT_BYTES} bytes, and this one has {len(point)}")
        number = int.from_bytes(point, "big")
        if self._current().is_erased(number):
            return None
        with self._changing, self._locked():
            state = self._merged()
            if state.is_erased(number):
                return None
            self._replace(state, number)
        return _id_of(state.secret, number)

    def tombstone(self, point: bytes) -> bytes:
        """A point for other hosts with a copy of this file: without one, none can be made that `point_of` takes."""
        return point + self._tag(point)

    def point_of(self, tombstone: bytes) -> bytes | None:
        """The point of a tombstone; None where it was made with another file."""
        point, tag = tombstone[:POINT_BYTES], tombstone[POINT_BYTES:]
        return point if len(point) == POINT_BYTES and hmac.compare_digest(tag, self._tag(point)) else None

    def _tag(self, point: bytes) -> bytes:
        return blake2b(point, digest_size=ID_BYTES, key=self._state.secret, person=b"radixkv tomb").digest()

    def _current(self) -> _State:
        """The state, read again where another process has replaced the file. A file that is gone or damaged changes nothing."""
        with contextlib.suppress(OSError, StoreKeyError):
            if _stamp(os.stat(self._path)) != self._state.stamp and self._changing.acquire(blocking=False):
                try:
                    self._state = self._merged()
                finally:
                    self._changing.release()
        return self._state

    def _merged(self) -> _State:
        """The file's content without what is erased here."""
        read, known = self._read(), self._state
        if read.secret != known.secret:
            raise StoreKeyError(f"--store-key {self._path} was replaced by the key of another store; restart with it")
        return _State(read.secret, read.cover.intersect(known.cover), stamp=read.stamp)

    def _replace(self, state: _State, point: int) -> None:
        state = _State(state.secret, state.cover.puncture(point))
        try:
            old = os.open(self._path, os.O_WRONLY)
            try:
                self._write(state)
                if (
                    os.fstat(old).st_nlink == 0
                ):  # its seeds do not stay in free blocks of the disk, where that can be helped
                    with contextlib.suppress(OSError):
                        os.pwrite(old, bytes(os.fstat(old).st_size), 0)
                        os.fsync(old)
            finally:
                os.close(old)
        except OSError as error:
            raise StoreKeyError(f"--store-key {self._path} cannot be replaced: {error.strerror}") from error

    def _create(self) -> None:
        if self._path.exists():
            raise FileExistsError
        root = CoverNode(0, 0, os.urandom(SEED_BYTES))
        try:
            self._write(_State(os.urandom(SECRET_BYTES), Cover([root])))
        except OSError as error:
            raise StoreKeyError(f"--store-key {self._path} cannot be created: {error.strerror}") from error

    def _write(self, state: _State) -> None:
        """Replace the file and adopt the state: both, durably, or neither."""
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(state.to_bytes())
                file.flush()
                os.fsync(file.fileno())
                state.stamp = _stamp(os.fstat(file.fileno()))
            os.replace(new, self._path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        self._state = state
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read(self) -> _State:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                content = file.read()
            is_replaced = _stamp(os.stat(self._path)) != _stamp(status)  # and what was read may be overwritten
        except OSError as error:
            raise StoreKeyError(f"--store-key {self._path} cannot be read: {error.strerror}") from error
        if is_replaced:
            return self._read()
        if status.st_mode & 0o077:
            raise StoreKeyError(f"--store-key {self._path} may be read by others; chmod 600 it")
        state = _parse(content, _stamp(status))
        if state is None:
            raise StoreKeyError(
                f"--store-key {self._path} is damaged or no key file; restore it, or name a new file and lose what is stored"
            )
        return state

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=LOCK_S)
        except Timeout:
            raise StoreKeyError(f"--store-key {self._path} was locked by another process for {LOCK_S:.0f} s") from None
        except OSError as error:
            raise StoreKeyError(f"--store-key {self._path} cannot be locked: {error.strerror}") from error
        try:
            yield
        finally:
            self._lock.release()


def _parse(content: bytes, stamp: tuple[int, ...]) -> _State | None:
    """The state that a file holds; None: damaged."""
    body, head = content[:-DIGEST_BYTES], len(MAGIC) + SECRET_BYTES + 2 * COUNT_BYTES
    if not body.startswith(MAGIC) or len(body) < head or _digest(body) != content[-DIGEST_BYTES:]:
        return None
    num_ids = int.from_bytes(body[head - 2 * COUNT_BYTES : head - COUNT_BYTES], "big")
    num_nodes = int.from_bytes(body[head - COUNT_BYTES : head], "big")
    nodes_at = head + num_ids * ID_BYTES
    if len(body) != nodes_at + num_nodes * NODE_BYTES:
        return None
    nodes = []
    for at in range(nodes_at, len(body), NODE_BYTES):
        depth_at = at + POINT_BYTES
        start = int.from_bytes(body[at:depth_at], "big")
        nodes.append(CoverNode(start, body[depth_at], body[depth_at + 1 : at + NODE_BYTES]))
    return _State(body[len(MAGIC) : len(MAGIC) + SECRET_BYTES], Cover(nodes), stamp)


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES, person=b"radixkv key file").digest()


def _hint_key_of(leaf: bytes) -> bytes:
    return blake2b(digest_size=32, key=leaf, person=b"radixkv hint").digest()


def _id_of(secret: bytes, point: int) -> bytes:
    return _id_cipher(secret).encryptor().update(point.to_bytes(ID_BYTES, "big"))


def _point_of(secret: bytes, id_: bytes) -> int | None:
    """None: the id was made with another file."""
    point = int.from_bytes(_id_cipher(secret).decryptor().update(id_), "big")
    return point if point < 1 << DEPTH else None


def _id_cipher(secret: bytes) -> Cipher[modes.ECB]:
    """A permutation of single blocks."""
    return Cipher(algorithms.AES(blake2b(digest_size=32, key=secret, person=b"radixkv id").digest()), modes.ECB())


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_mtime_ns, status.st_size
