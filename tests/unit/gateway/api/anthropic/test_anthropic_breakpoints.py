"""Where breakpoints lie in a prompt's tokens, whatever the family of its chat template and however its replies were spelled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_templates import FAMILIES, GEMMA, Family, LocalReader, chat_text
from transcript_chats import Chat, run

from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.api.anthropic.cache_control import find_breakpoints, pins_of
from radixkv.gateway.api.anthropic.schema import MessagesPrompt
from radixkv.gateway.api.anthropic.turns import template_turns
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.database import Database
from radixkv.gateway.turns.turns import read_prompt

MARK: Any = {"type": "ephemeral"}


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def reader(tmp_path: Path, family: Family) -> LocalReader:
    return LocalReader(chat_text(tmp_path / "model", family), family)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "state.sqlite") as database:
        yield database


def text(words: str, control: Any = None) -> Any:
    return {"type": "text", "text": words, "cache_control": control}


async def prefixes(chat: Chat, reader: LocalReader, body: dict[str, Any]) -> tuple[bytes, list[str]]:
    """The prompt, and the texts of the prefixes that the breakpoints end, shortest first."""
    prompt = MessagesPrompt.model_validate({"model": "m", **body})
    tools = prompt.tool_plan().tools
    transcript = await chat.transcripts.read("a", template_turns(prompt.system, prompt.messages), tools)
    tokens = await read_prompt(reader, transcript, tools)
    pins = await pins_of(find_breakpoints(prompt, tools), tokens, chat.transcripts, reader, "a")
    return tokens, [reader.shown(unpack_tokens(tokens[: 4 * pin.num_tokens])) for pin in pins]


def test_they_lie_at_the_ends_of_their_blocks(reader: LocalReader, database: Database, family: Family) -> None:
    async def story(chat: Chat) -> None:
        turns = [
            {"role": "user", "content": [text("a book", MARK), text(" of tales. And?")]},
            {"role": "assistant", "content": "Many."},
            {"role": "user", "content": [text("~"), text("~~", MARK), text("~!")]},
        ]
        system = None if family is GEMMA else [text("Be brief", MARK), text(". Be kind.")]
        tokens, found = await prefixes(chat, reader, {"messages": turns, "system": system})
        whole = reader.shown(unpack_tokens(tokens))
        ends = ["a book", "~~~"] if family is GEMMA else ["Be brief", "a book", "~~~"]
        assert all(whole.startswith(prefix) for prefix in found)
        assert [prefix[-len(end) :] for prefix, end in zip(found, ends, strict=True)] == ends
        assert whole.count(found[-1]) == 1

    run(reader, database, story)


def test_behind_a_reply_they_lie_behind_the_tokens_that_it_was_generated_as(
    reader: LocalReader, database: Database, family: Family
) -> None:
    async def story(chat: Chat) -> None:
        system = "" if family is GEMMA else "Be brief."
        question: Any = {"role": "user", "content": "hello"}
        first = MessagesPrompt.model_validate({"model": "m", "messages": [question], "system": system})
        prompt, ids = await chat.turn(template_turns(first.system, first.messages), "hello world")
        turns = [
            question,
            {"role": "assistant", "content": [text("hello world", MARK)]},
            {"role": "user", "content": [text("or?", MARK)]},
        ]
        tokens, found = await prefixes(chat, reader, {"messages": turns, "system": system})
        assert tokens.startswith(prompt + ids)
        behind_reply, behind_all = found
        assert behind_reply.startswith(reader.shown(unpack_tokens(prompt + ids)))
        assert "or?" not in behind_reply
        assert behind_all.endswith("or?")

    run(reader, database, story)


def test_marks_beyond_the_bound_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [{"role": "user", "content": [text("a", MARK)]}] * 200
    prompt = MessagesPrompt.model_validate({"model": "m", "messages": turns})
    rendered: list[int] = []

    def counted(system: Any, turns: Any) -> Any:
        rendered.append(len(turns))
        return template_turns(system, turns)

    monkeypatch.setattr("radixkv.gateway.api.anthropic.cache_control.template_turns", counted)
    with pytest.raises(ApiError, match="5 blocks or more bear cache_control; at most 4 may"):
        find_breakpoints(prompt, [])
    assert sum(rendered) < 20
