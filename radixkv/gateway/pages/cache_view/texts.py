"""The text of radix nodes, as decoded by the worker's tokenizer; token ids where there is none.

Texts show special tokens by name; labels show the role instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import TOKEN_BYTES, unpack_tokens
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.pages.cache_view.nodes import TreeState, ViewNode
from radixkv.gateway.pages.cache_view.turns import Turn, read_turns

__all__ = ["Found", "NodeTexts"]

MAX_LABEL_TOKENS = 32
MAX_TOKENS_ABOVE = 1024
"""Tokens above an edge that are searched for the role at its beginning."""

MAX_TEXT_TOKENS = 8192
"""Of one text shown in full."""

MAX_SEARCHED_TOKENS = 4_000_000
MAX_FOUND = 1000
OVERLAP_TOKENS = 32
"""Tokens above an edge that are searched with it, so that texts across its beginning are found."""

Spellings = Mapping[int, bytes]
"""Bytes by token id."""

_NAME_BEGINS = (b"<", b"[")
"""First bytes of special tokens' names; few other tokens begin with them, so each can be checked."""


class _Head(NamedTuple):
    """The first token ids of an edge, and those right above it."""

    ids: Sequence[int]
    above: Sequence[int]


class Found(NamedTuple):
    """Nodes that contain a text. `is_complete`: all nodes were searched and returned."""

    ids: list[int]
    is_complete: bool


class _Edges(NamedTuple):
    """Token ids of edges by node, each with some of those above it; `token_ids`: all distinct ones."""

    edges: dict[int, tuple[list[int], list[int]]]
    token_ids: set[int]
    is_complete: bool


class NodeTexts:
    """Decodes nodes with the worker's tokenizer.

    Args:
        backend: the worker.
        run: runs a slow function on a thread.
    """

    def __init__(self, backend: Backend, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._backend = backend
        self._run = run
        self._is_special: dict[tuple[int, bytes], bool] = {}  # candidates only; bounded by the vocabulary

    async def labels(self, nodes: Iterable[ViewNode], state: TreeState) -> dict[int, list[Turn]]:
        """Return the turns at the beginning of each edge, by node id. O(tokens of the labels and right above them)."""
        asked = list(nodes)
        heads: dict[int, _Head] = await self._run(lambda: {node.view_id: _head(node, state) for node in asked})
        spellings = await self._spell({token_id for head in heads.values() for ids in head for token_id in ids})
        if spellings is None:
            return {view_id: [Turn("", _text(head.ids, None))] for view_id, head in heads.items()}
        special = await self._special(spellings)
        labels: dict[int, list[Turn]] = await self._run(
            lambda: {view_id: read_turns(head.ids, spellings, special, head.above) for view_id, head in heads.items()}
        )
        return labels

    async def turns(self, tokens: bytes) -> list[Turn]:
        """Return the turns in packed tokens, for many only the last ones; empty without a tokenizer. O(tokens)."""
        ids = unpack_tokens(tokens[-MAX_TEXT_TOKENS * TOKEN_BYTES :])
        spellings = await self._spell(set(ids))
        if spellings is None:
            return []
        special = await self._special(spellings)
        turns: list[Turn] = await self._run(lambda: read_turns(ids, spellings, special))
        return turns

    async def text(self, tokens: bytes) -> str:
        """Return the text of packed tokens, of many only the end."""
        ids = unpack_tokens(tokens[-MAX_TEXT_TOKENS * TOKEN_BYTES :])
        is_cut = len(tokens) > MAX_TEXT_TOKENS * TOKEN_BYTES
        return ("… " if is_cut else "") + _text(ids, await self._spell(set(ids)))

    async def search(self, text: str, state: TreeState, sees: Callable[[str], bool]) -> Found:
        """Return the nodes where a text ends, ignoring case; without a tokenizer none. O(tokens seen)."""
        edges: _Edges = await self._run(partial(_edges, state, sees))
        spellings = await self._spell(edges.token_ids)
        if spellings is None:
            return Found([], False)
        ids: list[int] = await self._run(partial(_find, text.casefold(), edges, spellings))
        return Found(ids[:MAX_FOUND], edges.is_complete and len(ids) <= MAX_FOUND)

    async def _special(self, spellings: Spellings) -> set[int]:
        """Return the special tokens: those that the tokenizer leaves out of a text. Each is checked once."""
        named = {(token_id, name) for token_id, name in spellings.items() if name[:1] in _NAME_BEGINS}
        for token_id, name in named - self._is_special.keys():
            with suppress(RadixKVError):  # an unreachable worker is called again later
                self._is_special[token_id, name] = not await self._backend.detokenize([token_id])
        return {token_id for token_id, name in named if self._is_special.get((token_id, name))}

    async def _spell(self, token_ids: set[int]) -> Spellings | None:
        try:
            return await self._backend.spell(token_ids)
        except RadixKVError:
            return None  # a worker without a tokenizer, or none that answers


def _head(node: ViewNode, state: TreeState) -> _Head:
    num_bytes, above, end = MAX_TOKENS_ABOVE * TOKEN_BYTES, b"", node
    while len(above) < num_bytes and (parent := state.nodes.get(end.parent_id)) is not None:
        length = (end.info.position - parent.info.position) * TOKEN_BYTES
        above, end = parent.info.tokens[:length] + above, parent
    ids = unpack_tokens(node.info.tokens[: MAX_LABEL_TOKENS * TOKEN_BYTES])
    return _Head(ids, unpack_tokens(above[-num_bytes:]))


def _text(token_ids: Sequence[int], spellings: Spellings | None) -> str:
    if spellings is None:
        return " ".join(map(str, token_ids))
    return b"".join(spellings[token_id] for token_id in token_ids).decode(errors="replace")


def _edges(state: TreeState, sees: Callable[[str], bool]) -> _Edges:
    edges: dict[int, tuple[list[int], list[int]]] = {}
    token_ids: set[int] = set()
    num_tokens = 0
    for node in state.nodes.values():
        if not sees(node.info.namespace):
            continue
        num_tokens += node.num_tokens
        if num_tokens > MAX_SEARCHED_TOKENS:
            return _Edges(edges, token_ids, False)
        parent = edges.get(node.parent_id)
        above = (parent[0] + parent[1])[-OVERLAP_TOKENS:] if parent is not None else []
        ids = unpack_tokens(node.info.tokens)
        edges[node.view_id] = (above, ids)
        token_ids.update(ids)
    return _Edges(edges, token_ids, True)


def _find(text: str, edges: _Edges, spellings: Spellings) -> list[int]:
    found = []
    for view_id, (above_ids, ids) in edges.edges.items():
        above = _text(above_ids, spellings).casefold()
        searched = above + _text(ids, spellings).casefold()
        if searched.find(text, max(0, len(above) - len(text) + 1)) >= 0:
            found.append(view_id)
    return found
