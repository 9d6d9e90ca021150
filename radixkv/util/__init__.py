"""Helpers that are independent of caches.

calls           blocking calls on threads
closing         context managers that close themselves
doorbell        wake-ups of coroutines by another thread
fair_semaphore  shared places, given in turns
folders         the cache folder
heaps           memory returned to the system
json_text       JSON from outside, within bounds
pace            completion rate of a queue
"""
