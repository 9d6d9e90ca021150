"""The worker as coroutines see it.

backend      generation, tokens, figures; no call blocks the event loop
resume       a generation that outlives its worker
generations  what running and recent generations have told
calls        blocking calls on threads
lately       an answer made at most once in a while
"""
