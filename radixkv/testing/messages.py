"""Messages of a holder's stream as one line each, for people."""

from __future__ import annotations

from radixkv.v1 import workers_pb2 as workers

__all__ = ["describe_request", "describe_response", "line_of", "name_of"]


def name_of(op: object) -> str:
    """The name of an op, as a person writes it."""
    return type(op).__name__.removesuffix("Op")


def line_of(proto: object) -> str:
    return " ".join(str(proto).split())


def describe_request(kind: str, request: workers.AttachRequest) -> str:
    if kind != "step":
        return (
            f"holder: {kind} {line_of(getattr(request, kind))[:160]}" if kind != "empty" else "holder: an empty message"
        )
    step = request.step
    ops = []
    for op in step.ops[:6]:
        name = op.WhichOneof("op") or "unknown"
        value = getattr(op, name, None)
        numbers = (
            [f"{field.name} {shown}" for field, shown in value.ListFields() if isinstance(shown, int)] if value else []
        )
        ops.append(" ".join([name, *numbers]))
    ops += [f"and {len(step.ops) - 6} more"] * (len(step.ops) > 6)
    return f"holder: Step {step.number}, acknowledged through {step.acknowledged_through}: {'; '.join(ops) or 'no ops'}"


def describe_response(kind: str | None, response: workers.AttachResponse) -> str:
    if kind == "step_answer":
        results = [result.WhichOneof("result") or "unknown" for result in response.step_answer.results]
        errors = [result.error.message for result in response.step_answer.results if result.HasField("error")]
        return f"service: answer to Step {response.step_answer.number}: {', '.join(results[:6] + errors[:2])}"
    if kind == "notices":
        return f"service: Notices {response.notices.number}"
    return f"service: {kind} {line_of(getattr(response, kind or '', ''))[:160]}"
