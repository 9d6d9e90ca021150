"""Single flight: records which sequence is about to compute which tokens, so that acquires of the same tokens wait for it.

An intent is an open sequence with a block or more left to compute: its history as far as it has room for it. The intents of a
namespace are sorted by their tokens, so the one that shares most with a prompt is a neighbour of the prompt's own place:

    intents, sorted            AAAB····   AABA······   ABAA···
    a prompt's place                    ▲ AABAC           its longest common prefix with any of them is with one of these two

A watch is a number of tokens of one sequence for which `Pending` was answered. It ends in exactly one notice: `published` at
the insert that reaches it, `gone` when the sequence ends or its namespace is cleared before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from radixkv.core.api import Notice, NoticeKind, Pending
from radixkv.core.errors import CorruptionError
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes

__all__ = ["MAX_WAITS", "SingleFlight"]

MAX_WAITS = 65_536
"""Default limit of the watches and untaken notices of one cache."""

_Intent = tuple[bytes, int, Sequence]  # tokens to be published, order of opening, publisher


@dataclass(slots=True, eq=False, repr=False)
class SingleFlight:
    """The intents, watches and untaken notices of one cache.

    It costs nothing until the first acquire that may wait: only then does it begin to follow the sequences. From then on an
    intent costs O(log intents) compares when it is added and removed, a look-up the same, and any other call O(1).

    Attributes:
        is_active: whether sequences are followed; the cache calls `update` and `ended` only then.
        num_pending: `Pending` answers so far. num_notices: notices so far, taken or not.
    """

    _block_size: int
    _max_waits: int
    is_active: bool = False
    num_pending: int = 0
    num_notices: int = 0
    _by_namespace: dict[str, SortedList] = field(default_factory=dict)
    _intents: dict[int, _Intent] = field(default_factory=dict)  # by sequence id
    _watches: dict[int, list[int]] = field(default_factory=dict)
    """By sequence id: lengths in tokens, sorted, each above the computed tokens."""
    _num_watches: int = 0
    _num_added: int = 0
    _notices: deque[Notice] = field(default_factory=deque)

    def activate(self, sequences: Iterable[Sequence]) -> None:
        """Follow all open and future sequences from now on. O(sequences), once."""
        self.is_active = True
        for seq in sequences:
            self.update(seq)

    # -- joining -----------------------------------------------------------------------------------------------------

    def join(self, namespace: str, tokens: bytes, num_matched: int) -> Pending | None:
        """Watch the sequence that will publish the longest prefix of `tokens`, if it is a block or more beyond the match.

        The two neighbours of `tokens` in sorted order are compared; of two with equally long prefixes the one with more
        computed tokens is chosen. Of equal histories it is the one opened first, or the one opened last where `tokens` is
        longer. None where no sequence gets far enough, or where the limit of watches and untaken notices is reached.
        O(log intents) compares.
        """
        seq, num_tokens = self._furthest(namespace, tokens)
        if seq is None or num_tokens - num_matched < self._block_size:
            return None
        watches = self._watches.get(seq.seq_id, [])
        index = bisect_left(watches, num_tokens)
        if index == len(watches) or watches[index] != num_tokens:
            if self._num_watches + len(self._notices) >= self._max_waits:
                return None
            watches.insert(index, num_tokens)
            self._watches[seq.seq_id] = watches
            self._num_watches += 1
        self.num_pending += 1
        return Pending(seq.seq_id, num_tokens)

    def _furthest(self, namespace: str, tokens: bytes) -> tuple[Sequence | None, int]:
        """The sequence that will publish the longest prefix of `tokens`, and the length of that prefix."""
        intents = self._by_namespace.get(namespace)
        best, best_common = None, 0
        if intents is not None:
            index = intents.bisect_left((tokens,))
            for key, _, seq in intents.islice(max(index - 1, 0), index + 1):
                common = common_prefix_bytes(tokens, 0, key, len(key))
                if common > best_common or (
                    common == best_common and best is not None and seq.num_computed > best.num_computed
                ):
                    best, best_common = seq, common
        return best, best_common // TOKEN_BYTES

    def foresee(self, namespace: str, tokens: bytes) -> int:
        """The length of the longest prefix of `tokens` that an open sequence is about to publish; 0: none is. A pure read."""
        return self._furthest(namespace, tokens)[1]

    @property
    def has_notices(self) -> bool:
        """Whether there are untaken notices."""
        return bool(self._notices)

    def take_notices(self) -> list[Notice]:
        """The notices since the last call, oldest first."""
        taken = list(self._notices)
        self._notices.clear()
        return taken

    # -- following the sequences --------------------------------------------------------------------------------------

    def update(self, seq: Sequence) -> None:
        """Update a sequence that was opened, has computed more, or has got more tokens or room: its intent, its watches."""
        watches = self._watches.get(seq.seq_id)
        if watches is not None and watches[0] <= seq.num_computed:
            num_reached = bisect_right(watches, seq.num_computed)
            self._tell("published", seq.seq_id, watches[:num_reached])
            del watches[:num_reached]
            if not watches:
                del self._watches[seq.seq_id]
        reach = min(len(seq.tokens) // TOKEN_BYTES, seq.room)
        is_intent = reach - seq.num_computed >= self._block_size and not seq.root.is_hidden
        known = self._intents.get(seq.seq_id)
        if known is not None and not (is_intent and len(known[0]) == reach * TOKEN_BYTES):
            self._withdraw(seq)
            known = None
        if is_intent and known is None:
            self._num_added += 1
            intent = (bytes(seq.tokens[: reach * TOKEN_BYTES]), self._num_added, seq)
            self._intents[seq.seq_id] = intent
            self._by_namespace.setdefault(seq.root.namespace, SortedList()).add(intent)

    def ended(self, seq: Sequence) -> None:
        """End the intent and watches of a sequence that was released, or whose namespace was cleared."""
        if seq.seq_id in self._intents:
            self._withdraw(seq)
        watches = self._watches.pop(seq.seq_id, None)
        if watches is not None:
            self._tell("gone", seq.seq_id, watches)

    def _withdraw(self, seq: Sequence) -> None:
        namespace = seq.root.namespace
        intents = self._by_namespace[namespace]
        intents.remove(self._intents.pop(seq.seq_id))
        if not intents:
            del self._by_namespace[namespace]

    def _tell(self, kind: NoticeKind, seq_id: int, lengths: list[int]) -> None:
        self._notices.extend([Notice(kind, seq_id, num_tokens) for num_tokens in lengths])
        self._num_watches -= len(lengths)
        self.num_notices += len(lengths)

    # -- checking -----------------------------------------------------------------------------------------------------

    def check(self, sequences: Mapping[int, Sequence]) -> None:
        """Verify that the intents are the open sequences with a block or more to compute, and every watch has one. O(tokens).

        Raises:
            CorruptionError: an intent or a watch is missing or stale.
        """
        expected: dict[int, bytes] = {}
        for seq in sequences.values() if self.is_active else ():
            reach = min(len(seq.tokens) // TOKEN_BYTES, seq.room)
            if reach - seq.num_computed >= self._block_size and not seq.root.is_hidden:
                expected[seq.seq_id] = bytes(seq.tokens[: reach * TOKEN_BYTES])
        listed = [(name, intent) for name, intents in self._by_namespace.items() for intent in intents]
        if {seq_id: intent[0] for seq_id, intent in self._intents.items()} != expected:
            raise CorruptionError(f"the intents of {sorted(self._intents)} are kept, not those of {sorted(expected)}")
        if sorted(intent[2].seq_id for _, intent in listed) != sorted(expected):
            raise CorruptionError("an intent is listed once, in one namespace")
        for name, intent in listed:
            if self._intents[intent[2].seq_id] is not intent or intent[2].root.namespace != name:
                raise CorruptionError(f"an intent is listed in the namespace of its sequence: {intent[1:]}")
        for intents in self._by_namespace.values():
            if not intents or list(intents) != sorted(intents):
                raise CorruptionError("the intents of a namespace are sorted")
        self._check_watches(sequences)

    def _check_watches(self, sequences: Mapping[int, Sequence]) -> None:
        if self._num_watches != sum(map(len, self._watches.values())):
            raise CorruptionError(f"{self._num_watches} watches are counted")
        if self._num_watches + len(self._notices) > self._max_waits:
            raise CorruptionError("more watches and notices are outstanding than may be")
        for seq_id, lengths in self._watches.items():
            watched = sequences.get(seq_id)
            if watched is None or watched.root.is_hidden:
                raise CorruptionError(f"sequence {seq_id} is watched, and nobody can match what it computes")
            reach = min(len(watched.tokens) // TOKEN_BYTES, watched.room)
            if (
                not lengths
                or lengths != sorted(set(lengths))
                or not watched.num_computed < lengths[0] <= lengths[-1] <= reach
            ):
                raise CorruptionError(
                    f"watches of sequence {seq_id} lie between {watched.num_computed} and {reach}: {lengths}"
                )
