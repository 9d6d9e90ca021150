"""Text to token ids and back: plain text, chats through the model's own template, and replies as they stream.

A conversation is kept as token ids. To continue it, only the template's text after a reply is rendered and tokenised:

    kept:    <system> .. <user> hello <end> <assistant> Hi the|re      the reply as sampled, with or without its <end>
    append:                                                     <end> <user> and now? <end> <assistant>

A reply is never tokenised again: one in twenty would get other ids, and every later position would miss the cache.

Control tokens are the template's: callers' text in messages, tools and variables is encoded as plain text. A plain-text
prompt is encoded as it is, special tokens included.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.request import Message
from radixkv.generation.thinking import (
    NUM_TAIL_TOKENS,
    ThinkingMarks,
    find_marks,
    shown_decode,
    variables_of,
    with_one_thought,
)
from radixkv.worker.errors import ModelError
from radixkv.worker.generations.after_thinking import AfterThinking
from radixkv.worker.generations.control_tokens import ControlTokens, Rendered
from radixkv.worker.generations.encoding import ANYBODY, Asker, TextEncoder
from radixkv.worker.generations.spelling import TokenSpeller
from radixkv.worker.generations.stream_decoder import StreamDecoder
from radixkv.worker.generations.tool_prompt import knows_tools, with_tool_prompt
from radixkv.worker.generations.veil import join_pieces, strings_of
from radixkv.worker.loading.model_store import quiet_transformers
from radixkv.worker.sampling.grammar import GrammarMatcher

__all__ = ["Asker", "ChatText", "StreamDecoder"]


Tools = Sequence[Mapping[str, Any]]
"""Functions that the model may call, as chat templates take them."""

_OUR_ARGUMENTS = frozenset(
    [
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    ]
)
"""Arguments of the tokenizer that are not template variables: a caller's are ignored."""

_REPLY = "Reply{:030d}0here"
"""Placeholder for a kept reply. No caller can guess it, and its ending is always the same, so the text after it is too."""
_NUM_REPLY_DIGITS = 30

_NUM_OPENING_TOKENS = 4
"""Last tokens of a prompt, compared with those of the template's generation prompt."""
_LEAD = "\n"
"""Lead before continued text, which is then not a first word. Tokenizers merge no text with it."""


