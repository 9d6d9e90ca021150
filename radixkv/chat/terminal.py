"""The chat's user interface: a prompt, a reply that streams, commands that branch, one line with the reply's cost."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TextIO

from radixkv.chat.conversation import ChatError, Conversation, Turn
from radixkv.chat.drafts import Draft, ReplyView, can_dim, folded, opens_thoughts
from radixkv.chat.kept import KeptChat, KeptChats, KeptTitle
from radixkv.chat.saving import SavedChat, chats_folder, saved_names
from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, Generator, Message, Prompt
from radixkv.generation.stream import BranchFinished, Completed, Delta, Started, Usage

__all__ = ["ChatOptions", "Terminal", "run_chat"]

HELP = """\
Write a message and press Enter. The conversation is a tree; nothing you do overwrites an older reply.
  /regenerate [K]   answer the last message again, or K times at once (drafts)
  /edit N [TEXT]    change your message N and go on from there; without TEXT you are asked for it
  /fork [N]         stand behind the reply to message N (0: the start); your next message opens a branch there
  /fork N TEXT      let that reply go on anew from behind TEXT, a part of it
  /branches         list all branches        /switch K   go to the end of branch K
  /tree             draw the whole tree      /show       print the current branch
  /save NAME        keep the chat under a name, from now on after every reply
  /resume [NAME]    go on with a kept chat, or #K of those on the chat page; without NAME list both
  /help             this text                /quit       leave (so does Ctrl-D; Ctrl-C stops a reply)"""

MAX_DRAFTS = 64
_SPEAKERS = {"system": "sys", "user": "you", "assistant": "bot"}


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Sampling parameters of replies, and a system prompt that replaces the template's own."""

    sampling: SamplingParams
    system_prompt: str | None = None
    namespace: str | None = None


class LineReader(Protocol):
    """Source of the user's lines; raises EOFError at the end and KeyboardInterrupt on Ctrl-C."""

    def __call__(self, prompt: str, default: str = "") -> str: ...


