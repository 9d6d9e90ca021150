"""Sizes to choose: blocks, lines, KV in fewer bits, admission, long contexts."""
