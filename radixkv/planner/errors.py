"""The planner's own error."""

from radixkv.core.errors import RadixKVError

__all__ = ["PlanError"]


class PlanError(RadixKVError):
    """A model whose memory cannot be planned, or a plan that does not fit; the message names a remedy."""