class ChatText:
    """A model's tokenizer and chat template."""

    def __init__(self, model: str) -> None:
        """Load the tokenizer of `model`, a folder or hub id as returned by `resolve_model`.

        Raises:
            ModelError: the model has no tokenizer that can be loaded.
        """
        with quiet_transformers():
            try:
                self._tokenizer: Any = _read_tokenizer(model)
            except (OSError, ValueError, KeyError, ImportError) as error:
                raise ModelError(
                    f"the tokenizer of {model} cannot be loaded: {' '.join(str(error).split())}"
                ) from error
        self._encoder = TextEncoder(self._tokenizer)
        marks = find_marks(self._template, list(map(str, self._tokenizer.get_added_vocab())))
        self._decode_ids = _plain_decode(self._tokenizer, marks.tokens if marks else ())
        self.thinking = self._readable(marks)
        self._control_tokens = ControlTokens(self._tokenizer) if self.has_chat_template else None
        self._speller = TokenSpeller(self._tokenizer)
        self._special_ids = frozenset([*self._tokenizer.all_special_ids, *self._tokenizer.added_tokens_decoder])

    @property
    def tokenizer(self) -> Any:
        """transformers' tokenizer, for readers of its vocabulary."""
        return self._tokenizer

    @cached_property
    def digest(self) -> str:
        """Stands for the vocabulary and the chat template, 32 hexadecimal digits. O(vocabulary), once."""
        told = [sorted(self._tokenizer.get_vocab().items()), self._tokenizer.chat_template]
        return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template; a base model has none."""
        return bool(self._tokenizer.chat_template)

    @property
    def _template(self) -> str:
        told = self._tokenizer.chat_template
        return str((told.get("default") if isinstance(told, dict) else told) or "")

    def _readable(self, marks: ThinkingMarks | None) -> ThinkingMarks | None:
        """The marks, if the text of a reply shows them."""
        if marks is None or not self.has_chat_template:
            return None
        if any(self.decode(self.encode(name, special=False)).strip() != name for name in marks.tokens):
            return None
        return marks._replace(close_ids=tuple(self.encode(marks.closes, special=False)))

    @cached_property
    def template_variables(self) -> tuple[str, ...]:
        """Thinking variables that the chat template reads."""
        from transformers.utils import chat_template_utils as templates

        if not self.has_chat_template:
            return ()
        return variables_of(templates._compile_jinja_template("").environment, self._template)

    @cached_property
    def _generation_prompt(self) -> tuple[int, ...]:
        """Last ids of a prompt after which the model may or may not think."""
        try:
            return tuple(self.prompt_ids([{"role": "user", "content": "."}])[-_NUM_OPENING_TOKENS:])
        except (ModelError, InvalidArgumentError):
            return ()

    @cached_property
    def _gap_ids(self) -> list[int]:
        """Tokens that are empty lines."""
        return [ids[0] for ids in (self.encode(lines, special=False) for lines in ("\n", "\n\n")) if len(ids) == 1]

    def after_thinking(
        self, matcher: GrammarMatcher, prompt: Sequence[int], *, vocab_size: int, stop_token_ids: Collection[int]
    ) -> GrammarMatcher:
        """Wrap a grammar's matcher to apply after the thoughts, if a reply to this prompt may start with thoughts.

        Args:
            matcher: of the reply's answer.
            prompt: its token ids; the last ones suffice.
            vocab_size, stop_token_ids: size of the vocabulary, and tokens that end a reply.
        """
        marks = self.thinking
        if marks is None:
            return matcher
        open_id = None
        if not self.decode(prompt[-NUM_TAIL_TOKENS:]).rstrip().endswith(marks.ends_prompt):
            opening = self.encode(marks.opens, special=False)
            is_left_to_it = tuple(prompt[-_NUM_OPENING_TOKENS:]) == self._generation_prompt
            if len(opening) > 1 or not is_left_to_it:
                return matcher
            open_id = opening[0]
        return AfterThinking(
            matcher,
            self.stream_decoder(),
            marks.begins_answer,
            vocab_size=vocab_size,
            stop_token_ids=stop_token_ids,
            open_id=open_id,
            gap_ids=() if marks.is_harmony else self._gap_ids,
        )

    def encode(self, text: str, *, special: bool = True, asker: Asker = ANYBODY) -> list[int]:
        """Token ids of a plain text; `special`: with the model's special tokens around a prompt.

        Raises:
            InvalidArgumentError: the text is many times too long.
        """
        return self._encoder.encode(text, special, asker)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the ids; invalid bytes become U+FFFD."""
        return self._decode_ids(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Display text of one token, for example next to its log probability; special tokens by name."""
        return self.decode([token_id], skip_special_tokens=False)

    def spell(self, token_ids: Sequence[int]) -> list[bytes]:
        """Bytes of each token by itself; special tokens by name."""
        return self._speller.spell(token_ids)

    def is_special(self, token_id: int) -> bool:
        """Whether the token has no text of its own."""
        return token_id in self._special_ids

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        arguments: Mapping[str, Any] | None = None,
        *,
        goes_on: bool = False,
        asker: Asker = ANYBODY,
    ) -> list[int]:
        """The whole conversation as the model's template writes it, up to the start of its reply.

        Args:
            messages: all turns.
            goes_on: the last turn is the assistant's, and the reply continues its text.
            tools: functions that the model may call; described in a system prompt of ours where the template has no tools.
            arguments: further variables for the template.
            asker: the caller.

        Raises:
            ModelError: there is no chat template, it rejects these messages, or it does not write the text to continue.
            InvalidArgumentError: the messages are many times too long.
        """
        return self._encode_rendered(self._render((), messages, tools, arguments, asker, goes_on), asker)

    def further_ids(self, text: str, *, asker: Asker = ANYBODY) -> list[int]:
        """Ids of text that continues a turn: no control tokens, and no space added before a first word.

        Raises:
            ModelError: the tokenizer cannot separate the text from control tokens.
            InvalidArgumentError: the text is many times too long.
        """
        control = self._control_tokens  # none without a template, as no token controls a chat then
        veil = control.veil_for(text) if control else None
        is_spelled = control is not None and control.is_spelled_in(text)

        def encode(lead: str) -> list[int]:
            veiled = None if veil is None else "".join([lead, veil.hide(text)])
            return self._encode_rendered(Rendered(lead + text, veiled, veil, is_spelled), asker)

        lead_ids = self._encoder.encode(_LEAD, False, asker)
        ids = encode(_LEAD)
        return ids[len(lead_ids) :] if ids[: len(lead_ids)] == lead_ids else encode("")

    def continuation_ids(
        self,
        kept_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Tools = (),
        arguments: Mapping[str, Any] | None = None,
        *,
        goes_on: bool = False,
        asker: Asker = ANYBODY,
    ) -> list[int]:
        """Ids to append to `kept_ids` so that the conversation continues with `messages` and the model's next reply.

        Args:
            kept_ids: the conversation so far, ending with a reply's sampled tokens, complete or cut; the last one suffices.
            messages: the new turns, most often one of the user.
            tools, arguments, goes_on, asker: as for `prompt_ids`.

        Returns:
            The template's ids after a reply, without the first of them if the reply ends with it (its end of turn).
            `[*kept_ids, *result]` equals `prompt_ids` of the whole conversation whenever its replies tokenise to the sampled
            ids.

        Raises:
            ModelError: there is no chat template, it rejects these messages, or it leaves replies out.
            InvalidArgumentError: the messages are many times too long.
        """
        ids = self._ids_after_reply(messages, tools, arguments, asker, goes_on)
        end_of_turn = self._end_of_turn(ids)
        if kept_ids and end_of_turn is not None and kept_ids[-1] == ids[end_of_turn]:
            return ids[end_of_turn + 1 :]
        return ids

    def _end_of_turn(self, ids: Sequence[int]) -> int | None:
        """Index of the special token that ends the reply in `ids`; None if text comes first."""
        for index, token_id in enumerate(ids):
            if token_id in self._special_ids:
                return index
            if self.token_text(token_id).strip():
                return None
        return None

    def _ids_after_reply(
        self,
        messages: Sequence[Message],
        tools: Tools,
        arguments: Mapping[str, Any] | None,
        asker: Asker,
        goes_on: bool,
    ) -> list[int]:
        reply = _new_word()
        turns = [{"role": "user", "content": "."}, {"role": "assistant", "content": reply}]
        rendered = self._render(turns, messages, tools, arguments, asker, goes_on)
        if any(part.count(reply) != 1 for part in (rendered.text, rendered.veiled) if part is not None):
            raise ModelError(
                "the model's chat template does not write each reply once, so a chat cannot go on after one"
            )
        # Tokenised after the reply, not alone: some tokenizers put a space before a first word.
        up_to_reply = self._encode_rendered(rendered.up_to(reply), asker)
        whole = self._encode_rendered(rendered, asker)
        if whole[: len(up_to_reply)] == up_to_reply:
            return whole[len(up_to_reply) :]
        return self._encode_rendered(rendered.after(reply), asker)

    def _encode_rendered(self, rendered: Rendered, asker: Asker) -> list[int]:
        """Ids whose only control tokens are the template's."""
        ids = self._encoder.encode(rendered.text, False, asker)
        control = self._control_tokens
        if control is None or control.are_all_genuine(rendered, ids):
            return ids
        guarded = control.guarded(rendered)
        if guarded is not None:
            tokenizer, text = guarded
            ids = self._encoder.encode(text, False, asker, tokenizer)
        if guarded is None or not control.are_written(rendered, ids):
            raise ModelError(
                "its tokenizer does not tell the control tokens in these messages from text that spells them"
            )
        return ids

    def _render(
        self,
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Tools,
        arguments: Mapping[str, Any] | None,
        asker: Asker,
        goes_on: bool = False,
    ) -> Rendered:
        """A conversation of placeholder turns and callers' `messages`; with `goes_on`, up to the end of the last text."""
        from jinja2 import TemplateError

        if self._control_tokens is None:
            raise _no_template()
        if self.thinking is not None and self.thinking.is_harmony:
            messages = list(map(with_one_thought, messages))
        end = _new_word() if goes_on else ""
        if goes_on:  # the word protects blanks before it from trimming, and marks the end of the text
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + end}]
        further = {name: value for name, value in (arguments or {}).items() if name not in _OUR_ARGUMENTS}
        if "documents" in further and "documents" not in str(self._tokenizer.chat_template):
            raise InvalidArgumentError("documents", "given", "left out: the model's template reads none")
        said = [_without_role(message) for message in messages], list(tools), list(further.values())
        self._encoder.check_length(sum(map(len, strings_of(said))), asker)
        veil = None
        try:
            text: str = self._tokenizer.apply_chat_template(
                **self._conversation([*before, *messages], tools),
                tokenize=False,
                add_generation_prompt=not goes_on,
                **further,
            )
            veil = self._control_tokens.veil_for(*said)
            if veil is None:
                return _up_to_text(Rendered(text), messages[-1]["content"], end)
            is_spelled = any(map(self._control_tokens.is_spelled_in, strings_of(said)))
            hidden = [{**veil.hide(_without_role(message)), "role": message["role"]} for message in messages]
            conversation = self._conversation([*before, *hidden], veil.hide(tools))
            variables = {name: veil.hide(value) for name, value in further.items()}
            veiled = self._render_as_given(conversation, variables, add_generation_prompt=not goes_on)
            return _up_to_text(Rendered(text, veiled, veil, is_spelled), messages[-1]["content"], end)
        except (TemplateError, TypeError, KeyError, ValueError, AttributeError) as error:
            reason = str(error) if veil is None else veil.show(str(error))
            raise ModelError(f"the model's chat template refuses these messages: {reason}") from error

    def _conversation(self, messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
        if tools and not knows_tools(str(self._tokenizer.chat_template)):
            messages, tools = with_tool_prompt(messages, tools), ()
        return {"conversation": [dict(message) for message in messages], "tools": list(tools) or None}

    def _render_as_given(
        self, conversation: Mapping[str, Any], variables: Mapping[str, Any], *, add_generation_prompt: bool
    ) -> str:
        """As `apply_chat_template`, which would turn its arguments into plain strings."""
        from transformers.utils import chat_template_utils as templates

        tools = conversation["tools"]
        source = self._tokenizer.get_chat_template(None, tools)
        template = _for_veiled(templates._compile_jinja_template(source), source)
        kept = [{k: v for k, v in message.items() if v is not None} for message in conversation["conversation"]]
        messages = getattr(templates, "_alias_reasoning_fields", list)(kept)  # earlier ones have no aliases
        context = {**self._tokenizer.special_tokens_map, **variables}
        rendered: str = template.render(
            **{"documents": None, **context},
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
        )
        return rendered

    def stream_decoder(self, before: Sequence[int] = (), *, keeps_special: bool = False) -> StreamDecoder:
        """A decoder for one reply.

        Args:
            before: the last tokens of the text that the reply continues.
            keeps_special: whether special tokens are emitted by name.
        """
        return StreamDecoder(self, before, keeps_special=keeps_special)


def _read_tokenizer(model: str) -> Any:
    """A model's tokenizer. To choose its class, transformers imports models' code. A folder made from a GGUF file names the
    class that needs none.
    """
    from transformers import PreTrainedTokenizerFast as Plain

    from radixkv.worker.loading.gguf_weights import has_index

    if has_index(Path(model)):
        said = json.loads((Path(model) / "tokenizer_config.json").read_text(encoding="utf-8"))
        if said.get("tokenizer_class") == Plain.__name__:
            return Plain.from_pretrained(model, trust_remote_code=False)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=False)


