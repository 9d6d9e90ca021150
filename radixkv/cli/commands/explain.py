"""`radixkv explain`: why a prompt is cached or not."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack, suppress
from random import Random
from typing import TYPE_CHECKING, Any

from radixkv.cli.amounts import count
from radixkv.cli.flags import DEFAULT_SERVICE_ADDRESS, DEFAULT_WORKER_ADDRESS, add_command, say
from radixkv.cli.prompts import PROMPT, add_prompt, are_ids, encode, read_prompt
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import UnimplementedError
from radixkv.core.tokens import num_tokens, pack_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixkv.client import RemoteReader
    from radixkv.core.api import PoolRoute
    from radixkv.core.explanation import Explanation
    from radixkv.core.tokens import TokensLike
    from radixkv.generation.erasure import StoredPrefix

__all__ = ["add"]

_FOUND = {"matched": "cached", "pending": "cached or about to be", "stored": "cached or stored", "load": "cached"}

EPILOG = f"""\
{PROMPT} Explain a prompt before it is
sent again: once it has been computed, it is cached.

causes:
  cached    all of it is cached
  empty     nothing is cached in this namespace
  ended     the cached prefix ends there, and no cached branch continues it
  parted    cached branches continue there with another token: prompts share the KV if they are the same up to that token
  evicted   the rest was cached and evicted; a larger pool or a pin would keep it. Known for the latest evictions

examples:
  radixkv explain --text "Once upon a time" --worker 127.0.0.1:50052
  radixkv explain chat.json --worker 127.0.0.1:50052 --namespace team-a --also team-b
  radixkv explain 1 4093 198 2683 --pool default --json
"""


def add(commands: Any) -> None:
    """Add the command."""
    explain = add_command(
        commands,
        "explain",
        _run,
        "explain why a prompt is cached or not: where it diverges, what was evicted there and why",
    )
    explain.formatter_class = argparse.RawDescriptionHelpFormatter
    explain.epilog = EPILOG
    add_prompt(explain)
    explain.add_argument(
        "--service",
        action="append",
        metavar="ADDRESS",
        help=f"the cache service (default {DEFAULT_SERVICE_ADDRESS}); given several times, the workers are ranked for the "
        "prompt, too, as a gateway over these services does",
    )
    explain.add_argument("--pool", metavar="NAME", help="only this pool (default: all of that service)")
    explain.add_argument(
        "--namespace", default="default", metavar="NAME", help="namespace of the prompt (default %(default)s)"
    )
    explain.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME",
        help="another namespace to compare with, of another salt, adapter or model; may be given several times",
    )
    explain.add_argument(
        "--worker",
        metavar="ADDRESS",
        help="a worker of that model, which decodes tokens and looks into its block store (with a text or messages, default "
        f"{DEFAULT_WORKER_ADDRESS}; otherwise ids are shown)",
    )
    add_client_flags(explain)
    explain.add_argument("--json", action="store_true", help="print a line of JSON for each pool instead")


def _run(options: argparse.Namespace) -> int:
    from radixkv.cli.views.explain_view import as_dict, lines
    from radixkv.client import connect

    prompt, credentials = read_prompt(options), client_credentials(options)
    with ExitStack() as stack:
        worker = None
        if options.worker is not None or not are_ids(prompt):
            from radixkv.generation.client import GenerationClient

            worker = stack.enter_context(
                GenerationClient(options.worker or DEFAULT_WORKER_ADDRESS, credentials=credentials)
            )
        tokens = prompt if worker is None else encode(prompt, worker)
        services = options.service or [DEFAULT_SERVICE_ADDRESS]
        readers = [
            stack.enter_context(connect(service, pool_name=options.pool or "default", credentials=credentials))
            for service in services
        ]
        offers = []
        if len(services) > 1:  # before anything else looks at the prompt
            offers = [route for reader in readers for route in reader.route_all(tokens, options.namespace).values()]
        pools = [
            (f"{name} of {reader.address}" if len(services) > 1 else name, explanation)
            for reader in readers
            for name, explanation in _explain(reader, tokens, options).items()
        ]
        for name, explanation in pools:
            stored = None
            if worker is not None:
                with suppress(UnimplementedError):  # a worker of an earlier release
                    stored = worker.find_stored(tokens, options.namespace, explanation.num_tokens)
            if options.json:
                told = {"pool": name, "namespace": options.namespace, **as_dict(explanation)}
                say(json.dumps(told | {"stored_after": None if stored is None else stored._asdict()}))
            else:
                say(f"pool {name}, namespace {options.namespace}")
                known = (worker.detokenize, worker.model().thinking) if worker is not None else (None, None)
                say("\n".join(lines(explanation, *known)))
                if stored is not None and stored.num_tokens:
                    say(f"  {_describe_stored(stored)}")
                elif stored is None and (explanation.num_host_tokens or explanation.num_disk_tokens):
                    host, disk = (
                        count(each, "token") for each in (explanation.num_host_tokens, explanation.num_disk_tokens)
                    )
                    say(f"  after the cached ones {host} lie in the worker's host memory and {disk} on its disk")
        if len(services) > 1:
            _say_ranking(offers, num_tokens(pack_tokens(tokens)), options.json)
    if not pools:
        say("no pool is attached; start a worker with: radixkv worker --service " + services[0])
    return 0


def _explain(reader: RemoteReader, tokens: TokensLike, options: argparse.Namespace) -> dict[str, Explanation]:
    if options.pool is None:
        return reader.explain_all(tokens, options.namespace, options.also)
    return {options.pool: reader.explain(tokens, namespace=options.namespace, other_namespaces=options.also)}


def _say_ranking(offers: Sequence[PoolRoute], num_prompt_tokens: int, as_json: bool) -> None:
    """The workers as a gateway over the services would rank them for this prompt."""
    from radixkv.routing import choose

    ranking = choose(offers, num_prompt_tokens, {}, Random(0))
    if as_json:
        say(json.dumps({"ranking": [choice._asdict() for choice in ranking]}))
        return
    say("a gateway over these services would send it to" if ranking else "no worker of these services takes new work")
    for place, choice in enumerate(ranking, 1):
        found = f"{count(choice.num_found_tokens, 'token')} {_FOUND[choice.reason]}"
        waiting = f", {choice.waiting_s:.2f} s of waiting for blocks" if choice.waiting_s else ""
        times = f"cost {choice.cost_s:.2f} s, {choice.backlog_s:.2f} s of it backlog{waiting}"
        say(f"  {place}. {choice.worker}: {times}; {found}")


def _describe_stored(stored: StoredPrefix) -> str:
    """The stored tokens of a prompt, and how a request gets them."""
    times = ((stored.load_s, "load"), (stored.compute_s, "compute"))
    known = [f"{seconds * 1000:,.0f} ms to {verb}" for seconds, verb in times if seconds is not None]
    way = {"load": "loads them", "compute": "computes them", "both": "loads the last and computes the first"}[
        stored.way
    ]
    tokens = count(stored.num_tokens, "token")
    return f"the worker's block store holds {tokens} after the cached ones: {', '.join([*known, f'a request {way}'])}"
