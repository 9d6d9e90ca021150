"""Models that think before they reply: the marks around their thoughts, read from chat template and tokenizer.

<think>..</think>, [THINK]..[/THINK], <|START_THINKING|>..<|END_THINKING|>   found by their form: no table of models
<|channel|>analysis<|message|>..<|end|>                                      harmony: every message names its channel
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "HARMONY_START",
    "NUM_TAIL_TOKENS",
    "ThinkingMarks",
    "find_marks",
    "shown_decode",
    "variables_of",
    "with_one_thought",
]

HARMONY_START = "<|start|>assistant"
_HARMONY_OPEN, _HARMONY_CLOSE = "<|channel|>analysis<|message|>", "<|end|>"
_HARMONY_ANSWER = "<|channel|>final<|message|>"
_HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")

NUM_TAIL_TOKENS = 16
"""Last tokens of a prompt that are searched for an opening mark and the blanks after it."""

_WORD = r"(?:\w+:)?(?:think|thinking|thought|thoughts|reason|reasoning)"
_CLOSE = re.compile(
    rf"(?P<left><|\[|◁|<\|)/(?P<word>{_WORD})(?P<right>>|\]|▷|\|>)|<\|END_(?P<name>THINKING)\|>", re.IGNORECASE
)

_KNOWN_VARIABLES = ("enable_thinking", "thinking", "reasoning_effort", "thinking_budget")


class ThinkingMarks(NamedTuple):
    """Marks around a model's thoughts in the text of its reply.

    opens, closes: the marks. close_ids: the token ids of the closing one by itself.
    """

    opens: str
    closes: str
    close_ids: tuple[int, ...] = ()

    @property
    def is_harmony(self) -> bool:
        """Whether a reply consists of messages that name their channels."""
        return self.opens == _HARMONY_OPEN

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens that must be visible in a reply's text to split it."""
        return _HARMONY_TOKENS if self.is_harmony else (self.opens, self.closes)

    @property
    def ends_prompt(self) -> str:
        """End of a prompt after which the reply starts with thoughts."""
        return HARMONY_START if self.is_harmony else self.opens

    def has_opened(self, tail: str) -> bool:
        """Whether a prompt with this end has opened the thoughts of its reply; never for harmony."""
        return not self.is_harmony and tail.rstrip().endswith(self.opens)

    @property
    def begins_answer(self) -> str:
        """Text between the thoughts and the answer."""
        return _HARMONY_ANSWER if self.is_harmony else self.closes


def find_marks(template: str, added_tokens: Collection[str]) -> ThinkingMarks | None:
    """The marks that a chat template writes or parses, otherwise those among the added tokens; None: the model has none."""
    if _HARMONY_OPEN in template or ("<|channel|>" in template and "analysis" in template):
        return ThinkingMarks(_HARMONY_OPEN, _HARMONY_CLOSE)
    for told in (template, "\n".join(added_tokens)):
        for close in _CLOSE.finditer(told):
            opens = "<|START_THINKING|>" if close["name"] else f"{close['left']}{close['word']}{close['right']}"
            if opens in told or opens in added_tokens:
                return ThinkingMarks(opens, close.group())
    return None


def with_one_thought(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call with the text before it moved to its thoughts: harmony templates reject a call that has both."""
    thoughts, text = message.get("reasoning_content"), message.get("content")
    if not (message.get("tool_calls") and thoughts and text and isinstance(text, str)):
        return message
    return {**message, "reasoning_content": f"{thoughts}\n\n{text}", "content": ""}


def variables_of(environment: Any, template: str) -> tuple[str, ...]:
    """Thinking variables that a chat template reads."""
    from jinja2 import TemplateError, meta

    try:
        read = meta.find_undeclared_variables(environment.parse(template))
    except TemplateError:
        return ()
    return tuple(name for name in _KNOWN_VARIABLES if name in read)


def shown_decode(backend: Any, names: Sequence[str]) -> Callable[..., str]:
    """Decoding with a `tokenizers.Tokenizer` that leaves out its special tokens, except `names`."""
    added = backend.get_added_tokens_decoder().values()
    if any(token.special and token.content in names for token in added):
        from tokenizers import Tokenizer

        state = json.loads(backend.to_str())
        for token in state["added_tokens"]:
            token["special"] = token["special"] and token["content"] not in names
        backend = Tokenizer.from_str(json.dumps(state))
    decode: Callable[..., str] = backend.decode
    return decode
