"""The decode worker: a transformers model over a pool of KV blocks.

Importing this package costs no torch; its modules do.
"""
