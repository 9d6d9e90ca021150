"""A generation that survives the loss of its worker: emitted tokens stay valid, and another worker continues after them.

Draws are keyed by (seed, branch, position), so a repeated request with the same seed draws the same tokens. A single branch
is resumed with its emitted tokens, except the last, as forced beginning of its reply, which costs one prefill. Several
branches, and branches ranked at the end, are generated again. In both cases new draws are compared with the emitted tokens:

    emitted before    t0 t1 t2 t3 │
    drawn again       t0 t1 t2 t3 │ t4 t5 ...      a difference ends the stream with an error; the rest is new
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        self._tokens: list[list[int]] = [[] for _ in range(sampling.n)]
        self._num_characters = [0] * sampling.n
        self._finished: set[int] = set()
        self._num_scored = 0  # prompt positions whose log probabilities were emitted
        self._again: _Again | None = None

    def fresh(self, events: Sequence[GenerationEvent]) -> list[GenerationEvent]:
        """Return the events that were not emitted before.

        Raises:
            UnavailableError: the new draws differ from the emitted tokens.
        """
        if self._again is not None:
            events = list(self._again.new(events))
        for event in events:
            match event:
                case Started():
                    self._prompt = event.prompt
                case PromptLogprobs():
                    self._num_scored = event.end
                case Delta():
                    self._tokens[event.branch].extend(event.token_ids)
                    self._num_characters[event.branch] += len(event.text)
                case BranchFinished():
                    self._finished.add(event.branch)
        return list(events)

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
        self._again = _Again(self._tokens, self._num_characters, self._finished)
        return replace(
            params,
            sampling=sampling,
            **_after(self._prompt, params.continue_final_message),
            text=None,
            tools=(),
            template_arguments={},
        )


def _after(prompt: bytes, is_continued: bool) -> dict[str, Any]:
    """Return the prompt as token ids. A reply that continued a turn does so again: its text is decoded as before."""
    if not is_continued:
        return {"token_ids": prompt, "messages": None, "history": b""}
    return {"history": prompt, "messages": [{"role": "assistant", "content": ""}]}


class _Again:
    """Events of a repeated generation, without those that `tokens`, `num_characters` and `finished` mark as emitted."""

    def __init__(self, tokens: Sequence[Sequence[int]], num_characters: Sequence[int], finished: set[int]) -> None:
        self._told = [list(each) for each in tokens]
        self._num_told_characters = list(num_characters)
        self._finished = set(finished)
        self._num_tokens = [0] * len(tokens)
        self._num_characters = [0] * len(tokens)

    def new(self, events: Sequence[GenerationEvent]) -> Iterator[GenerationEvent]:
        for event in events:
            if isinstance(event, Delta):
                rest = self._rest(event)
                if rest.token_ids or rest.text:
                    yield rest
            elif not (isinstance(event, Started) or (isinstance(event, BranchFinished) and self._is_told(event))):
                yield event

    def _is_told(self, event: BranchFinished) -> bool:
        return event.branch in self._finished

    def _rest(self, event: Delta) -> Delta:
        branch = event.branch
        begin = self._num_tokens[branch]
        told = self._told[branch][begin : begin + len(event.token_ids)]
        if told != list(event.token_ids[: len(told)]):
            raise UnavailableError("the worker was lost, and what it had begun to tell cannot be continued; ask again")
        self._num_tokens[branch] += len(event.token_ids)
        skipped = max(0, self._num_told_characters[branch] - self._num_characters[branch])
        self._num_characters[branch] += len(event.text)
        return replace(
            event,
            token_ids=event.token_ids[len(told) :],
            text=event.text[skipped:],
            logprobs=event.logprobs[len(told) :],
        )
