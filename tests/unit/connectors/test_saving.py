"""Which blocks are loaded from the host pool and saved to it, by a scheduler and workers that are as vLLM's and not vLLM's."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from radixkv import PrefixCache
from radixkv.connectors.index import HostIndex
from radixkv.connectors.saving import HostSaver, Scheduled, StepPlan
from radixkv.core.api import AcquireOp, EvictBranchOp, Notice, ReleaseOp, StepOp, StepResult
from radixkv.core.errors import UnavailableError
from radixkv.core.tokens import pack_tokens

SIZE = 4


class Index(PrefixCache):
    """A holder in the process, which can be lost, and told of lost sequences."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, SIZE)
        self.is_down = False
        self.said: list[StepOp] = []
        self.told: list[Notice] = []

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        if self.is_down:
            raise UnavailableError("the service cannot be reached")
        self.said += ops
        future: Future[list[StepResult]] = Future()
        future.set_result(self.step(ops))
        return future

    def take_notices(self) -> list[Notice]:
        told, self.told = self.told, []
        return [*super().take_notices(), *told]


class Content(NamedTuple):
    """What the KV of a block depends on."""

    owner: str
    history: tuple[int, ...]


class Worker:
    """Blocks of the engine and host rows; loads count only by their stamps."""

    def __init__(self, num_rows: int) -> None:
        self.rows: list[tuple[int, Content | None]] = [(0, None)] * num_rows
        self.blocks: dict[int, Content | None] = {}

    def load(self, plan: StepPlan) -> set[int]:
        """The blocks that were not loaded."""
        failed = set()
        for row, block, stamp in plan.loads:
            found, content = self.rows[row]
            if stamp and stamp == found:
                self.blocks[block] = content
            else:
                failed.add(block)
        return failed

    def save(self, plan: StepPlan) -> None:
        for row, block, stamp in plan.saves:
            self.rows[row] = stamp, self.blocks[block]


def request(name: str, tokens: Sequence[int], **fields: Any) -> Any:
    plain = {"mm_features": [], "prompt_embeds": None, "lora_request": None, "cache_salt": None}
    return SimpleNamespace(request_id=name, all_token_ids=list(tokens), num_tokens=len(tokens), **(plain | fields))


def owner_of(asked: Any) -> str:
    return f"{asked.cache_salt}|{asked.lora_request and asked.lora_request.lora_name}"


