"""The tools that the Messages API names by type: what the model is told fits what the official client's types accept."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from anthropic.types.beta import BetaMemoryTool20250818Command, BetaToolUnionParam
from pydantic import BaseModel

from radixkv.gateway.api.anthropic.client_tools import client_tool


def _memory_commands() -> list[type[BaseModel]]:
    return list(get_args(get_args(BetaMemoryTool20250818Command)[0]))


@pytest.mark.parametrize("command", _memory_commands(), ids=lambda command: command.__name__)
def test_every_command_of_the_memory_can_be_called(command: type[BaseModel]) -> None:
    tool = client_tool("memory_20250818")
    assert tool is not None
    assert tool.parameters is not None
    properties = tool.parameters["properties"]
    assert set(command.model_fields) <= set(properties)
    assert set(get_args(command.model_fields["command"].annotation)) <= set(properties["command"]["enum"])


def test_types_of_the_official_client_are_known_unless_they_need_pictures_or_a_server() -> None:
    kinds = {
        kind
        for params in get_args(BetaToolUnionParam)
        for kind in get_args(get_type_hints(params).get("type"))
        if isinstance(kind, str)
    }
    known = {kind for kind in kinds if client_tool(kind)}
    assert {kind.rsplit("_", 1)[0] for kind in known} == {"bash", "text_editor", "memory"}
    assert known == {kind for kind in kinds if kind.startswith(("bash_2", "text_editor_2", "memory_2"))}


@pytest.mark.parametrize(
    ("kind", "undoes"), [("20241022", True), ("20250124", True), ("20250429", False), ("20250728", False)]
)
def test_only_early_editors_undo(kind: str, undoes: bool) -> None:
    tool = client_tool(f"text_editor_{kind}")
    assert tool is not None
    assert tool.parameters is not None
    assert ("undo_edit" in tool.parameters["properties"]["command"]["enum"]) == undoes


@pytest.mark.parametrize(
    "kind", [None, "", "custom", "bash", "bash_code_execution_20250825", "computer_20250124", "web_search_20250305"]
)
def test_others_are_not_of_this_kind(kind: str | None) -> None:
    assert client_tool(kind) is None
