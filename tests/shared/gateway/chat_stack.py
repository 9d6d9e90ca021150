"""A whole chat server that is quick and hard: the default model's tokenizer and template over the hash model, whose replies are
gibberish that tokenises differently than it was generated.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from waiting import wait_until

from radixkv import PrefixCache, unpack_tokens
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults, SamplingParams
from radixkv.generation.request import GenerateParams, Generator
from radixkv.generation.stream import GenerationStream
from radixkv.stores.store import BlockStore
from radixkv.testing.hash_model import EOS, VOCAB_SIZE, HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.speculation.settings import SpeculationSettings

__all__ = [
    "BLOCK_SIZE",
    "GibberishRunner",
    "Stack",
    "Watched",
    "chat_stack",
    "chat_text",
    "gateway",
    "gibberish_engine",
    "keys_file",
]

BLOCK_SIZE = 16
DEADLINE_S = 300.0
_NUM_TOKENS = 49152
_UNLIKELY = -1e4
_HARD = (
    " h",
    "e",
    "l",
    "lo",
    " wor",
    "ld",
    "l",
    "d",
    " ",
    "  ",
    "\n",
    "\n\n",
    ".",
    "1",
    "2",
    "é",
    "日",
    "🙂",
    " the",
    "T",
)


class GibberishRunner(HashRunner):
    """The hash model over a real vocabulary: it says pieces of words and of characters, and ends at times, but not while its
    gate holds it: a reply that a test stops in the middle has a middle.

    What is put into `dictated` it says first, whoever asks. Where `ends` is false, no reply ends before its length.
    """

    def __init__(self, text: ChatText, eos_token_id: int, num_blocks: int, max_model_len: int) -> None:
        super().__init__(num_blocks, BLOCK_SIZE, max_model_len=max_model_len)
        self.vocab_size = _NUM_TOKENS
        self.eos_token_ids = frozenset([eos_token_id])
        self.dictated: deque[int] = deque()
        self.ends = True
        self.num_generations: Callable[[], int] = int
        self._text = text
        words = [token_id for piece in _HARD for token_id in text.encode(piece, special=False)]
        source = random.Random(0)
        while len(words) < VOCAB_SIZE:
            token_id = source.randrange(self.vocab_size)
            if not text.is_special(token_id):
                words.append(token_id)
        words[EOS] = eos_token_id
        self._words = torch.tensor(words[:VOCAB_SIZE])

    def dictate(self, *replies: str) -> None:
        """Have the model say these next, each up to its end; the rest of an earlier dictation is dropped."""
        self.dictate_ids(
            [token for reply in replies for token in (*self._text.encode(reply, special=False), *self.eos_token_ids)]
        )

    def dictate_ids(self, token_ids: Sequence[int]) -> None:
        """Have the model say these next. Unless the gate holds it, what is still running ends first: it would take them."""
        self.dictated.clear()
        wait_until(lambda: self.gate.is_held or not self.num_generations())
        self.dictated.extend(token_ids)

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        logits = super().forward(rows, drawn_ids)
        spread = torch.full((len(logits), self.vocab_size), _UNLIKELY)
        spread[:, self._words] = logits * 0.3  # drawn at temperature 1, replies to one prompt differ
        if self.gate.is_held or not self.ends:
            spread[:, list(self.eos_token_ids)] = _UNLIKELY
        for row in spread:
            if self.dictated:
                row[self.dictated.popleft()] = -_UNLIKELY
        return spread


class Stack(NamedTuple):
    """A gateway and all behind it."""

    server: GatewayServer
    engine: Watched
    runner: GibberishRunner
    text: ChatText

    def dictate_pieces(self, *pieces: str) -> list[int]:
        """Have the model reply this next, each piece tokenised by itself, without an end; its ids."""
        ids = [token_id for piece in pieces for token_id in self.text.encode(piece, special=False)]
        assert ids != self.text.encode("".join(pieces), special=False), "the tokenizer writes it so itself"
        self.runner.dictate_ids(ids)
        return ids

    def dictate(self, reply: str) -> None:
        """Have the model reply this next, and end; what is left of an earlier reply is dropped."""
        self.runner.dictate(reply)


@cache
def chat_text(model: str) -> ChatText:
    """The tokenizer and template of the model in folder `model`, read once per process."""
    return ChatText(model)


@contextmanager
def gibberish_engine(
    model: str,
    *,
    num_blocks: int = 512,
    max_model_len: int = 4096,
    clock: Callable[[], float] = time.monotonic,
    sampling: SamplingDefaults = NO_DEFAULTS,
    end: str = "<|im_end|>",
    adapters: Sequence[str] = (),
    num_parameters: int = 0,
    store: Callable[[HashRunner], BlockStore] | None = None,
    speculation: SpeculationSettings | None = None,
) -> Iterator[tuple[Watched, GibberishRunner, ChatText]]:
    """An engine with the tokenizer of the model in folder `model`. `clock`: of its cache. `end`: ends a reply.
    `adapters`: names that it takes, and answers to as to its own. `store`: opens its block store.
    """
    text = chat_text(model)
    runner = GibberishRunner(text, text.encode(end, special=False)[-1], num_blocks, max_model_len)
    cache = PrefixCache(num_blocks=num_blocks, block_size=BLOCK_SIZE, clock=clock)
    told = {"model_name": "gibberish", "num_parameters": num_parameters, "adapters": adapters, "sampling": sampling}
    told["speculation"] = speculation
    with ExitStack() as stack:
        if store is not None:
            told["store"] = opened = store(runner)
            stack.callback(opened.close)
        engine = stack.enter_context(Engine(runner, cache, text=text, **told))  # type: ignore[arg-type]  # as they are above
        runner.num_generations = lambda: engine.stats().engine.num_generations
        yield Watched(engine), runner, text
        runner.gate.open()
        engine.call(lambda _: cache.check())


@contextmanager
def chat_stack(model: str, config: GatewayConfig | None = None, **kwargs: Any) -> Iterator[Stack]:
    """An engine and a gateway before it."""
    with gibberish_engine(model, **kwargs) as (engine, runner, text), gateway(engine, config) as server:
        yield Stack(server, engine, runner, text)
        runner.gate.open()


@contextmanager
def gateway(generator: Generator, config: GatewayConfig | None = None) -> Iterator[GatewayServer]:
    """The HTTP gateway before a generator, on a free port."""
    with GatewayServer(generator, config or GatewayConfig(listen="127.0.0.1:0", drain_s=1.0)) as server:
        yield server


class Watched:
    """An engine that keeps every request it was given, its prompt as token ids, and how it was to be drawn."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.prompts: list[list[int]] = []
        self.samplings: list[SamplingParams] = []
        self.requests: list[GenerateParams] = []

    def generate(self, params: GenerateParams) -> GenerationStream:
        stream = self._engine.generate(params)
        self.requests.append(params)
        self.samplings.append(params.sampling)
        self.prompts.append(list(unpack_tokens(self._engine.tokenize(params, params.history))))
        return stream

    def shown(self, index: int = -1) -> str:
        """A prompt as the model reads it, special tokens by name."""
        text: ChatText = self._engine._reader._text  # type: ignore[assignment]  # the engine shows text without them
        return text.decode(self.prompts[index], skip_special_tokens=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def keys_file(path: Path, names: tuple[str, str] = ("red", "blue"), **limits: int) -> Path:
    """Two tenants, whose keys are their names; limits are the first one's."""
    rows = []
    for name, own in zip(names, (limits, {}), strict=True):
        digest = hashlib.sha256(name.encode()).hexdigest()
        rows += ["[[tenant]]", f'name = "{name}"', f'keys = ["sha256:{digest}"]']
        rows += [f"{limit} = {value}" for limit, value in own.items()]
    path.write_text("\n".join(rows))
    return path
