"""Flags of commands that start a cache service: where KV events are published over ZMQ."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_kv_event_flags", "describe_kv_events", "kv_event_settings"]

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5557"
DEFAULT_REPLAY_ENDPOINT = "tcp://127.0.0.1:5558"


def add_kv_event_flags(command: argparse.ArgumentParser) -> None:
    """`--kv-events-endpoint` and those that go with it."""
    group = command.add_argument_group(
        "KV events", "routers also follow the cache service's own port, by SubscribeKvEvents; that needs no flag"
    )
    group.add_argument(
        "--kv-events-endpoint",
        metavar="ENDPOINT",
        nargs="?",
        const=DEFAULT_ENDPOINT,
        help="publish what is stored and removed over ZMQ in vLLM's format; whoever reaches the endpoint sees all token "
        "ids (%(const)s where none is named)",
    )
    group.add_argument(
        "--kv-events-replay-endpoint",
        metavar="ENDPOINT",
        nargs="?",
        const=DEFAULT_REPLAY_ENDPOINT,
        help="where routers ask for what they missed, or for all that is cached (%(const)s where none is named)",
    )
    group.add_argument("--kv-events-topic", metavar="TOPIC", default="", help="the topic of what is published")
    group.add_argument(
        "--kv-events-pool", metavar="POOL", default="default", help="the pool that is published (default %(default)s)"
    )
    group.add_argument(
        "--kv-events-arrays",
        action="store_true",
        help="publish events as arrays, for routers of SGLang and of vLLM before its events were maps; they know of no "
        "namespaces",
    )


def kv_event_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, as settings of a `ServiceConfig`."""
    return {name: value for name, value in vars(options).items() if name.startswith("kv_events_")}


def describe_kv_events(options: argparse.Namespace) -> str:
    """A line that tells where KV events are published; empty where they are not."""
    if options.kv_events_endpoint is None:
        return ""
    replay = options.kv_events_replay_endpoint
    return f"\n  KV events      {options.kv_events_endpoint}" + (f", replayed on {replay}" if replay else "")
