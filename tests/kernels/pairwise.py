"""A sample of a full product of parameters in which every two values that occur together still do.

A kernel goes wrong at one value (an odd width), or where two meet (a format on one level of instructions). A full product
repeats each such pair some ten times; the sample holds it once or a little more (pairwise testing: Kuhn, Wallace, Gallo 2004).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

__all__ = ["pairwise_sample"]

Values = frozenset[tuple[str, object]]


def pairwise_sample(cases: Sequence[Mapping[str, object]]) -> list[int]:
    """Which of the cases are kept, in their order; each maps the name of a parameter to its value, hashable.

    Every value, and every pair of values of two parameters that some case has, is in a case that is kept: of one or two
    parameters all are, of a product of more about as many as its two longest have pairs. The same cases give the same sample.
    At most O(cases * kept * parameters²).
    """
    pairs = [set(_values_and_pairs(case)) for case in cases]
    missing: set[Values] = set().union(*pairs)
    kept = []
    bounds = [(-len(own), index) for index, own in enumerate(pairs)]  # what a case adds only falls
    heapq.heapify(bounds)
    while missing:
        bound, best = bounds[0]
        num_new = len(pairs[best] & missing)
        if num_new < -bound:
            heapq.heapreplace(bounds, (-num_new, best))
            continue
        kept.append(best)
        missing -= pairs[best]
    return sorted(kept)


def _values_and_pairs(case: Mapping[str, object]) -> Iterable[Values]:
    values = list(case.items())
    yield from (frozenset((value,)) for value in values)
    yield from (frozenset(pair) for pair in combinations(values, 2))
