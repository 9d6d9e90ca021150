"""Conversation trees over HTTP: whatever branches, all of a prompt is found in the cache but what is new, and one token."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from chat_stack import gateway, gibberish_engine
from openai import AsyncOpenAI

from bench.common.chat_trees import Answer, Api, ByChat, ByResponses, Question, questions_of, shortfall
from bench.common.conversations import Tree, default_workloads, read_trees
from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingDefaults
from radixkv.generation.request import Prompt
from radixkv.worker.server import GenerationServer

REPLY_TOKENS = 12


def turns(*texts: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant" if index % 2 else "user", "content": text.strip() or "-"}
        for index, text in enumerate(texts)
    ]


SMALL_TREE = Tree(
    "small",
    [
        turns("Hello, who are you?", "a", "Tell me a joke.", "b", "Another one!", "c"),
        turns("Hello, who are you?", "a", "Tell me a joke.", "b", "Explain it.", "d"),
        turns("Hello, who are you?", "a", "Tell me a joke.", "e"),
        turns("Hello, who are you?", "a", "What is 12345 ½ 🙂?", "f", "  And\n\n7? "),
        turns("Hello, who are you?", "g", "Tell me a joke.", "h"),
        turns("Hello, who are you?", "i"),
    ],
)


def test_a_tree_is_asked_once_per_reply_behind_its_parent() -> None:
    questions = questions_of(SMALL_TREE, random.Random(1))
    assert len(questions) == 10
    assert sum(question.is_repeated for question in questions) == 3
    assert all(
        question.parent is None or question.parent in questions[:index] for index, question in enumerate(questions)
    )


@pytest.fixture
def trees(request: pytest.FixtureRequest) -> list[Tree]:
    """The trees that a test asks for: one of ours, or so many of OpenAssistant's."""
    if request.param == 0:
        return [SMALL_TREE]
    if not (default_workloads() / "oasst-trees.tar.xz").is_file():
        pytest.skip("the workloads folder is not here")
    return read_trees(default_workloads())[: request.param]


@pytest.mark.parametrize("protocol", ["responses", "chat"])
@pytest.mark.parametrize("trees", [0, 2, pytest.param(100, marks=pytest.mark.slow)], indirect=True)
def test_all_is_found_but_what_is_new_also_after_a_restart_of_the_gateway(
    default_model: str, tmp_path: Path, trees: list[Tree], protocol: str
) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", state_file=tmp_path / "state.sqlite", drain_s=1.0)
    walks = [questions_of(tree, random.Random(3)) for tree in trees]
    answers: dict[Question, Answer] = {}
    with (
        gibberish_engine(
            default_model,
            num_blocks=200 * (1 + len(trees)),
            sampling=SamplingDefaults(temperature=1.0, top_p=1.0),  # hard texts
        ) as (engine, _, _),
        GenerationServer(engine, "127.0.0.1:0") as server,
        GenerationClient(server.address) as worker,
    ):
        api: Api = ByResponses("gibberish", REPLY_TOKENS)
        if protocol == "chat":
            as_text = lambda messages: unpack_tokens(engine.tokenize(Prompt(messages=messages)))  # noqa: E731  # short
            api = ByChat("gibberish", REPLY_TOKENS, as_text)
        for is_later in (False, True):
            with gateway(worker, config) as front:
                asyncio.run(_ask(front.url, api, walks, is_later, answers))
        num_evicted = engine.call(lambda holder: holder.stats().num_evicted_blocks)
    assert num_evicted == 0, "the pool is too small to tell"
    assert len(answers) == sum(map(len, walks))
    for question, answer in answers.items():
        parent = answers[question.parent] if question.parent is not None else None
        num_short = shortfall(question, answer, parent)
        assert num_short <= 1, (
            f"{num_short} tokens of {answer.num_prompt} were computed again for {question.text[:40]!r}"
        )
    if protocol == "chat":
        losses = [answer.num_lost for answer in answers.values() if answer.num_lost is not None]
        assert any(num_lost > 1 for num_lost in losses), "no reply tokenises differently: nothing was shown"


async def _ask(
    url: str, api: Api, walks: list[list[Question]], is_later: bool, answers: dict[Question, Answer]
) -> None:
    """One half of each tree's questions, the trees side by side."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def one(questions: list[Question]) -> None:
            middle = len(questions) // 2
            for question in questions[middle:] if is_later else questions[:middle]:
                parent = answers[question.parent] if question.parent is not None else None
                answers[question] = await api.ask(client, question, parent)

        await asyncio.gather(*map(one, walks))
