"""What a holder and a service understand beyond the first contract, by name; documented at `Attached.features` in workers.proto."""

from __future__ import annotations

__all__ = ["FEATURES"]

FEATURES = ("unimplemented",)
"""Those of this version, as a service and as a holder alike."""
