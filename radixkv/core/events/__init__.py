"""Changes of a cache, for readers outside.

feed          numbered events, kept for readers that resume
hashes        64-bit names of blocks by content
subscription  one reader: a snapshot in slices, then every change
"""
