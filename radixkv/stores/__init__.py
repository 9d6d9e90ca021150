"""The block store below a worker's pool: sealed KV blocks under names that only the namespace's key can derive.

store       all levels as one: saves blocks, reads them back, erases namespaces
saving      blocks on their way to disk and the remote level
loading     blocks on their way back into host memory
offline     a disk level's folder without its worker: list, check, trim, erase
host        the host level: the one owner of host memory for blocks
disk        the disk level
remote      the remote level: any RESP server
codec       a block, rounded where that is wished, and sealed
block       a sealed block with its name, parent and namespace
secrets     keys per namespace and their erasure, names and sealed bytes of blocks
block_file  the file of an export
leaf_first  the order of eviction: leaves first, the least recently used of them first
breaker     a level that fails rests, and is tried again
costs       load or recompute: measured costs, and the choice
stats       counters of a level
settings    a store's settings
errors      errors of the store
"""
