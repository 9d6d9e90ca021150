"""What a request may ask of its replies, and what was told of them, event by event."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from radixkv.generation.params import Grammar, SamplingParams
from radixkv.generation.stream import BranchFinished, Completed, Delta, GenerationStream, PromptLogprobs

__all__ = ["Told", "assert_same", "cases", "told", "uncached"]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}
DRAWN = SamplingParams(max_tokens=40, temperature=0.8, seed=7, ignore_eos=True)


def cases(eos: int) -> dict[str, SamplingParams]:
    """A request of each kind, by its name; `eos`: the token that ends a reply."""
    return {
        "greedy": SamplingParams(max_tokens=40, temperature=0, ignore_eos=True),
        "drawn": DRAWN,
        "hot": replace(DRAWN, temperature=1.2, top_k=40),
        "nucleus": replace(DRAWN, top_p=0.8, min_p=0.02),
        "several": replace(DRAWN, n=4),
        "ranked": replace(DRAWN, n=2, best_of=4),
        "penalties": replace(DRAWN, presence_penalty=1.0, frequency_penalty=0.5),
        "repetition": replace(DRAWN, temperature=0, repetition_penalty=1.3),
        "bias": replace(DRAWN, logit_bias={65: 3.0, 66: -5.0}),
        "bad words": replace(DRAWN, temperature=0, bad_words=("a", "b", "e")),
        "allowed": replace(DRAWN, allowed_token_ids=tuple(range(40, 120))),
        "log probabilities": replace(DRAWN, logprobs=5, n=2),
        "scored prompt": replace(DRAWN, logprobs=1, prompt_logprobs=2),
        "forced": replace(DRAWN, forced_token_ids=(65, 66, 67), logprobs=2, n=2),
        "end of reply": replace(DRAWN, ignore_eos=False, logit_bias={eos: 3.5}, max_tokens=60),
        "min tokens": replace(DRAWN, ignore_eos=False, logit_bias={eos: 20.0}, min_tokens=17),
        "stop token": replace(DRAWN, stop_token_ids=tuple(range(97, 105)), include_stop=True),
        "JSON schema": replace(
            DRAWN, grammar=Grammar("json_schema", json.dumps(SCHEMA)), ignore_eos=False, max_tokens=60
        ),
        "expression": replace(DRAWN, grammar=Grammar("regex", "(ab|cd)*[0-9]{5}"), ignore_eos=False, max_tokens=60),
        "beams": SamplingParams(max_tokens=12, num_beams=3, n=2, ignore_eos=True),
    }


class Told(NamedTuple):
    """Events of each branch, in order, and the other numbers of the usage."""

    events: dict[int, list[Any]]
    scores: list[PromptLogprobs]
    usage: tuple[int, ...]
    num_accepted: int


def told(stream: GenerationStream) -> Told:
    events: dict[int, list[Any]] = {}
    scores: list[PromptLogprobs] = []
    for event in stream:
        if isinstance(event, (Delta, BranchFinished)):
            events.setdefault(event.branch, []).append(event)
        elif isinstance(event, PromptLogprobs):
            scores.append(event)
        elif isinstance(event, Completed):
            usage = event.usage
    numbers = (usage.num_prompt_tokens, usage.num_generated_tokens, usage.num_cached_tokens, usage.num_computed_tokens)
    return Told(events, scores, numbers, usage.num_accepted_tokens)


def uncached(told_: Told) -> Told:
    """The same where the cache held nothing of the prompt."""

    def without(event: Any) -> Any:
        return replace(event, num_cached_tokens=None) if isinstance(event, Delta) else event

    return told_._replace(
        events={branch: [without(event) for event in events] for branch, events in told_.events.items()}
    )


def assert_same(found: Told, expected: Told) -> None:
    for branch, events in expected.events.items():
        assert found.events[branch] == events
    assert found.usage == expected.usage
    assert found.scores == expected.scores
