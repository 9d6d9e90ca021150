"""A live view of the cache service's radix tree.

services ── calls to all pools ──────────────────> CacheView
pool ────── dump, stats, events ──> CacheObserver (one) ── changes ──> Viewer, one per page
"""
