"""The proof of the core: a hash-KV worker, an independent oracle, one state machine for every backend, and planted bugs."""
