"""The output of one response as it grows, and the events that report it.

response.created  [queued]  in_progress
  output_item.added  content_part.added  reasoning_text.delta ...  reasoning_text.done  content_part.done  output_item.done
  output_item.added  content_part.added  output_text.delta ...  output_text.done  content_part.done  output_item.done
  output_item.added  function_call_arguments.delta ...  .done  output_item.done
  output_item.added  custom_tool_call_input.delta  .done  output_item.done
response.completed | incomplete | failed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixkv.gateway.api.responses.items import output_id
from radixkv.gateway.api.responses.tools import Offer
from radixkv.gateway.turns.call_parser import CallPiece, FunctionCalled

__all__ = ["Output"]

Emit = Callable[[str, dict[str, Any]], None]
"""Called with the type of an event and its fields."""


_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""Type of the content, by that of the item."""


@dataclass(slots=True)
class _Open:
    """The open item: a message or thoughts, with their text so far, or a call."""

    item: dict[str, Any]
    call: FunctionCalled | None = None
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def part(self) -> dict[str, Any]:
        """The content of a message or thoughts."""
        kind = self.item["type"]
        scored = {"annotations": [], "logprobs": list(self.logprobs)} if kind == "message" else {}
        return {"type": _TEXTS[kind], "text": "".join(self.texts), **scored}


class Output:
    """The output items of a response, of which at most one is open at a time.

    Args:
        emit: receives every event; None where no client follows.
        offers: the tools, by their names in the prompt.
        response_id: the items' ids follow from it, so that a gateway that takes over gives them the same ones.

    Attributes:
        items: the closed items so far.
    """

    def __init__(self, emit: Emit | None, offers: Mapping[str, Offer], response_id: str) -> None:
        self.items: list[dict[str, Any]] = []
        self._emit = emit
        self._offers = offers
        self._response_id = response_id
        self._open: _Open | None = None
        self._blank = ""

    def add_thinking(self, text: str) -> None:
        """Append thoughts."""
        if text:
            self._add("reasoning", text)

    def add_text(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> None:
        """Append text to the open message, or to a new one. The tokens of an open call have no text."""
        text, item = self._blank + text, self._open
        has_some = bool(text.strip() or (logprobs and (item is None or item.call is None)))
        if not has_some and (item is None or item.item["type"] != "message"):
            self._blank = text  # becomes a message only if more text follows
            return
        self._blank = ""
        if text or logprobs:
            self._add("message", text, logprobs)

    def add_call(self, piece: CallPiece) -> None:
        """Take in growth of a call."""
        offer = self._offers[piece.call.name]
        if piece.begins:
            self._blank = ""
            kind, said = ("custom_tool_call", "input") if offer.is_custom else ("function_call", "arguments")
            spaced = {"namespace": offer.namespace} if offer.namespace else {}
            item = {"id": self._new_id("ctc" if offer.is_custom else "fc"), "type": kind, "status": "in_progress"}
            item |= {"call_id": self._new_id("call"), "name": offer.tool.name or "", **spaced, said: ""}
            self._begin(_Open(item, piece.call))
        if piece.arguments and not offer.is_custom:  # text within JSON is emitted once complete
            self._tell("response.function_call_arguments.delta", self._place | {"delta": piece.arguments})
        if piece.ends:
            self.close("incomplete" if piece.call.is_cut else "completed")

    def finish(self, status: str) -> None:
        """Close the output. A reply without any text becomes an empty message.

        Args:
            status: of the open item, if any: ``"completed"`` or ``"incomplete"``.
        """
        if not self.items and self._open is None:
            self._begin(_Open(self._new_item("message")))
            self.add_text("")
        self.close(status)

    def close(self, status: str) -> None:
        """Close the open item, if there is one."""
        if self._open is None:
            return
        item = self._open.item
        content = self._end_text(self._open) if self._open.call is None else self._end_call(self._open.call)
        self.items.append(item | {"status": status} | content)
        self._open = None
        self._tell("response.output_item.done", {"output_index": len(self.items) - 1, "item": self.items[-1]})

    def _add(self, kind: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> None:
        """Append to the open item of this kind, or to a new one."""
        if self._open is None or self._open.item["type"] != kind:
            self._begin(_Open(self._new_item(kind)))
        assert self._open is not None, "it has begun"
        self._open.texts.append(text)
        self._open.logprobs += logprobs
        scored = {"logprobs": list(logprobs)} if kind == "message" else {}
        self._tell(f"response.{_TEXTS[kind]}.delta", self._place | {"delta": text, **scored})

    def _begin(self, begun: _Open) -> None:
        self.close("completed")
        self._open = begun
        self._tell("response.output_item.added", {"output_index": len(self.items), "item": dict(begun.item)})
        if begun.call is None:
            self._tell("response.content_part.added", self._place | {"part": begun.part})

    def _end_text(self, ended: _Open) -> dict[str, Any]:
        """Emit the end of a text; returns the last fields of its item."""
        part = ended.part
        done = {name: part[name] for name in ("text", "logprobs") if name in part}
        self._tell(f"response.{part['type']}.done", self._place | done)
        self._tell("response.content_part.done", self._place | {"part": part})
        return {"content": [part]}

    def _end_call(self, call: FunctionCalled) -> dict[str, Any]:
        """Emit the end of a call; returns the last fields of its item."""
        offer = self._offers[call.name]
        said = offer.arguments(call)
        if not offer.is_custom:
            done = {"name": offer.tool.name or "", "arguments": said}
            self._tell("response.function_call_arguments.done", self._place | done)
            return {"arguments": said}
        self._tell("response.custom_tool_call_input.delta", self._place | {"delta": said})
        self._tell("response.custom_tool_call_input.done", self._place | {"input": said})
        return {"input": said}

    @property
    def _place(self) -> dict[str, Any]:
        assert self._open is not None, "it is the open item's"
        place = {"item_id": self._open.item["id"], "output_index": len(self.items)}
        return place | ({"content_index": 0} if self._open.call is None else {})

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(kind, fields)

    def _new_item(self, kind: str) -> dict[str, Any]:
        """Return a message, or an item of thoughts, without its content."""
        if kind == "reasoning":
            return {"id": self._new_id("rs"), "type": kind, "status": "in_progress", "summary": [], "content": []}
        return {"id": self._new_id("msg"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}

    def _new_id(self, kind: str) -> str:
        """Return the id of the item that begins next: as hard to guess as the response's."""
        index = len(self.items) + (self._open is not None)
        return output_id(kind, self._response_id, index)
