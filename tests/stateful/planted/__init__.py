"""Bugs to plant in a copy of the core, by subject; the state machine must find each."""

from __future__ import annotations

from .core import PLANTED_BUGS, PlantedBug
from .events import PLANTED_EVENTS
from .explanations import PLANTED_EXPLANATIONS
from .options import PLANTED_OPTIONS
from .pins import PLANTED_PINS
from .quotas import PLANTED_QUOTAS
from .retention import PLANTED_RETENTION
from .waits import PLANTED_WAITS

__all__ = ["ALL_BUGS", "PlantedBug"]

ALL_BUGS = (
    *PLANTED_BUGS,
    *PLANTED_WAITS,
    *PLANTED_EVENTS,
    *PLANTED_PINS,
    *PLANTED_EXPLANATIONS,
    *PLANTED_QUOTAS,
    *PLANTED_RETENTION,
    *PLANTED_OPTIONS,
)
