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
from typing import Any

from radixkv.gateway.api.responses.items import new_id
from radixkv.gateway.api.responses.tools import Offer
from radixkv.gateway.turns.call_parser import CallPiece, FunctionCalled

__all__ = ["Output"]

Emit = Callable[[str, dict[str, Any]], None]
"""Called with the type of an event and its fields."""


class Output:
    """The output items of a response. At most one message, call or reasoning item is open at a time.

    Args:
        emit: receives every event; None where no client follows.
        offers: the tools, by their names in the prompt.

    Attributes:
        items: the closed items so far.
    """

    def __init__(self, emit: Emit | None, offers: Mapping[str, Offer]) -> None:
        self.items: list[dict[str, Any]] = []
        self._emit = emit
        self._offers = offers
        self._call: tuple[FunctionCalled, dict[str, Any]] | None = None
        self._message: dict[str, Any] | None = None
        self._thoughts: tuple[dict[str, Any], list[str]] | None = None
        self._blank = ""
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def add_thinking(self, text: str) -> None:
        """Append thoughts."""
        if not text:
            return
        if self._thoughts is None:
            self.close("completed")
            item = {"id": new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
            self._thoughts = (item, [])
            self._tell("response.output_item.added", {"output_index": len(self.items), "item": dict(item)})
            self._tell("response.content_part.added", self._thoughts_place | {"part": _reasoning_part("")})
        self._thoughts[1].append(text)
        self._tell("response.reasoning_text.delta", self._thoughts_place | {"delta": text})

    def _close_thoughts(self, status: str) -> None:
        if self._thoughts is None:
            return
        item, texts = self._thoughts
        text, place = "".join(texts), self._thoughts_place
        self._tell("response.reasoning_text.done", place | {"text": text})
        self._tell("response.content_part.done", place | {"part": _reasoning_part(text)})
        item |= {"status": status, "content": [_reasoning_part(text)]}
        self.items.append(item)
        self._tell("response.output_item.done", {"output_index": len(self.items) - 1, "item": item})
        self._thoughts = None

    @property
    def _thoughts_place(self) -> dict[str, Any]:
        assert self._thoughts is not None, "some are open"
        return {"item_id": self._thoughts[0]["id"], "output_index": len(self.items), "content_index": 0}

    def add_text(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> None:
        """Append text to the open message, or to a new one."""
        text = self._blank + text
        if self._message is None and not text.strip() and not logprobs:
            self._blank = text  # becomes a message only if more text follows
            return
        self._blank = ""
        if self._message is None:
            self._close_thoughts("completed")
            self._open_message()
        elif not text and not logprobs:
            return
        self._texts.append(text)
        self._logprobs += logprobs
        self._tell("response.output_text.delta", self._place | {"delta": text, "logprobs": list(logprobs)})

    def add_call(self, piece: CallPiece) -> None:
        """Take in growth of a call."""
        if piece.begins:
            self.close("completed")
            self._blank = ""
            self._open_call(piece.call)
        if piece.arguments and not self._offers[piece.call.name].is_custom:  # text within JSON is emitted once complete
            self._tell("response.function_call_arguments.delta", self._call_place | {"delta": piece.arguments})
        if piece.ends:
            self._close_call("completed")

    def _open_call(self, call: FunctionCalled) -> None:
        offer = self._offers[call.name]
        kind, field = ("custom_tool_call", "input") if offer.is_custom else ("function_call", "arguments")
        spaced = {"namespace": offer.namespace} if offer.namespace else {}
        item = {"id": new_id("ctc" if offer.is_custom else "fc"), "type": kind, "status": "in_progress"}
        item |= {"call_id": call.call_id, "name": offer.tool.name or "", **spaced, field: ""}
        self._call = (call, item)
        self._tell("response.output_item.added", {"output_index": len(self.items), "item": dict(item)})

    def _close_call(self, status: str) -> None:
        assert self._call is not None, "one is open"
        call, item = self._call
        offer = self._offers[call.name]
        said = offer.arguments(call)
        if offer.is_custom:
            self._tell("response.custom_tool_call_input.delta", self._call_place | {"delta": said})
            self._tell("response.custom_tool_call_input.done", self._call_place | {"input": said})
        else:
            done = {"name": item["name"], "arguments": said}
            self._tell("response.function_call_arguments.done", self._call_place | done)
        item |= {"status": status, "input" if offer.is_custom else "arguments": said}
        self.items.append(item)
        self._tell("response.output_item.done", {"output_index": len(self.items) - 1, "item": dict(item)})
        self._call = None

    @property
    def _call_place(self) -> dict[str, Any]:
        assert self._call is not None, "one is open"
        return {"item_id": self._call[1]["id"], "output_index": len(self.items)}

    def finish(self, status: str) -> None:
        """Close the output. A reply without any text becomes an empty message.

        Args:
            status: of the open item, if any: ``"completed"`` or ``"incomplete"``.
        """
        if not self.items and self._message is None and self._call is None and self._thoughts is None:
            self._open_message()
            blank, self._blank = self._blank, ""
            self.add_text(blank)
        self.close(status)

    def close(self, status: str) -> None:
        """Close the open item, if there is one."""
        self._close_thoughts(status)
        if self._call is not None:
            self._close_call(status)
        if self._message is None:
            return
        text = "".join(self._texts)
        place, index = self._place, len(self.items)
        self._tell("response.output_text.done", place | {"text": text, "logprobs": list(self._logprobs)})
        part = _part(text, self._logprobs)
        self._tell("response.content_part.done", place | {"part": part})
        self._message |= {"status": status, "content": [part]}
        self.items.append(self._message)
        self._tell("response.output_item.done", {"output_index": index, "item": self._message})
        self._message = None
        self._texts, self._logprobs = [], []

    def _open_message(self) -> None:
        self._message = {
            "id": new_id("msg"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        self._tell("response.output_item.added", {"output_index": len(self.items), "item": dict(self._message)})
        self._tell("response.content_part.added", self._place | {"part": _part("", [])})

    @property
    def _place(self) -> dict[str, Any]:
        assert self._message is not None, "text belongs to an open message"
        return {"item_id": self._message["id"], "output_index": len(self.items), "content_index": 0}

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(kind, fields)


def _part(text: str, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}
