"""The two ways in: the worker's gRPC, and a gateway over HTTP with a key for each tenant."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.stacks import running

if TYPE_CHECKING:
    from radixkv.generation.client import GenerationClient

__all__ = ["TENANTS", "Ask", "gateway", "over_grpc", "over_http"]

TENANTS = ("red", "blue")
HTTP_S = 600.0
SEED = 7
"""Of every reply: the same prompt has the same one."""

Ask = Callable[[str, list[int]], tuple[float, int, int]]
"""A tenant and its prompt -> seconds to the last token, tokens found in the cache, and tokens drafted that were drawn."""


def over_grpc(client: GenerationClient, num_tokens: int) -> Ask:
    """Requests for replies of so many tokens to the worker itself."""
    from radixkv.generation.params import SamplingParams
    from radixkv.generation.request import GenerateParams
    from radixkv.generation.stream import Delta

    sampling = SamplingParams(max_tokens=num_tokens, temperature=1.0, seed=SEED, ignore_eos=True)

    def ask(tenant: str, prompt: list[int]) -> tuple[float, int, int]:
        started_s = time.perf_counter()
        stream = client.generate(GenerateParams(token_ids=prompt, namespace=f"grpc-{tenant}", sampling=sampling))
        last_s = [time.perf_counter() for event in stream if isinstance(event, Delta)][-1]
        usage = stream.usage
        assert usage is not None, "a stream that was read to its end has told what it cost"
        return last_s - started_s, usage.num_cached_tokens, usage.num_accepted_tokens

    return ask


def over_http(address: str, model: str, num_tokens: int) -> Ask:
    """Requests for replies of so many tokens to the gateway, each tenant with its own key."""
    connections = {tenant: http.client.HTTPConnection(address, timeout=HTTP_S) for tenant in TENANTS}

    wanted = {"model": model, "max_tokens": num_tokens, "temperature": 1, "seed": SEED, "ignore_eos": True}

    def ask(tenant: str, prompt: list[int]) -> tuple[float, int, int]:
        body = {**wanted, "prompt": prompt}
        headers = {"content-type": "application/json", "authorization": f"Bearer {tenant}"}
        connection = connections[tenant]
        connection.close()  # the server closes an idle one after a while
        connection.connect()
        started_s = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        elapsed_s = time.perf_counter() - started_s
        if answer.status != 200:
            raise AssertionError(f"HTTP {answer.status}: {told}")
        usage = told["usage"]
        num_drafted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
        return elapsed_s, usage["prompt_tokens_details"]["cached_tokens"], num_drafted

    return ask


@contextmanager
def gateway(worker: str) -> Iterator[str]:
    """Run a gateway in front of a worker, with a key per tenant; its address."""
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder, socket.socket() as probe:
        keys = Path(folder) / "keys.toml"
        digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in TENANTS}
        keys.write_text("".join(f'[[tenant]]\nname = "{name}"\nkeys = ["sha256:{d}"]\n' for name, d in digests.items()))
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        with running("gateway", "--worker", worker, "--listen", address, "--keys", str(keys), "--state", "none"):
            yield address
