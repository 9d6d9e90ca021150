"""Prompts on the command line: token ids, messages or a text."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.generation.client import GenerationClient

__all__ = ["PROMPT", "add_prompt", "are_ids", "encode", "read_prompt"]

PROMPT = """\
PROMPT is one of:
  token ids             as arguments
  a JSON file, or -     a list of token ids, or of messages with role and content, which go through the chat template;
                        - reads it from standard input
and --text TEXT is a plain-text prompt. Texts and messages are encoded by a worker of that model."""
"""For the help of a command."""


def add_prompt(command: argparse.ArgumentParser) -> None:
    """`PROMPT` and `--text`."""
    command.add_argument("prompt", nargs="*", metavar="PROMPT", help="token ids, a JSON file, or -; see below")
    command.add_argument("--text", metavar="TEXT", help="a plain-text prompt, instead of PROMPT")


def read_prompt(options: argparse.Namespace) -> Any:
    """A text, a list of ids, or a list of messages."""
    words: list[str] = options.prompt
    if (options.text is not None) == bool(words):
        raise InvalidArgumentError("PROMPT", " ".join(words), "token ids, a JSON file or -, or else --text TEXT")
    if options.text is not None:
        return options.text
    if all(word.isdecimal() for word in words):
        return [int(word) for word in words]
    if len(words) > 1:
        raise InvalidArgumentError("PROMPT", next(word for word in words if not word.isdecimal()), "a token id")
    return _read_json(words[0])


def _read_json(name: str) -> Any:
    try:
        content = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError("PROMPT", name, f"a file that can be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgumentError("PROMPT", name, f"JSON: {error}") from None
    is_messages = isinstance(content, list) and all(isinstance(item, dict) for item in content)
    if not content or not (are_ids(content) or is_messages):
        raise InvalidArgumentError("PROMPT", name, "a JSON list of token ids or of messages, not empty")
    return content


def are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(item) is int for item in prompt)


def encode(prompt: Any, worker: GenerationClient) -> Any:
    """The prompt's token ids, with the worker's tokenizer and chat template for a text or messages."""
    from radixkv.generation.request import Prompt

    if are_ids(prompt):
        return prompt
    return worker.tokenize(Prompt(text=prompt) if isinstance(prompt, str) else Prompt(messages=prompt))