class Engine:
    """A scheduler with blocks for all; one step at a time."""

    def __init__(self, num_rows: int = 32, *, num_workers: int = 1) -> None:
        self.indices = [Index(num_rows)]
        self.saver = HostSaver(HostIndex(lambda: self.indices[-1], retry_s=0.001), num_rows, SIZE, num_workers, "host")
        self.worker = Worker(num_rows)
        self.num_workers = num_workers
        self.num_blocks = 0
        self.tables: dict[str, list[int]] = {}

    def admit(self, asked: Any, num_local: int = 0) -> int:
        """Give a request its blocks; the tokens that it is to load. The engine itself holds the first `num_local`."""
        num_found = self.saver.find(asked, num_local)
        table = self.tables[asked.request_id] = []
        self.grow(asked, asked.num_tokens)
        for index in range(num_local // SIZE):
            self.worker.blocks[table[index]] = self.content(asked, index)
        self.saver.admit(asked, table, num_found)
        return num_found

    def grow(self, asked: Any, length: int) -> list[int]:
        table = self.tables[asked.request_id]
        new = list(range(self.num_blocks, self.num_blocks + -(-length // SIZE) - len(table)))
        self.num_blocks += len(new)
        table += new
        return new

    def content(self, asked: Any, index: int) -> Content:
        return Content(owner_of(asked), tuple(asked.all_token_ids[: (index + 1) * SIZE]))

    def step(self, *asked: Any, reports: bool = True, loads: bool = True) -> tuple[StepPlan, set[int]]:
        """All computed for these; what was to be copied, and the blocks that were not loaded."""
        plan = self.saver.plan([Scheduled(each.request_id, each.num_tokens) for each in asked])
        failed = self.worker.load(plan) if loads else {move.block for move in plan.loads}
        for each in asked:
            for index in range(each.num_tokens // SIZE):
                block, expected = self.tables[each.request_id][index], self.content(each, index)
                was_loaded = any(move.block == block for move in plan.loads) and block not in failed
                assert not was_loaded or self.worker.blocks[block] == expected, "other KV was loaded"
                self.worker.blocks[block] = expected
        self.worker.save(plan)
        if reports:
            self.report(plan, failed)
        return plan, failed

    def report(self, plan: StepPlan, failed: set[int] = set()) -> None:  # noqa: B006 - read only
        saved = {plan.number: self.num_workers} if plan.saves else {}
        self.saver.report(saved, [], plan.loading, failed)

    def run(self, asked: Any, num_local: int = 0) -> int:
        """A whole request; the tokens that it loaded."""
        num_found = self.admit(asked, num_local)
        _, failed = self.step(asked)
        assert not failed
        self.saver.finish(asked.request_id)
        self.step()
        return num_found

    def close(self) -> None:
        """Nothing is left open."""
        self.step()
        self.step()
        self.indices[-1].check()
        assert self.indices[-1].stats().num_sequences == 0
        self.saver.close()


PROMPT = range(100, 111)  # two blocks and three tokens


def test_whole_blocks_are_found_once_they_are_saved_and_never_the_last_token() -> None:
    engine = Engine()
    assert engine.run(request("a", PROMPT)) == 0
    assert engine.run(request("b", PROMPT)) == 8
    assert engine.run(request("c", PROMPT[:8])) == 4, "the last token is computed for its logits"
    assert engine.run(request("d", PROMPT[:9])) == 8
    assert (
        engine.run(
            request(
                "e",
                PROMPT,
            ),
            4,
        )
        == 4
    ), "the engine holds the first block itself"
    assert engine.run(request("f", PROMPT), 8) == 0
    assert engine.run(request("g", PROMPT[:1])) == 0
    assert engine.run(request("h", [*PROMPT[:6], 1, 2, 3])) == 4, "they part within the second block"
    engine.close()


def test_a_decode_saves_each_block_as_it_fills() -> None:
    engine, asked = Engine(), request("a", PROMPT)
    engine.admit(asked)
    saved = []
    for token in range(6):
        plan, _ = engine.step(asked)
        saved.append(len(plan.saves))
        asked.all_token_ids.append(token)
        asked.num_tokens += 1
        blocks = engine.grow(asked, asked.num_tokens)
        engine.saver.plan([Scheduled("a", asked.num_tokens - 1, blocks)])
    assert saved == [2, 1, 0, 0, 0, 1]
    engine.saver.finish("a")
    engine.step()
    assert engine.run(request("b", [*asked.all_token_ids, 9])) == 16
    engine.close()


def test_what_is_scheduled_and_not_certain_is_not_saved() -> None:
    engine, asked = Engine(), request("a", PROMPT)
    engine.admit(asked)
    plan = engine.saver.plan([Scheduled("a", 7), Scheduled("unknown", 99)])
    assert len(plan.saves) == 1
    drafts = engine.saver.plan([Scheduled("a", 40)])
    assert len(drafts.saves) == 1, "drafts beyond the request's tokens may be rejected"
    assert (plan.number, drafts.number) == (1, 2)


def test_blocks_that_are_replaced_are_not_saved() -> None:
    engine, asked = Engine(), request("a", PROMPT)
    engine.admit(asked)
    plan = engine.saver.plan([Scheduled("a", 8, [50, 51, 52], replaces=True)])
    assert [move.block for move in plan.saves] == [50, 51]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_others_find_a_block_once_every_worker_has_saved_it(num_workers: int) -> None:
    engine = Engine(num_workers=num_workers)
    first = request("a", PROMPT)
    engine.admit(first)
    plan, _ = engine.step(first, reports=False)
    engine.saver.report({plan.number + 7: num_workers}, [], [], set())
    for number in range(num_workers):
        engine.step()
        assert engine.saver.find(request(f"early {number}", PROMPT), 0) == 0
        engine.saver.report({plan.number: 1}, [], [], set())
    assert engine.saver.find(request("b", PROMPT), 0) == 8
    engine.saver.finish("a")
    engine.close()


def test_a_request_that_ends_before_its_saves_are_reported_still_leaves_them_cached() -> None:
    engine, first = Engine(), request("a", PROMPT)
    engine.admit(first)
    plan, _ = engine.step(first, reports=False)
    engine.saver.finish("a")
    engine.step()
    assert engine.indices[0].stats().num_sequences == 1, "its rows are held until they are written"
    engine.report(plan)
    assert engine.run(request("b", PROMPT)) == 8
    engine.close()


@pytest.mark.parametrize(
    ("fields", "num_found"),
    [
        ({}, 8),
        ({"cache_salt": "pepper"}, 0),
        ({"lora_request": SimpleNamespace(lora_name="sql", lora_int_id=1)}, 0),
        ({"mm_features": ["image"]}, 0),
        ({"prompt_embeds": object()}, 0),
        ({"resumable": True}, 0),
    ],
)
def test_only_what_depends_on_the_same_tokens_alone_is_shared(fields: dict[str, Any], num_found: int) -> None:
    engine = Engine()
    engine.run(request("a", PROMPT))
    assert engine.run(request("b", PROMPT, **fields)) == num_found
    is_kept = not {"mm_features", "prompt_embeds", "resumable"} & set(fields)
    assert engine.run(request("c", PROMPT, **fields)) == (8 if is_kept else 0)
    engine.close()


def test_adapters_of_one_name_and_another_number_are_others() -> None:
    engine = Engine()
    for number, num_found in ((1, 0), (1, 8), (2, 0)):
        adapter = SimpleNamespace(lora_name="sql", lora_int_id=number)
        assert engine.run(request(f"{number} {num_found}", PROMPT, lora_request=adapter)) == num_found
    engine.close()


def test_a_name_that_cannot_be_a_namespace_is_not_cached_and_said(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    adapter = SimpleNamespace(lora_name="x" * 300, lora_int_id=1)
    for name in ("a", "b"):
        assert engine.run(request(name, PROMPT, lora_request=adapter)) == 0
    assert "request a is not cached in host memory" in caplog.text
    assert engine.indices[0].said == [], "nothing is looked up or opened for it"
    engine.close()


def test_a_request_whose_load_failed_computes_it_and_what_could_not_be_read_is_evicted() -> None:
    engine = Engine()
    engine.run(request("a", PROMPT))
    again = request("b", PROMPT)
    assert engine.admit(again) == 8
    table = engine.tables["b"]
    engine.step(again, loads=False, reports=False)
    engine.saver.report({}, [], ["b"], {table[1]})
    assert engine.saver.find(again, 0) == 0, "it is not looked up again"
    assert engine.saver.find(request("c", PROMPT), 0) < 8
    (evicted,) = (op for op in engine.indices[0].said if isinstance(op, EvictBranchOp))
    assert evicted.tokens == pack_tokens(PROMPT[:8]), "up to the bad block and with it"
    engine.saver.finish("b")
    engine.run(request("d", PROMPT))
    assert engine.saver.find(request("b", PROMPT), 0) == 8, "another request of its name is"
    engine.close()


def test_a_load_that_went_well_is_no_failure_of_another() -> None:
    engine = Engine()
    engine.run(request("a", PROMPT))
    assert engine.admit(request("b", PROMPT)) == 8
    engine.saver.report({}, [], ["b", "unknown"], {999})
    assert engine.saver.find(request("b", PROMPT), 0) == 8
    engine.saver.finish("b")
    engine.close()


def test_a_step_that_a_worker_could_not_save_is_published_never() -> None:
    engine, first = Engine(), request("a", PROMPT)
    engine.admit(first)
    plan, _ = engine.step(first, reports=False)
    engine.saver.report({plan.number: 1}, [plan.number, 99], [], set())
    assert engine.saver.find(request("b", PROMPT), 0) == 0
    first.all_token_ids += [1, 2, 3, 4]
    first.num_tokens += 4
    engine.grow(first, 15)
    assert not engine.saver.plan([Scheduled("a", 15)]).saves, "its later blocks would follow on nothing"
    engine.saver.finish("a")
    engine.close()


def test_a_preempted_request_is_admitted_anew() -> None:
    engine, first = Engine(), request("a", PROMPT)
    engine.admit(first)
    engine.step(first)
    assert engine.admit(first) == 8
    engine.step(first)
    assert engine.indices[0].stats().num_sequences == 1
    engine.saver.finish("a")
    engine.close()


def test_a_request_that_waits_for_its_load_is_admitted_a_second_time_without_a_look() -> None:
    engine, first = Engine(), request("a", PROMPT)
    engine.admit(first)
    num_said = len(engine.indices[0].said)
    engine.saver.admit(first, engine.tables["a"], 0)
    assert len(engine.indices[0].said) == num_said
    engine.saver.finish("a")
    engine.close()


def test_a_request_that_ends_before_it_is_admitted_leaves_nothing() -> None:
    engine, first = Engine(), request("a", PROMPT)
    engine.saver.find(first, 0)
    engine.saver.finish("a")
    engine.saver.admit(first, [0, 1, 2], 0)
    assert engine.indices[0].stats().num_sequences == 0
    engine.close()


def test_a_request_that_finds_no_row_runs_on_without_saves() -> None:
    engine, first, second = Engine(3), request("a", PROMPT), request("b", range(50, 61))
    for each in (first, second):
        engine.admit(each)
    plan, _ = engine.step(first, second)
    assert len(plan.saves) == 2
    assert not engine.step(second)[0].saves
    for name in "ab":
        engine.saver.finish(name)
    engine.step()
    assert engine.run(request("c", PROMPT)) == 8
    engine.close()


def test_rows_that_were_given_to_others_are_not_loaded_in_their_place() -> None:
    engine = Engine(4)
    engine.run(request("a", PROMPT))
    late = request("late", PROMPT)
    assert engine.admit(late) == 8
    plan = engine.saver.plan([])
    engine.worker.rows = [(stamp + 1, content) for stamp, content in engine.worker.rows]
    assert engine.worker.load(plan) == set(engine.tables["late"][:2])


def test_after_a_reset_nothing_of_before_is_found_or_loaded() -> None:
    engine, running, waiting = Engine(), request("r", range(30, 41)), request("w", PROMPT)
    engine.run(request("a", PROMPT))
    engine.admit(running)
    assert engine.saver.find(waiting, 0) == 8
    assert engine.saver.reset() is True
    engine.saver.admit(waiting, [70, 71, 72], 8)
    plan, _ = engine.step(running)
    assert not plan.loads
    assert not plan.saves
    for name in "rw":
        engine.saver.finish(name)
    assert engine.run(request("b", PROMPT)) == 0
    assert engine.run(request("c", PROMPT)) == 8
    engine.close()


def test_a_sequence_that_a_restarted_service_did_not_take_on_is_forgotten_alone() -> None:
    engine, lost, other = Engine(), request("a", PROMPT), request("b", range(50, 61))
    for each in (lost, other):
        engine.admit(each)
    opened = [op.seq_id for op in engine.indices[0].said if isinstance(op, AcquireOp)]
    engine.indices[0].told += [Notice("published", opened[1], 4), Notice("lost", opened[0], 0), Notice("lost", 99, 0)]
    plan, _ = engine.step(lost, other)
    assert {move.block for move in plan.saves} == set(engine.tables["b"][:2])
    assert not any(isinstance(op, ReleaseOp) for op in engine.indices[0].said)
    engine.saver.finish("b")
    engine.step()
    assert engine.run(request("c", range(50, 61))) == 8


@pytest.mark.parametrize("moment", ["find", "admit", "plan", "reset"])
def test_without_an_index_the_engine_runs_on_and_its_successor_starts_empty(moment: str) -> None:
    engine, running, other = Engine(), request("r", PROMPT), request("o", range(50, 61))
    engine.admit(running)
    if moment != "find":
        engine.saver.find(other, 0)
    lost = engine.indices[0]
    lost.is_down = True
    engine.indices.append(Index(32))
    calls: dict[str, Callable[[], object]] = {
        "find": lambda: engine.saver.find(other, 0),
        "admit": lambda: engine.saver.admit(other, [70, 71, 72], 0),
        "plan": lambda: engine.saver.plan([Scheduled("r", 11)]).saves,
        "reset": engine.saver.reset,
    }
    assert not calls[moment]()
    while engine.saver.find(request("x", range(9)), 0) or not engine.indices[1].said:
        pass
    assert engine.step(running)[0].saves == [], "its sequence is not known there"
    engine.saver.finish("r")
    engine.saver.finish("o")
    assert engine.run(request("a", PROMPT)) == 0
    assert engine.run(request("b", PROMPT)) == 8
    engine.close()


def test_whatever_comes_no_other_kv_is_loaded_and_nothing_is_left() -> None:
    num_found = num_failed = 0
    for seed in range(15):
        rng = random.Random(seed)
        engine = Engine(rng.choice([6, 12, 40]), num_workers=rng.choice([1, 2]))
        running: dict[str, Any] = {}
        unreported: deque[tuple[StepPlan, set[int]]] = deque()
        for number in range(60):
            if len(running) < 3:
                tokens = [rng.randrange(2) for _ in range(rng.randint(2, 22))]
                asked = request(str(number), tokens, cache_salt=rng.choice([None, None, "salt"]))
                num_found += engine.admit(asked, rng.randrange(2) * (len(tokens) > SIZE) * SIZE)
                running[asked.request_id] = asked
            due = [each for each in running.values() if rng.random() < 0.8]
            for each in due:
                engine.grow(each, each.num_tokens)
            new = {each.request_id: engine.tables[each.request_id] for each in due}
            plan = engine.saver.plan(
                [Scheduled(each.request_id, each.num_tokens, new[each.request_id], True) for each in due]
            )
            failed = engine.worker.load(plan) if rng.random() < 0.9 else {move.block for move in plan.loads}
            for each in running.values():
                table = engine.tables[each.request_id]
                for index, block in enumerate(table[: each.num_tokens // SIZE]):
                    expected = engine.content(each, index)
                    is_loaded = any(move.block == block for move in plan.loads) and block not in failed
                    assert not is_loaded or engine.worker.blocks[block] == expected, f"seed {seed}"
                    engine.worker.blocks[block] = expected
            engine.worker.save(plan)
            num_failed += len(failed)
            unreported.append((plan, failed))
            while unreported and rng.random() < 0.6:
                done, bad = unreported.popleft()
                is_saved = rng.random() < 0.95
                saved = {done.number: engine.num_workers} if done.saves and is_saved else {}
                engine.saver.report(saved, [] if is_saved else [done.number], done.loading, bad)
            for each in list(running.values()):
                each.all_token_ids.append(rng.randrange(2))
                each.num_tokens += 1
                if rng.random() < 0.3:
                    engine.saver.finish(each.request_id)
                    del running[each.request_id]
            engine.indices[0].check()
        for name in running:
            engine.saver.finish(name)
        for done, bad in unreported:
            engine.saver.report({done.number: engine.num_workers}, [], done.loading, bad)
        engine.close()
    assert num_found > 150
    assert num_failed > 3
