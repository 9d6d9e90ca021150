"""Helpers without a subject of ours.

folders    the cache folder
heaps      memory handed back to the system
json_text  JSON from outside, within bounds
pace       how fast a queue moves
"""
