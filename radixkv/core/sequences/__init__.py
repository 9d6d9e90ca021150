"""The stages of a sequence.

plan           where a new sequence will stand and what it costs, before anything changes
lifecycle      opening, forking, releasing
publish        computed KV becomes part of the tree
single_flight  one sequence computes a prefix, others wait for it
"""