class Terminal:
    """Reads lines, runs commands, prints replies."""

    def __init__(
        self,
        generator: Generator,
        options: ChatOptions,
        read_line: LineReader,
        output: TextIO,
        folder: Path | None = None,
        kept: KeptChats | None = None,
    ) -> None:
        self._generator = generator
        self._options = options
        self._read_line = read_line
        self._output = output
        self._conversation = Conversation(options.system_prompt)
        self._folder = chats_folder() if folder is None else folder
        self._kept = kept
        self._titles: list[KeptTitle] = []  # of the last list
        self._saved: SavedChat | KeptChat | None = None
        self._commands: dict[str, Callable[[str], bool]] = {
            "/regenerate": self._regenerate,
            "/edit": self._edit,
            "/fork": self._fork,
            "/branches": self._branches,
            "/switch": self._switch,
            "/tree": self._tree,
            "/show": self._show,
            "/save": self._save,
            "/resume": self._resume,
            "/help": self._help,
            "/quit": self._quit,
        }

    def run(self) -> None:
        """Read and run lines until the user leaves."""
        self._print("A branching chat. /help lists the commands, /quit leaves.")
        while True:
            try:
                line = self._read_line("you> ").strip()
            except EOFError:
                self._print("")
                return
            except KeyboardInterrupt:
                self._print("(/quit or Ctrl-D leaves)")
                continue
            if not line:
                continue
            try:
                if not self._follow(line):
                    return
            except RadixKVError as error:
                self._print(f"! {error}")
            except KeyboardInterrupt:
                self._print("")

    def _follow(self, line: str) -> bool:
        """Run one line. Returns whether the chat continues."""
        if not line.startswith("/"):
            self._answer(self._conversation.say(line), 1)
            return True
        name, _, argument = line.partition(" ")
        matching = [command for command in self._commands if command.startswith(name)]
        if name in self._commands:
            matching = [name]
        if len(matching) != 1:
            raise ChatError(f"{name} is no command; there are {', '.join(self._commands)}")
        return self._commands[matching[0]](argument.strip())

    # -- commands -----------------------------------------------------------------------------------------------------

    def _regenerate(self, argument: str) -> bool:
        self._answer(self._conversation.last_message(), _number(argument, "K", 1, MAX_DRAFTS, default=1))
        return True

    def _edit(self, argument: str) -> bool:
        number, _, text = argument.partition(" ")
        message = self._conversation.message(_number(number, "N", 1, None))
        text = text.strip() or self._read_line(f"edit {number}> ", default=message.text).strip()
        if not text:
            raise ChatError("an edited message needs a text; nothing was changed")
        self._answer(self._conversation.edit(int(number), text), 1)
        return True

    def _fork(self, argument: str) -> bool:
        number, _, text = argument.partition(" ")
        if text.strip():
            return self._fork_inside(self._conversation.message(_number(number, "N", 1, None)), text.strip())
        turn = self._conversation.fork(_number(argument, "N", 0, None) if argument else None)
        where = "at the start" if turn.role == "start" else f"behind “{' '.join(turn.text.split())[:40]}”"
        self._print(f"You stand {where}; your next message opens a branch here.")
        return True

    def _fork_inside(self, message: Turn, text: str) -> bool:
        """Answer a message again with the start of its reply, with the same tokens."""
        reply, begun = self._conversation.begun(message, text)
        token_ids = unpack_tokens(self._reply_ids(message, reply))

        def draft(number: int) -> Draft:
            begun = Draft(self._generator.model().thinking, has_opened=opens_thoughts(self._generator, message.history))
            begun.take(token_ids[:number], self._generator.detokenize(token_ids[:number]))
            return begun

        end = bisect_left(range(len(token_ids)), len(begun), key=lambda number: len(draft(number).text))
        self._answer(message, 1, draft(end))
        return True

    def _reply_ids(self, message: Turn, reply: Turn) -> bytes:
        """A reply's ids; for a reply known as text alone, those of the chat template, which continue past its end."""
        if message.history and reply.history:
            return reply.history[len(message.history) :]
        history, before = self._conversation.messages_for(message)
        after: list[Message] = [reply.message, {"role": "user", "content": message.text}]
        prompt, whole = (
            self._generator.tokenize(Prompt(messages=messages), history, self._options.namespace)
            for messages in (before, [*before, *after])
        )
        if not whole.startswith(prompt):
            raise ChatError("the model's chat template does not tell where that reply begins; regenerate it instead")
        message.history = prompt
        return whole[len(prompt) :]

    def _save(self, argument: str) -> bool:
        if not argument:
            raise ChatError("name it: /save NAME")
        self._saved = SavedChat(self._folder, argument, self._generator.model().name)
        self._keep()
        self._print(f"Kept as {self._saved.name!r}, and again after every reply.")
        return True

    def _resume(self, argument: str) -> bool:
        if not argument:
            return self._list()
        if self._saved is None and self._conversation.start.children:
            raise ChatError("this chat is not kept and would be lost: /save NAME first")
        if argument.startswith("#"):
            chat = self._open_kept(argument[1:])
            self._conversation, self._saved = chat.read(self._options.system_prompt), chat
        else:
            saved = SavedChat(self._folder, argument, self._generator.model().name)
            self._conversation, self._saved = saved.read(), saved
        return self._show("")

    def _list(self) -> bool:
        names = saved_names(self._folder)
        self._print("\n".join(names) or "No chat is kept yet; /save NAME keeps this one.")
        if self._kept is not None:
            self._titles = self._kept.latest()
            for number, each in enumerate(self._titles, 1):
                self._print(f"#{number}  {each.title}  ({each.num_messages} messages, on the chat page)")
        return True

    def _open_kept(self, number: str) -> KeptChat:
        if self._kept is None:
            raise ChatError("no chat page is known here; radixkv chat --gateway URL names one")
        self._titles = self._titles or self._kept.latest()
        if not self._titles:
            raise ChatError("no conversation is kept on the chat page")
        chosen = self._titles[_number(number, "K", 1, len(self._titles)) - 1]
        return KeptChat(self._kept, chosen.id, self._generator.model().name)

    def _keep(self) -> None:
        if isinstance(self._saved, KeptChat):
            self._saved.write(self._conversation)
        elif self._saved is not None and self._saved.write(self._conversation):
            self._print(f"Another chat is kept there; this one is kept as {self._saved.name!r}.")

    def _branches(self, argument: str) -> bool:  # noqa: ARG002  every command takes an argument
        self._print("\n".join(self._conversation.branch_lines()) or "There are no branches yet.")
        return True

    def _switch(self, argument: str) -> bool:
        self._conversation.switch(_number(argument, "K", 1, None))
        return self._show("")

    def _tree(self, argument: str) -> bool:  # noqa: ARG002  every command takes an argument
        self._print("\n".join(self._conversation.tree_lines()))
        return True

    def _show(self, argument: str) -> bool:  # noqa: ARG002  every command takes an argument
        for turn in self._conversation.current.path():
            self._print(f"{folded(turn.thinking)}{_SPEAKERS[turn.role]}> {turn.text}")
        return True

    def _help(self, argument: str) -> bool:  # noqa: ARG002  every command takes an argument
        self._print(HELP)
        return True

    def _quit(self, argument: str) -> bool:  # noqa: ARG002  every command takes an argument
        return False

    # -- replies ------------------------------------------------------------------------------------------------------

    def _answer(self, message: Turn, num_drafts: int, begun: Draft | None = None) -> None:
        """Generate and print `num_drafts` replies to a message, or continue `begun`; Ctrl-C keeps the text so far."""
        try:
            params = self._params(message, num_drafts)
            drafts = [Draft(self._generator.model().thinking) for _ in range(num_drafts)]
            if begun is not None:
                drafts, told = [begun], message.history + pack_tokens(begun.token_ids)
                params = GenerateParams(token_ids=told, sampling=params.sampling, namespace=params.namespace)
            prompt, usage = self._stream(params, drafts)
        except BaseException:
            self._conversation.withdraw(message)
            raise
        kept = [draft for draft in drafts if draft.token_ids]
        if not kept:
            self._conversation.withdraw(message)
            return
        prompt = message.history or prompt
        replies = [
            self._conversation.reply(message, prompt, draft.token_ids, draft.text, usage, draft.thinking)
            for draft in kept
        ]
        self._conversation.current = replies[0]
        if usage is not None:
            self._print(_cost_line(usage))
        self._keep()

    def _params(self, message: Turn, num_drafts: int) -> GenerateParams:
        sampling = replace(self._options.sampling, n=num_drafts)
        if message.history:  # answered before: the same tokens again
            return GenerateParams(token_ids=message.history, sampling=sampling, namespace=self._options.namespace)
        history, messages = self._conversation.messages_for(message)
        return GenerateParams(history=history, messages=messages, sampling=sampling, namespace=self._options.namespace)

    def _stream(self, params: GenerateParams, drafts: list[Draft]) -> tuple[bytes, Usage | None]:
        """Run a generation into the drafts. Returns the prompt's ids and the cost.

        A single draft is shown as it streams; several are shown one by one as each is done.
        """
        view = ReplyView(self._write, can_dim(self._output)) if len(drafts) == 1 else None
        prompt, usage = b"", None
        stream = self._generator.generate(params)
        try:
            for event in stream:
                if isinstance(event, Started):
                    prompt = event.prompt
                    self._begin(drafts, prompt, view)
                elif isinstance(event, Delta):
                    told = drafts[event.branch].take(event.token_ids, event.text)
                    if view is not None:
                        view.show(*told)
                elif isinstance(event, BranchFinished) and view is None:
                    self._show_draft(event.branch, drafts[event.branch])
                elif isinstance(event, Completed):
                    usage = event.usage
        except KeyboardInterrupt:
            stream.close()
        self._end(drafts, view, is_stopped=usage is None)
        return prompt, usage

    def _begin(self, drafts: list[Draft], prompt: bytes, view: ReplyView | None) -> None:
        has_opened = opens_thoughts(self._generator, prompt)
        for draft in drafts:
            if has_opened and not draft.token_ids:
                draft.open()
        if view is None:
            self._write(f"({len(drafts)} drafts; each is shown when it is done)\n")
        else:
            view.show(drafts[0].thinking, drafts[0].text)
            view.expect(drafts[0])

    def _end(self, drafts: list[Draft], view: ReplyView | None, *, is_stopped: bool) -> None:
        """Show drafts that are not shown yet."""
        if view is not None:
            view.show(*drafts[0].end())
            self._print(" (stopped)" if is_stopped else "")
            return
        if is_stopped:
            self._print(" (stopped)")
        for number, draft in enumerate(drafts):
            if draft.token_ids and not draft.is_done:
                self._show_draft(number, draft, " (stopped)")

    def _show_draft(self, number: int, draft: Draft, note: str = "") -> None:
        draft.end()
        draft.is_done = True
        self._print(f"{folded(draft.thinking)}bot {number + 1}> {draft.text}{note}")

    def _print(self, text: str) -> None:
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


