"""Flags of commands that start a cache service: publishing KV events over ZMQ."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_kv_event_flags", "describe_kv_events", "kv_event_settings"]

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5557"
DEFAULT_REPLAY_ENDPOINT = "tcp://127.0.0.1:5558"


def add_kv_event_flags(command: argparse.ArgumentParser) -> None:
    """`--kv-events-endpoint` and its companions."""
    group = command.add_argument_group(
        "KV events", "routers also follow the cache service's own port, by SubscribeKvEvents; that needs no flag"
    )
    group.add_argument(
        "--kv-events-endpoint",
        metavar="ENDPOINT",
        nargs="?",
        const=DEFAULT_ENDPOINT,
        help="publish stored and removed blocks over ZMQ in vLLM's format; every client that reaches the endpoint reads all "
        "token ids (%(const)s without a value)",
    )
    group.add_argument(
        "--kv-events-replay-endpoint",
        metavar="ENDPOINT",
        nargs="?",
        const=DEFAULT_REPLAY_ENDPOINT,
        help="where routers request missed events, or all that is cached (%(const)s without a value)",
    )
    group.add_argument("--kv-events-topic", metavar="TOPIC", default="", help="the topic of published events")
    group.add_argument(
        "--kv-events-pool", metavar="POOL", default="default", help="the pool to publish (default %(default)s)"
    )
    group.add_argument(
        "--kv-events-arrays",
        action="store_true",
        help="publish events as arrays, for routers of SGLang and of vLLM before its events were maps; they have no "
        "namespaces",
    )


def kv_event_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The flags' values, as settings of a `ServiceConfig`."""
    return {name: value for name, value in vars(options).items() if name.startswith("kv_events_")}


def describe_kv_events(options: argparse.Namespace) -> str:
    """A line with the endpoints of KV events; empty if they are not published."""
    if options.kv_events_endpoint is None:
        return ""
    replay = options.kv_events_replay_endpoint
    return f"\n  KV events      {options.kv_events_endpoint}" + (f", replayed on {replay}" if replay else "")
