"""One HTTP request under way: its tenant, its cost, and where both are counted and recorded."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import Depends, Request

from radixkv.core.errors import InvalidArgumentError, PermissionDeniedError
from radixkv.core.namespaces import choose_sharing, derived_namespace
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.gateway.backend.generations import GeneratedBranch, Generations, ToldGeneration
from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.http.metrics import Metrics
from radixkv.gateway.http.recording import Recorded, Recording
from radixkv.gateway.http.shared_limits import SharedLimiter, SharedSlot
from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import ApiError, rate_limit_headers
from radixkv.gateway.storage.billing import BillingBook
from radixkv.gateway.storage.transcript import Transcript, nothing_said
from radixkv.generation.cost import GenerationCost
from radixkv.generation.params import Grammar
from radixkv.generation.request import BACKGROUND_PRIORITY, GenerateParams
from radixkv.generation.stream import Completed, Delta, GenerationEvent, Started
from radixkv.net.limits import Slot

__all__ = [
    "GENERATION_ID",
    "LEFT_OUT",
    "REQUEST_CONTEXT",
    "Books",
    "CurrentContext",
    "RequestContext",
    "current_context",
]

REQUEST_CONTEXT = "radixkv.request_context"
"""Key of the context in the request's scope."""

GENERATION_ID = "x-radixkv-generation-id"
"""Response header with the ids of the request's generations, for forks."""

SHARING_HEADER = "x-radixkv-sharing"
"""Response header with the sharing of the request's generations."""

ROUTE = "x-radixkv-route"
"""Response header, for operators, with the worker of each generation and why it was chosen."""

LEFT_OUT = "x-radixkv-left-out"
"""Response header with the ignored fields and parts of the request's body."""

MAX_LEFT_OUT = 32
MAX_TOLD_IDS = 32
_PLACE = re.compile(r"[\w.$-]{1,64}", re.ASCII)

TOO_LONG_FOR_POOL = "prompt + max_tokens"
"""The worker's argument name when prompt and reply together exceed its pool."""

_LOG = logging.getLogger("radixkv.gateway")


