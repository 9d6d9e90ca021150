"""transformers' continuous batching, in this process, with its tokens read as they come: no transport in between."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench.common.reference import load_plain
from bench.serving.plan import Outcome, ReadyCall, Workload
from bench.serving.system import KV_TOKENS, Counts

__all__ = ["TransformersCB", "hide_project_folder"]

PAGE_SIZE = 32
MAX_BATCH_TOKENS = 512
_NO_TOKEN = -1


class TransformersCB:
    """One loaded model; a fresh manager, with an empty cache, for every session.

    Args:
        model: folder of the model.
        kv_token_bytes: of one token slot.
    """

    def __init__(self, model: str, kv_token_bytes: int) -> None:
        hide_project_folder()
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.kv_token_bytes = kv_token_bytes
        self._model: Any = load_plain(model, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        self._transformers: Any = transformers

    def describe(self) -> dict[str, Any]:
        return {
            "version": self._transformers.__version__,
            "attention": self._model.config._attn_implementation,
            "dtype": str(self._model.dtype),
            "page_size": PAGE_SIZE,
            "max_batch_tokens": MAX_BATCH_TOKENS,
        }

    @contextmanager
    def session(self, workload: Workload) -> Iterator[_Session]:
        """Run a manager. Greedy or sampled is the manager's setting, so it follows the workload's first call."""
        is_sampled = any(call.seed is not None for call in workload.calls())
        generation = self._transformers.GenerationConfig(
            do_sample=is_sampled, top_k=0, top_p=1.0, temperature=1.0, eos_token_id=_NO_TOKEN, pad_token_id=0
        )
        batching = self._transformers.ContinuousBatchingConfig(
            page_size=PAGE_SIZE, num_blocks=KV_TOKENS // PAGE_SIZE, max_batch_tokens=MAX_BATCH_TOKENS, seed=0
        )
        manager = self._model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=batching
        )
        session = _Session(self._model, manager)
        manager.start()
        session.listen()
        try:
            yield session
        finally:
            session.close()
            manager.stop(block=True)


class _Session:
    def __init__(self, model: Any, manager: Any) -> None:
        self._manager = manager
        self._asking = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[str, SimpleQueue[Any]] = {}
        self._num_computed = 0
        self._least_free = 1.0
        self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._listener = threading.Thread(target=self._route, daemon=True)

    def listen(self) -> None:
        """Pass the running manager's outputs to the waiting calls."""
        self._listener.start()

    def close(self) -> None:
        self._hook.remove()

    def _count(self, _model: Any, _arguments: Any, keywords: dict[str, Any]) -> None:
        self._num_computed += int(keywords["input_ids"].shape[-1])
        free = self._manager.batch_processor.cache.compute_free_capacity()
        self._least_free = min(self._least_free, free)

    def _route(self) -> None:
        for output in self._manager:
            asker = self._waiting.get(output.request_id.partition("__child#")[0])
            if asker is not None:
                asker.put((time.monotonic(), output))
        for asker in list(self._waiting.values()):
            asker.put((time.monotonic(), None))

    def ask(self, call: ReadyCall) -> Outcome:
        answers: SimpleQueue[Any] = SimpleQueue()
        start_s = time.monotonic()
        with self._asking:  # the number of replies is the manager's setting, not the request's
            request_id = f"call-{next(self._numbers)}"
            self._waiting[request_id] = answers
            self._manager.num_return_sequences = call.n
            self._manager.add_request(
                call.prompt,
                request_id=request_id,
                max_new_tokens=call.num_tokens,
                streaming=True,
                eos_token_id=_NO_TOKEN,
            )
        first_s = 0.0
        replies: dict[str, list[int]] = {}
        while len(replies) < call.n:
            now_s, output = answers.get()
            if output is None or output.error is not None:
                reason = self._manager.background_thread_status.fatal_error if output is None else output.error
                raise RuntimeError(f"transformers' continuous batching failed: {reason}")
            first_s = first_s or now_s
            if output.is_finished():
                replies[output.request_id] = output.generated_tokens
                end_s = now_s
        del self._waiting[request_id]
        return Outcome(call.prompt, [replies[name] for name in sorted(replies)], start_s, first_s, end_s)

    def counts(self) -> Counts:
        return Counts(self._num_computed, round(KV_TOKENS * (1 - self._least_free)))


def hide_project_folder() -> None:
    """Hide the project's folder `kernels`, which transformers would import as the package of that name."""
    project = Path(__file__).resolve().parents[2]
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != project]
