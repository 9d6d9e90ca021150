"""The scheduler half: which blocks an engine's step loads from the host pool, and which it saves to it.

A request is a sequence of the index while it runs. Its first tokens are those that the host pool holds; each block that the
engine has filled since is saved to a row of its own and published once every worker has saved it:

    [0, num_stored)            cached when the request was admitted: loaded where the engine does not hold it
    [.., num_published)        saved and published: other requests match it
    [.., num_planned)          in steps whose workers have not all reported
    [.., computed)             the block that is being filled

Workers carry out the plans of steps in order, in each the loads before the saves. So a row that a plan gives to another
sequence is still read correctly by every plan before it.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from radixkv.connectors.index import HostIndex
from radixkv.connectors.rows import NO_STAMP, BlockMove
from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    ClearOp,
    EvictBranchOp,
    ExtendOp,
    ExtendResult,
    InsertOp,
    MatchOp,
    MatchResult,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import derived_namespace
from radixkv.core.tokens import pack_tokens

__all__ = ["HostSaver", "Scheduled", "StepPlan"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepPlan:
    """What every worker copies in one step of the engine. `number` counts plans from 1; `loading`: requests of the loads."""

    number: int
    loads: list[BlockMove] = field(default_factory=list)
    loading: list[str] = field(default_factory=list)
    saves: list[BlockMove] = field(default_factory=list)


class Scheduled(NamedTuple):
    """A request of a step: `num_computed` tokens when the step is done, drafts included.

    `block_ids` continue the request's blocks, or replace them.
    """

    request_id: str
    num_computed: int
    block_ids: Sequence[int] = ()
    replaces: bool = False


class _Found(NamedTuple):
    namespace: str
    num_local: int
    num_matched: int


@dataclass(eq=False, slots=True)
class _Branch:
    """An open sequence of the index."""

    request: Any
    seq_id: int
    namespace: str
    blocks: list[int]
    rows: array[int]
    num_history: int
    num_planned: int
    num_pending: int = 0
    is_finished: bool = False


class _Save(NamedTuple):
    """Tokens to publish once every worker has saved the blocks of a step."""

    branch: _Branch
    num_computed: int
    new_tokens: bytes


class HostSaver:
    """Plans loads and saves for a scheduler, which calls it from one thread.

    Args:
        index: of the host pool; it starts empty.
        num_rows, block_size: the pool's shape; a row is one block of the engine.
        num_workers: reports that a step needs before its saves count.
        namespace: owner of all namespaces used here; salts and adapters derive theirs from it.
    """

    def __init__(self, index: HostIndex, num_rows: int, block_size: int, num_workers: int, namespace: str) -> None:
        self._index = index
        self._block_size = block_size
        self._num_workers = num_workers
        self._namespace = namespace
        self._seq_ids = count(1)
        self._next_stamp = count(NO_STAMP + 1)
        self._stamps = array("q", [NO_STAMP]) * num_rows
        self._found: dict[str, _Found] = {}
        self._loading: dict[str, list[int]] = {}  # blocks in their order
        self._failed: set[str] = set()
        self._branches: dict[str, _Branch] = {}
        self._open: dict[int, _Branch] = {}
        self._queued: list[StepOp] = []
        self._unreported: dict[int, list[_Save]] = {}
        self._reports: Counter[int] = Counter()
        self._plan = StepPlan(1)

    # -- the calls of a scheduler -------------------------------------------------------------------------------------

    def find(self, request: Any, num_computed: int) -> int:
        """How many tokens after the first `num_computed` the host pool holds, in whole blocks; never the last token."""
        namespace = None if request.request_id in self._failed else self._namespace_of(request)
        if namespace is None or request.num_tokens < 2:
            return 0
        tokens = pack_tokens(request.all_token_ids[: request.num_tokens - 1])
        answers = self._ask([MatchOp(tokens, namespace)])
        match = answers[0] if answers else None
        num_matched = match.num_tokens // self._block_size * self._block_size if isinstance(match, MatchResult) else 0
        self._found[request.request_id] = _Found(namespace, num_computed, num_matched)
        return max(0, num_matched - num_computed)

    def admit(self, request: Any, block_ids: Sequence[int], num_external: int) -> None:
        """The engine gave `block_ids` to a request and waits for its `num_external` tokens found: load them.

        Without a `find` before it, the request goes on after its load.
        """
        found = self._found.pop(request.request_id, None)
        if found is None:
            return
        self._end(request.request_id)  # it was preempted
        size, num_loaded = self._block_size, found.num_local + num_external
        length = max(found.num_matched, 1)
        seq_id = next(self._seq_ids)
        packed = pack_tokens(request.all_token_ids[:length])
        answers = self._ask([AcquireOp(packed, namespace=found.namespace, seq_id=seq_id)], opens=seq_id)
        opened = answers[0] if answers else None
        num_stored, rows = 0, array("i")
        if isinstance(opened, AcquireResult):
            num_stored, rows = opened.num_stored_tokens, opened.block_table
            for index in range(num_stored // size if opened.ops else -(-num_stored // size), len(rows)):
                self._stamps[rows[index]] = NO_STAMP
        indices = range(found.num_local // size, num_loaded // size)
        for index in indices:
            is_stored = (index + 1) * size <= num_stored
            row = rows[index] if is_stored else 0
            self._plan.loads.append(BlockMove(row, block_ids[index], self._stamps[row] if is_stored else NO_STAMP))
        if indices:
            self._plan.loading.append(request.request_id)
            self._loading[request.request_id] = list(block_ids)
        if isinstance(opened, AcquireResult):
            num_planned = num_stored // size * size
            branch = _Branch(request, seq_id, found.namespace, list(block_ids), rows, length, num_planned)
            self._branches[request.request_id] = self._open[seq_id] = branch

    def plan(self, scheduled: Iterable[Scheduled]) -> StepPlan:
        """The copies of the step that these requests are scheduled for. Calling it ends the step."""
        growing: list[tuple[_Branch, int]] = []
        for request in scheduled:
            branch = self._branches.get(request.request_id)
            if branch is None:
                continue
            branch.blocks = [*([] if request.replaces else branch.blocks), *request.block_ids]
            num_certain = min(request.num_computed, branch.request.num_tokens, len(branch.blocks) * self._block_size)
            end = num_certain // self._block_size * self._block_size
            if end > branch.num_planned:
                growing.append((branch, end))
        saves: list[tuple[_Save, list[BlockMove]]] = []
        if growing or self._queued:
            answers = self._ask([ExtendOp(branch.seq_id, end) for branch, end in growing])
            for (branch, end), answer in zip(growing, answers or (), strict=False):
                if isinstance(answer, ExtendResult):
                    saves.append(self._plan_save(branch, end, answer))
                else:  # the pool is full of running requests
                    self._end(branch.request.request_id)
        self._drop_lost()
        plan, self._plan = self._plan, StepPlan(self._plan.number + 1)
        kept = [(save, moves) for save, moves in saves if save.branch.seq_id in self._open]
        for save, moves in kept:
            save.branch.num_pending += 1
            plan.saves += moves
        if kept:
            self._unreported[plan.number] = [save for save, _ in kept]
        return plan

    def report(
        self,
        num_saved: Mapping[int, int],
        failed_steps: Iterable[int],
        loaded: Iterable[str],
        failed_blocks: Collection[int],
    ) -> None:
        """Results of workers: how many carried out the saves of each step, and steps with a save that failed; requests whose
        loads are done, and blocks that were not loaded.

        A request with such a block computes it, and is neither looked up nor saved again.
        """
        for request_id in loaded:
            blocks = self._loading.pop(request_id, [])
            bad = [index for index, block in enumerate(blocks) if block in failed_blocks]
            if bad:
                self._failed.add(request_id)
                self._drop_branch(self._branches.get(request_id), num_valid=bad[0] * self._block_size)
        for number in failed_steps:
            for save in self._unreported.pop(number, ()):
                self._drop_branch(save.branch)
        for number, num_workers in num_saved.items():
            if number in self._unreported:
                self._reports[number] += num_workers
        for number in [number for number in self._unreported if self._reports[number] >= self._num_workers]:
            for branch, num_computed, new_tokens in self._unreported.pop(number):
                branch.num_pending -= 1
                if branch.seq_id in self._open:
                    self._queued.append(InsertOp(branch.seq_id, num_computed, new_tokens))
                    self._release_if_done(branch)
        self._reports = Counter({number: n for number, n in self._reports.items() if number in self._unreported})

    def finish(self, request_id: str) -> None:
        """A request has ended or was aborted; all that is saved stays cached."""
        self._found.pop(request_id, None)
        self._loading.pop(request_id, None)
        self._failed.discard(request_id)
        self._end(request_id)

    def reset(self) -> bool:
        """Nothing that was saved until now is loaded again: the model's weights changed, for example.

        Returns whether the index has forgotten it too. Until it has, what it still matches is computed after a failed load.
        """
        for branch in list(self._open.values()):
            self._drop_branch(branch)
        self._found.clear()
        self._stamps = array("q", [NO_STAMP]) * len(self._stamps)
        return self._ask([ClearOp(self._namespace)]) is not None

    def close(self) -> None:
        """Detach from the pool."""
        self._index.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _namespace_of(self, request: Any) -> str | None:
        """The namespace of a request; None if its tokens do not determine its KV, or change."""
        if request.mm_features or request.prompt_embeds is not None or getattr(request, "resumable", False):
            return None
        adapter = request.lora_request
        name = "" if adapter is None else f"{adapter.lora_name}:{adapter.lora_int_id}"
        try:
            return derived_namespace(self._namespace, salt=request.cache_salt or "", adapter=name)
        except InvalidArgumentError as error:
            logger.warning("request %s is not cached in host memory: %s", request.request_id, error)
            return None

    def _ask(self, ops: Sequence[StepOp], opens: int | None = None) -> list[StepResult] | None:
        """Apply the queued ops, then these; the answers to these. Without an answer every sequence is given up."""
        queued, self._queued = self._queued, []
        answers = self._index.step([*queued, *ops])
        if answers is None:
            released = [op.seq_id for op in queued if isinstance(op, ReleaseOp)]
            self._index.orphan([*released, *self._open, *([] if opens is None else [opens])])
            self._give_up()
            return None
        return answers[len(queued) :]

    def _plan_save(self, branch: _Branch, end: int, room: ExtendResult) -> tuple[_Save, list[BlockMove]]:
        """Save the blocks from `num_planned` to `end`, whole: a COPY that the room came with is covered by that."""
        size = self._block_size
        branch.rows = branch.rows[: room.first_changed] + room.block_ids
        moves = []
        for index in range(branch.num_planned // size, end // size):
            self._stamps[branch.rows[index]] = stamp = next(self._next_stamp)
            moves.append(BlockMove(branch.rows[index], branch.blocks[index], stamp))
        new_tokens = pack_tokens(branch.request.all_token_ids[branch.num_history : end])
        branch.num_planned = branch.num_history = end
        return _Save(branch, end, new_tokens), moves

    def _end(self, request_id: str) -> None:
        branch = self._branches.pop(request_id, None)
        if branch is not None:
            branch.is_finished = True
            self._release_if_done(branch)

    def _release_if_done(self, branch: _Branch) -> None:
        if branch.is_finished and not branch.num_pending and self._open.pop(branch.seq_id, None) is not None:
            self._queued.append(ReleaseOp(branch.seq_id))

    def _drop_lost(self) -> None:
        """Forget the sequences that a restarted service did not adopt."""
        for notice in self._index.take_notices():
            branch = self._open.pop(notice.seq_id, None) if notice.kind == "lost" else None
            if branch is not None and self._branches.get(branch.request.request_id) is branch:
                del self._branches[branch.request.request_id]

    def _drop_branch(self, branch: _Branch | None, num_valid: int | None = None) -> None:
        """End a sequence without its unpublished saves; evict what it has in the block at `num_valid`, and all after it."""
        if branch is None or self._open.pop(branch.seq_id, None) is None:
            return
        if self._branches.get(branch.request.request_id) is branch:
            del self._branches[branch.request.request_id]
        self._queued.append(ReleaseOp(branch.seq_id, keep=False))
        if num_valid is not None:
            tokens = pack_tokens(branch.request.all_token_ids[: num_valid + self._block_size])
            self._queued.append(EvictBranchOp(tokens, branch.namespace))

    def _give_up(self) -> None:
        """Forget every sequence: the index no longer knows them, or not what was done with them."""
        self._branches.clear()
        self._open.clear()
        self._unreported.clear()
        self._reports.clear()
