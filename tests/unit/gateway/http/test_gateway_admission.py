"""What a request counts as by its head, what a tenant with a limit may look at, and that a refusal costs nothing."""

from __future__ import annotations

import pytest

from radixkv.gateway.backend.generations import Generations
from radixkv.gateway.http.admission import READS_PER_REQUEST, Admission, Cost, cost_of
from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.http.gate import Gate
from radixkv.gateway.http.metrics import Metrics
from radixkv.gateway.http.recording import Recording
from radixkv.gateway.http.request_context import Books, RequestContext
from radixkv.gateway.http.shared_limits import SharedLimiter
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.billing import BillingBook
from radixkv.net.limits import Limiter
from radixkv.net.tenants import TenantLimits


def scope(method: str, path: str, query: bytes = b"") -> dict[str, object]:
    return {"type": "http", "method": method, "path": path, "query_string": query}


WORK, READ = scope("POST", "/v1/chat/completions"), scope("GET", "/v1/models")
FOLLOW = scope("GET", "/v1/radixkv/conversations/conv_1/events")


@pytest.mark.parametrize(
    ("method", "path", "query", "cost"),
    [
        ("POST", "/v1/chat/completions", b"", Cost.WORK),
        ("DELETE", "/v1/responses/resp_1", b"", Cost.WORK),
        ("POST", "/v1/responses/resp_1/cancel", b"", Cost.READ),
        ("POST", "/v1/radixkv/conversations/conv_1/messages/msg_1/stop", b"", Cost.READ),
        ("GET", "/v1/models", b"", Cost.READ),
        ("HEAD", "/v1/models", b"", Cost.READ),
        ("GET", "/v1/radixkv/conversations/conv_1/events", b"", Cost.FOLLOW),
        ("GET", "/v1/responses/resp_1", b"stream=true", Cost.FOLLOW),
        ("GET", "/v1/responses/resp_1", b"", Cost.READ),
        ("GET", "/v1/batches", b"stream=true", Cost.READ),
        ("GET", "/v1/radixkv/conversations", b"search=word", Cost.WORK),
        ("GET", "/v1/radixkv/replay", b"", Cost.WORK),
    ],
)
def test_what_is_not_known_to_be_less_is_work(method: str, path: str, query: bytes, cost: Cost) -> None:
    assert cost_of(scope(method, path, query)) is cost


class Door:
    """A gate of eight places, by a clock that stands still."""

    def __init__(self, **limits: int) -> None:
        self.gate = Gate(4, 4, clock=lambda: 0.0)
        self.tenant = Tenant("t", "t", TenantLimits(**limits))
        self.admission = Admission(self.gate, SharedLimiter(None, Limiter(lambda: 0.0)))

    def enter(self, asked: dict[str, object]) -> Cost:
        context = RequestContext("id", Books(Metrics(), Recording(), Generations(), BillingBook()))
        try:
            self.admission.enter(asked, context, self.tenant).send(None)  # it waits for nobody
        except StopIteration as done:
            cost: Cost = done.value
            return cost
        raise AssertionError("it waits")

    def refusal(self, asked: dict[str, object]) -> ApiError | None:
        """Of one that enters and leaves again."""
        try:
            self.admission.leave(self.tenant, self.enter(asked))
        except ApiError as refusal:
            return refusal
        return None

    def num_let_in(self, asked: dict[str, object]) -> int:
        """How many come before one is refused, of a thousand."""
        number = 0
        while number < 1000 and (refusal := self.refusal(asked)) is None:
            number += 1
        assert number == 1000 or (refusal is not None and refusal.status == 429)
        assert self.gate.num_running == 0, "who is refused has no place"
        return number


def test_a_tenant_may_look_so_many_times_as_often_as_it_may_ask() -> None:
    door = Door(requests_per_minute=3)
    assert door.num_let_in(READ) == 3 * READS_PER_REQUEST
    assert door.num_let_in(WORK) == 3, "looks are counted apart"
    assert door.num_let_in(FOLLOW) == 0, "and with them what follows"


def test_who_has_no_limit_of_requests_looks_as_often_as_it_likes() -> None:
    door = Door(max_concurrent=1)
    assert door.num_let_in(READ) == door.num_let_in(FOLLOW) == 1000


def test_a_request_that_the_gate_refuses_is_counted_nowhere() -> None:
    door = Door(requests_per_minute=20)
    held = [door.enter(WORK) for _ in range(8)]
    for _ in range(5):
        refusal = door.refusal(WORK)
        assert refusal is not None
        assert refusal.status == 503
    for cost in held:
        door.admission.leave(door.tenant, cost)
    assert door.num_let_in(WORK) == 20 - 8
