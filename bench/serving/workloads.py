"""The workloads: real texts, arranged in the shapes in which people and programs branch.

The texts have no times of forks and no lengths of replies: the branches, the number of concurrent users and the length of
every reply are our assumptions, listed in each workload's `about`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from bench.serving.made_up import MadeUp
from bench.serving.material import FewShot, Material
from bench.serving.plan import Call, Lane, Quote, Workload
from radixkv.worker.generations.text import ChatText

__all__ = ["WORKLOADS", "Ingredients"]

_T = TypeVar("_T")

MAX_CONTEXT = 8192
LEAST_FASTER = 3.0
"""For workloads in which nearly all of every prompt is shared."""
TASKS = (
    "object_counting",
    "sports_understanding",
    "web_of_lies",
)  # short questions after 269 to 891 tokens of examples


class Ingredients(NamedTuple):
    """Material of a workload. `is_quick`: a few seconds of work on two cores."""

    material: Material | MadeUp
    text: ChatText
    seed: int
    is_quick: bool

    def size(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full

    def opening(self, content: str) -> tuple[int, ...]:
        """Token ids of a chat's first message, up to the start of the reply."""
        return tuple(self.text.prompt_ids([{"role": "user", "content": content}]))

    def turn(self, content: str) -> tuple[int, ...]:
        """Token ids of a further message after a reply that was cut at its length."""
        kept = [*self.opening("?"), *self.text.encode("x", special=False)]
        return tuple(self.text.continuation_ids(kept, [{"role": "user", "content": content}]))


