"""One growing continuation of a prompt: its history, its sequence in the pool, and the progress of each.

    tokens      p p p p p p p p g g g g G          G: sampled last, not run yet, so without KV
                ^0                      ^len - 1
    KV          |-- stored --|-- computed here --|
                             ^num_stored         ^num_computed
    room        [0, room) has blocks in `block_table`; [room, room_asked) was requested and not yet answered
    draft       the running batch also runs these guesses of what follows G, at positions len, len + 1, ... within its room;
                KV of those that come true counts as computed, that of the others is written again before it is read

A preempted branch keeps its tokens and gives up its sequence. It is acquired again later with its whole history as the prompt.
Cached or saved parts of the history (see `swap`) are not recomputed.
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
    """State of a branch."""

    QUEUED = "queued"
    """Waits to be acquired; holds no blocks except those saved in swap space."""
    PENDING = "pending"
    """Waits for a prefix that another branch computes; holds no blocks."""
    OPENING = "opening"
    """Its acquire or fork was submitted and is not answered yet."""
    RUNNING = "running"
    """Holds a sequence with an applied block table."""
    RESTING = "resting"
    """Holds no blocks and is not scheduled: not started yet, or waiting for its siblings."""
    FINISHED = "finished"


class OpenedLine(AcquireResult):
    """Answer to an acquire that runs as a line."""


class Branch:
    """State of one branch; see the module's picture. Owned by the engine's thread.

    Attributes:
        order: (arrival of the generation, index of the branch).
        owner: namespace of the caller; an adapter's namespace counts as its caller's.
        priority, due_s: see `queue`.
        tokens: its history, the prompt first. It only grows.
        num_matched: cached tokens of its history at the last match; `was_matched`: whether matched since it last held blocks.
        was_refused: whether an acquire of it ever found too few blocks.
        held_up_others: whether it was refused while other branches waited for it.
        waits_for: while PENDING, the providing sequence and the length of the common prefix.
        is_awaiting_token: whether the running batch draws from the end of its history.
        draft: tokens that the running batch runs after its history; see `speculation`.
        is_reserving: whether its acquire reserves its expected output.
        max_length: bound of the history (prompt + tokens that may be generated); the last token is never run.
        num_computed: while OPENING, the expected cached tokens.
        resumes_at: where its positions are computed from, in a pool with fewer blocks for layers with a sliding window.
        num_known: tokens of the history known to the cache. num_reported: positions reported to the cache as computed.
        siblings: branches that advance with it, all in one batch.
        last_ran: number of its last batch.
        is_loading: whether it waits for blocks from the block store. loaded: first positions of loaded blocks that its computed
            positions have not reached yet.
        is_line: whether its KV lies in a span of its own, so that it holds no blocks of the pool; see `arena`.
        starved: the last extend was refused for lack of blocks and not repeated yet.
        over_quota: the error of its last refusal, if by the quota of its namespace.
    """

    __slots__ = (
        "_packed",
        "block_table",
        "draft",
        "due_s",
        "generation",
        "held_up_others",
        "index",
        "is_awaiting_token",
        "is_line",
        "is_loading",
        "is_reserving",
        "last_ran",
        "loaded",
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
        "resumes_at",
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
        self.draft: Sequence[int] = ()
        self._forget_sequence()

    def _forget_sequence(self) -> None:
        self.seq_id = 0
        self.block_table: array[int] = array("i")
        self.num_stored = self.num_computed = self.num_reported = self.num_known = 0
        self.room = self.room_asked = 0
        self.resumes_at: int | None = None
        self.starved = self.is_line = self.is_loading = False
        self.loaded: set[int] = set()
        self.over_quota: QuotaError | None = None

    @property
    def packed_tokens(self) -> bytes:
        """Its history, packed; packed again only after it has grown."""
        if len(self._packed) != TOKEN_BYTES * len(self.tokens):
            self._packed = pack_tokens(self.tokens)
        return self._packed

    @property
    def max_room(self) -> int:
        """Most positions that this branch can need: the last token of a full history is never run."""
        return max(len(self.tokens), self.max_length - 1)

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the last token of its history still has to be run."""
        return len(self.tokens) - self.num_computed > 1

    @property
    def is_background(self) -> bool:
        """Whether it yields to every other branch that awaits its first token."""
        return self.priority == BACKGROUND_PRIORITY

    @property
    def awaits_first_token(self) -> bool:
        """Whether its next positions are of its prompt, and it holds their blocks or is about to."""
        is_prompt = self.num_computed < num_tokens(self.generation.prompt)
        return self.phase is Phase.OPENING or (is_prompt and self.can_run)

    def num_missing(self, num_found: int) -> int:
        """Tokens of its history, but the last, beyond the first `num_found`."""
        return max(0, len(self.tokens) - 1 - num_found)

    @property
    def can_run(self) -> bool:
        """Whether its block table covers its next position, it waits for no loads, and no sibling is being opened to run with
        it.
        """
        has_room = (
            self.phase is Phase.RUNNING and self.num_computed < self.room and self.num_computed < len(self.tokens)
        )
        return has_room and not self.is_loading and not any(sibling.phase is Phase.OPENING for sibling in self.siblings)

    @property
    def can_run_ahead(self) -> bool:
        """Whether the token that the running batch draws for it can be run before the host has read it."""
        has_room = self.phase is Phase.RUNNING and self.num_computed == len(self.tokens) < self.room
        return has_room and not self.is_loading and self.generation.can_draw_ahead(self)

    @property
    def is_stuck(self) -> bool:
        """Whether it cannot run its next position for lack of blocks."""
        return self.phase is Phase.RUNNING and self.starved and self.room <= self.num_computed < len(self.tokens)

    @property
    def is_idle(self) -> bool:
        """Whether all of its history has been run and no running batch draws for it: it waits for its siblings."""
        return self.phase is Phase.RUNNING and self.num_computed >= len(self.tokens) and not self.is_awaiting_token

    def open(self, seq_id: int, num_tokens: int) -> None:
        """Set state for an acquire or a fork of `num_tokens` positions submitted under `seq_id`."""
        self._forget_sequence()
        self.seq_id = seq_id
        self.phase = Phase.OPENING
        self.num_known = num_tokens
        self.room_asked = num_tokens

    def opened(self, answer: AcquireResult) -> None:
        """Apply the answer to its acquire or fork: its history up to `num_known` has blocks."""
        self.phase = Phase.RUNNING
        self.was_matched = self.held_up_others = False
        self.is_line = isinstance(answer, OpenedLine)
        self.block_table = answer.block_table
        self.num_stored = answer.num_stored_tokens
        # With KV for all of the history (a full hit), the last token is run again for its logits alone.
        # A scored prompt also needs the logits before its first unscored token.
        if self.is_scored:
            self.generation.recall_scores()
        self.num_computed = min(answer.num_stored_tokens, self.first_logit)
        self.num_reported = answer.num_stored_tokens
        self.room = self.num_known

    @property
    def is_scored(self) -> bool:
        """Whether log probabilities of its prompt are still missing."""
        return self.index == 0 and self.generation.num_unscored > 0

    @property
    def first_logit(self) -> int:
        """First position whose logits are needed: of its prompt while scored, else the last of its history."""
        if self.is_scored:
            return self.generation.num_prompt_tokens - 1 - self.generation.num_unscored
        return len(self.tokens) - 1

    @property
    def num_lost(self) -> int:
        """Positions whose KV is lost if it gives up its sequence now and none of it stays cached."""
        return max(0, self.num_computed - self.num_stored) if self.phase is Phase.RUNNING else 0

    def extended(self, answer: ExtendResult, room: int) -> None:
        """Apply an extend answered up to `room`. After a refusal a smaller extend can be answered after a larger one."""
        del self.block_table[answer.first_changed :]
        self.block_table.extend(answer.block_ids)
        self.room = max(self.room, room)
        self.room_asked = max(self.room_asked, self.room)
        self.starved = False
        self.over_quota = None

    def close(self, phase: Phase) -> None:
        """Give up its sequence. The caller submits the release."""
        self._forget_sequence()
        self.phase = phase

    def take_report(self) -> bytes:
        """Packed tokens that have KV and are unknown to the cache. They count as reported from now on."""
        start = self.num_known
        self.num_reported = self.num_computed
        if self.num_computed <= start:
            return b""
        self.num_known = self.num_computed
        return pack_tokens(self.tokens[start : self.num_computed])
