"""Sends the requests of a file to a gateway, a few at a time, and writes each answer as it comes."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import httpx

from radixkv.chat.kept import gateway_url
from radixkv.cli.flags import say
from radixkv.client import Credentials
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.gateway.api.jobs.answers import answer_line
from radixkv.gateway.api.jobs.lines import ENDPOINTS, BatchLine, LineError, read_line
from radixkv.generation.request import BACKGROUND_PRIORITY

__all__ = ["BatchRun", "Requests", "read_requests"]

_AGAIN = (429, 503)
"""Statuses that are retried."""

_LEAST_WAIT_S, _MOST_WAIT_S = 1.0, 60.0
_TIMEOUT_S = 3600.0


class _Request(NamedTuple):
    """`offset`, `size_bytes`: place of its line in the file."""

    prefix: bytes
    url: str
    offset: int
    size_bytes: int


class Requests(NamedTuple):
    """The requests of a file. `left`: those without an answer so far, in the order in which they run."""

    source: Path
    output: Path
    num_total: int
    left: Sequence[_Request]


def read_requests(source: Path, output: Path) -> Requests:
    """Read both files: requests, and answers so far. Only the place of a request is kept in memory.

    Removes a truncated last line of `output`.

    Raises:
        InvalidArgumentError: a file cannot be read, or a line of it is not a request; the message names the line.
    """
    try:
        done = _answered(output)
        names: set[str] = set()
        left: list[_Request] = []
        for number, offset, text in _lines(source):
            line, url = _read(source, number, text)
            if line.custom_id in names:
                raise InvalidArgumentError(f"{source} line {number}", line.custom_id[:64], "a custom_id of its own")
            names.add(line.custom_id)
            if line.custom_id not in done:
                left.append(_Request(line.prefix, url, offset, len(text)))
    except OSError as error:
        raise InvalidArgumentError("file", str(error.filename), f"one that can be read: {error.strerror}") from None
    return Requests(source, output, len(names), sorted(left))


def _read(source: Path, number: int, text: bytes) -> tuple[BatchLine, str]:
    place = f"{source} line {number}"
    try:
        asked = json.loads(text)
        url = asked.get("url") if isinstance(asked, dict) else None
        line = read_line(text, url if url in ENDPOINTS else ENDPOINTS[0])
    except (ValueError, RecursionError):
        raise InvalidArgumentError(place, _shown(text), "a JSON object") from None
    except LineError as error:
        raise InvalidArgumentError(place, _shown(text), f"a request: {error}") from None
    if line.refused is not None:
        raise InvalidArgumentError(f"{place}: {line.refused}", True, "false or left out: answers are whole here")
    return line, str(url)


def _shown(line: bytes) -> str:
    """The start of a line, for an error."""
    return line[:40].decode(errors="replace").strip()


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and text of every line that is not blank."""
    offset = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield number, offset, text
            offset += len(text)


def _answered(output: Path) -> set[str]:
    """`custom_id` of every answer in a file."""
    done: set[str] = set()
    if not output.exists():
        return done
    end = 0
    for number, offset, text in _lines(output):
        if not text.endswith(b"\n"):
            break
        try:
            done.add(json.loads(text)["custom_id"])
        except (ValueError, KeyError, TypeError):
            bound = "an answer of this command; name a file that is not there"
            raise InvalidArgumentError(f"{output} line {number}", _shown(text), bound) from None
        end = offset + len(text)
    with output.open("r+b") as file:
        file.truncate(end)
    return done


