"""Grammars made to cost much are refused by name and bound; what tries them ends with the worker, and is nobody else's."""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
import pytest
from byte_model import EOS, VOCAB_SIZE, save_byte_model
from own_threads import own_threads

from bench.grammar.hostile_grammars import HONEST, HOSTILE
from radixkv.core.errors import InvalidArgumentError, LimitError, UnavailableError
from radixkv.generation.params import Grammar
from radixkv.worker.generations.text import ChatText
from radixkv.worker.sampling import grammar as grammar_module
from radixkv.worker.sampling import grammar_trials
from radixkv.worker.sampling.grammar import CompiledMatcher, GrammarCompiler
from radixkv.worker.sampling.grammar_source import grammar_source
from radixkv.worker.sampling.grammar_trials import GrammarTrials, Verdict

T = TypeVar("T")
WAIT_S = 300.0
SLOW = HOSTILE["multipleOf a prime of 8 digits"]


_UNHINDERED = """
import os
os.setpriority = lambda *_: None
"""
_UNBOUNDED = """
import resource, signal
setrlimit = resource.setrlimit
resource.setrlimit = lambda kind, bounds: kind == resource.RLIMIT_CPU or setrlimit(kind, bounds)
signal.setitimer = lambda *_: None
"""


def _begin_with(patch: pytest.MonkeyPatch, folder: Path, lines: str) -> None:
    """Processes that begin from now on run these lines first."""
    (folder / "sitecustomize.py").write_text(lines)
    patch.setenv("PYTHONPATH", str(folder))


