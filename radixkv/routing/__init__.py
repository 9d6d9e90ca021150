"""Which worker a request goes to: by what each worker's cache holds of its prompt, and how busy it is.

choose   the rule: offers in, a ranking out; pure
recent   what a router knows and no report covers yet: its own choices, and refusals
"""

from radixkv.routing.choose import Choice, choose
from radixkv.routing.recent import OwnChoices, Refusals

__all__ = ["Choice", "OwnChoices", "Refusals", "choose"]
