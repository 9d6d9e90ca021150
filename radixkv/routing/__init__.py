"""The worker of a request: by the part of its prompt that each worker's cache holds, and how busy it is.

choose   the rule: offers in, a ranking out; pure
recent   knowledge of a router that no report covers yet: its own choices, and refusals
"""

from radixkv.routing.choose import Choice, choose
from radixkv.routing.recent import OwnChoices, Refusals

__all__ = ["Choice", "OwnChoices", "Refusals", "choose"]
