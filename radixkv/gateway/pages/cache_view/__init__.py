"""A live view of the cache service's radix tree.

service ── dump, stats, events ──> CacheObserver (one) ── changes ──> Viewer, one per page
"""
