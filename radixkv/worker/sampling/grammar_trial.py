"""Tries grammars in separate processes: `python -m radixkv.worker.sampling.grammar_trial`, which `grammar_trials` starts.

    worker -- tokenizer, grammars -->  server, which has read the tokenizer  -- fork -->  a trial: limits, compile, masks
           <-- ready, verdicts -----                                         <-- pipe --

A frame is 4 bytes of length, least significant first, and JSON. The server ends with its input, and its trials with it. The
kernel enforces a trial's limits, whatever llguidance does; the trial's exit shows which limit it exceeded.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import re
import resource
import select
import signal
import struct
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from radixkv.worker.sampling.grammar_source import first_line, new_matcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["MAX_CPU_S", "MAX_MASK_S", "MAX_MEMORY_BYTES", "MAX_WALL_S", "encode_frame", "split_frames"]

MAX_CPU_S = 1.0
"""Of a trial: compiling and the first masks."""
MAX_MEMORY_BYTES = 64 << 20
"""Memory that a trial may take above the server's."""
MAX_STACK_BYTES = 1 << 20
"""Of a trial; a thread of the worker, which compiles the same afterwards, has at least twice as much."""
MAX_MASK_S = 0.01
"""CPU time of one mask in a trial."""
MAX_WALL_S = 10.0
"""A trial that runs longer, on a busy machine, is ended without a verdict."""

NUM_WALKS, NUM_STEPS, MAX_WALKS_S = 6, 24, 0.006
"""Random replies whose masks a trial measures, tokens of each, and CPU time of all after which it stops."""

_POLITE_AFTER_S = 0.1
"""CPU time after which a trial runs at the lowest priority."""
_LOOK_S = 0.05
_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_NOT_ZERO = re.compile(rb"[^\0]")
_STRUCTURE = '{"}:,[]0a '

_TOO_SLOW = f"that compiles in under {MAX_CPU_S:g} s"
_TOO_LARGE = f"that compiles in under {MAX_MEMORY_BYTES >> 20} MiB of memory"
_TOO_DEEP = "with fewer rules or properties within one another"
_BROKEN = "that can be compiled"
_ENDS = {
    signal.SIGPROF: _TOO_SLOW,
    signal.SIGXCPU: _TOO_SLOW,
    signal.SIGABRT: _TOO_LARGE,
    signal.SIGSEGV: _TOO_DEEP,
    signal.SIGBUS: _TOO_DEEP,
    signal.SIGILL: _BROKEN,
    signal.SIGTRAP: _BROKEN,
    signal.SIGFPE: _BROKEN,
}
"""Signals that the kernel ends a trial with, and the bound that it exceeded."""


def encode_frame(message: dict[str, Any]) -> bytes:
    """The bytes of a message in a pipe."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def split_frames(buffer: bytearray) -> list[dict[str, Any]]:
    """Remove and return the complete messages in the buffer."""
    messages = []
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        messages.append(json.loads(buffer[_LENGTH.size : end]))
        del buffer[:end]
    return messages


@dataclass(slots=True)
class _Running:
    number: int
    pid: int
    until_s: float
    is_polite: bool = False
    told: bytes = b""


class _Server:
    """One thread: reads grammars, forks trials, reports their verdicts."""

    def __init__(self, trie: LLTokenizer, source: int, target: int) -> None:
        self._trie = trie
        self._structure = sorted({token for char in _STRUCTURE for token in trie.greedy_tokenize(char)})
        self._source, self._target = source, target
        self._running: dict[int, _Running] = {}  # by pipe
        self._buffer = bytearray()

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        while True:
            for pipe, _ in poll.poll(_LOOK_S * 1000 if self._running else None):
                if pipe != self._source:
                    if self._has_ended(pipe):
                        poll.unregister(pipe)
                        os.close(pipe)
                    continue
                data = os.read(self._source, 1 << 16)
                if not data:
                    return self._end_all()
                self._buffer += data
                for message in split_frames(self._buffer):
                    poll.register(self._start(message), select.POLLIN)
            self._look()

    def _start(self, message: dict[str, Any]) -> int:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_trial(writer, self._trie, str(message["source"]), self._structure)
        os.close(writer)
        self._running[reader] = _Running(int(message["number"]), pid, time.monotonic() + MAX_WALL_S)
        return reader

    def _has_ended(self, pipe: int) -> bool:
        """Read a trial's verdict, or report how it ended."""
        trial = self._running[pipe]
        data = os.read(pipe, 1 << 16)
        if data:
            trial.told += data
            return False
        del self._running[pipe]
        _, status = os.waitpid(trial.pid, 0)
        verdict: dict[str, Any] = {"is_final": False}
        if os.WIFSIGNALED(status) and (bound := _ENDS.get(signal.Signals(os.WTERMSIG(status)))):
            verdict = {"bound": bound, "is_final": True}
        elif os.WIFEXITED(status) and trial.told:
            verdict = {**json.loads(trial.told), "is_final": True}
        _write_all(self._target, encode_frame({"number": trial.number, **verdict}))
        return True

    def _look(self) -> None:
        """Lower the priority of long trials, and end those over the time limit."""
        now_s = time.monotonic()
        for trial in self._running.values():
            if now_s > trial.until_s:
                os.kill(trial.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
            elif not trial.is_polite and _cpu_s(trial.pid) > _POLITE_AFTER_S:
                trial.is_polite = True
                os.setpriority(os.PRIO_PROCESS, trial.pid, 19)

    def _end_all(self) -> None:
        for trial in self._running.values():
            os.kill(trial.pid, signal.SIGKILL)
            os.waitpid(trial.pid, 0)


def _cpu_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the clock of a process: see clock_getcpuclockid
    except OSError:  # it has just ended
        return 0.0


def _write_all(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


# -- a trial


def _become_trial(writer: int, trie: LLTokenizer, source: str, structure: list[int]) -> NoReturn:
    try:
        _set_limits()
        try:
            verdict = _verdict(trie, source, structure)
        except MemoryError:
            verdict = {"bound": _TOO_LARGE}
        except BaseException as error:  # a panic of llguidance is no `Exception`
            verdict = {"bound": f"{_BROKEN}: {first_line(str(error))}"}
        _write_all(writer, json.dumps(verdict).encode())
    finally:
        os._exit(0)


def _set_limits() -> None:
    is_linux = sys.platform == "linux"  # elsewhere only its time is bounded
    if is_linux:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the trial ends with the server
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: MAX_STACK_BYTES,
        resource.RLIMIT_CPU: 2 * int(MAX_CPU_S),
    }
    if is_linux:
        bounds[resource.RLIMIT_DATA] = _memory_bytes("VmData") + MAX_MEMORY_BYTES
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, bound))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)


