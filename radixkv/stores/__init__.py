"""The block store below a worker's pool: sealed KV blocks under names that only the namespace's key can derive.

block     a sealed block with its name, parent and namespace
cover     a pseudorandom function that can forget points
errors    errors of the store
keys      the key file: keys of each namespace, and their erasure
names     names of blocks
sealing   encryption of a block; its tag is the checksum
stats     counters of a level, and the breaker that rests a failing one
"""
