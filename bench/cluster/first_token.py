"""Time to the first token through two gateways that choose between two workers, and through one gateway of one worker.

    gateway of worker 1 ────────┐
    gateway a, gateway b ──┬────┴──> worker 1 ──> service 1
                           └───────> worker 2 ──> service 2

Worker 1 serves both ways, so that they differ in the choice alone. A cold chat is new; a warm one is its next turn, sent to
the other of the two gateways. Both ways get the same chats, under separate salts.
"""

from __future__ import annotations

import http.client
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.common.report import Progress
from bench.common.stacks import BLOCK_SIZE, running
from bench.gateway import WORDS, Timed, ask_http, free_address

__all__ = ["CHOOSING", "COLD", "KINDS", "ONE", "WARM", "FirstTokens"]

ONE, CHOOSING = "one gateway, one worker", "two gateways, two services"
COLD, WARM = "cold", "warm"
KINDS = (COLD, WARM)
PROMPT_WORDS, TURN_WORDS, REPLY_TOKENS = 200, 20, 16
_NAME = "bench"
_REPLY = "I see."
"""In the next turn, in place of the reply: only the gateway that made it has its token ids."""


class FirstTokens:
    """Seconds to the first token, by kind of chat and way."""

    def __init__(self, urls: dict[str, list[str]], seed: int) -> None:
        self._connections = {way: [http.client.HTTPConnection(url) for url in of] for way, of in urls.items()}
        self._source = random.Random(seed)
        self.samples: dict[tuple[str, str], list[float]] = {(kind, way): [] for kind in KINDS for way in urls}

    def run(self, num_rounds: int) -> None:
        """Every round a chat of two turns both ways, the first way alternating; two rounds more to warm up."""
        progress = Progress("chats", num_rounds)
        for number in range(-2, num_rounds):
            ways = list(self._connections)[:: 1 if number % 2 else -1]
            content, turn = self._words(PROMPT_WORDS), self._words(TURN_WORDS)
            timed: dict[tuple[str, str], Timed] = {}
            for way in ways:
                salt = f"{way} {number}"
                timed[COLD, way] = cold = self._ask(way, number, [content], salt)
                timed[WARM, way] = warm = self._ask(way, number + 1, [content, _REPLY, turn], salt)
                if cold.num_cached or warm.num_cached < cold.num_prompt:
                    raise AssertionError(f"{way}: a new chat found {cold.num_cached} tokens, its next turn {warm}")
            for kind in KINDS:
                if len({timed[kind, way].text for way in ways}) != 1:
                    raise AssertionError(f"a {kind} chat was answered in two ways: {timed}")
            if number >= 0:
                for key, each in timed.items():
                    self.samples[key].append(each.first_s)
                progress.advance()

    def _ask(self, way: str, number: int, contents: list[str], salt: str) -> Timed:
        of = self._connections[way]
        return ask_http(of[number % len(of)], _NAME, contents, REPLY_TOKENS, salt)

    def _words(self, count: int) -> str:
        return " ".join(self._source.choices(WORDS, k=count))

    @classmethod
    @contextmanager
    def open(cls, model: str, dtype: str, num_rounds: int, seed: int) -> Iterator[FirstTokens]:
        """Both ways, ready, for so many rounds."""
        num_tokens = 4 * (num_rounds + 4) * (2 * (PROMPT_WORDS + TURN_WORDS) + 2 * REPLY_TOKENS)
        pool = ("--num-blocks", str(num_tokens // BLOCK_SIZE), "--block-size", str(BLOCK_SIZE))
        with ExitStack() as stack:
            services, workers = [free_address() for _ in range(2)], [free_address() for _ in range(2)]
            for number, (service, worker) in enumerate(zip(services, workers, strict=True)):
                stack.enter_context(running("serve", "--listen", service))
                place = ("--service", service, "--listen", worker, "--pool", f"pool-{number}")
                stack.enter_context(running("worker", *place, "--model", model, "--dtype", dtype, *pool))
            alone = ("--worker", workers[0], "--service", services[0], "--pool", "pool-0")
            choosing = [word for service in services for word in ("--service", service)]
            urls: dict[str, list[str]] = {ONE: [], CHOOSING: []}
            for way, over in ((ONE, alone), (CHOOSING, choosing), (CHOOSING, choosing)):
                urls[way].append(free_address())
                kept = ("--state", "none", "--model-name", _NAME)
                stack.enter_context(running("gateway", *over, "--listen", urls[way][-1], *kept))
            yield cls(urls, seed)