def _memory_bytes(name: str) -> int:
    """Memory of this process by the kernel's status; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":")) << 10


def _verdict(trie: LLTokenizer, source: str, structure: list[int]) -> dict[str, Any]:
    before_bytes = _memory_bytes("RssAnon")
    matcher = new_matcher(source, trie)
    if matcher.is_error():
        return {"problem": first_line(matcher.get_error())}
    slowest_s = _masked_s(matcher)
    if matcher.is_error():
        return {"bound": f"simple enough to follow: {first_line(matcher.get_error())}"}
    began_s = time.thread_time()
    for walk in range(NUM_WALKS):
        if slowest_s > MAX_MASK_S or time.thread_time() - began_s > MAX_WALKS_S:
            break
        walker = matcher.deep_copy()
        slowest_s = max(slowest_s, _walk(walker, random.Random(walk), structure))
        if walker.is_error():
            return {"bound": f"simple enough to follow: {first_line(walker.get_error())}"}
    if slowest_s > MAX_MASK_S:
        return {"bound": f"whose masks take under {MAX_MASK_S * 1000:g} ms"}
    return {"memory_bytes": max(0, _memory_bytes("RssAnon") - before_bytes)}


def _walk(matcher: LLMatcher, rng: random.Random, structure: list[int]) -> float:
    """The slowest mask, or token taken, of a random reply; structural tokens of JSON are frequent in it."""
    slowest_s = 0.0
    for _ in range(NUM_STEPS):
        began_s = time.thread_time()
        mask = matcher.compute_bitmask()
        slowest_s = max(slowest_s, time.thread_time() - began_s)
        if matcher.is_error() or not any(mask):
            break
        token_id = _choice(mask, rng, structure)
        began_s = time.thread_time()
        is_taken = matcher.consume_token(token_id)
        slowest_s = max(slowest_s, time.thread_time() - began_s)
        if not is_taken or matcher.is_stopped() or slowest_s > MAX_MASK_S:
            break
    return slowest_s


def _choice(mask: bytes, rng: random.Random, structure: list[int]) -> int:
    marks = [token for token in structure if mask[token >> 3] >> (token & 7) & 1]
    if marks and rng.random() < 0.5:
        return rng.choice(marks)
    found = _NOT_ZERO.search(mask, rng.randrange(len(mask))) or _NOT_ZERO.search(mask)
    assert found
    place = found.start()
    return place * 8 + rng.choice([bit for bit in range(8) if mask[place] >> bit & 1])


def _masked_s(matcher: LLMatcher) -> float:
    began_s = time.thread_time()
    matcher.compute_bitmask()
    return time.thread_time() - began_s


def main() -> None:
    """Serve standard input until it ends."""
    from llguidance import LLTokenizer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the worker handles it
    source, target = os.dup(0), os.dup(1)
    told = json.loads(_read_exactly(source, *_LENGTH.unpack(_read_exactly(source, _LENGTH.size))))
    trie = LLTokenizer(told["tokenizer"], n_vocab=told["vocab_size"], eos_token=told["eos_token_ids"])
    del told
    gc.freeze()  # so that a trial copies fewer shared pages
    _Server(trie, source, target).run()


def _read_exactly(source: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(source, size - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


if __name__ == "__main__":
    main()
