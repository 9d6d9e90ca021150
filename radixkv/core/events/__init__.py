"""Changes of a cache, for readers outside.

feed          numbered events, kept for readers that resume
subscription  one reader: a snapshot in slices, then every change
"""
