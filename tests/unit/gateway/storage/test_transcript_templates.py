"""What a model reads behind a kept history: what its own template writes, and its replies as they were generated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_templates import CHATML, DEEPSEEK, FAMILIES, GEMMA, LLAMA3, QWEN3, Family, LocalReader, chat_text
from transcript_chats import CALL, TOOLS, Chat, assistant, run, user

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.storage.database import Database
from radixkv.generation.request import Message, Prompt


@pytest.fixture
def family() -> Family:
    return CHATML


@pytest.fixture
def reader(tmp_path: Path, family: Family) -> LocalReader:
    return LocalReader(chat_text(tmp_path / "model", family), family)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "state.sqlite") as database:
        yield database


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("has_system", [False, True])
def test_the_model_reads_what_its_template_writes(
    reader: LocalReader, database: Database, family: Family, has_system: bool
) -> None:
    async def story(chat: Chat) -> None:
        messages: list[Message] = [
            user("  hello\n"),
            assistant("hello world"),
            user("or?"),
            assistant("or"),
            user(" well "),
        ]
        if has_system:
            messages = [{"role": "system", "content": "Be brief."}, *messages]
        replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if has_system and family is GEMMA:
            with pytest.raises(InvalidArgumentError, match="no system role"):
                await chat.prompt(messages)
            return
        for index in replies:
            # Qwen's template opens a reply without the thoughts that it writes into the last one: those are the model's.
            await chat.turn(messages[:index], messages[index]["content"])
        read, prompt = await chat.prompt(messages)
        assert read.rest == messages[-1:]
        assert prompt != await reader.tokenize(Prompt(messages=messages))
        assert reader.shown(unpack_tokens(prompt)) == reader.shown(reader.text.prompt_ids(messages))

    run(reader, database, story)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_client_that_trims_replies_is_understood_where_the_template_trims_them_too(
    reader: LocalReader, database: Database, family: Family
) -> None:
    async def story(chat: Chat) -> None:
        prompt, ids = await chat.turn([user("hello")], " hello\n")
        trimmed = [user("hello"), assistant("hello"), user("?")]
        read, following = await chat.prompt(trimmed)
        if family in (LLAMA3, GEMMA):
            assert read.history == prompt + ids
        else:
            assert following == await reader.tokenize(Prompt(messages=trimmed))

    run(reader, database, story)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.usefixtures("family")
def test_a_reply_cut_by_its_length_is_ended_by_the_template(reader: LocalReader, database: Database) -> None:
    async def story(chat: Chat) -> None:
        read, prompt = await chat.prompt([user("hello")])
        ids = reader.spelled("hello")[:-1]
        await chat.transcripts.remember(read, assistant("hello"), prompt, ids, text="hello")
        messages = [user("hello"), assistant("hello"), user("?")]
        _, following = await chat.prompt(messages)
        assert reader.shown(unpack_tokens(following)) == reader.shown(reader.text.prompt_ids(messages))

    run(reader, database, story)


@pytest.mark.parametrize("family", [LLAMA3, QWEN3], ids=lambda family: family.name)
def test_a_result_follows_the_call_as_the_template_writes_it(
    reader: LocalReader, database: Database, family: Family
) -> None:
    text = {
        "llama3": '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        "qwen3": '<think>\n\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    }[family.name]

    async def story(chat: Chat) -> None:
        reply = {"role": "assistant", "content": "", "tool_calls": [CALL]}
        messages: list[Message] = [user("1 and 2?"), reply, {"role": "tool", "tool_call_id": "call_1", "content": "3"}]
        await chat.turn(messages[:1], text, reply, tools=TOOLS)
        read, prompt = await chat.prompt(messages, tools=TOOLS)
        assert read.rest == messages[2:]
        whole = await reader.tokenize(Prompt(messages=messages, tools=TOOLS))
        assert reader.shown(unpack_tokens(prompt)) == reader.shown(unpack_tokens(whole))

    run(reader, database, story)


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize("family", [QWEN3, DEEPSEEK], ids=lambda family: family.name)
def test_thoughts_that_the_template_takes_out_of_earlier_turns_stay_as_they_were_generated(
    reader: LocalReader, database: Database
) -> None:
    async def story(chat: Chat) -> None:
        thoughtful = "<think>\nhm\n</think>\n\nhello"
        prompt, ids = await chat.turn([user("hello")], thoughtful)
        _, following = await chat.prompt([user("hello"), assistant(thoughtful), user("?")])
        assert following.startswith(prompt + ids)
        # A client that sends back the answer alone gets what it sent.
        bare = [user("hello"), assistant("hello"), user("?")]
        assert (await chat.prompt(bare))[1] == await reader.tokenize(Prompt(messages=bare))

    run(reader, database, story)
