"""The block store below a worker's pool: sealed blocks of KV under content-addressed names, on disk and on a remote server.

block     a sealed block with its name, parent and namespace
breaker   keeps callers away from a level that fails
remote    the remote level: a server that speaks RESP
stats     counters of a level
"""
