"""Requests to a worker under test: branching prompts of random tokens."""

from __future__ import annotations

import asyncio
import contextlib
import random

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams

__all__ = ["ask"]

_AT_ONCE = 4
_FIRST_TOKEN, _MAX_TOKENS = 8, 24
_START_S = 120.0


async def ask(address: str, num_requests: int, seed: int) -> None:
    """Send requests, some at once, to the worker at an address; returns when all were answered or failed."""
    draw = random.Random(seed)
    with GenerationClient(address) as client:
        vocab_size = await _vocab_size(client)
        stems = [[draw.randrange(_FIRST_TOKEN, vocab_size) for _ in range(40)] for _ in range(3)]
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one() -> None:
            prompt = draw.choice(stems)[: draw.randint(4, 40)]
            prompt += [draw.randrange(_FIRST_TOKEN, vocab_size) for _ in range(draw.randint(0, 8))]
            sampling = SamplingParams(
                max_tokens=_MAX_TOKENS, n=draw.choice([1, 1, 3]), seed=draw.randrange(1000), ignore_eos=True
            )
            async with gate:
                with contextlib.suppress(RadixKVError):  # a lost lease ends requests
                    await asyncio.to_thread(
                        lambda: list(client.generate(GenerateParams(token_ids=prompt, sampling=sampling)))
                    )

        await asyncio.gather(*(one() for _ in range(num_requests)))


async def _vocab_size(client: GenerationClient) -> int:
    """Wait for the worker."""
    deadline_s = asyncio.get_running_loop().time() + _START_S
    while True:
        try:
            return (await asyncio.to_thread(client.model)).vocab_size
        except UnavailableError:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
            await asyncio.sleep(0.2)
