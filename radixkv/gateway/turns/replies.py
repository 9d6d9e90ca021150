"""Replies built from the worker's events, branch by branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from radixkv.gateway.turns.call_parser import CallParser, CallPiece, FunctionCalled
from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.generation.request import Message, ModelInfo
from radixkv.generation.stream import BranchFinished, Delta, FinishReason, Usage
from radixkv.generation.thinking import ThinkingMarks
from radixkv.generation.thought_splitter import splitter_of

__all__ = ["NO_GROWTH", "Growth", "Reply", "RunningUsage", "cost_of", "end_ids", "usage_body"]


class Growth(NamedTuple):
    """Growth of a reply by one event: visible text, pieces of calls, log probabilities of its tokens, and the tokens.

    `thinking`: thoughts, which come before the text.
    """

    text: str
    calls: list[CallPiece]
    logprobs: tuple[SampledToken, ...] = ()
    token_ids: Sequence[int] = ()
    thinking: str = ""


NO_GROWTH = Growth("", [])


class Reply:
    """One branch.

    Args:
        index: of the choice.
        names: functions whose calls are parsed.
        end_ids: tokens that end a reply and have no text.
        takes_one_call: drop everything after the first call.
        must_call: the reply is constrained to calls.
        marks: delimiters of its thoughts.

    Attributes:
        text: its visible text. thinking: its thoughts. raw: all its text, including thoughts and calls.
        token_ids: all its sampled tokens.
        num_thinking_tokens: tokens of its thoughts, with their closing mark.
        calls: of functions. reason, stop: of its end, None while it runs.
    """

    __slots__ = (
        "_close_ids",
        "_end_ids",
        "_has_closed",
        "_num_unread",
        "_parser",
        "_splitter",
        "calls",
        "index",
        "logprobs",
        "num_thinking_tokens",
        "raw",
        "reason",
        "stop",
        "text",
        "thinking",
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
        marks: ThinkingMarks | None = None,
    ) -> None:
        self.index = index
        self.text = ""
        self.thinking = ""
        self.num_thinking_tokens = 0
        self.raw = ""
        self.token_ids: list[int] = []
        self.logprobs: list[SampledToken] = []
        self.calls: list[FunctionCalled] = []
        self.reason: FinishReason | None = None
        self.stop: str | int | None = None
        self._parser = CallParser(names, takes_one_call=takes_one_call, must_call=must_call)
        self._end_ids = end_ids
        self._splitter = splitter_of(marks)
        self._close_ids = marks.close_ids if marks is not None else ()
        self._has_closed = False
        self._num_unread = 0  # tokens that may still turn out to open thoughts

    def open_thinking(self) -> None:
        """The prompt has opened its thoughts: begin within them."""
        self._splitter.open()

    def go_on(self, text: str) -> bool:
        """Continue this text, which is not emitted. Returns whether the text ends within thoughts."""
        self._splitter.begin(text)
        return self._splitter.is_thinking

    def push(self, delta: Delta) -> Growth:
        """Take in sampled tokens."""
        if self._parser.is_over:
            return NO_GROWTH
        self.token_ids += delta.token_ids
        self.raw += delta.text
        was_thinking = self._splitter.is_thinking
        thought, said = self._splitter.push(delta.text)
        if said:
            self._num_unread = 0
        num_thinking = self._count_thinking(delta.token_ids, was_thinking or bool(thought))
        shown = tuple(token for token in delta.logprobs[num_thinking:] if token.token_id not in self._end_ids)
        self.logprobs += shown
        return self._grow(*self._parser.push(said), shown, delta.token_ids, thought)

    def finish(self, event: BranchFinished) -> Growth:
        """Take in the end."""
        if self._parser.is_over:
            self.reason = FinishReason.STOP
            return NO_GROWTH
        self.reason = event.reason
        self.stop = event.stop
        thought, said = self._splitter.flush()
        text, calls = self._parser.push(said)
        rest, last_calls = self._parser.flush()
        return self._grow(text + rest, calls + last_calls, (), (), thought)

    def _count_thinking(self, token_ids: Sequence[int], has_thought: bool) -> int:
        """Return how many of the new tokens are thoughts: up to the token that closes them, if there is one."""
        is_thinking = self._splitter.is_thinking
        if is_thinking and not has_thought:
            self._has_closed = False
        if self._has_closed or not (is_thinking or has_thought):
            self._num_unread += len(token_ids)
            return 0
        number = len(token_ids)
        if len(self._close_ids) == 1 and self._close_ids[0] in token_ids:
            self._has_closed, number = True, list(token_ids).index(self._close_ids[0]) + 1
        self.num_thinking_tokens += self._num_unread + number
        self._num_unread = 0
        return number

    @property
    def is_exact(self) -> bool:
        """Whether `token_ids` match the emitted text: nothing was dropped."""
        return not self._parser.has_cut

    def _grow(
        self,
        text: str,
        calls: list[CallPiece],
        logprobs: tuple[SampledToken, ...],
        token_ids: Sequence[int],
        thinking: str,
    ) -> Growth:
        self.text += text
        self.thinking += thinking
        self.calls += [piece.call for piece in calls if piece.begins]
        return Growth(text, calls, logprobs, token_ids, thinking)

    @property
    def wants_results(self) -> bool:
        """Whether it ended by itself, or after its last call, and has calls. A stop text may cut a call's arguments."""
        is_stopped_within = isinstance(self.stop, str) and bool(self.calls) and self.calls[-1].is_cut
        return bool(self.calls) and self.reason is FinishReason.STOP and not is_stopped_within

    @property
    def finish_reason(self) -> str:
        """Finish reason of the API."""
        if self.wants_results:
            return "tool_calls"
        return self.reason.value if self.reason is not None else "stop"

    def as_message(self) -> Message:
        """Return the message as a client will send it back, in the chat template's form."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.calls:
            message["tool_calls"] = [
                {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]
        return message


def end_ids(info: ModelInfo, sampling: SamplingParams) -> frozenset[int]:
    """Return the tokens that end a reply and have no text."""
    return frozenset((*(() if sampling.ignore_eos else info.eos_token_ids), *sampling.stop_token_ids))


class RunningUsage:
    """Usage so far of each choice of a stream; `usage_body` gives the total at the end."""

    __slots__ = ("_num_generated", "_num_prompt")

    def __init__(self) -> None:
        self._num_prompt: Counter[int] = Counter()  # tokens, by choice
        self._num_generated: Counter[int] = Counter()

    def begin(self, index: int, num_prompt_tokens: int) -> None:
        """Note the prompt of a choice."""
        self._num_prompt[index] = num_prompt_tokens

    def grow(self, index: int, num_tokens: int) -> None:
        """Add generated tokens to a choice."""
        self._num_generated[index] += num_tokens

    def body(self, index: int) -> Mapping[str, Any]:
        """Return `usage` of a chunk of that choice."""
        num_prompt, num_generated = self._num_prompt[index], self._num_generated[index]
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_generated,
            "total_tokens": num_prompt + num_generated,
        }


def usage_body(usage: Usage, num_thinking_tokens: int = 0) -> Mapping[str, Any]:
    """Return `usage` of a response; `num_thinking_tokens`: of all its replies. It has a `cost` if the worker has prices."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_generated_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_generated_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": num_thinking_tokens,
            "accepted_prediction_tokens": usage.num_accepted_tokens,
            "rejected_prediction_tokens": usage.num_rejected_tokens,
        },
        **cost_of(usage),
    }


def cost_of(usage: Usage) -> dict[str, float]:
    """Return the field `cost` of a usage; none without a price list."""
    return {} if usage.cost is None else {"cost": usage.cost}
