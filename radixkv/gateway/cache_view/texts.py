"""The text of radix nodes: tokens as the worker's tokenizer spells them, special ones by name, ids where there is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import TOKEN_BYTES, unpack_tokens
from radixkv.gateway.backend import Backend
from radixkv.gateway.cache_view.nodes import TreeState, ViewNode

__all__ = ["Found", "NodeTexts"]

MAX_LABEL_TOKENS = 32
MAX_TEXT_TOKENS = 8192
"""Of one text that is shown in full."""

MAX_SEARCHED_TOKENS = 4_000_000
MAX_FOUND = 1000
OVERLAP_TOKENS = 32
"""Of what lies above an edge, so that a text is found that begins there."""

Spellings = Mapping[int, bytes]
"""Bytes by token id."""


class Found(NamedTuple):
    """Nodes in which a text was found. `is_complete`: all were searched and told."""

    ids: list[int]
    is_complete: bool


class _Edges(NamedTuple):
    """Token ids of edges by node, each with some of those above it; `token_ids`: all that occur."""

    edges: dict[int, tuple[list[int], list[int]]]
    token_ids: set[int]
    is_complete: bool


class NodeTexts:
    """Spells nodes with the worker's tokenizer.

    Args:
        backend: the worker.
        run: runs what takes a while on a thread.
    """

    def __init__(self, backend: Backend, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._backend = backend
        self._run = run

    async def labels(self, nodes: Iterable[ViewNode]) -> dict[int, str]:
        """How the edge of each begins, by its id, asking the worker once."""
        heads = {node.view_id: unpack_tokens(node.info.tokens[: MAX_LABEL_TOKENS * TOKEN_BYTES]) for node in nodes}
        spellings = await self._spell({token_id for ids in heads.values() for token_id in ids})
        return {view_id: _text(ids, spellings) for view_id, ids in heads.items()}

    async def text(self, tokens: bytes) -> str:
        """The text of packed tokens, of many the end alone."""
        ids = unpack_tokens(tokens[-MAX_TEXT_TOKENS * TOKEN_BYTES :])
        is_cut = len(tokens) > MAX_TEXT_TOKENS * TOKEN_BYTES
        return ("… " if is_cut else "") + _text(ids, await self._spell(set(ids)))

    async def search(self, text: str, state: TreeState, sees: Callable[[str], bool]) -> Found:
        """The nodes where a text ends, in whatever case; without a tokenizer none. O(tokens seen)."""
        edges: _Edges = await self._run(partial(_edges, state, sees))
        spellings = await self._spell(edges.token_ids)
        if spellings is None:
            return Found([], False)
        ids: list[int] = await self._run(partial(_find, text.casefold(), edges, spellings))
        return Found(ids[:MAX_FOUND], edges.is_complete and len(ids) <= MAX_FOUND)

    async def _spell(self, token_ids: set[int]) -> Spellings | None:
        try:
            return await self._backend.spell(token_ids)
        except RadixKVError:
            return None  # a worker without a tokenizer, or none that answers


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
