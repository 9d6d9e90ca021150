"""Records the stream that `/fragmentation` shows first: a script of branching chats, played through radixkv itself.

The default model, the engine and the HTTP gateway run in this process; the script's people arrive at its times, and the result
is the gateway's recording at `/v1/radixkv/replay`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from bench.common.report import environment, write_json
from bench.fragmentation.script import EXAMPLES, PEOPLE, QUESTIONS, SYSTEM, Drafts, Edit, Person, Regenerate

__all__ = ["record"]

PATH = Path(__file__).resolve().parents[2] / "radixkv/gateway/static/fragmentation/recorded.json"
NUM_BLOCKS = 4096
REPLY_TOKENS = 384
ANSWER_TOKENS = 8
QUESTIONS_AT_ONCE = 4
QUESTIONS_START_S = 4.0
TEMPERATURE = 0.8
SEED = 7


def record() -> int:
    """Play the script and write the measurements. Returns the exit code."""
    from radixkv.gateway.config import GatewayConfig
    from radixkv.gateway.server import GatewayServer
    from radixkv.worker.run import Worker, WorkerConfig
    from radixkv.worker.threads import configure_threads

    configure_threads()
    with Worker(WorkerConfig(listen=None, num_blocks=NUM_BLOCKS)) as worker:
        with GatewayServer(worker.engine, GatewayConfig(listen="127.0.0.1:0", max_tokens=REPLY_TOKENS)) as server:
            told = asyncio.run(_play(server.url))
        model = Path(worker.engine.model().name).name
    where = environment(SEED)
    requests = told["requests"]
    made = (
        f"Recorded on {where['date'][:10]} by radixkv with {model} on {where['num_cpus']} cores of a CPU: "
        f"{len(PEOPLE)} people chat, regenerate, edit earlier turns and ask for drafts, and a job asks {len(QUESTIONS)} "
        "questions under one few-shot prompt. What they say is a script of ours; all lengths and times, and what was shared, "
        "are that run's. "
        "python -m bench.fragmentation --write makes it anew."
    )
    write_json(PATH, {"made": made, "step_s": round(told["step_s"], 5), "environment": where, "requests": requests})
    print(
        f"{len(requests)} replies in {requests[-1]['arrival_s']:.0f} s, a step {1000 * told['step_s']:.1f} ms; written: {PATH}"
    )
    return 0


async def _play(url: str) -> dict[str, Any]:
    import httpx
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        model = (await client.models.list()).data[0].id
        await asyncio.gather(*(_chat(client, model, person) for person in PEOPLE), _questions(client, model))
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.get(f"{url}/radixkv/replay")
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told


async def _chat(client: Any, model: str, person: Person) -> None:
    """Play one person's acts: `texts` are the turns so far, each with the kept reply."""
    await asyncio.sleep(person.start_s)
    texts: list[tuple[str, str]] = []
    for number, act in enumerate(person.acts):
        if isinstance(act, Regenerate):
            text, _ = texts.pop()
        elif isinstance(act, Edit):
            text = act.text
            del texts[act.turn :]
        else:
            text = act.text
        messages = [{"role": "system", "content": SYSTEM}]
        for said, reply in texts:
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": reply}]
        answer = await client.chat.completions.create(
            model=model,
            messages=[*messages, {"role": "user", "content": text}],
            n=act.n if isinstance(act, Drafts) else 1,
            max_tokens=REPLY_TOKENS,
            temperature=TEMPERATURE,
            seed=SEED + number,
        )
        texts.append((text, answer.choices[0].message.content))
        await asyncio.sleep(person.pause_s)


async def _questions(client: Any, model: str) -> None:
    await asyncio.sleep(QUESTIONS_START_S)
    gate = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def ask(question: str) -> None:
        async with gate:
            prompt = f"{EXAMPLES}Visitor: {question} Wants:"
            await client.completions.create(model=model, prompt=prompt, max_tokens=ANSWER_TOKENS, temperature=0)

    await asyncio.gather(*map(ask, QUESTIONS))


if __name__ == "__main__":
    sys.exit(record())
