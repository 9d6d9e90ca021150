"""The output of a response as it grows: items and events."""

from __future__ import annotations

from typing import Any

from radixkv.gateway.api.responses.output import Output
from radixkv.gateway.api.responses.tools import ResponseTool, offers_of
from radixkv.gateway.turns.call_parser import CallParser

SCORED = [{"token": "x", "logprob": -1.0, "bytes": [120], "top_logprobs": []}]


def test_the_scores_of_a_calls_tokens_open_no_message_within_it() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    output = Output(
        lambda kind, fields: events.append((kind, fields)),
        offers_of([ResponseTool(type="function", name="f")]),
        "resp_1",
    )
    parser = CallParser(["f"])
    for piece in ('Hm. <tool_call>{"name": "f", "arguments": {"a":', ' "b"', "}}</tool_call>"):
        text, calls = parser.push(piece)
        output.add_text(text, SCORED)
        for call in calls:
            output.add_call(call)
    output.finish("completed")
    assert [item["type"] for item in output.items] == ["message", "function_call"]
    added = [fields["output_index"] for kind, fields in events if kind == "response.output_item.added"]
    done = [fields["output_index"] for kind, fields in events if kind == "response.output_item.done"]
    assert added == done == [0, 1]