class Books(NamedTuple):
    """Where requests are counted and recorded."""

    metrics: Metrics
    recording: Recording
    generations: Generations
    billing: BillingBook


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """State of a request from its first byte to the last of its response. The middleware creates and ends it.

    Attributes:
        request_id: the caller's `x-request-id`, or a new one.
        books: where it is counted.
        tenant: on whose behalf; None until the caller is authenticated.
        num_prompt_tokens, num_cached_tokens, num_generated_tokens: of all its generations so far.
        is_background: part of a batch; runs only when no other prompt waits, at any named priority.
        generation_ids: of the first generations begun for it.
        routes: how their workers were chosen, among several.
        left_out: ignored fields and parts of its body; see `leave_out`.
        error_code: the stable name of the error of its response, if any.
        let_body_go: called once the worker has the prompt and the body is no longer needed; may be repeated.
    """

    request_id: str
    books: Books
    is_background: bool = field(default=False, kw_only=True)
    started_s: float = field(init=False, default_factory=time.perf_counter)
    tenant: Tenant | None = field(init=False, default=None)
    _sharing: str | None = field(init=False, default=None)
    num_prompt_tokens: int = field(init=False, default=0)
    num_cached_tokens: int = field(init=False, default=0)
    num_generated_tokens: int = field(init=False, default=0)
    _slot: Slot | SharedSlot | None = field(init=False, default=None)
    _constraint: Constraint | None = field(init=False, default=None)
    error_code: str | None = field(init=False, default=None)
    generation_ids: list[str] = field(init=False, default_factory=list)
    routes: list[str] = field(init=False, default_factory=list)
    left_out: list[str] = field(init=False, default_factory=list)
    let_body_go: Callable[[], None] = field(init=False, default=lambda: None)

    @property
    def caller(self) -> Tenant:
        """Its tenant, once authenticated, which every route requires."""
        assert self.tenant is not None
        return self.tenant

    async def admit(self, tenant: Tenant, limits: SharedLimiter) -> None:
        """Count the request against its tenant's limits.

        Raises:
            LimitError: a limit is reached.
        """
        self._slot = await limits.admit(tenant, is_background=self.is_background)

    def leave(self) -> None:
        """End what `admit` counts until the request's end."""
        if self._slot is not None:
            self._slot.close()

    def choose_sharing(self, asked: str | None) -> str:
        """Set the sharing of its generations to what the body asks for, None: the tenant's; returned.

        Raises:
            ApiError: 403: the tenant's is stricter.
        """
        try:
            self._sharing = choose_sharing(self.caller.sharing, asked)
        except PermissionDeniedError as error:
            raise ApiError(403, str(error), type="permission_error", code="no_right", param="sharing") from None
        return self._sharing

    @property
    def sharing(self) -> str:
        """Of its generations: as chosen, else the tenant's."""
        return self._sharing or (self.tenant.sharing if self.tenant else "on")

    def leave_out(self, names: Iterable[str]) -> None:
        """Note ignored fields and parts of the body: the response header and the log name the first of them."""
        for name in names:
            if len(self.left_out) == MAX_LEFT_OUT:
                break
            shown = name if _PLACE.fullmatch(name) else "?"
            if shown not in self.left_out:
                self.left_out.append(shown)

    def hold(self, constraint: Constraint | None) -> Grammar | None:
        """Set the constraint of its replies and return its grammar; parts that the grammar ignores are noted."""
        self._constraint = constraint
        if constraint is None:
            return None
        self.leave_out(constraint.left_out)
        return constraint.grammar

    @property
    def headers(self) -> dict[str, str]:
        """Response headers: rate limits, generation ids, their sharing, for operators their routes, and ignored fields."""
        headers = rate_limit_headers(self._slot.rates) if self._slot else {}
        if self.generation_ids:
            headers[SHARING_HEADER] = self.sharing
        routes = self.routes if self.tenant is not None and self.tenant.is_operator else []
        for name, told in ((GENERATION_ID, self.generation_ids), (ROUTE, routes), (LEFT_OUT, self.left_out)):
            if told:
                headers[name] = ", ".join(told)
        return headers

    async def generate(
        self,
        backend: Backend,
        params: GenerateParams,
        *,
        may_shorten: bool = False,
        transcript: Transcript | None = None,
    ) -> EventStream:
        """Generate on behalf of this request: tokens are counted, charged and timed as the consumer takes them.

        Args:
            backend: the worker.
            params: what to generate; the tenant's namespace and the request's id are filled in.
            may_shorten: the caller named no length: a reply that would not fit the pool is halved, repeatedly, instead of
                rejected.
            transcript: the conversation that it replies to; None: no messages.
        """
        namespace = self.caller.namespace
        params = replace(
            params,
            namespace=namespace,
            request_id=self.request_id,
            sampling=params.sampling.with_speculation(self.caller.speculation),
        )
        if self.is_background:
            params = replace(params, priority=BACKGROUND_PRIORITY)
        if self.sharing != "on":
            params = replace(params, sharing=self.sharing)
        transcript = transcript or nothing_said(namespace)
        while True:
            if self._constraint is not None and params.sampling.grammar is not None:
                params = replace(params, sampling=replace(params.sampling, grammar=self._constraint.grammar))
            try:
                bill = partial(self.books.billing.count, namespace, backend.prices)
                meter = _Meter(self, params, transcript, bill)
                stream = await backend.generate(params, meter.watch)
                self.let_body_go()
                if len(self.generation_ids) < MAX_TOLD_IDS:
                    self.generation_ids.append(stream.generation_id)
                    self.routes += [stream.route] if stream.route else []
                return stream
            except InvalidArgumentError as error:
                if self._constraint is not None and error.argument.startswith("grammar"):
                    await self._loosen(self._constraint, error)
                    continue
                max_tokens = params.sampling.max_tokens // 2
                if not may_shorten or error.argument != TOO_LONG_FOR_POOL or max_tokens < 1:
                    raise
                params = replace(params, sampling=replace(params.sampling, max_tokens=max_tokens))

    async def _loosen(self, refused: Constraint, error: InvalidArgumentError) -> None:
        """Retry with less of a schema that the engine rejects; a strict schema is rejected with its field's name."""
        if refused.looser is None:
            raise InvalidArgumentError(refused.param, refused.excerpt, error.bound) from None
        self.hold(await asyncio.to_thread(refused.looser))

    def charge(self, num_tokens: int) -> None:
        """Charge tokens to the tenant's limit."""
        if self._slot is not None:
            self._slot.charge(num_tokens)

    def end(self, method: str, route: str, status: int, *, log: bool) -> None:
        """Count and log the request: its response is sent, or the client is gone."""
        self.leave()
        duration_s = time.perf_counter() - self.started_s
        self.books.metrics.answered(route, status, duration_s)
        if log:
            _LOG.info(
                "%s %s %s %s status=%d prompt=%d cached=%d generated=%d ms=%.1f%s",
                self.request_id,
                self.tenant.name if self.tenant else "-",
                method,
                route,
                status,
                self.num_prompt_tokens,
                self.num_cached_tokens,
                self.num_generated_tokens,
                duration_s * 1000,
                f" left_out={','.join(self.left_out)}" if self.left_out else "",
            )


