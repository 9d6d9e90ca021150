"""Context managers that close themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Closing"]


class Closing(ABC):
    """A context manager whose end is its `close`."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """May be repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
