"""What coding agents send, on each API: taken as far as a text model reads it, and what is left out is named."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack
from field_matrix import ENDPOINTS
from openai import OpenAI
from responses_calls import create, said, stream

from radixkv.gateway.http.request_context import LEFT_OUT
from radixkv.gateway.protocol.api_model import CHANGES_THE_ANSWER

PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
RULES = "You edit files. " * 60


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model, num_blocks=4096, max_model_len=32768) as stack:
        yield stack


@pytest.fixture(scope="module")
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{stack.server.address}/v1", timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.server.url, api_key="none", max_retries=0) as client:
        yield client


def sent(http: httpx.Client, path: str, **body: Any) -> httpx.Response:
    answer = http.post(path, json={"model": "gibberish", **body})
    assert answer.status_code == 200, answer.text
    return answer


def left_out(answer: httpx.Response) -> list[str]:
    return answer.headers.get(LEFT_OUT, "").split(", ") if LEFT_OUT in answer.headers else []


def messages(*turns: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": list(turns) or [{"role": "user", "content": "Hi"}], "max_tokens": 8, **fields}


def as_claude_code(noise: str, question: str) -> dict[str, Any]:
    """A first message as Claude Code sends it."""
    marked = {"cache_control": {"type": "ephemeral"}}
    return messages(
        {"role": "user", "content": [{"type": "text", "text": question, **marked}]},
        system=[
            {
                "type": "text",
                "text": f"x-anthropic-billing-header: cc_version=2.1.197.{noise}; cc_entrypoint=cli; cch={noise};",
            },
            {"type": "text", "text": RULES, **marked},
        ],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        metadata={"user_id": "u"},
        tools=[{"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}],
    )


def test_what_a_client_puts_first_for_somebody_else_costs_no_conversation_its_prefix(
    stack: Stack, http: httpx.Client
) -> None:
    first, second = (sent(http, "messages", **as_claude_code(noise, f"Do {noise}")) for noise in ("123", "73f"))
    assert left_out(first) == left_out(second) == ["output_config.effort", "context_management", "system.0"]
    assert "billing" not in stack.engine.shown()
    usage = second.json()["usage"]
    assert usage["cache_read_input_tokens"] > 200
    assert usage["input_tokens"] + usage["cache_creation_input_tokens"] < 32
    body = as_claude_code("4ee", "Do 73f")
    count = sent(
        http, "messages/count_tokens", **{k: v for k, v in body.items() if k not in ("max_tokens", "metadata")}
    )
    assert count.json()["input_tokens"] == len(stack.engine.prompts[-1])
    noise = "x-anthropic-billing-header: cc_version=9;\n"
    asked = [{"role": "system", "content": f"{noise}{RULES}"}, {"role": "user", "content": "Hi"}]
    assert left_out(sent(http, "chat/completions", messages=asked, max_tokens=1)) == ["messages.0"]
    assert "billing" not in stack.engine.shown()
    answer = sent(http, "responses", input="Hi", instructions=f"{noise}{RULES}", max_output_tokens=1)
    assert left_out(answer) == ["instructions"]
    assert "billing" not in stack.engine.shown()


def test_an_agent_in_another_folder_finds_its_tools(stack: Stack, http: httpx.Client) -> None:
    tools = [
        {"name": f"tool_{n}", "description": f"Does {n} things. " * 40, "input_schema": {"type": "object"}}
        for n in range(8)
    ]
    usages = []
    for folder in ("/home/red/orders", "/home/red/weather"):
        body = messages(system=f"You work in {folder}. {RULES}", tools=tools)
        usages.append(sent(http, "messages", **body).json()["usage"])
    num_shared = len(stack.text.encode(json.dumps(tools), special=False))
    assert usages[0]["cache_read_input_tokens"] < 200
    assert usages[1]["cache_read_input_tokens"] > 0.8 * num_shared


def test_a_history_that_another_model_began_goes_on(stack: Stack, http: httpx.Client) -> None:
    thought = [
        {"type": "thinking", "thinking": "Hmm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "u"}]},
        {"type": "text", "text": "It is so."},
    ]
    answer = sent(
        http,
        "messages",
        **messages(
            {"role": "user", "content": "Is it?"},
            {"role": "assistant", "content": thought},
            {"role": "user", "content": "Why?"},
            thinking={"type": "enabled", "budget_tokens": 1024},
        ),
    )
    places = [f"messages.1.content.{number}" for number in range(4)]
    assert left_out(answer) == ["thinking", *places]
    assert "It is so." in stack.engine.shown()
    assert "Hmm." not in stack.engine.shown()


def test_what_tools_have_read_is_read_as_text_or_has_a_placeholder(stack: Stack, http: httpx.Client) -> None:
    use = {"type": "tool_use", "id": "t", "name": "Read", "input": {}}
    plain = {"type": "text", "media_type": "text/plain", "data": "plain words"}
    result = [
        {"type": "text", "text": "read:"},
        {"type": "image", "source": PNG},
        {"type": "document", "source": plain, "title": "notes"},
        {"type": "tool_reference", "tool_name": "Grep"},
        {"type": "search_result", "source": "s", "title": "found", "content": [{"type": "text", "text": "a line"}]},
    ]
    beside = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    answer = sent(
        http,
        "messages",
        **messages(
            {"role": "user", "content": "Read it"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": result}, beside]},
        ),
    )
    assert left_out(answer) == ["messages.2.content.0.content.1", "messages.2.content.1"]
    shown = stack.engine.shown()
    for text in (
        "read:[image: this model reads text alone]notes\nplain words\n[tool Grep]found\ns\na line\n",
        "[document:",
    ):
        assert text in shown
    own = http.post(
        "messages", json=messages({"role": "user", "content": [{"type": "image", "source": PNG}]}, model="gibberish")
    )
    assert (own.status_code, "messages.0.content.0" in own.json()["error"]["message"]) == (400, True)
    sent(http, "messages", **messages({"role": "user", "content": [{"type": "document", "source": plain}]}))
    assert "plain words" in stack.engine.shown()


TEXT_URL = "data:text/plain;base64," + base64.b64encode(b"the last word").decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "messages",
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "the last word"}},
        ),
        (
            "messages",
            {
                "type": "document",
                "title": "T",
                "source": {"type": "content", "content": [{"type": "text", "text": "the last word"}]},
            },
        ),
        (
            "messages",
            {
                "type": "search_result",
                "source": "s",
                "title": "t",
                "content": [{"type": "text", "text": "the last word"}],
            },
        ),
        ("chat/completions", {"type": "file", "file": {"filename": "a.txt", "file_data": TEXT_URL}}),
        ("responses", {"type": "input_file", "filename": "a.txt", "file_data": TEXT_URL}),
    ],
    ids=["text", "content", "search_result", "file", "input_file"],
)
def test_a_document_does_not_run_into_the_question_after_it(
    stack: Stack, http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    parts = [body, {"type": "input_text" if path == "responses" else "text", "text": "What is it?"}]
    turns = [{"role": "user", "content": parts}]
    sent(http, path, **({"input": turns, "max_output_tokens": 8} if path == "responses" else messages(*turns)))
    assert "the last word\nWhat is it?" in stack.engine.shown()


@pytest.mark.parametrize("role", ["tool", "function"])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        {"type": "image", "source": PNG},
    ],
    ids=lambda part: str(part["type"]),
)
def test_what_a_function_of_a_chat_has_read_has_a_placeholder_where_it_is_no_text(
    stack: Stack, http: httpx.Client, part: dict[str, Any], role: str
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    result = {"role": role, "content": [{"type": "text", "text": "read:"}, part, {"type": "text", "text": ":end"}]}
    result |= {"tool_call_id": "c"} if role == "tool" else {"name": "read"}
    turns = [{"role": "user", "content": "Read it"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answer = sent(http, "chat/completions", **messages(*turns, result))
    assert "messages.2.content.1" in left_out(answer)
    assert f"read:[{part['type']}: this model reads text alone]:end" in stack.engine.shown()
    own = {"role": "user", "content": [{"type": "text", "text": "It holds:"}, part]}
    after = sent(http, "chat/completions", **messages(*turns, result | {"content": "see below"}, own))
    assert "messages.3.content.1" in left_out(after)
    assert f"It holds:[{part['type']}: this model reads text alone]" in stack.engine.shown()
    for history in ([own], [*turns, result, {"role": "assistant", "content": "I see."}, own]):
        refused = http.post("chat/completions", json=messages(*history))
        place = f"messages.{len(history) - 1}.content.1"
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, place)


def test_tools_that_servers_run_are_not_offered(stack: Stack, http: httpx.Client) -> None:
    own = {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}
    others = ["web_search_20250305", "computer_20250124", "web_fetch_20250910", "code_execution_20250825"]
    tools = [*({"type": kind, "name": f"tool{number}"} for number, kind in enumerate(others)), own]
    answer = sent(http, "messages", **messages(tools=[{"type": "mcp_toolset", "mcp_server_name": "m"}, *tools]))
    assert left_out(answer) == [f"tools.{number}" for number in range(5)]
    assert "Reads." in stack.engine.shown()
    assert "tool0" not in stack.engine.shown()


def test_tools_of_a_known_type_that_the_client_runs_are_called_like_its_own(stack: Stack, http: httpx.Client) -> None:
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000},
        {"type": "memory_20250818", "name": "memory"},
    ]
    called = {"name": "bash", "arguments": {"command": "ls -l"}}
    said(stack, f"<tool_call>\n{json.dumps(called)}\n</tool_call>")
    answer = sent(http, "messages", **{**messages(tools=tools), "max_tokens": 200})
    assert left_out(answer) == ["tools.1.max_characters"]
    (use,) = answer.json()["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "bash", {"command": "ls -l"})
    shown = stack.engine.shown()
    for each in ("str_replace_based_edit_tool", "insert_line", "old_path", "insert_text"):
        assert each in shown
    assert "undo_edit" not in shown


def test_many_tools_of_long_names_are_offered(http: httpx.Client) -> None:
    names = [f"mcp__{number:03d}__{'x' * 118}" for number in range(512)]
    assert {len(name) for name in names} == {128}
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    asked = {"model": "gibberish", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    told = {
        "messages": [{"name": name, "input_schema": schema} for name in names],
        "chat/completions": [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names],
    }
    for path, tools in told.items():
        answer = http.post(path, json={**asked, "tools": tools})
        assert answer.status_code == 200 or "32767" in answer.text, answer.text[
            :300
        ]  # as many tokens as the model takes
    few = [{"type": "function", "name": name, "parameters": schema} for name in names[:8]]
    assert sent(http, "responses", input="Hi", tools=few, max_output_tokens=1).json()["tools"][7]["name"] == names[7]


def test_a_call_in_a_namespace_and_one_of_a_custom_tool_go_round(stack: Stack, client: OpenAI) -> None:
    inner = {"type": "function", "name": "wait", "parameters": {"type": "object"}, "strict": False}
    tools = [
        {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [inner]},
        {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}},
        {"type": "web_search"},
        {"type": "local_shell"},
    ]
    text = 'a "b"\n*** End'
    called = [{"name": "agents.wait", "arguments": {"id": 1}}, {"name": "patch", "arguments": {"input": text}}]
    said(stack, "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in called))
    events = stream(client, tools=tools, max_output_tokens=200)
    wait, patch = events[-1].response.output
    assert (wait.type, wait.namespace, wait.name, json.loads(wait.arguments)) == (
        "function_call",
        "agents",
        "wait",
        {"id": 1},
    )
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", text)
    assert text == "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta")
    results = [
        {
            "type": "function_call_output",
            "call_id": wait.call_id,
            "output": [{"type": "input_image", "image_url": "i"}],
        },
        {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "patched"},
    ]
    said(stack, "Done.")
    second = create(client, results, previous_response_id=events[-1].response.id, tools=tools)
    assert second.output_text == "Done."
    assert "[input_image: this model reads text alone]" in stack.engine.shown()
    kept = [item.model_dump(exclude_none=True) for item in (wait, patch)]
    thoughts = [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "web_search_call", "status": "completed"},
    ]
    whole = create(client, [{"role": "user", "content": "Hello there"}, *thoughts, *kept, *results], tools=tools)
    assert whole.usage is not None
    assert second.usage is not None
    assert whole.usage.input_tokens_details.cached_tokens == second.usage.input_tokens - 1
    listed = client.responses.input_items.list(second.id).data
    assert {item.type for item in listed} >= {"custom_tool_call_output", "custom_tool_call"}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_of_tools_some_of_which_are_allowed_all_are_shown_and_those_called(
    stack: Stack, http: httpx.Client, mode: str
) -> None:
    functions = [
        {"name": name, "description": f"Does {name}.", "parameters": {"type": "object"}} for name in ("f", "g")
    ]
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60}
    allowed = [{"type": "function", "function": {"name": "g"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    stack.dictate('{"name": "g", "arguments": {}}')
    tools = [{"type": "function", "function": function} for function in functions]
    answer = sent(http, "chat/completions", **asked, tools=tools, tool_choice=choice).json()
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == ["g"]
    assert "Does f." in stack.engine.shown()
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
    stack.dictate('{"name": "g", "arguments": {}}')
    tools = [{"type": "function", **function} for function in functions]
    output = sent(http, "responses", input="Hi", max_output_tokens=60, tools=tools, tool_choice=choice).json()["output"]
    assert [item["name"] for item in output] == ["g"]


BODIES = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "completions": {"prompt": "Hi", "max_tokens": 1},
    "responses": {"input": "Hi", "max_output_tokens": 1},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
}


@pytest.mark.parametrize("path", BODIES)
def test_no_field_is_ignored_in_silence(http: httpx.Client, path: str) -> None:
    answer = sent(http, path, **BODIES[path], frobnicate=3, nothing=None, **{"bad\r\nname": 1})
    assert left_out(answer) == ["frobnicate", "?"]
    model = ENDPOINTS[path]
    for name, harmless in CHANGES_THE_ANSWER.items():
        if name in model.model_fields:
            continue
        refused = http.post(path, json={"model": "gibberish", **BODIES[path], name: "x"})
        assert (refused.status_code, name in refused.text) == (400, True)
        assert http.post(path, json={"model": "gibberish", **BODIES[path], name: harmless[-1]}).status_code == 200
