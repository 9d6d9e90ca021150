"""Helpers that know nothing of caches.

fair_semaphore  places that many share, given in turns
folders         the cache folder
heaps           memory handed back to the system
json_text       JSON from outside, within bounds
pace            how fast a queue moves
"""
