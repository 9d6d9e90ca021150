"""The radix tree of the cache service, live, for people who look at it.

service ── dump, stats, events ──> CacheObserver (one, while somebody looks) ── changes ──> Viewer, one per page
"""
