"""Loads of the benches of speculation.

few-shot      questions of BIG-Bench Hard after worked examples
agent         calls of a coding agent, prompts as recorded
code          functions of HumanEval to complete
chat          first turns of MT-Bench
again         the same chats once more
drawn         the same chats at temperature 0.8, with seeds
random        prompts of random tokens, replies at a temperature at which nothing repeats
mixed         requests of all these in turns, for batches
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.serving.material import Material
from bench.serving.workloads import TASKS
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.worker.generations.text import ChatText

__all__ = ["LEAST_GAIN", "SEED", "Load", "loads", "unlike_prompts"]

SEED = 1
LONGEST_PROMPT = 2048
LEAST_GAIN = {
    "few-shot": 2.0,
    "agent": 1.8,
    "code": 1.1,
    "chat": 1.2,
    "again": 3.5,
    "drawn": 1.0,
    "random": 0.98,
    "mixed": 1.0,
}
"""Of a single chat: tokens per second over those without speculation."""


class Load(NamedTuple):
    """Requests of one kind."""

    name: str
    asked: list[GenerateParams]


def loads(material: Material, text: ChatText, num: int, num_tokens: int) -> Iterator[Load]:
    """All loads of `num` requests, in the order in which they are run."""
    made = []
    for load in _pure_loads(material, text, num, num_tokens):
        made.append(load.asked)
        yield load
    yield Load("mixed", [one for turn in zip(*made, strict=False) for one in turn][:num])


def _pure_loads(material: Material, text: ChatText, num: int, num_tokens: int) -> Iterator[Load]:
    greedy = SamplingParams(max_tokens=num_tokens, temperature=0)

    def asked(prompts: Sequence[Sequence[int]], sampling: SamplingParams = greedy) -> list[GenerateParams]:
        return [GenerateParams(token_ids=list(ids), sampling=sampling) for ids in prompts]

    few_shot = []
    for number in range(num):
        task = material.big_bench[TASKS[number % len(TASKS)]]
        few_shot.append(text.encode(f"{task.examples}\n\nQ: {task.questions[number]}\nA: Let's think step by step.\n"))
    yield Load("few-shot", asked(few_shot))
    calls = [prompt for session in material.agent_sessions[: max(1, num // 4)] for prompt in session[:4]]
    yield Load("agent", asked([text.encode(prompt)[:LONGEST_PROMPT] for prompt in calls[:num]]))
    functions = material.functions[:: max(1, len(material.functions) // num)][:num]
    yield Load("code", asked([text.prompt_ids([{"role": "user", "content": one}]) for one in functions]))
    turns = material.two_turns[:: max(1, len(material.two_turns) // num)][:num]
    chats = [text.prompt_ids([{"role": "user", "content": first}]) for first, _ in turns]
    yield Load("chat", asked(chats))
    yield Load("again", asked(chats))
    drawn = [SamplingParams(max_tokens=num_tokens, temperature=0.8, seed=seed) for seed in range(num)]
    yield Load("drawn", [GenerateParams(token_ids=ids, sampling=one) for ids, one in zip(chats, drawn, strict=True)])
    yield Load("random", unlike_prompts(num, num_tokens))


def unlike_prompts(num: int, num_tokens: int, seed: int = SEED) -> list[GenerateParams]:
    """Requests of random tokens, in whose replies nothing repeats."""
    rng = random.Random(seed)
    noise = [[rng.randrange(1000, 40_000) for _ in range(200)] for _ in range(num)]
    hot = SamplingParams(max_tokens=num_tokens, temperature=10.0, seed=seed, ignore_eos=True)
    return [GenerateParams(token_ids=ids, sampling=hot) for ids in noise]
