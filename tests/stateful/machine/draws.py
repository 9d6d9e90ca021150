"""What the rules of the machine draw from: tiny alphabets, and mostly what leads to something."""

from __future__ import annotations

from hypothesis import strategies as st

from ..oracle.retained import RANGES
from .driver import NAMESPACES

__all__ = [
    "few_sequences",
    "lags",
    "namespaces",
    "parts",
    "picks",
    "reserves",
    "sharings",
    "suffixes",
    "tokens_0_to_2",
    "worths",
]

picks = st.integers(0, 63)
namespaces = st.sampled_from((*NAMESPACES, NAMESPACES[0], NAMESPACES[0]))
lags = st.sampled_from((0, 0, 1, 2))
parts = st.sampled_from((0, 0, 0, 0, 0, 1, 2, 4))
"""Quarters of a prompt."""
reserves = st.sampled_from((0, 0, 0, 1, 3, 7))
worths = st.sampled_from(RANGES)
sharings = st.sampled_from((True, True, True, True, True, True, True, False))
few_sequences = st.sampled_from((None, None, None, None, 0, 1, 2, 4))
tokens_0_to_2 = st.sampled_from((0, 0, 0, 1, 1, 2))
suffixes: st.SearchStrategy[list[int]] = st.one_of(
    st.just([]), st.lists(tokens_0_to_2, max_size=2), st.lists(tokens_0_to_2, max_size=7)
)
