"""Names of the additions to the first contract that a version knows; see `Attached.features` in workers.proto."""

from __future__ import annotations

__all__ = ["FEATURES"]

FEATURES = ("unimplemented", "awaited")
"""Those of this version, as a service and as a holder alike."""
