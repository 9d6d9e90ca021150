"""Times the parts of an engine's rounds, by wrapping the calls that each part consists of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixkv.kernels.cpu.native_decoder import NativeDecoder
    from radixkv.worker.model.model import ForwardRow, ModelRunner

__all__ = ["PARTS", "Stopwatch"]

LINEAR, ATTENTION, GLUE, SAMPLING = "linear", "attention", "glue", "sampling"
SERVICE, SCHEDULER, BETWEEN = "service", "scheduler", "between"
PARTS = (LINEAR, ATTENTION, GLUE, SAMPLING, SERVICE, SCHEDULER, BETWEEN)


@dataclass
class Stopwatch:
    """Seconds of each part in the rounds whose forward decodes a token for every one of `num_chats`."""

    num_chats: int
    steps: list[dict[str, float]] = field(default_factory=list)
    num_context_tokens: int = 0
    linear_bytes: int = 0

    def __post_init__(self) -> None:
        self._within = [0.0]  # per open call, the time of its inner calls
        self._round = dict.fromkeys(PARTS, 0.0)
        self._is_counted = self._was_counted = False
        self._ended_s = 0.0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its own time counted under `part`."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            self._within.append(0.0)
            started_s = perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                taken_s = perf_counter() - started_s
                self._round[part] += taken_s - self._within.pop()
                self._within[-1] += taken_s

        return run

    def _of_round(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self.timed(SCHEDULER, call)

        def run(*arguments: Any) -> Any:
            self._round = dict.fromkeys(PARTS, 0.0)
            self._is_counted = False
            started_s = perf_counter()
            answer = timed(*arguments)
            if self._is_counted and self._was_counted:
                self._round[BETWEEN] = started_s - self._ended_s
                self.steps.append(self._round)
            self._was_counted = self._is_counted
            self._ended_s = perf_counter()
            return answer

        return run

    def _of_forward(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self.timed(GLUE, call)

        def run(runner: ModelRunner, rows: Sequence[ForwardRow], *drawn: Any) -> Any:
            self._is_counted = len(rows) == self.num_chats and all(len(row.token_ids) == 1 for row in rows)
            if self._is_counted and self._was_counted:
                self.num_context_tokens += sum(row.start + 1 for row in rows)
            return timed(runner, rows, *drawn)

        return run

    def _of_decoder(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The native decoder measures its parts itself."""
        import numpy as np

        def run(decoder: NativeDecoder, *arguments: Any) -> Any:
            decoder.seconds = np.zeros(3)
            answer = call(decoder, *arguments)
            self.linear_bytes = decoder.linear_bytes
            for part, taken_s in zip((LINEAR, ATTENTION, GLUE), decoder.seconds.tolist(), strict=True):
                self._round[part] += taken_s
                self._within[-1] += taken_s
            decoder.seconds = None
            return answer

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time rounds within the context."""
        import torch

        from radixkv.kernels.cpu.native_decoder import NativeDecoder
        from radixkv.worker.engine.loop import EngineLoop
        from radixkv.worker.loading.packed_linear import PackedLinear, RoundedLinear
        from radixkv.worker.model.attention import StepAttention
        from radixkv.worker.model.model import ModelRunner
        from radixkv.worker.sampling.sampler import Sampler

        linear_kinds = (RoundedLinear, PackedLinear, torch.nn.Linear)
        plain_call = torch.nn.Module.__call__
        linear_call = self.timed(LINEAR, plain_call)

        def call_module(module: torch.nn.Module, *arguments: Any, **keywords: Any) -> Any:
            return (linear_call if isinstance(module, linear_kinds) else plain_call)(module, *arguments, **keywords)

        with ExitStack() as stack:
            for owner, name, call in (
                (torch.nn.Module, "__call__", call_module),
                (StepAttention, "attend", self.timed(ATTENTION, StepAttention.attend)),
                (NativeDecoder, "run", self._of_decoder(NativeDecoder.run)),
                (ModelRunner, "forward", self._of_forward(ModelRunner.forward)),
                (Sampler, "sample", self.timed(SAMPLING, Sampler.sample)),
                (EngineLoop, "run", self._of_round(EngineLoop.run)),
                *(
                    (EngineLoop, name, self.timed(SERVICE, getattr(EngineLoop, name)))
                    for name in ("_submit", "_take_notices", "_take_answers", "_wait_for_beginners")
                ),
            ):
                stack.enter_context(_replaced(owner, name, call))
            yield

    def parts_ms(self) -> dict[str, float]:
        ordered = sorted(self.steps, key=lambda parts: sum(parts.values()))
        middle = ordered[len(ordered) // 4 : -(-len(ordered) * 3 // 4)]
        return {part: statistics.mean(parts[part] for parts in middle) * 1e3 for part in PARTS}


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
