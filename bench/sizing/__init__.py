"""Sizes to choose: blocks, layouts, KV in fewer bits, admission, long contexts."""
