"""Changes of a pool by others, which come with Notices, on their way to the ledger and to the holder."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from radixkv.client.ledger import Ledger
from radixkv.client.notices import NoticeBox
from radixkv.core.tree.journal import JournalEntry, Recorded, without_records
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.journal import journal_from_proto

__all__ = ["JournalBox"]


class JournalBox:
    """Changes of one pool by others. Its owner locks, but for `await_erasures`.

        received ──> waiting for the answers before them ──> noted ──> acknowledged, once the erasures that follow are done

    Args:
        notices: acknowledges the messages.
        on_journal: the holder's; see `HolderSession`.
    """

    def __init__(
        self,
        notices: NoticeBox,
        on_journal: Callable[[Sequence[JournalEntry]], Sequence[Future[None]] | None] | None,
    ) -> None:
        self._notices = notices
        self._on_journal = on_journal
        self._waiting: deque[tuple[int, list[JournalEntry], int]] = deque()  # after which Step; the message's number
        self._erasing: deque[tuple[int, list[Future[None]]]] = deque()  # number of the message, what it waits for

    def take(self, message: workers.Notices, num_answered: int, ledger: Ledger | None) -> None:
        """Take in the changes of a message, unless it is repeated; `NoticeBox.hold` is next."""
        if not (message.cleared or message.journal) or message.number <= self._notices.num_received:
            return
        entries = journal_from_proto(message)
        if message.cleared and self._on_journal is not None:
            self._notices.delay(message.number)
        if message.after_step <= num_answered:
            self._note(entries, message.number, ledger)
        else:
            self._waiting.append((message.after_step, entries, message.number))

    def answered(self, step: int, ledger: Ledger) -> None:
        """Note what waited for the answers up to this Step."""
        while self._waiting and self._waiting[0][0] <= step:
            self._note(*self._waiting.popleft()[1:], ledger)

    def note_all(self, ledger: Ledger) -> None:
        """Note what waits for answers that no longer come: the service has restarted."""
        while self._waiting:
            _, entries, number = self._waiting.popleft()
            self._note(without_records(entries), number, ledger)

    def _note(self, entries: Sequence[JournalEntry], number: int, ledger: Ledger | None) -> None:
        if ledger is not None:
            for entry in entries:
                ledger.noted(entry)
        told = [entry for entry in entries if not isinstance(entry, Recorded)]
        if self._on_journal is not None and told:
            self._erasing.append((number, list(self._on_journal(told) or ())))

    def await_erasures(self, acknowledge: Callable[[], None]) -> None:
        """Call `acknowledge` for each message that was delayed, once its erasures are done. Needs no lock of the owner."""
        while self._erasing:
            self._await(*self._erasing.popleft(), acknowledge)

    def _await(self, number: int, erasing: list[Future[None]], acknowledge: Callable[[], None]) -> None:
        """Acknowledge a message once all of these are done. One that fails leaves it to `NoticeBox.delay`."""

        def go_on(done: Future[None]) -> None:
            if done.exception() is None:
                self._await(number, erasing[1:], acknowledge)

        if erasing:
            erasing[0].add_done_callback(go_on)
        elif self._notices.handled(number):
            acknowledge()
