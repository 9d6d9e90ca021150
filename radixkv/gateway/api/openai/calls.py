"""Calls in chat completions and their chunks: of functions, and of custom tools, whose input is one text.

{"id", "type": "function", "function": {"name", "arguments"}}    {"id", "type": "custom", "custom": {"name", "input"}}
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from radixkv.gateway.turns.call_parser import CallPiece, FunctionCalled
from radixkv.gateway.turns.custom_tools import input_of

__all__ = ["call_delta", "whole_call"]


def whole_call(call: FunctionCalled, customs: Collection[str]) -> dict[str, Any]:
    """Return a call of a response. `customs`: names of the custom tools."""
    if call.name in customs:
        custom = {"name": call.name, "input": input_of(call.arguments)}
        return {"id": call.call_id, "type": "custom", "custom": custom}
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_delta(piece: CallPiece, customs: Collection[str]) -> dict[str, Any] | None:
    """Return the growth of a call in a chunk; None where it only ends. The input of a custom tool comes as a whole."""
    call = piece.call
    if call.name in customs:
        kind, name, said = "custom", "input", input_of(call.arguments) if piece.ends else ""
    else:
        kind, name, said = "function", "arguments", piece.arguments
    if piece.begins:
        return {"index": piece.number, "id": call.call_id, "type": kind, kind: {"name": call.name, name: said}}
    return {"index": piece.number, kind: {name: said}} if said else None
