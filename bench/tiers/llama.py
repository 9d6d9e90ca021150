"""Two conversations in turns on one slot, and a restart, compared with llama.cpp's server.

llama.cpp has one slot. In a turn it copies the slot's state into memory and the other conversation's from there
(``--cache-ram``); over a restart it takes a call that writes each conversation to a file, and one that reads it
(``/slots``). Our pool holds one conversation too; the store does the rest, without a call. Both have the same prompts, token by
token, as many threads, and K and V in 16 bits; llama.cpp has the model in 8 bits, which it multiplies faster. Its first tokens
after a restart include the reading of the file. Writing it does not count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.common.report import Bar, Progress, Table, summarise
from bench.common.stacks import BLOCK_SIZE
from bench.serving.llama_files import LlamaFiles
from bench.serving.llama_side import LlamaSession, llama_server
from bench.serving.plan import ReadyCall
from bench.tiers.asking import ask
from bench.tiers.deployment import Deployment, stored
from bench.tiers.next_day import Part
from bench.tiers.stories import Story

__all__ = ["play_beside_llama", "report_beside_llama"]

TURN, RESTART, COLD = "after the turn", "after a restart", "cold"
KINDS = (COLD, TURN, RESTART)
OURS, PEER = "radixkv", "llama.cpp"
TIMES_BOUND, BYTES_BOUND = 1.0, 1.02
CACHE_RAM_MIB = 8192


class _Ours:
    """A service, and a worker whose pool holds one conversation."""

    def __init__(self, folder: Path, longest: int, arguments: Sequence[str], kv_token_bytes: int) -> None:
        num_blocks = longest // BLOCK_SIZE + 4
        disk_bytes = max(1 << 28, 8 * num_blocks * BLOCK_SIZE * kv_token_bytes)
        self._deployment = Deployment(folder, num_blocks, arguments, disk_bytes)

    def __enter__(self) -> _Ours:
        self._deployment.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._deployment.__exit__(None, None, None)

    def ask(self, _story: int, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], float]:
        answer = ask(self._deployment.client, prompt, num_tokens)
        return answer.reply, answer.first_s

    def leave(self, _story: int) -> None:
        """Nothing needs to be called."""

    def restart(self) -> None:
        self._deployment.rest()
        self._deployment.kill_worker()
        self._deployment.start_worker()

    def come_back(self, _story: int) -> float:
        return 0.0

    def num_bytes(self) -> int:
        """Bytes in use on disk; the worker ends."""
        self._deployment.rest()
        self._deployment.kill_worker()
        return stored(self._deployment.blocks).num_bytes


class _Llama:
    """A server with one slot."""

    def __init__(self, folder: Path, longest: int, files: LlamaFiles, num_threads: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._package = files.package
        self._settings: Mapping[str, Any] = {
            "model.path": str(files.q8),
            "n_ctx": longest + 64,
            "n_parallel": 1,
            "cache_ram_mib": CACHE_RAM_MIB,
            "slot_save_path": f"{folder}/",
            "n_threads_http": 4,
            "cpuparams.n_threads": num_threads,
            "cpuparams_batch.n_threads": num_threads,
        }
        self._stack = ExitStack()

    def __enter__(self) -> _Llama:
        self._client = self._stack.enter_context(self._served())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def _served(self) -> Iterator[httpx.Client]:
        limits = httpx.Limits(max_keepalive_connections=0)  # it closes a connection after a streamed response
        with (
            llama_server(self._package, self._settings) as address,
            httpx.Client(base_url=address, timeout=None, limits=limits) as client,
        ):
            yield client

    def ask(self, _story: int, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], float]:
        outcome = LlamaSession(self._client).ask(ReadyCall(list(prompt), num_tokens, 1, None))
        return outcome.replies[0], outcome.first_s - outcome.start_s

    def leave(self, story: int) -> None:
        self._slot("save", story)

    def restart(self) -> None:
        self._stack.close()
        self.__enter__()

    def come_back(self, story: int) -> float:
        start_s = time.monotonic()
        self._slot("restore", story)
        return time.monotonic() - start_s

    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def _slot(self, action: str, story: int) -> None:
        answer = self._client.post("/slots/0", params={"action": action}, json={"filename": f"story-{story}"})
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"llama.cpp answered {answer.status_code} to {action} a slot: {answer.text[:500]}")


def play_beside_llama(
    stories: Sequence[Story],
    files: LlamaFiles | None,
    *,
    num_restarts: int,
    num_threads: int,
    arguments: Sequence[str],
    kv_token_bytes: int,
) -> dict[str, dict[str, Any]]:
    """Play the stories in turns to each system, which take turns too; the last `num_restarts` calls come after restarts.

    Returns:
        by system: seconds to the first tokens by kind, and the bytes on disk before the last restart.
    """
    longest = max(story.num_tokens for story in stories)
    num_calls = len(stories[0].calls)
    with tempfile.TemporaryDirectory(prefix="radixkv-tiers-") as folder, ExitStack() as stack:
        systems: dict[str, _Ours | _Llama] = {
            OURS: stack.enter_context(_Ours(Path(folder) / "ours", longest, arguments, kv_token_bytes))
        }
        if files is not None:
            systems[PEER] = stack.enter_context(_Llama(Path(folder) / "llama", longest, files, num_threads))
        times: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in systems}
        replies: dict[tuple[str, int], list[list[int]]] = {}
        progress = Progress("beside llama.cpp", num_calls * len(systems))
        for number in range(num_calls):
            kind = COLD if number == 0 else RESTART if number >= num_calls - num_restarts else TURN
            for name in list(systems)[:: 1 if number % 2 else -1]:
                system = systems[name]
                if kind == RESTART:
                    system.restart()
                for index, story in enumerate(stories):
                    before_s = system.come_back(index) if kind == RESTART else 0.0
                    own = replies.setdefault((name, index), [])
                    prompt = story.prompt(number, own)
                    reply, first_s = system.ask(index, prompt, story.calls[number].num_tokens)
                    own.append(reply)
                    times[name][kind].append(before_s + first_s)
                    system.leave(index)
                progress.advance()
        return {name: {"first_s": times[name], "num_bytes": system.num_bytes()} for name, system in systems.items()}


def report_beside_llama(found: dict[str, dict[str, Any]], why_missing: str) -> Part:
    """Figures, table and bars."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for kind in KINDS:
        medians = {name: summarise(each["first_s"][kind], 1e3) for name, each in found.items()}
        figures[kind] = {name: each._asdict() for name, each in medians.items()}
        ratio = medians[OURS].p50 / medians[PEER].p50 if PEER in medians else None
        cells = [f"{medians[name].p50:,.0f}" if name in medians else "" for name in (OURS, PEER)]
        rows.append((kind, str(medians[OURS].n), *cells, "" if ratio is None else f"{ratio:.2f}"))
        if kind != COLD:
            bars.append(Bar(f"first token {kind}, by llama.cpp's", ratio, TIMES_BOUND, "x", reason=why_missing))
    num_bytes = {name: each["num_bytes"] for name, each in found.items()}
    ratio = num_bytes[OURS] / num_bytes[PEER] if PEER in num_bytes else None
    bars.append(Bar("bytes on disk, by llama.cpp's", ratio, BYTES_BOUND, "x", reason=why_missing))
    cells = [f"{num_bytes[name]:,}" if name in num_bytes else "" for name in (OURS, PEER)]
    rows.append(("bytes on disk", "", *cells, "" if ratio is None else f"{ratio:.3f}"))
    figures["num_bytes"] = num_bytes
    columns = ("two conversations in turns on one slot", "n", f"first token ms: {OURS}", PEER, "ratio")
    return Part(figures, [Table("beside llama.cpp", columns, rows)], bars, [])
