"""The block store below a worker's pool: sealed blocks of KV under content-addressed names, on disk and on a remote server.

breaker   keeps callers away from a level that fails
stats     counters of a level
"""
