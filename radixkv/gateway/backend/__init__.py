"""Asynchronous access to the worker.

backend      generation, tokens, figures; no call blocks the event loop
routed       a generator over the workers of several cache services
pools        calls to all pools of these services, answered by pool
clears       clears of namespaces in all pools, kept until each has confirmed them
members      who these workers are, how busy, and what each holds of a prompt
resume       a generation that outlives its worker
generations  tokens and texts emitted by running and recent generations
elsewhere    the same of other gateways
lately       a result cached for a short time
"""