class BatchRun:
    """Sends the requests that are left.

    Args:
        requests: see `read_requests`.
        url: of the gateway. credentials: the key to send, and the authorities that vouch for the gateway.
        num_at_once: concurrent requests.
        max_tries: of a request that is retried.

    Raises:
        InvalidArgumentError: a malformed URL; a key would be sent in plaintext to another machine.
    """

    def __init__(
        self, requests: Requests, url: str, credentials: Credentials | None, num_at_once: int, max_tries: int
    ) -> None:
        self._requests = requests
        self._credentials = credentials or Credentials()
        self._num_at_once = num_at_once
        self._max_tries = max_tries
        self._num_failed = 0
        self._has_answered = False
        self._url = gateway_url(url, self._credentials, "--gateway") if requests.left else httpx.URL()

    def run(self) -> int:
        """Send all, with a progress bar. Returns the exit status: 1 if an answer is an error.

        Raises:
            UnavailableError: the gateway does not answer; answers so far are kept.
            KeyboardInterrupt: interrupted; answers so far are kept.
        """
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        total, num_left = self._requests.num_total, len(self._requests.left)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(self._requests.output.name, total=total, completed=total - num_left)
            try:
                asyncio.run(self._send_all(lambda: progress.advance(task)))
            except (asyncio.CancelledError, KeyboardInterrupt):
                progress.stop()
                say(f"Stopped; the answers that have come are in {self._requests.output}. The same command goes on.")
                raise KeyboardInterrupt from None
        failed = f", {self._num_failed} of them errors" if self._num_failed else ""
        say(f"{num_left:,} of {total:,} requests were answered now{failed}: {self._requests.output}")
        return 1 if self._num_failed else 0

    async def _send_all(self, advance: Any) -> None:
        sending = asyncio.current_task()
        assert sending is not None
        # A handler of the event loop is also called for a signal delivered to another thread, such as the progress bar's.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, sending.cancel)
        waiting = iter(self._requests.left)
        token = self._credentials.read_token()
        is_secure = self._url.scheme == "https"
        client = httpx.AsyncClient(
            headers={"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {}),
            verify=ssl.create_default_context(cafile=self._credentials.ca_file) if is_secure else False,
            trust_env=False,  # a proxy could read the key
            timeout=_TIMEOUT_S,
            limits=httpx.Limits(max_connections=self._num_at_once),
        )
        with self._requests.source.open("rb") as source, self._requests.output.open("ab") as output:

            async def work() -> None:
                for request in waiting:
                    await self._send(client, request, source, output)
                    advance()

            async with client:
                tasks = [asyncio.create_task(work()) for _ in range(self._num_at_once)]
                try:
                    await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, client: httpx.AsyncClient, request: _Request, source: IO[bytes], output: IO[bytes]) -> None:
        source.seek(request.offset)
        asked = json.loads(source.read(request.size_bytes))
        body = json.dumps({"priority": BACKGROUND_PRIORITY, **asked["body"]})
        answer = await self._answer(client, request.url, body)
        self._num_failed += answer.status_code >= 400
        request_id = answer.headers.get("x-request-id", "")
        try:
            told = json.dumps(answer.json()).encode()
        except ValueError:
            told = json.dumps({"error": {"message": answer.text[:1000]}}).encode()
        output.write(answer_line("openai", asked["custom_id"], answer.status_code, told, request_id))
        output.flush()

    async def _answer(self, client: httpx.AsyncClient, path: str, body: str) -> httpx.Response:
        """The answer, at the latest that of the last try."""
        failure = ""
        for number in range(self._max_tries):
            wait_s = min(_MOST_WAIT_S, _LEAST_WAIT_S * 2**number)
            try:
                answer = await client.post(self._url.join(path), content=body)
                self._has_answered = True
                if answer.status_code not in _AGAIN or number + 1 == self._max_tries:
                    return answer
                after = answer.headers.get("retry-after", "")
                wait_s = min(_MOST_WAIT_S, max(_LEAST_WAIT_S, float(after))) if after.isdigit() else wait_s
            except httpx.TransportError as error:
                failure = str(error) or type(error).__name__
                if isinstance(error, httpx.ConnectError) and not self._has_answered:
                    break
            await asyncio.sleep(wait_s)
        output = self._requests.output
        raise UnavailableError(
            f"no gateway answers at {self._url}: {failure}; what was answered is in {output}, and the same command goes on"
        )
