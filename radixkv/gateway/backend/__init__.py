"""Asynchronous access to the worker.

backend      generation, tokens, figures; no call blocks the event loop
resume       a generation that outlives its worker
generations  tokens and texts emitted by running and recent generations
calls        blocking calls on threads
lately       a result cached for a short time
"""
