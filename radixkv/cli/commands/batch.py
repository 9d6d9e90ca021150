"""`radixkv batch`: answers the requests of a file into another file."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from radixkv.cli.flags import add_command, say
from radixkv.cli.model_flags import add_model_flags, describe, worker_config
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import InvalidArgumentError

__all__ = ["add"]

EPILOG = """\
IN has one request per line, as the OpenAI batch API has them (here in two):
  {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}}
url is /v1/chat/completions, /v1/completions or /v1/responses. Requests with a common prefix run next to each other, so that
the next one finds the prefix in the cache. They yield to other requests of the same worker.

OUT has one line per answer, in order of completion, with the custom_id of its request: "response" has the answer; with a
status_code of 400 or more it is an error. The run may stop at any moment, also by Ctrl-C: the same command then continues
after the answers in OUT.

examples:
  radixkv batch in.jsonl out.jsonl                                  with a model loaded for it
  radixkv batch in.jsonl out.jsonl --gateway http://127.0.0.1:8000  with a running gateway, such as that of radixkv up
"""


def add(commands: Any) -> None:
    """Add the command."""
    batch = add_command(commands, "batch", _run, "answer the requests of a file into another one")
    batch.formatter_class = argparse.RawDescriptionHelpFormatter
    batch.epilog = EPILOG
    batch.add_argument("input", metavar="IN", type=Path, help="JSON lines of requests; see below")
    batch.add_argument("output", metavar="OUT", type=Path, help="JSON lines of answers; existing ones are kept")
    batch.add_argument("--gateway", metavar="URL", help="a running gateway; without it the model is loaded here")
    batch.add_argument(
        "--at-once",
        type=int,
        default=16,
        metavar="N",
        help="concurrent requests, 1 to 256 (default %(default)s)",
    )
    batch.add_argument(
        "--tries",
        type=int,
        default=20,
        metavar="N",
        help="of a request that the gateway rejects for now (default %(default)s)",
    )
    add_client_flags(batch)
    add_model_flags(batch)


def _run(options: argparse.Namespace) -> int:
    from radixkv.cli.batch_run import BatchRun, read_requests

    for name, value, most in (("--at-once", options.at_once, 256), ("--tries", options.tries, 1000)):
        if not 1 <= value <= most:
            raise InvalidArgumentError(name, value, f"from 1 to {most}")
    requests = read_requests(options.input, options.output)
    with ExitStack() as stack:
        url, credentials = options.gateway, client_credentials(options)
        if url is None and requests.left:
            from radixkv.gateway.config import GatewayConfig
            from radixkv.gateway.server import GatewayServer
            from radixkv.worker.run import Worker

            worker = stack.enter_context(Worker(worker_config(options, None, None)))
            say(describe(worker))
            config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0)
            url, credentials = stack.enter_context(GatewayServer(worker.engine, config)).page_url, None
        return BatchRun(requests, url or "", credentials, options.at_once, options.tries).run()
