"""KV in memory: caches, formats, and the movement of tokens and blocks, each with its kernels.

- `kv_cache`: K and V of one layer; `native_cache`: the same as a struct for C++
- `kv_format`, `rotation`: rows in eight or four bits
- `kv_write`: stores new tokens; `block_copy`: copy-on-write; `host_blocks`: host memory for swapped blocks
"""
