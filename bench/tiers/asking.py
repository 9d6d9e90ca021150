"""One request to a worker, and its answer with times taken by the client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta

__all__ = ["Answer", "ask", "together"]

_T = TypeVar("_T")
_Result = TypeVar("_Result")


class Answer(NamedTuple):
    """A greedy reply. `num_cached`: prompt tokens found in pool or store; `num_loaded`: of these, in the store.
    `first_s`: until the first token, in seconds.
    """

    prompt: list[int]
    reply: list[int]
    logprobs: list[SampledToken]
    num_cached: int
    num_loaded: int
    first_s: float


def ask(client: GenerationClient, prompt: Sequence[int], num_tokens: int, **params: Any) -> Answer:
    """Request a greedy reply of so many tokens. `params`: further ones of `GenerateParams`; `logprobs` of its sampling."""
    sampling = SamplingParams(
        max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logprobs=params.pop("logprobs", None)
    )
    reply: list[int] = []
    logprobs: list[SampledToken] = []
    start_s = time.monotonic()
    first_s = 0.0
    stream = client.generate(GenerateParams(token_ids=prompt, sampling=sampling, **params))
    for event in stream:
        if isinstance(event, Delta):
            first_s = first_s or time.monotonic() - start_s
            reply += event.token_ids
            logprobs += event.logprobs
    if stream.usage is None or len(reply) != num_tokens:
        raise AssertionError(f"{len(reply)} tokens in place of {num_tokens}, usage {stream.usage}")
    usage = stream.usage
    return Answer(list(prompt), reply, logprobs, usage.num_cached_tokens, usage.num_loaded_tokens, first_s)


def together(items: Sequence[_T], at_once: int, work: Callable[[_T], _Result]) -> list[_Result]:
    """Results of `work` in the order of the items, at most `at_once` of them at a time."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="user") as users:
        return list(users.map(work, items))
