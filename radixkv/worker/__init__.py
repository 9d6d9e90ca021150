"""The decode worker: a model over a pool of KV blocks.

run         a whole worker in one call
server      the Generation service
llm         `LLM`: generation in this process
pool_size   how many blocks a pool gets
threads     OpenMP and torch threads
memory      memory of a device
placement   device and dtype
turns       turns between namespaces
errors      errors of a worker's own

engine > scheduling > generations > sampling > model > loading: each folder imports only from those to its right.

Importing this package costs no torch; its modules do.
"""