def _number(argument: str, name: str, low: int, high: int | None, default: int | None = None) -> int:
    if not argument and default is not None:
        return default
    bound = f"a number of at least {low}" if high is None else f"a number from {low} to {high}"
    if not argument.isdecimal() or int(argument) < low or (high is not None and int(argument) > high):
        raise ChatError(f"{name} must be {bound}, not {argument!r}")
    return int(argument)


def _cost_line(usage: Usage) -> str:
    first_token_ms = usage.time_to_first_token_s * 1000
    return (
        f"[prompt {usage.num_prompt_tokens} tokens: {usage.num_cached_tokens} reused, "
        f"{usage.num_prompt_tokens - usage.num_cached_tokens} computed · first token after {first_token_ms:.0f} ms]"
    )


@contextmanager
def _line_reader() -> Iterator[LineReader]:
    """Line editing and history in a terminal, plain lines in a script."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield _read_plain_line
        return
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()

    def read(prompt: str, default: str = "") -> str:
        return session.prompt(prompt, default=default)

    yield read


def _read_plain_line(prompt: str, default: str = "") -> str:  # noqa: ARG001  a script sees no prompt and edits no text
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def run_chat(generator: Generator, options: ChatOptions, kept: KeptChats | None = None) -> None:
    """Chat on this process's terminal until the user leaves. `kept`: conversations of a gateway, to resume.

    Raises:
        ChatError: the model has no chat template.
    """
    if not generator.model().has_chat_template:
        raise ChatError("this model has no chat template; choose an instruct model with --model")
    with _line_reader() as read_line:
        Terminal(generator, options, read_line, sys.stdout, kept=kept).run()
