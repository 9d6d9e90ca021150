"""Bugs to plant in pins."""

from __future__ import annotations

from .core import PlantedBug

__all__ = ["PLANTED_PINS"]

PLANTED_PINS = (
    PlantedBug(
        "a pin that locks nothing",
        "tree/pins.py",
        "            self._forest.lock(root, node)\n",
        "",
    ),
    PlantedBug(
        "a pin that ends and leaves its lock",
        "tree/pins.py",
        "forest.unlock(root, node, is_use=False)",
        "node",
    ),
    PlantedBug(
        "the end of a pin taken for a use",
        "tree/pins.py",
        "forest.unlock(root, node, is_use=False)",
        "forest.unlock(root, node)",
    ),
    PlantedBug(
        "an ended pin as old as the last sequence that stood on its own node",
        "tree/forest.py",
        "            self._stamp_above(root, above, now_s)\n",
        "            pass\n",
    ),
    PlantedBug(
        "a pin past its time that stays",
        "tree/pins.py",
        "while self._expiries and self._expiries[0][0] <= now_s:",
        "while self._expiries and self._expiries[0][0] <= 0:",
    ),
    PlantedBug(
        "a split that forgets that pins stand below",
        "tree/surgery.py",
        "    upper.pin_mark = PinMark() if node.pin_mark is not None else None\n",
        "",
    ),
    PlantedBug(
        "a cleared namespace whose pins stay",
        "cache/manage.py",
        "        self._pins.drop_all(root)\n",
        "",
    ),
    PlantedBug(
        "a share of the pool that counts shared blocks with each pin",
        "tree/pins.py",
        "                mark.num_refs += 1\n                break\n",
        "                mark.num_refs += 1\n                self.num_blocks += len(above.blocks)\n                break\n",
    ),
    PlantedBug(
        "no bound on what all pins protect",
        "tree/pins.py",
        "if self.num_blocks + num_new > self.max_blocks and",
        "if num_new > self.max_blocks and",
    ),
    PlantedBug(
        "a namespace that may pin nothing once another has pinned all that may be",
        "tree/pins.py",
        " and account.num_pinned + num_new > share:",
        ":",
    ),
    PlantedBug(
        "a namespace that makes others give way for more than its share",
        "tree/pins.py",
        " and account.num_pinned + num_new > share:",
        " and num_new > share:",
    ),
    PlantedBug(
        "a pin that takes blocks promised to sequences",
        "cache/manage.py",
        "        allocation.check_capacity(\n"
        "            self._forest, owner_of(namespace), root.account, self._pins.lock_cost(root, cached, walk)\n"
        "        )\n",
        "",
    ),
    PlantedBug(
        "a pin in place of those that stand on the same node",
        "tree/pins.py",
        "        pin.node.pin_mark.pins.append(pin)\n",
        "        pin.node.pin_mark.pins[:] = [pin]\n",
    ),
    PlantedBug(
        "a pin's tokens taken from the prompt, cached or not",
        "cache/manage.py",
        "cached = packed[: walk.matched_bytes]",
        "cached = packed",
    ),
)
