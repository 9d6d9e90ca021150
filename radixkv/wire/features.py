"""Names of the additions to the first contract that a version knows; see `Attached.features` in workers.proto."""

from __future__ import annotations

from collections.abc import Collection

from radixkv.core.api import AcquireOp, AdoptionOp, StepOp

__all__ = ["FEATURES", "unknown_option"]

_ACQUIRE_OPTIONS = {"at_least": "acquire.at_least", "whole_blocks": "acquire.whole_blocks"}

FEATURES = (
    "unimplemented",
    "awaited",
    *_ACQUIRE_OPTIONS.values(),
    "freed_blocks",
    "insert.position",
    "erasures",
    "hint",
    "load",
    "records",
)
"""Those of a service of this version."""


def unknown_option(op: StepOp | AdoptionOp, features: Collection[str]) -> str | None:
    """The first option of an op that a service of these features would ignore without a word; None: there is none."""
    if not isinstance(op, AcquireOp) or not (op.at_least or op.whole_blocks):
        return None
    return next(
        (name for name, feature in _ACQUIRE_OPTIONS.items() if getattr(op, name) and feature not in features), None
    )
