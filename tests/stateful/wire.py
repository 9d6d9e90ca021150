"""A holder and a service in one thread: the real session and the real pools, and between them messages that a test carries."""

from __future__ import annotations

from collections.abc import Callable

from radixkv.client.notices import NoticeBox
from radixkv.client.session import HolderSession
from radixkv.core.api import PoolShape
from radixkv.core.errors import RadixKVError
from radixkv.service.attach.session import AttachSession
from radixkv.service.config import ServiceConfig
from radixkv.service.pools.table import Pool, PoolTable
from radixkv.v1 import workers_pb2 as workers

__all__ = ["BLOCK_SIZE", "NUM_BLOCKS", "Wire"]

NUM_BLOCKS, BLOCK_SIZE = 24, 4


class Wire:
    """A holder and a service; messages arrive when they are carried, or never.

    Args:
        num_blocks: of the pool.
        config: of every service.

    Attributes:
        now_s: what the service's clock shows.
        spoils: asked of each sequence that a restarted service is told of: whether it is to refuse it.
    """

    def __init__(self, num_blocks: int = NUM_BLOCKS, config: ServiceConfig | None = None) -> None:
        self.now_s = 0.0
        self._shape, self._config = PoolShape(num_blocks, BLOCK_SIZE), config or ServiceConfig()
        self._num_lives = 0
        self.spoils: Callable[[], bool] = lambda: False
        self._begin_service()
        self.renew_holder()

    def _begin_service(self) -> None:
        self.pools = PoolTable(self._config, lambda: self.now_s)
        self.holding = AttachSession(self.pools, self._to_holder, self._ended)

    def renew_holder(self) -> None:
        """A holder whose memory holds nothing yet takes the place of the one before."""
        if self._num_lives:
            self.session.say_goodbye()
            self.act()
        self._num_lives += 1
        self.notices = NoticeBox(None)
        self.session = HolderSession(self._shape, self._num_lives, self.notices)
        self.submit = self.session.submit
        self.reconnect()

    def restart(self) -> None:
        """A service that knows nothing takes the place of the one before, and the holder attaches to it."""
        self._begin_service()
        self.reconnect()

    def reconnect(self) -> None:
        """What was on the way is lost, and the holder attaches to the same service."""
        self.holding.lost()
        self.session.lose_stream()
        self.holding = AttachSession(self.pools, self._to_holder, self._ended)
        self._to_service: list[bytes] = []
        self._answers: list[bytes] = []
        self.session.open(self._to_service.append)

    def act(self) -> None:
        """The service acts on all that is on the way to it."""
        while self._to_service:
            request = workers.AttachRequest.FromString(self._to_service.pop(0))
            for op in request.step.ops:
                if op.HasField("adopt_sequence") and self.spoils():
                    op.adopt_sequence.room = 0
            self.holding.receive(request)

    def hear(self) -> None:
        """The holder hears all that is on the way to it."""
        while self._answers:
            self.session.receive(self._answers.pop(0))

    def carry(self) -> None:
        """Carry every message to where it goes, until nothing is on the way."""
        while self._to_service or self._answers:
            self.act()
            self.hear()

    def clear(self, namespace: str) -> int:
        """Somebody clears a namespace."""
        return self.pool.change(lambda cache: cache.clear(namespace))

    def _to_holder(self, response: workers.AttachResponse) -> None:
        self._answers.append(response.SerializeToString())

    def _ended(self, error: RadixKVError) -> None:
        raise AssertionError(f"the service ended the stream: {error}")

    @property
    def pool(self) -> Pool:
        (pool,) = self.pools.select("")
        return pool