@pytest.fixture(scope="module", autouse=True)
def patience(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """At the lowest priority a trial would have no turn on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar_trials, "_START_S", WAIT_S)
        _begin_with(patch, tmp_path_factory.mktemp("unhindered"), _UNHINDERED)
        yield


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that computes does so until it is ended: its CPU time is unbounded."""
    _begin_with(monkeypatch, tmp_path, _UNHINDERED + _UNBOUNDED)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    return ChatText(save_byte_model(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module")
def shared(text: ChatText) -> Iterator[GrammarCompiler]:
    with closing(_compiler(text)) as compiler:
        yield compiler


def _compiler(text: ChatText) -> GrammarCompiler:
    return GrammarCompiler(text.tokenizer, VOCAB_SIZE, [EOS])


def _trials(text: ChatText) -> GrammarTrials:
    return GrammarTrials(text.tokenizer.backend_tokenizer.to_str(), VOCAB_SIZE, [EOS])


def _children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(folder.name))
    return found


def _trial_of(pid: int) -> int:
    """The trial that runs, as soon as one does."""
    until_s = time.monotonic() + WAIT_S
    while not (found := _children(pid)):
        assert time.monotonic() < until_s
        time.sleep(0.001)
    return found[0]


def _wait_for_end(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(WAIT_S * 1000), "it goes on"
    os.close(pidfd)


def matcher_of(compiler: GrammarCompiler, grammar: Grammar, namespace: str = "default") -> CompiledMatcher:
    """Its matcher, or why there is none."""
    return said(lambda: compiler.matcher(grammar, namespace))


def said(ask: Callable[[], T]) -> T:
    """The answer, asked for again where the machine was too busy to say."""
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return ask()
        except LimitError:
            if time.monotonic() > until_s:
                raise


def _slowest_mask_s(matcher: CompiledMatcher, seed: int) -> float:
    rng, slowest_s = random.Random(seed), 0.0
    for _ in range(40):
        began_s = time.thread_time()
        mask = matcher.allowed()
        slowest_s = max(slowest_s, time.thread_time() - began_s)
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").nonzero()[0]
        if matcher.fault or not len(allowed) or not matcher.take(int(rng.choice(allowed))) or matcher.is_over:
            break
    return slowest_s


REFUSED = {
    "multipleOf a prime of 8 digits": "compiles in under",
    "multipleOf a prime of 7 digits": "compiles in under",
    "multipleOf within %json": "compiles in under",
    "8,000 properties": "within one another",
    "500 definitions of one another": "within one another",
    "lark: 5,000 rules in one another": "within one another",
    "allOf of anyOf": "too large",
    "pattern and minLength": "Unable",
    "not": "Unimplemented",
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_costs_too_much_is_refused_with_the_bound_that_it_is_beyond(shared: GrammarCompiler, name: str) -> None:
    before_bytes = _resident_bytes()
    with pytest.raises(InvalidArgumentError, match=rf"grammar.text .*({REFUSED[name]})"):
        matcher_of(shared, HOSTILE[name])
    assert _resident_bytes() - before_bytes < 16 << 20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


TAKEN = [
    "pattern (a{1000}){1000}, deep",
    "pattern ((a{0,300}){0,300}){0,300}",
    "pattern .*a.{30}",
    "const of 200,000 characters",
    "lark that asks to be forced",
    "lark: repeats of repeats",
    "minLength 10^9",
]


@pytest.mark.parametrize("name", TAKEN)
def test_what_looks_costly_and_is_taken_has_quick_masks_wherever_a_reply_goes(
    shared: GrammarCompiler, name: str
) -> None:
    for seed in range(3):
        assert _slowest_mask_s(matcher_of(shared, HOSTILE[name]), seed) < 0.05


@pytest.mark.parametrize("name", list(HONEST))
def test_what_programs_ask_for_is_taken(shared: GrammarCompiler, name: str) -> None:
    matcher = matcher_of(shared, HONEST[name])
    _slowest_mask_s(matcher, 1)
    assert not matcher.fault


def test_a_refusal_is_remembered_for_a_while_and_for_its_namespace_alone(text: ChatText) -> None:
    now_s = [0.0]
    compiler = GrammarCompiler(text.tokenizer, VOCAB_SIZE, [EOS], clock=lambda: now_s[0])
    with pytest.raises(InvalidArgumentError):
        matcher_of(compiler, SLOW, "a")
    compiler.close()  # what is tried from now on is not answered any more
    with pytest.raises(InvalidArgumentError, match="compiles in under"):
        compiler.matcher(SLOW, "a")
    with pytest.raises(UnavailableError):
        compiler.matcher(SLOW, "b")
    now_s[0] = grammar_module.REFUSED_S
    with pytest.raises(UnavailableError):
        compiler.matcher(SLOW, "a")


def test_what_one_namespace_has_used_is_new_to_another(shared: GrammarCompiler) -> None:
    grammar, before = Grammar("regex", "used(by)one"), shared.num_compiled
    for namespace in ("a", "b", "a", "b"):
        matcher_of(shared, grammar, namespace)
    assert shared.num_compiled - before == 2


def test_callers_of_the_same_grammar_wait_for_one_trial(shared: GrammarCompiler) -> None:
    grammar, before = Grammar("regex", "the(same)"), shared.num_compiled
    with ThreadPoolExecutor(24) as threads:
        list(threads.map(lambda _: matcher_of(shared, grammar), range(24)))
    assert shared.num_compiled - before == 1


def test_a_namespace_that_sends_slow_ones_keeps_no_other_waiting_for_them(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    primes, begun, goes_on = (99999941, 99999931, 99999847, 99999839), threading.Event(), threading.Event()
    trials, _ = shared._read_tokenizer()
    run = trials.run

    def run_slowly(source: str) -> Verdict:
        if "multipleOf" in source:
            begun.set()
            assert goes_on.wait(WAIT_S)
        return run(source)

    monkeypatch.setattr(trials, "run", run_slowly)
    with ThreadPoolExecutor(len(primes)) as threads:
        slow = [
            threads.submit(shared.matcher, Grammar("json_schema", f'{{"type":"integer","multipleOf":{prime}}}'), "a")
            for prime in primes
        ]
        try:
            assert begun.wait(WAIT_S)
            for count in range(5):
                matcher_of(shared, Grammar("regex", f"quick{{{count}}}"), "b")
            assert not all(one.done() for one in slow)
        finally:
            goes_on.set()
        assert all(isinstance(one.exception(WAIT_S), InvalidArgumentError | LimitError) for one in slow)


def test_many_replies_later_a_grammar_is_compiled_anew_and_those_that_run_go_on(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "MAX_TAKEN", 5)
    grammar, before = Grammar("regex", "z*"), shared.num_compiled
    running = matcher_of(shared, grammar)
    for _ in range(8):
        assert running.take(ord("z"))
    shared.matcher(grammar)
    assert shared.num_compiled - before == 2
    assert running.take(ord("z"))


def test_one_that_turns_out_slow_ends_its_reply_and_is_refused_from_then_on(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = Grammar("regex", "y*")
    matcher = matcher_of(shared, grammar)
    monkeypatch.setattr(grammar_module, "EASY_MASK_S", -1.0)
    matcher.allowed()
    assert "masks take longer" in matcher.fault
    assert not matcher.take(ord("y"))
    with pytest.raises(InvalidArgumentError, match="simple enough to follow"):
        shared.matcher(grammar)
    matcher_of(shared, grammar, "another")


def test_one_long_token_is_a_busy_machine_s_and_two_in_a_row_are_the_grammar_s(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher, now_s = matcher_of(shared, Grammar("regex", "w*"), "busy"), itertools.count(step=0.0)
    monkeypatch.setattr(grammar_module, "time", SimpleNamespace(thread_time=lambda: next(now_s)))
    for _ in range(3):
        now_s = itertools.count(step=5.0)
        matcher.allowed()
        now_s = itertools.count(step=0.0)
        for _ in range(30):
            matcher.allowed()
        assert not matcher.fault
    now_s = itertools.count(step=5.0)
    matcher.allowed()
    matcher.allowed()
    assert "masks take longer" in matcher.fault


def test_who_waits_for_the_trial_of_anothers_same_grammar_waits_no_longer_than_so_long(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar, begun, goes_on, meet = Grammar("regex", "x*"), threading.Event(), threading.Event(), shared._meet

    def held(*arguments: object) -> object:
        begun.set()
        assert goes_on.wait(WAIT_S)
        return meet(*arguments)  # type: ignore[arg-type]  # as they come

    monkeypatch.setattr(shared, "_meet", held)
    monkeypatch.setattr(grammar_module, "MAX_WAIT_S", 0.01)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(matcher_of, shared, grammar)
        assert begun.wait(WAIT_S)
        try:
            with pytest.raises(LimitError, match="the same grammar"):
                shared.matcher(grammar)
        finally:
            goes_on.set()
        assert first.result(WAIT_S).take(ord("x"))


@pytest.mark.usefixtures("endless")
def test_a_trial_that_something_else_ended_gives_no_verdict(text: ChatText) -> None:
    with closing(_trials(text)) as trials, ThreadPoolExecutor(1) as threads:
        trials.start()
        answer = threads.submit(trials.run, grammar_source(SLOW))
        with suppress(ProcessLookupError):  # the server has ended it: this thread is very late
            os.kill(_trial_of(trials.pid), signal.SIGKILL)
        with pytest.raises(LimitError, match="busy"):
            answer.result(WAIT_S)
        assert said(lambda: trials.run(grammar_source(HONEST["an object"]))).bound == ""


@pytest.mark.usefixtures("endless")
def test_a_process_that_was_killed_is_told_of_and_replaced(text: ChatText) -> None:
    with closing(_trials(text)) as trials, ThreadPoolExecutor(1) as threads:
        trials.start()
        answer = threads.submit(trials.run, grammar_source(SLOW))
        trial = os.pidfd_open(_trial_of(trials.pid))
        os.kill(trials.pid, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="try again"):
            answer.result(WAIT_S)
        _wait_for_end(trial)
        assert said(lambda: trials.run(grammar_source(HONEST["an object"]))).bound == ""


@pytest.mark.usefixtures("endless")
def test_closing_ends_the_process_and_what_is_tried_and_leaves_no_zombie(text: ChatText) -> None:
    trials = _trials(text)
    with ThreadPoolExecutor(1) as threads:
        trials.start()
        answer = threads.submit(trials.run, grammar_source(SLOW))
        trial = os.pidfd_open(_trial_of(trials.pid))
        pid = trials.pid
        trials.close()
        _wait_for_end(trial)
        assert isinstance(answer.exception(WAIT_S), UnavailableError)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    with pytest.raises(UnavailableError, match="stopping"):
        trials.start()


_WORKER = """
import sys, threading
from radixkv.worker.sampling.grammar_source import grammar_source
from radixkv.worker.sampling.grammar_trials import GrammarTrials, Verdict
from radixkv.generation.params import Grammar
trials = GrammarTrials(open(sys.argv[1]).read(), int(sys.argv[2]), [int(sys.argv[3])])
trials.start()
print(trials.pid, flush=True)
trials.run(grammar_source(Grammar("json_schema", '{"type": "integer", "multipleOf": 99999989}')))
"""


@pytest.mark.usefixtures("endless")
def test_a_worker_that_is_killed_leaves_nothing_that_computes_on(text: ChatText, tmp_path: Path) -> None:
    told = tmp_path / "tokenizer.json"
    told.write_text(text.tokenizer.backend_tokenizer.to_str())
    command = [sys.executable, "-c", _WORKER, str(told), str(VOCAB_SIZE), str(EOS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        pid = int(worker.stdout.readline())
        server, trial = os.pidfd_open(pid), os.pidfd_open(_trial_of(pid))
        worker.kill()
        _wait_for_end(server)
        _wait_for_end(trial)


def test_nothing_runs_before_the_first_grammar_comes(text: ChatText) -> None:
    before, threads = set(_children(os.getpid())), own_threads()
    _compiler(text).close()
    assert set(_children(os.getpid())) <= before
    assert own_threads() <= threads
