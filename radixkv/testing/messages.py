"""Messages of a holder's stream as one line each, for people."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from radixkv.v1 import workers_pb2 as workers

__all__ = ["describe_request", "describe_response", "line_of", "name_of", "short"]

_MAX_CHARACTERS = 240
_MAX_PARTS = 6


def name_of(op: object) -> str:
    """The name of an op, as a person writes it."""
    return type(op).__name__.removesuffix("Op")


def line_of(proto: object) -> str:
    return " ".join(str(proto).split())


def short(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}… ({len(text):,} characters)"


def _listed(parts: Iterable[str], separator: str) -> str:
    """Parts, equal ones in a row once with their count; the first few of them."""
    runs = [(part, sum(1 for _ in run)) for part, run in groupby(parts)]
    listed = [part if num == 1 else f"{part}, {num} times" for part, num in runs[:_MAX_PARTS]]
    return separator.join(listed + [f"and {sum(num for _, num in runs[_MAX_PARTS:])} more"] * (len(runs) > _MAX_PARTS))


def describe_request(kind: str, request: workers.AttachRequest) -> str:
    if kind != "step":
        return f"holder: {kind} {line_of(getattr(request, kind))}" if kind != "empty" else "holder: an empty message"
    step = request.step
    ops = []
    for op in step.ops:
        name = op.WhichOneof("op") or "unknown"
        value = getattr(op, name, None)
        numbers = (
            [f"{field.name} {shown}" for field, shown in value.ListFields() if isinstance(shown, int)] if value else []
        )
        ops.append(" ".join([name, *numbers]))
    through = step.acknowledged_through
    return f"holder: Step {step.number}, acknowledged through {through}: {_listed(ops, '; ') or 'no ops'}"


def describe_response(kind: str | None, response: workers.AttachResponse) -> str:
    if kind == "step_answer":
        answer = response.step_answer
        results = [result.WhichOneof("result") or "unknown" for result in answer.results]
        errors = sorted({short(result.error.message) for result in answer.results if result.HasField("error")})
        return f"service: answer to Step {answer.number}: {', '.join([_listed(results, ', '), *errors[:2]])}"
    if kind == "notices":
        return f"service: Notices {response.notices.number}"
    return f"service: {kind} {line_of(getattr(response, kind or '', ''))}"