def _fan_out(from_: Ingredients, name: str, num_questions: int, num_tokens: int, tasks: Sequence[FewShot]) -> Workload:
    lanes: list[Lane] = []
    for turn in range(num_questions):
        task = tasks[turn * len(tasks) // num_questions]
        question = task.questions[turn % len(task.questions)]
        prompt = f"{task.examples}\n\nQ: {question}\nA: Let's think step by step.\n"
        lanes.append(((Call((tuple(from_.text.encode(prompt)),), num_tokens),),))
    about = (
        f"BIG-Bench Hard, {num_questions} questions of {', '.join(task.name for task in tasks)}, one job, at most 64 at once; "
        f"greedy replies of {num_tokens} tokens"
    )
    at_once, is_long = min(64, num_questions), num_questions > 64
    return Workload(name, about, tuple(lanes), at_once, is_long=is_long, least_faster=LEAST_FASTER)


def fan_out_64(from_: Ingredients) -> Workload:
    """One few-shot prompt, with 64 questions after it."""
    tasks = [from_.material.big_bench[TASKS[0]]]
    return _fan_out(from_, "fan-out-64", from_.size(64, 16), from_.size(16, 8), tasks)


def fan_out_512(from_: Ingredients) -> Workload:
    """512 questions, more than one task has, so after three few-shot prompts."""
    tasks = [from_.material.big_bench[name] for name in TASKS]
    return _fan_out(from_, "fan-out-512", from_.size(512, 24), from_.size(8, 4), tasks)


def regenerate(from_: Ingredients) -> Workload:
    """A reply, then seven more in its place, one after another."""
    num_users, num_tokens = from_.size(8, 2), from_.size(32, 8)
    num_replies = from_.size(8, 4)
    lanes = []
    for user, root in enumerate(_spread(from_.material.conversation_trees, num_users)):
        prompt = from_.opening(root["content"])
        seeds = (1000 * user + number for number in range(num_replies))
        lanes.append(tuple((Call((prompt,), num_tokens, seed=seed),) for seed in seeds))
    about = (
        f"the first messages of {num_users} OpenAssistant trees, a user each; {num_replies} replies of {num_tokens} tokens, "
        "one after the other"
    )
    return Workload("regenerate", about, tuple(lanes), num_users)


def edit_fork(from_: Ingredients) -> Workload:
    """Three turns, then the second is edited and continued for two, then back to the first branch for one more."""
    num_users, num_tokens = from_.size(8, 2), from_.size(32, 8)
    sayings = list(_spread(_user_turns(from_), 5 * num_users))
    lanes = []
    for user in range(num_users):
        first, second, third, edited, other = (from_.turn(saying) for saying in sayings[5 * user : 5 * user + 5])
        start = from_.opening(sayings[5 * user])
        trunk = (start, Quote(0))
        branch = (*trunk, second, Quote(1), third, Quote(2))
        edit = (*trunk, edited)
        parts: list[tuple[tuple[int, ...] | Quote, ...]] = [
            (start,),
            branch[:3],
            branch[:5],
            edit,
            (*edit, Quote(3), other),
            (*branch, first),
        ]
        lanes.append(tuple((Call(prompt, num_tokens),) for prompt in parts))
    about = (
        f"{num_users} users at once, messages of OpenAssistant users: three turns, the second edited and gone on from, then "
        f"the first branch again; greedy replies of {num_tokens} tokens"
    )
    return Workload("edit-fork", about, tuple(lanes), num_users)


def drafts(from_: Ingredients) -> Workload:
    """Sixteen drafts at once of a reply to a long prompt."""
    length, n, num_tokens = from_.size(2000, 256), from_.size(16, 4), from_.size(64, 8)
    session = from_.material.agent_sessions[0]
    prompt = from_.text.encode("\n".join(session)[: 16 * length])[:length]
    lanes: list[Lane] = [((Call((tuple(prompt),), num_tokens, n=n, seed=0),),)]
    about = f"{n} replies at once of {num_tokens} tokens to a text of {length:,} tokens"
    return Workload("drafts", about, tuple(lanes), 1, least_faster=LEAST_FASTER)


def trees(from_: Ingredients) -> Workload:
    """Users in conversation trees: every reply of the tree is requested, siblings with other seeds, depth first."""
    num_users, num_tokens = from_.size(8, 2), from_.size(32, 8)
    max_calls = from_.size(8, 4)
    branching = [root for root in from_.material.conversation_trees if len(root["replies"]) > 1]
    lanes = []
    for user, root in enumerate(_spread(branching, num_users)):
        calls: list[Call] = []
        _walk(from_, root, (), calls, max_calls, num_tokens, 1000 * user)
        lanes.append(tuple((call,) for call in calls))
    about = (
        f"{num_users} users at once, each in one OpenAssistant tree: its replies asked for depth first, siblings again with "
        f"another seed, at most {max_calls}; replies of {num_tokens} tokens"
    )
    return Workload("trees", about, tuple(lanes), num_users)


def _walk(
    from_: Ingredients,
    message: dict[str, Any],
    above: tuple[tuple[int, ...] | Quote, ...],
    calls: list[Call],
    max_calls: int,
    num_tokens: int,
    seed: int,
) -> None:
    said = from_.turn(message["content"]) if above else from_.opening(message["content"])
    prompt = (*above, said)
    for reply in message["replies"]:
        if len(calls) >= max_calls:
            return
        calls.append(Call(prompt, num_tokens, seed=seed + len(calls)))
        behind = (*prompt, Quote(len(calls) - 1))
        for answer in reply["replies"]:
            _walk(from_, answer, behind, calls, max_calls, num_tokens, seed)


def agent(from_: Ingredients) -> Workload:
    """A coding agent: long prompts that mostly grow, as recorded."""
    num_sessions, num_tokens = from_.size(3, 1), from_.size(24, 8)
    num_calls, longest = from_.size(6, 2), from_.size(MAX_CONTEXT - 256, 2048)
    lanes = []
    for session in _spread(from_.material.agent_sessions, num_sessions):
        prompts = [tuple(from_.text.encode(prompt)[:longest]) for prompt in session[:num_calls]]
        lanes.append(tuple((Call((prompt,), num_tokens),) for prompt in prompts))
    about = (
        f"the first {num_calls} calls of {num_sessions} mini-swe-agent sessions at once, prompts as recorded and cut at "
        f"{longest:,} tokens; greedy replies of {num_tokens} tokens"
    )
    return Workload("agent", about, tuple(lanes), num_sessions)


def thoughts(from_: Ingredients) -> Workload:
    """Breadth-first search: the kept states are expanded at once, then every candidate is judged at once."""
    num_games, num_steps = from_.size(3, 1), from_.size(3, 2)
    num_tokens, num_judged = from_.size(16, 8), from_.size(6, 3)
    games = _spread(from_.material.games, num_games + 4)
    shown = [game for index, game in enumerate(games) if index >= num_games]
    examples = "Use the four numbers and + - * / to reach 24, one step a line.\n\n" + "\n\n".join(
        f"Input: {game[0]['x']}\n{game[-1]['new_ys'][0].strip()}" for game in shown
    )
    lanes = []
    for number, game in enumerate(games[:num_games]):
        waves: list[tuple[Call, ...]] = []
        kept = [""]
        for step in game[:num_steps]:
            head = f"{examples}\n\nInput: {step['x']}\n"
            expand = [_ids(from_, head + state) for state in kept]
            waves.append(tuple(Call((ids,), num_tokens, n=3, seed=number) for ids in expand))
            judged = [_ids(from_, head + state + "Can this reach 24? ") for state in step["new_ys"][:num_judged]]
            waves.append(tuple(Call((ids,), 4, seed=number) for ids in judged))
            kept = step["select_new_ys"][:5]
        lanes.append(tuple(waves))
    about = (
        f"{num_games} games of 24 at once, states as recorded: {num_steps} steps of up to 5 states expanded (3 replies of "
        f"{num_tokens} tokens) and up to {num_judged} candidates judged (4 tokens)"
    )
    return Workload("thoughts", about, tuple(lanes), num_games)


def _ids(from_: Ingredients, text: str) -> tuple[int, ...]:
    return tuple(from_.text.encode(text))


def chat(from_: Ingredients) -> Workload:
    """Plain conversations of one user: without branches."""
    num_questions, num_tokens = from_.size(4, 2), from_.size(32, 8)
    lanes = []
    for first, second in _spread(from_.material.two_turns, num_questions):
        start = from_.opening(first)
        again = (start, Quote(0), from_.turn(second))
        lanes.append(((Call((start,), num_tokens),), (Call(again, num_tokens),)))
    about = f"{num_questions} questions of MT-Bench, two turns each, one user; greedy replies of {num_tokens} tokens"
    return Workload("chat", about, tuple(lanes), 1, branches=False)


WORKLOADS: dict[str, Callable[[Ingredients], Workload]] = {
    "regenerate": regenerate,
    "edit-fork": edit_fork,
    "fan-out-64": fan_out_64,
    "fan-out-512": fan_out_512,
    "drafts": drafts,
    "trees": trees,
    "agent": agent,
    "thoughts": thoughts,
    "chat": chat,
}


def _spread(items: Sequence[_T], count: int) -> list[_T]:
    """`count` of them, evenly from first to last."""
    return [items[index * len(items) // count] for index in range(count)]


def _user_turns(from_: Ingredients) -> list[str]:
    def sayings(message: dict[str, Any]) -> Iterator[str]:
        if message["role"] == "user":
            yield message["content"]
        for reply in message["replies"]:
            yield from sayings(reply)

    found = [text for root in from_.material.conversation_trees for text in sayings(root)]
    random.Random(from_.seed).shuffle(found)
    return found
