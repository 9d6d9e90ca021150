"""Replies as they grow, branch by branch, from the worker's events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from radixkv.gateway.call_parser import CallParser, CallPiece, FunctionCalled
from radixkv.worker.sampling import SampledToken
from radixkv.worker.stream import BranchFinished, Delta, FinishReason, Usage
from radixkv.worker.text import Message

__all__ = ["Growth", "Reply", "RunningUsage", "usage_body"]


class Growth(NamedTuple):
    """What an event has added to a reply: text to be shown, pieces of calls, log probabilities of its tokens, and these."""

    text: str
    calls: list[CallPiece]
    logprobs: tuple[SampledToken, ...] = ()
    token_ids: Sequence[int] = ()


class Reply:
    """One branch.

    Args:
        index: among the choices.
        names: functions whose calls are looked for.
        end_ids: tokens that end a reply and stand for no text of it.
        takes_one_call: what comes behind the first call is no part of the reply.
        must_call: it is held to be calls.

    Attributes:
        text: what is shown of it. raw: all its text, calls among it. token_ids: all that was sampled of it.
        calls: of functions. reason, stop: how it ended, None while it runs.
    """

    __slots__ = (
        "_end_ids",
        "_parser",
        "calls",
        "index",
        "logprobs",
        "raw",
        "reason",
        "stop",
        "text",
        "token_ids",
    )

    def __init__(
        self,
        index: int,
        names: Collection[str],
        end_ids: Collection[int],
        *,
        takes_one_call: bool = False,
        must_call: bool = False,
    ) -> None:
        self.index = index
        self.text = ""
        self.raw = ""
        self.token_ids: list[int] = []
        self.logprobs: list[SampledToken] = []
        self.calls: list[FunctionCalled] = []
        self.reason: FinishReason | None = None
        self.stop: str | int | None = None
        self._parser = CallParser(names, takes_one_call=takes_one_call, must_call=must_call)
        self._end_ids = end_ids

    def push(self, delta: Delta) -> Growth:
        """Take in further tokens."""
        if self._parser.is_over:
            return Growth("", [])
        self.token_ids += delta.token_ids
        self.raw += delta.text
        shown = tuple(token for token in delta.logprobs if token.token_id not in self._end_ids)
        self.logprobs += shown
        return self._grow(*self._parser.push(delta.text), shown, delta.token_ids)

    def finish(self, event: BranchFinished) -> Growth:
        """Take in the end."""
        if self._parser.is_over:
            self.reason = FinishReason.STOP
            return Growth("", [])
        self.reason = event.reason
        self.stop = event.stop
        return self._grow(*self._parser.flush(), (), ())

    @property
    def is_exact(self) -> bool:
        """Whether `token_ids` say what the caller was told: nothing was left out of their text."""
        return not self._parser.has_cut

    def _grow(
        self,
        text: str,
        calls: list[CallPiece],
        logprobs: tuple[SampledToken, ...],
        token_ids: Sequence[int],
    ) -> Growth:
        self.text += text
        self.calls += [piece.call for piece in calls if piece.begins]
        return Growth(text, calls, logprobs, token_ids)

    @property
    def finish_reason(self) -> str:
        """In the API's words."""
        if self.calls and self.reason is FinishReason.STOP:
            return "tool_calls"
        return self.reason.value if self.reason is not None else "stop"

    def as_message(self) -> Message:
        """As a client will send it back, in the form that chat templates take."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]
        return message


class RunningUsage:
    """What each choice of a stream has cost so far; `usage_body` tells all of them at the end.

    `num_prompt_tokens`: of each; to be set once they are known.
    """

    __slots__ = ("_num_generated", "num_prompt_tokens")

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self._num_generated: dict[int, int] = {}

    def grow(self, index: int, num_tokens: int) -> None:
        """A choice has so many more."""
        self._num_generated[index] = self._num_generated.get(index, 0) + num_tokens

    def body(self, index: int) -> Mapping[str, Any]:
        """`usage` of a chunk of that choice."""
        num_generated = self._num_generated.get(index, 0)
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": num_generated,
            "total_tokens": self.num_prompt_tokens + num_generated,
        }


def usage_body(usage: Usage) -> Mapping[str, Any]:
    """`usage` of an answer."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_generated_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_generated_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
