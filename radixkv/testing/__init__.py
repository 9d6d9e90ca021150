"""For authors of holders and engines: proof that they keep the contract of the cache service.

hash_model      a model that is wrong only if its KV is, for the engine of the worker
hash_kv_worker  a worker whose slots hold hashes, for any holder of a pool: each wrong block shows
"""
