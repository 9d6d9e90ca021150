"""The decode worker: a model over a pool of KV blocks.

run         a whole worker in one call
server      the Generation service
llm         `LLM`: generation in this process
pool_size   how many blocks a pool gets
threads     OpenMP and torch threads
errors      errors of a worker's own
engine/ > generations/, scheduling/ > sampling/ > model/ > loading/

Importing this package costs no torch; its modules do.
"""
