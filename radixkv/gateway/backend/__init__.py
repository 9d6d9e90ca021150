"""Asynchronous access to the worker.

backend      generation, tokens, figures; no call blocks the event loop
resume       a generation that outlives its worker
generations  tokens and texts emitted by running and recent generations
lately       a result cached for a short time
"""
