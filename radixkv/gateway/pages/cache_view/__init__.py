"""The radix tree of the cache service, live, for people who look at it.

service ── dump, stats, events ──> CacheObserver, the only one ── changes ──> Viewer, one per page
"""
