"""The holder in JavaScript outlives a restart of the service, and breaks no rule of the kit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from test_clients import CLIENTS

import radixkv
from radixkv.service import ServiceConfig
from radixkv.testing.faults import Fault, Script
from radixkv.testing.observer import Observer
from radixkv.testing.report import as_text
from radixkv.testing.trial import Trial


def watched(folder: Path) -> Observer:
    """What is found of the engine, whose service restarts once it has cached all."""
    (client,) = (each for each in CLIENTS if each.name == "grpc-js")
    command, _ = client.fetched(folder)

    async def run() -> Observer:
        config = ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=30.0, drain_s=0.1)
        async with Trial(Script(), config) as trial:
            process = await asyncio.create_subprocess_exec(
                *command,
                trial.address,
                radixkv.proto_dir(),
                env={**os.environ, "RESTARTS": "1"},
                cwd=folder,
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            async for line in process.stdout:
                if line.startswith(b"restart"):
                    for change in (Fault.QUOTA, Fault.PIN, Fault.RETAIN):
                        await trial.call_as_another(change)
                    await trial.restart()
            trial.observer.finished(await process.wait())
            return trial.observer

    return asyncio.run(asyncio.wait_for(run(), 100))


def test_what_was_cached_is_cached_again_and_no_rule_is_broken(tmp_path: Path) -> None:
    observer = watched(tmp_path)
    assert not observer.breaches, as_text(observer)
    assert observer.seen["restarts to adopt after"] == 1
    assert observer.seen["adopt_blocks"] > 5
    assert observer.seen["pins at a restart"]
    assert observer.seen["retained blocks at a restart"]
