"""A generation that survives the loss of its worker: emitted tokens stay valid, and another worker continues after them.

Draws are keyed by (seed, branch, position), so a repeated request with the same seed draws the same tokens. A single branch
is resumed with its emitted tokens, except the last, as forced beginning of its reply, which costs one prefill. Several
branches, and branches ranked at the end, are generated again. In both cases new draws are compared with the emitted tokens:

    emitted before    t0 t1 t2 t3 │
    drawn again       t0 t1 t2 t3 │ t4 t5 ...      a difference ends the stream with an error; the rest is new
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from radixkv.core.errors import UnavailableError
from radixkv.generation.params import fresh_seed
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import BranchFinished, Delta, GenerationEvent, PromptLogprobs, Started

__all__ = ["ResumableGeneration"]


class ResumableGeneration:
    """Events that one generation has emitted, and the parameters to resume it. One consumer.

    Args:
        params: the request; it gets a seed where it names none.

    Attributes:
        params: of the first request.
    """

    def __init__(self, params: GenerateParams) -> None:
        sampling = params.sampling
        seed = fresh_seed() if sampling.seed is None else sampling.seed
        self.params = replace(params, sampling=replace(sampling, seed=seed))
        self._prompt: bytes | None = None
        self._tokens: list[list[int]] = [[] for _ in range(sampling.n)]  # emitted, by branch
        self._num_characters = [0] * sampling.n
        self._finished: set[int] = set()
        self._num_scored = 0  # prompt positions whose log probabilities were emitted
        self._num_drawn = [0] * sampling.n  # tokens and characters of the present stream
        self._num_read = [0] * sampling.n

    def fresh(self, events: Sequence[GenerationEvent]) -> list[GenerationEvent]:
        """Return the events that were not emitted before.

        Raises:
            UnavailableError: the new draws differ from the emitted tokens.
        """
        fresh: list[GenerationEvent] = []
        for event in events:
            if isinstance(event, Delta):
                rest = self._rest(event)
                fresh += [rest] if rest is event or rest.token_ids or rest.text else []
            elif not self._was_emitted(event):
                fresh.append(event)
        return fresh

    def _was_emitted(self, event: GenerationEvent) -> bool:
        """Whether an event of another kind was emitted before; from now on it was."""
        match event:
            case Started():
                is_first, self._prompt = self._prompt is None, event.prompt
                return not is_first
            case BranchFinished():
                is_first = event.branch not in self._finished
                self._finished.add(event.branch)
                return not is_first
            case PromptLogprobs():
                self._num_scored = event.end
        return False

    def _rest(self, event: Delta) -> Delta:
        """Return the part of a draw after the emitted one."""
        branch, told = event.branch, self._tokens[event.branch]
        begin = self._num_drawn[branch]
        known = told[begin : begin + len(event.token_ids)]
        if known != list(event.token_ids[: len(known)]):
            raise UnavailableError("the worker was lost, and what it had begun to tell cannot be continued; ask again")
        num_skipped = self._num_characters[branch] - self._num_read[branch]
        self._num_drawn[branch] += len(event.token_ids)
        self._num_read[branch] += len(event.text)
        rest = event
        if known or num_skipped > 0:
            rest = replace(
                event,
                token_ids=event.token_ids[len(known) :],
                text=event.text[max(0, num_skipped) :],
                logprobs=event.logprobs[len(known) :],
            )
        told.extend(rest.token_ids)
        self._num_characters[branch] += len(rest.text)
        return rest

    def again(self, timeout_s: float | None) -> GenerateParams:
        """Return the parameters to resume after the worker was lost. `timeout_s`: the rest of the request's own timeout."""
        params = replace(self.params, timeout_s=timeout_s)
        if self._prompt is None:
            return params
        sampling = params.sampling
        is_single = sampling.n == sampling.num_beams == 1 and sampling.best_of is None
        if is_single and len(self._tokens[0]) > len(sampling.forced_token_ids):
            sampling = replace(sampling, forced_token_ids=tuple(self._tokens[0][:-1]))
        if self._num_scored:
            sampling = replace(sampling, prompt_logprobs_start=self._num_scored)
        self._num_drawn, self._num_read = [0] * sampling.n, [0] * sampling.n
        return replace(params, sampling=sampling, text=None, **_after(self._prompt, params.continue_final_message))


def _after(prompt: bytes, is_continued: bool) -> dict[str, Any]:
    """Return the prompt as token ids. A reply that continued a turn does so again: its text is decoded as before."""
    if not is_continued:
        return {"token_ids": prompt, "messages": None, "history": b""}
    return {"history": prompt, "messages": [{"role": "assistant", "content": ""}]}
