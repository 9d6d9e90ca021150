"""Reports of a cache's state.

counters  counts since the cache was made
listing   radix nodes in slices
explain   where a prompt parts from the tree, and why
below     tokens of a prompt in the tiers below the pool
check     invariants recomputed from nothing but tree and sequences
audit     the same, a slice at a time while the cache is used
"""
