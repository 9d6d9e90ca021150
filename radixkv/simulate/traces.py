"""Recorded loads: requests in order of arrival, as packed tokens that share the load's prefixes.

    Mooncake's format     hash ids of 512-token blocks; every id becomes one block of the cache, its tokens derived from the id
    conversations         chats, linear or trees: one request for each reply, with all text before it
    prompts               one per line

Texts need no tokenizer here: four characters count as one token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.simulate.errors import TraceError
from radixkv.simulate.parsing import conversations_in, parse_lines

__all__ = ["Request", "Trace", "read_trace", "trace_of_texts"]

CHARACTERS_PER_TOKEN = 4
MOONCAKE_BLOCK_TOKENS = 512
HASH_ID_TOKENS = 2
"""Tokens per hash id; a last block that is not full has one, so that it stays a tail."""


class Request(NamedTuple):
    """One prompt. `tokens`: packed ids; `num_tokens`: its length in the load's own tokens; `num_generated`: of its reply, 0 if
    not recorded.
    """

    tokens: bytes
    num_tokens: int
    time_s: float
    num_generated: int = 0


class Trace:
    """Requests by time. A block of `block_size` packed ids stands for `tokens_per_block` tokens of the load."""

    def __init__(self, name: str, requests: Sequence[Request], block_size: int, tokens_per_block: int) -> None:
        self.name = name
        self.requests = requests
        self.block_size = block_size
        self.tokens_per_block = tokens_per_block
        self.block_bytes = block_size * TOKEN_BYTES

    @cached_property
    def _numbers(self) -> tuple[list[array[int]], int]:
        """The blocks of each request and their number: two blocks are the same if all blocks before them are."""
        known: dict[tuple[int, bytes], int] = {}
        rows = []
        size = self.block_bytes
        for request in self.requests:
            above, row = -1, array("i")
            for start in range(0, len(request.tokens), size):
                above = known.setdefault((above, request.tokens[start : start + size]), len(known))
                row.append(above)
            rows.append(row)
        return rows, len(known)

    def block_numbers(self) -> list[array[int]]:
        """Block numbers of each request; two requests share those of their common prefix. O(blocks), once."""
        return self._numbers[0]

    @property
    def num_blocks(self) -> int:
        """Distinct blocks: the final content of a cache without eviction."""
        return self._numbers[1]

    @property
    def longest_blocks(self) -> int:
        """Blocks of the longest request."""
        return max((len(row) for row in self.block_numbers()), default=0)


def read_trace(path: Path, block_size: int = 16) -> Trace:
    """Read a trace in any of the formats, recognised by its content. `block_size` is for texts.

    Raises:
        InvalidArgumentError: a block size below 1.
        TraceError: a missing file, no request in it, or a line in none of the formats; names the file and the line.
    """
    if block_size < 1:
        raise InvalidArgumentError("--block-size", block_size, "at least 1")
    if path.is_dir():
        return trace_of_texts(path.name, conversations_in(path), block_size)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise TraceError(f"{path} is not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from None
    records = parse_lines(path, lines)
    if records and isinstance(records[0], dict) and "hash_ids" in records[0]:
        return _mooncake(path, records)
    return trace_of_texts(
        path.name, [_text_of(path, number, record) for number, record in enumerate(records, 1)], block_size
    )


def trace_of_texts(name: str, texts: Iterable[str | tuple[float, str]], block_size: int = 16) -> Trace:
    """A trace of prompts as texts, each with its time in seconds if known.

    Raises:
        TraceError: no text.
    """
    vocabulary: dict[str, int] = {}
    requests = []
    for number, item in enumerate(texts):
        time_s, text = item if isinstance(item, tuple) else (float(number), item)
        pieces = [text[start : start + CHARACTERS_PER_TOKEN] for start in range(0, len(text), CHARACTERS_PER_TOKEN)]
        tokens = pack_tokens([vocabulary.setdefault(piece, len(vocabulary)) for piece in pieces])
        if tokens:
            requests.append(Request(tokens, len(pieces), time_s))
    if not requests:
        raise TraceError(f"{name} holds no prompt")
    return Trace(name, requests, block_size, block_size)


def _mooncake(path: Path, records: Sequence[Any]) -> Trace:
    requests = []
    for number, record in enumerate(records, 1):
        hash_ids, length, time_ms = (record.get(key) for key in ("hash_ids", "input_length", "timestamp"))
        is_list = isinstance(hash_ids, list) and all(isinstance(item, int) and 0 <= item < 2**32 for item in hash_ids)
        if not is_list or not isinstance(length, int) or not isinstance(time_ms, int | float):
            raise TraceError(f"{path}, line {number}: hash_ids, input_length and timestamp are asked for, as numbers")
        if len(hash_ids) != -(-length // MOONCAKE_BLOCK_TOKENS) or not hash_ids:
            raise TraceError(
                f"{path}, line {number}: {length} tokens have {-(-length // MOONCAKE_BLOCK_TOKENS)} blocks of "
                f"{MOONCAKE_BLOCK_TOKENS}, and there are {len(hash_ids)} hash_ids"
            )
        ids = array("I", [hash_id for hash_id in hash_ids for _ in range(HASH_ID_TOKENS)])
        if length % MOONCAKE_BLOCK_TOKENS:
            ids.pop()
        num_generated = record.get("output_length", 0)
        if not isinstance(num_generated, int) or num_generated < 0:
            raise TraceError(
                f"{path}, line {number}: output_length is {num_generated!r}, and is to be a number of tokens"
            )
        requests.append(Request(ids.tobytes(), length, time_ms / 1000, num_generated))
    return Trace(path.name, requests, HASH_ID_TOKENS, MOONCAKE_BLOCK_TOKENS)


def _text_of(path: Path, number: int, record: Any) -> str:
    """The prompt of one line of a list of prompts."""
    if isinstance(record, str):
        return record
    if isinstance(record, dict):
        for key in ("prompt", "input", "text"):
            text = record.get(key)
            if isinstance(text, str):
                return text
    raise TraceError(f"{path}, line {number}: neither a text, nor an object with hash_ids, prompt, input or text")
