"""The worker's client of `grammar_trial`: one process that tries grammars, started for the first grammar.

The process ends with the worker, even if that is killed. If it ended early, the next grammar starts another.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, NamedTuple

from radixkv.core.errors import LimitError, UnavailableError
from radixkv.worker.sampling.grammar_trial import MAX_WALL_S, encode_frame, split_frames

__all__ = ["GrammarTrials", "Verdict"]

_START_S = 30.0
"""For a process to start and read a tokenizer, on a busy machine."""
_END_S = 5.0
_RETRY_S = 2.0
_LOST = "the process that tries grammars has ended; try again"


class Verdict(NamedTuple):
    """Result of a trial.

    problem: why the grammar is invalid; empty: it is valid. bound: the bound that it exceeds; empty: none. memory_bytes: of the
    compiled grammar.
    """

    problem: str
    bound: str
    memory_bytes: int


class GrammarTrials:
    """Tries grammars for one tokenizer. Thread-safe; `close` it at the end.

    Args:
        tokenizer: of the `tokenizers` package, as JSON.
        vocab_size, eos_token_ids: see `GrammarCompiler`; None: no token ends a reply.
    """

    def __init__(self, tokenizer: str, vocab_size: int, eos_token_ids: Sequence[int] | int | None) -> None:
        self._told = {"tokenizer": tokenizer, "vocab_size": vocab_size, "eos_token_ids": eos_token_ids}
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the process if none runs; returns before it is ready.

        Raises:
            UnavailableError: closed, or no process can be started.
        """
        self._running()

    @property
    def pid(self) -> int:
        """Id of the last process started; 0: none."""
        return 0 if self._process is None else self._process.pid

    def run(self, source: str) -> Verdict:
        """Try one grammar, for at most `MAX_WALL_S` once the process runs.

        Raises:
            LimitError: no verdict in time: the machine is busy.
            UnavailableError: closed, or the process has ended meanwhile.
        """
        return self._running().run(source)

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.close()

    def _running(self) -> _Process:
        with self._lock:
            if self._is_closed:
                raise UnavailableError("the worker is stopping")
            if self._process is None or self._process.has_ended:
                try:
                    self._process = _Process(self._told)
                except OSError as error:
                    raise UnavailableError(f"no process to try grammars in can be started: {error}") from None
            return self._process


class _Process:
    """One run of the process, and the thread that reads its answers and waits for its end."""

    def __init__(self, told: dict[str, Any]) -> None:
        folders = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radixkv.worker.sampling.grammar_trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
            process_group=0,  # a terminal's signals go to the worker only
        )
        self.pid = self._process.pid
        self.has_ended = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()  # of `_waiting`
        self._writing = threading.Lock()
        self._is_told = threading.Event()
        threading.Thread(target=self._tell, args=(told,), name="radixkv-grammar-start", daemon=True).start()
        self._reader = threading.Thread(target=self._read, name="radixkv-grammar-trials", daemon=True)
        self._reader.start()

    def _tell(self, told: dict[str, Any]) -> None:
        self._write(told)
        self._is_told.set()

    def run(self, source: str) -> Verdict:
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        with self._lock:
            if self.has_ended:
                raise UnavailableError(_LOST)
            self._waiting[number] = answer
        self._is_told.wait()
        self._write({"number": number, "source": source})
        try:
            told = answer.result(_START_S + MAX_WALL_S)
        except FutureTimeoutError:
            self._process.kill()  # stuck: the reader ends all waiting calls
            raise UnavailableError(_LOST) from None
        if not told["is_final"]:
            raise LimitError("a grammar could not be tried in time: the machine is busy", retry_after_s=_RETRY_S)
        return Verdict(told.get("problem", ""), told.get("bound", ""), told.get("memory_bytes", 0))

    def close(self) -> None:
        self._end_input()
        self._reader.join(_END_S)
        if self._reader.is_alive():
            self._process.kill()
            self._reader.join()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        with self._writing:
            try:
                self._process.stdin.write(encode_frame(message))
                self._process.stdin.flush()
            except (OSError, ValueError):
                return  # the process has ended: the reader reports it

    def _end_input(self) -> None:
        assert self._process.stdin
        with self._writing:
            try:
                self._process.stdin.close()
            except OSError:
                return  # the process has ended before it read all

    def _read(self) -> None:
        assert self._process.stdout
        buffer = bytearray()
        with self._process.stdout as stdout:
            while data := os.read(stdout.fileno(), 1 << 16):
                buffer += data
                for told in split_frames(buffer):
                    with self._lock:
                        answer = self._waiting.pop(told["number"])
                    answer.set_result(told)
        with self._lock:
            self.has_ended = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        self._end_input()
        self._process.wait()
        for answer in waiting:
            answer.set_exception(UnavailableError(_LOST))
