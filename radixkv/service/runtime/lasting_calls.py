"""The number of a server's calls that were not answered at once, for its garbage collector."""

from __future__ import annotations

from typing import Any

import grpc.aio

__all__ = ["LastingCalls"]


class LastingCalls(grpc.aio.ServerInterceptor):
    """Counts the calls of a server that are not answered at once: streams, and calls abandoned by their callers before or after
    the request.
    """

    def __init__(self) -> None:
        self._num_begun = self._num_answered = 0

    @property
    def num_begun(self) -> int:
        """The count so far, unanswered ones included."""
        return self._num_begun - self._num_answered

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None:
            return None
        self._num_begun += 1
        if handler.request_streaming or handler.response_streaming:
            return handler

        async def serve(request: Any, context: Any) -> Any:
            try:
                answer = await handler.unary_unary(request, context)
            except Exception:  # rejected; a caller that has left is a CancelledError, which is no Exception
                self._num_answered += 1
                raise
            self._num_answered += 1
            return answer

        return grpc.unary_unary_rpc_method_handler(serve, handler.request_deserializer, handler.response_serializer)