def _plain_decode(tokenizer: Any, shown: Sequence[str]) -> Callable[..., str]:
    """The tokenizer's decoding, bypassing transformers' wrapper where that adds nothing: it takes three times as long. Shows
    the special tokens `shown`, where possible."""
    from transformers import PreTrainedTokenizerFast as Plain

    kind = type(tokenizer)
    if isinstance(tokenizer, Plain) and kind.decode is Plain.decode and kind._decode is Plain._decode:
        return shown_decode(tokenizer.backend_tokenizer, shown)
    return partial(tokenizer.decode, clean_up_tokenization_spaces=False)


@lru_cache(maxsize=8)
def _for_veiled(template: Any, source: str) -> Any:
    """A compiled template whose macros return veiled texts for veiled arguments."""
    environment = template.environment.overlay()
    environment.concat = join_pieces
    return environment.from_string(source)


def _no_template() -> ModelError:
    return ModelError("the model has no chat template; choose an instruct model to chat with")


def _new_word() -> str:
    return _REPLY.format(secrets.randbelow(10**_NUM_REPLY_DIGITS))


def _up_to_text(rendered: Rendered, marked: str, end: str) -> Rendered:
    """The part before the word `end`, which `marked`, the last message's text, ends with; all, without one.

    Raises:
        ModelError: the template does not write that text, apart from blanks at its start.
    """
    if not end:
        return rendered
    found = rendered.before(end)
    if found is None or not found.text.endswith(marked.removesuffix(end).lstrip()):
        raise ModelError(
            "the model's chat template rewrites or leaves out the last message's text, so no reply can go on from it"
        )
    return found


def _without_role(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "role"}