@dataclass(slots=True, eq=False, repr=False)
class _Meter:
    """Counts, times and records one generation."""

    _context: RequestContext
    _params: GenerateParams
    _transcript: Transcript
    _bill: Callable[..., None]
    _num_found: int | None = None
    _recorded: Recorded | None = None
    _told: ToldGeneration | None = None
    _cost: GenerationCost = field(default_factory=GenerationCost)
    _last_s: float | None = None

    def watch(self, events: Sequence[GenerationEvent]) -> None:
        context, cost, books = self._context, self._cost, self._context.books
        num_before = cost.num_generated_tokens
        for event in events:
            context.charge(cost.add(event))
            if isinstance(event, Delta):
                self._bill_prompt(event.num_cached_tokens)
                if self._told is not None:
                    books.generations.grow(self._told, event)
                if self._recorded is not None:
                    books.recording.extend(self._recorded, event.branch, event.token_ids, time.perf_counter())
            elif isinstance(event, Started):
                self._bill(num_requests=1)
                context.num_prompt_tokens += cost.num_prompt_tokens
                books.metrics.prompted(cost.num_prompt_tokens)
                told = event.generation_id, self._transcript, self._params.adapter, event.prompt
                branches = [GeneratedBranch() for _ in range(self._params.sampling.n)]
                self._told = ToldGeneration(*told, branches, self._params.cache_salt)
                books.generations.begin(self._told)
                namespace, salt = context.caller.namespace, self._params.cache_salt
                place = derived_namespace(namespace, salt=salt, adapter=self._params.adapter)
                self._recorded = books.recording.begin(
                    namespace,
                    place.removeprefix(namespace),
                    context.started_s,
                    self._params.sampling.max_tokens,
                    event.prompt,
                )
            elif isinstance(event, Completed):
                num_cached = event.usage.num_cached_tokens
                self._bill_prompt(num_cached)
                context.num_cached_tokens += num_cached
                books.metrics.found(num_cached)
                if self._recorded is not None:
                    self._recorded.num_found = num_cached
        if cost.num_generated_tokens > num_before:
            self._generated(cost.num_generated_tokens - num_before)

    def _bill_prompt(self, num_found: int | None) -> None:
        """Bill the prompt, once it is known how much of it was found."""
        if num_found is not None and self._num_found is None:
            self._num_found = num_found
            self._bill(num_computed=self._cost.num_prompt_tokens - num_found, num_found=num_found)

    def _generated(self, num_new: int) -> None:
        now_s, metrics = time.perf_counter(), self._context.books.metrics
        if self._last_s is None:
            metrics.first_token(now_s - self._context.started_s)
        else:
            metrics.next_tokens(now_s - self._last_s)
        self._last_s = now_s
        self._bill(num_generated=num_new)
        self._context.num_generated_tokens += num_new
        metrics.generated(num_new)


async def current_context(request: Request) -> RequestContext:
    """Dependency of routes that cost something: their request, counted before its body was read."""
    context: RequestContext = request.scope[REQUEST_CONTEXT]
    return context


CurrentContext = Annotated[RequestContext, Depends(current_context)]
