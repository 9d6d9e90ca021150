"""Sequences and their stages.

sequence       one growing branch on a path of nodes
plan           node and cost of a new sequence, before anything changes
lifecycle      opening, forking, releasing
publish        computed KV becomes part of the tree; the append right, or a copy
single_flight  one sequence computes a prefix, others wait for it
"""
