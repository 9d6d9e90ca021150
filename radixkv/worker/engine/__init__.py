"""The engine: one thread that turns requests into tokens.

engine       the thread and its callers
loop         a round: one Step to the cache, one batch, one draw per row
step         launch of a batch, draws, events
prompts      prompts in any form to token ids
closed_loop  delay of a batch for requests that follow a reply
verify       recomputes a cached block and compares
"""
