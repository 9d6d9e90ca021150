"""The worker's part of the block store.

- `stored_blocks`: which name each block of the pool holds, what is saved when, and loads for branches that start
- `block_files`: export and import of a history's blocks
- `fingerprint`: all that a block depends on but its tokens and namespace
- `rounding`: blocks in fewer bits at rest
- `opening`: the store from a worker's settings
"""
