"""Generation in this process, for jobs and notebooks: a list of prompts in, a list of replies out.

    from radixkv import LLM, SamplingParams

    with LLM() as llm:
        for reply in llm.generate(["1 + 1 =", "1 + 2 ="], SamplingParams(max_tokens=4, temperature=0)):
            print(reply.outputs[0].text)

Prompts that share a prefix run one after the other, whatever their order in the list. Replies come in the list's order.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, cast

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, num_tokens, unpack_tokens
from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.generation.request import GenerateParams, Message, Prompt
from radixkv.generation.stream import BranchFinished, Completed, Delta, GenerationStream, Started, Usage
from radixkv.util.closing import Closing
from radixkv.worker.engine.engine import Engine
from radixkv.worker.run import Worker, WorkerConfig

__all__ = ["LLM", "Completion", "Reply"]

AT_ONCE = 256
"""Requests given to the engine at a time: enough for it to choose from, few enough to hold."""

_Params = SamplingParams | Sequence[SamplingParams] | None


@dataclass(slots=True)
class Completion:
    """One branch of a reply.

    Attributes:
        index: of the branch in the reply.
        text: decoded, without special tokens and without the stop string or stop token.
        token_ids: generated tokens.
        finish_reason: ``"stop"`` or ``"length"``.
        stop_reason: the stop string or stop token id that ended the branch, if any.
        logprobs: one entry per token where requested.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    logprobs: list[SampledToken] = field(default_factory=list)


@dataclass(slots=True)
class Reply:
    """Reply to one prompt. `usage`: its cost, all branches together; see `Usage`."""

    prompt: bytes
    outputs: list[Completion]
    usage: Usage

    @property
    def prompt_token_ids(self) -> list[int]:
        """Token ids of the prompt."""
        return unpack_tokens(self.prompt)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt found in the cache and not computed."""
        return self.usage.num_cached_tokens


class LLM(Closing):
    """A model in this process, for one thread. Closed by its context, by `close`, or at the end of the process.

    Args:
        model: a folder, a GGUF file, a Hugging Face id, or None for the default model.
        settings: further fields of `WorkerConfig`, such as ``num_blocks=4096`` or ``dtype="float32"``.

    Raises:
        ModelError, PlanError: as `Worker`.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        worker = Worker(WorkerConfig(**{"model": model, "listen": None, **settings}))
        self._engine: Engine = worker.__enter__().engine
        self._close = weakref.finalize(self, worker.__exit__, None, None, None)

    def generate(
        self,
        prompts: str | bytes | Sequence[int] | Sequence[str | TokensLike],
        params: _Params = None,
        *,
        progress: bool = True,
    ) -> list[Reply]:
        """Continue prompts, each a text or token ids.

        Args:
            prompts: one, or a list of them.
            params: for all, or one for each; None: the model's own defaults.
            progress: show a bar on standard error where that is a terminal.

        Returns:
            A reply for each prompt, in order.

        Raises:
            InvalidArgumentError: a prompt is empty or can never fit, or `params` are too few or too many. The error names the
                prompt; requests already started are cancelled.
            UnavailableError: closed.
        """
        is_one = isinstance(prompts, str | bytes) or (len(prompts) > 0 and isinstance(prompts[0], int))
        each = cast("Iterable[str | TokensLike]", [prompts] if is_one else prompts)
        asked = [Prompt(text=one) if isinstance(one, str) else Prompt(token_ids=one) for one in each]
        return self._run([(prompt, b"") for prompt in asked], params, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: _Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> list[Reply]:
        """Answer conversations, through the model's chat template; otherwise as `generate`.

        Args:
            messages: one conversation, or a list of them.
            tools: functions that the model may call, as the template takes them.
            template_arguments: further variables for the template.
        """
        is_one = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Sequence[Message]]", [messages] if is_one else messages)
        arguments = template_arguments or {}
        asked = [Prompt(messages=one, tools=tools, template_arguments=arguments) for one in conversations]
        return self._run([(prompt, b"") for prompt in asked], params, progress)

    def fork(
        self,
        reply: Reply,
        prompts: Sequence[str | Sequence[Message]] = ("",),
        params: _Params = None,
        *,
        branch: int = 0,
        position: int | None = None,
        progress: bool = True,
    ) -> list[Reply]:
        """Continue from a token of a reply, however old. Cached parts of its history are not computed again.

        Args:
            reply: of this model.
            prompts: continuations, each a text appended to the history (empty: nothing) or further messages of the chat.
            branch: of the reply.
            position: tokens of prompt and branch to keep; None: all.

        Raises:
            InvalidArgumentError: there is no such branch or position; and as `generate`.
        """
        if not 0 <= branch < len(reply.outputs):
            raise InvalidArgumentError("branch", branch, f"between 0 and {len(reply.outputs) - 1}")
        history = self._engine.tokenize(Prompt(token_ids=reply.outputs[branch].token_ids), reply.prompt)
        length = num_tokens(history)
        if position is not None and not 0 <= position <= length:
            raise InvalidArgumentError("position", position, f"between 0 and {length}, the length of its history")
        kept = history if position is None else history[: position * TOKEN_BYTES]
        asked = [_continuation(prompt) for prompt in prompts]
        return self._run([(prompt, kept) for prompt in asked], params, progress)

    def close(self) -> None:
        """Cancel running requests and free the memory. Idempotent."""
        self._close()

    def _run(self, asked: Sequence[tuple[Prompt, bytes]], params: _Params, progress: bool) -> list[Reply]:
        given = params
        if given is None:
            given = SamplingParams(**self._engine.model().sampling.fill(None, None, None, None))
        if isinstance(given, SamplingParams):
            given = [given] * len(asked)
        if len(given) != len(asked):
            raise InvalidArgumentError("params", len(given), f"one, or one for each of {len(asked)} prompts")
        requests: list[GenerateParams] = []
        for index, ((prompt, history), sampling) in enumerate(zip(asked, given, strict=True)):
            with _named(index):
                tokens = self._engine.tokenize(prompt, history) if not prompt.is_empty else history
            requests.append(GenerateParams(token_ids=tokens, sampling=sampling))
        with _bar(len(requests), is_shown=progress) as advance:
            return _Job(self._engine, requests, advance).run()


