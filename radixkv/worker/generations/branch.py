"""One growing continuation of a prompt: its history, the sequence it holds in the pool, and how far each has come.

    tokens      p p p p p p p p g g g g G          G: sampled last, not run yet, so it has no KV
                ^0                      ^len - 1
    KV          |-- stored --|-- computed here --|
                             ^num_stored         ^num_computed
    room        [0, room) has blocks in `block_table`; [room, room_asked) was asked for and not yet answered

A branch that is preempted keeps its tokens and gives up its sequence. It is acquired again later, its whole history then
being its prompt; whatever of it is still cached, or was saved (see `swap`), is not computed again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from radixkv.core.api import AcquireResult, ExtendResult
from radixkv.core.namespaces import owner_of
from radixkv.core.tokens import TOKEN_BYTES, num_tokens, pack_tokens
from radixkv.generation.request import BACKGROUND_PRIORITY

if TYPE_CHECKING:
    from radixkv.core.errors import QuotaError
    from radixkv.worker.generations.generation import Generation

__all__ = ["Branch", "OpenedLine", "Phase"]


class Phase(Enum):
    """Where a branch stands."""

    QUEUED = "queued"
    """Waits to be acquired; holds nothing but what it parked."""
    PENDING = "pending"
    """Waits for a prefix that another branch is computing; holds nothing."""
    OPENING = "opening"
    """Its acquire or fork was sent and is not answered yet."""
    RUNNING = "running"
    """Holds a sequence with an applied block table."""
    RESTING = "resting"
    """Holds nothing and waits for nothing of the scheduler: not begun yet, or to be told how it goes on."""
    FINISHED = "finished"


class OpenedLine(AcquireResult):
    """The answer to an acquire that runs on as a line."""


class Branch:
    """State of one branch; see the module's picture. Owned by the engine's thread.

    Attributes:
        order: (arrival of the generation, index of the branch).
        owner: whose request it is: its namespace, an adapter's being that of its caller.
        priority, due_s: see `queue`.
        tokens: its history, the prompt first. It only grows.
        num_matched: how much of its history was cached when last told, and `was_matched` whether it was since it last held any.
        was_refused: whether an acquire of it ever found too few blocks.
        held_up_others: whether it was refused and others waited for it.
        waits_for: while PENDING, the providing sequence and the length of the common prefix.
        is_awaiting_token: whether a batch under way is to draw from the end of its history.
        is_reserving: whether its acquire reserves what it is expected to generate.
        max_length: tokens that the history never exceeds (prompt + what may be generated); the last is never run.
        num_computed: while OPENING, what is expected to be found in the cache.
        num_known: tokens of the history that the cache knows. num_reported: positions reported to it as computed.
        siblings: branches that advance with it, so that one batch is to run them all.
        last_ran: the number of the batch that ran it last.
        is_line: whether its KV lies in a span of its own, so that it holds no blocks of the pool; see `arena`.
        starved: the last extend was refused for lack of blocks and has not been asked again.
        over_quota: what it was refused with, if it was the quota of its namespace.
    """

    __slots__ = (
        "_packed",
        "block_table",
        "due_s",
        "generation",
        "held_up_others",
        "index",
        "is_awaiting_token",
        "is_line",
        "is_reserving",
        "last_ran",
        "max_length",
        "num_computed",
        "num_computed_at_stall",
        "num_known",
        "num_matched",
        "num_reported",
        "num_stored",
        "order",
        "over_quota",
        "owner",
        "phase",
        "priority",
        "room",
        "room_asked",
        "seq_id",
        "siblings",
        "starved",
        "tokens",
        "waits_for",
        "was_matched",
        "was_refused",
    )

    def __init__(self, generation: Generation, index: int, tokens: array[int], max_length: int) -> None:
        self.generation = generation
        self.index = index
        self.order = (generation.arrival, index)
        self.owner = owner_of(generation.namespace)
        self.priority = generation.terms.priority
        self.due_s = generation.terms.due_s
        self._packed = generation.prompt
        self.tokens = tokens
        self.max_length = max_length
        self.phase = Phase.RESTING
        self.num_computed_at_stall = self.last_ran = -1
        self.siblings: Sequence[Branch] = ()
        self.num_matched = 0
        self.was_matched = self.was_refused = self.held_up_others = False
        self.waits_for = (0, 0)
        self.is_reserving = True
        self.is_awaiting_token = False
        self._forget_sequence()

    def _forget_sequence(self) -> None:
        self.seq_id = 0
        self.block_table: array[int] = array("i")
        self.num_stored = self.num_computed = self.num_reported = self.num_known = 0
        self.room = self.room_asked = 0
        self.starved = self.is_line = False
        self.over_quota: QuotaError | None = None

    @property
    def packed_tokens(self) -> bytes:
        """Its history, packed: the prompt as it came, and packed once for as long as nothing is added where it is longer."""
        if len(self._packed) != TOKEN_BYTES * len(self.tokens):
            self._packed = pack_tokens(self.tokens)
        return self._packed

    @property
    def max_room(self) -> int:
        """Positions that this branch can ever need: the last token of a full history is never run."""
        return max(len(self.tokens), self.max_length - 1)

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the last token of its history is still to be run."""
        return len(self.tokens) - self.num_computed > 1

    @property
    def is_background(self) -> bool:
        """Whether it gives way to whatever else awaits its first token."""
        return self.priority == BACKGROUND_PRIORITY

    @property
    def awaits_first_token(self) -> bool:
        """Whether its next positions are of its prompt, and it holds what they need or is about to."""
        is_prompt = self.num_computed < num_tokens(self.generation.prompt)
        return self.phase is Phase.OPENING or (is_prompt and self.can_run)

    @property
    def can_run(self) -> bool:
        """Whether its next position is covered by its block table, and no sibling is about to be opened to run with it."""
        has_room = (
            self.phase is Phase.RUNNING and self.num_computed < self.room and self.num_computed < len(self.tokens)
        )
        return has_room and not any(sibling.phase is Phase.OPENING for sibling in self.siblings)

    @property
    def is_stuck(self) -> bool:
        """Whether it cannot run another position for lack of blocks."""
        return self.phase is Phase.RUNNING and self.starved and self.room <= self.num_computed < len(self.tokens)

    @property
    def is_idle(self) -> bool:
        """Whether all of its history has been run, so that it can only wait to be told how it goes on by others than a batch
        under way.
        """
        return self.phase is Phase.RUNNING and self.num_computed >= len(self.tokens) and not self.is_awaiting_token

    def open(self, seq_id: int, num_tokens: int) -> None:
        """An acquire or a fork of `num_tokens` positions goes out for it under `seq_id`."""
        self._forget_sequence()
        self.seq_id = seq_id
        self.phase = Phase.OPENING
        self.num_known = num_tokens
        self.room_asked = num_tokens

    def opened(self, answer: AcquireResult) -> None:
        """Its acquire or fork was answered: its history up to `num_known` has blocks."""
        self.phase = Phase.RUNNING
        self.was_matched = self.held_up_others = False
        self.is_line = isinstance(answer, OpenedLine)
        self.block_table = answer.block_table
        self.num_stored = answer.num_stored_tokens
        # Where all of the history has KV (a full hit), its last token is run again for its logits alone.
        # While its prompt is scored, the logits that tell of the first token that is not known are wanted as well.
        if self.is_scored:
            self.generation.recall_scores()
        self.num_computed = min(answer.num_stored_tokens, self.first_logit)
        self.num_reported = answer.num_stored_tokens
        self.room = self.num_known

    @property
    def is_scored(self) -> bool:
        """Whether log probabilities of its prompt are still wanted of it."""
        return self.index == 0 and self.generation.num_unscored > 0

    @property
    def first_logit(self) -> int:
        """The first position whose logits are wanted: of its prompt while that is scored, else the last of its history."""
        if self.is_scored:
            return self.generation.num_prompt_tokens - 1 - self.generation.num_unscored
        return len(self.tokens) - 1

    @property
    def num_lost(self) -> int:
        """Positions whose KV it would lose by giving up its sequence now, if nothing of it stayed cached."""
        return max(0, self.num_computed - self.num_stored) if self.phase is Phase.RUNNING else 0

    def extended(self, answer: ExtendResult, room: int) -> None:
        """Room up to `room` was given. After a refusal a smaller ask can be answered behind a larger one."""
        del self.block_table[answer.first_changed :]
        self.block_table.extend(answer.block_ids)
        self.room = max(self.room, room)
        self.room_asked = max(self.room_asked, self.room)
        self.starved = False
        self.over_quota = None

    def close(self, phase: Phase) -> None:
        """It gives up its sequence (the release is the caller's to send)."""
        self._forget_sequence()
        self.phase = phase

    def take_report(self) -> bytes:
        """The packed tokens that have KV now and are not known to the cache yet; they count as reported from now on."""
        start = self.num_known
        self.num_reported = self.num_computed
        if self.num_computed <= start:
            return b""
        self.num_known = self.num_computed
        return pack_tokens(self.tokens[start : self.num_computed])