class _Job:
    """Concurrent requests, with the events of all read by one thread."""

    def __init__(self, engine: Engine, requests: Sequence[GenerateParams], advance: Callable[[Usage], None]) -> None:
        self._engine = engine
        self._requests = requests
        self._advance = advance
        self._streams: dict[int, GenerationStream] = {}
        self._outputs: dict[int, dict[int, Completion]] = {}
        self._replies: dict[int, Reply] = {}
        self._news: SimpleQueue[int] = SimpleQueue()

    def run(self) -> list[Reply]:
        """All replies, in the order of the requests."""
        by_prefix = sorted(range(len(self._requests)), key=lambda index: cast(bytes, self._requests[index].token_ids))
        left = iter(by_prefix)
        try:
            while len(self._replies) < len(self._requests):
                while len(self._streams) < AT_ONCE and (index := next(left, None)) is not None:
                    self._begin(index)
                self._take(self._news.get())
        finally:
            for stream in self._streams.values():
                stream.close()
        return [self._replies[index] for index in range(len(self._requests))]

    def _begin(self, index: int) -> None:
        with _named(index):
            stream = self._engine.generate(self._requests[index])
        self._outputs[index] = {}
        self._streams[index] = stream
        stream.listen(lambda: self._news.put(index))

    def _take(self, index: int) -> None:
        stream = self._streams.get(index)
        if stream is None:
            return  # woken after the last event
        outputs = self._outputs[index]
        for event in stream.take():
            if isinstance(event, Delta):
                output = outputs.setdefault(event.branch, Completion(event.branch))
                output.text += event.text
                output.token_ids += event.token_ids
                output.logprobs += event.logprobs
            elif isinstance(event, BranchFinished):
                output = outputs.setdefault(event.branch, Completion(event.branch))
                output.finish_reason, output.stop_reason = event.reason.value, event.stop
            elif isinstance(event, Completed):
                prompt = cast(bytes, self._requests[index].token_ids)
                self._replies[index] = Reply(prompt, [outputs[branch] for branch in sorted(outputs)], event.usage)
                self._advance(event.usage)
                del self._streams[index], self._outputs[index]
            else:
                assert isinstance(event, Started)


def _continuation(prompt: str | Sequence[Message]) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(text=prompt) if prompt else Prompt()
    return Prompt(messages=prompt)


@contextmanager
def _named(index: int) -> Iterator[None]:
    """Prefix an `InvalidArgumentError` raised within with the prompt's `index`."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"prompts[{index}]: {error.argument}", error.value, error.bound) from None


@contextmanager
def _bar(number: int, *, is_shown: bool) -> Iterator[Callable[[Usage], None]]:
    """Progress bar. Yields a function to call as each reply completes."""
    if not (is_shown and sys.stderr.isatty()):
        yield lambda _usage: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=number)
        num_prompt_tokens = num_cached_tokens = 0

        def advance(usage: Usage) -> None:
            nonlocal num_prompt_tokens, num_cached_tokens
            num_prompt_tokens += usage.num_prompt_tokens
            num_cached_tokens += usage.num_cached_tokens
            told = f"{num_cached_tokens / num_prompt_tokens:.0%} of the prompts' tokens reused"
            shown.update(task, advance=1, description=told)

        yield advance
