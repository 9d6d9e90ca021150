"""The pages and the data they show.

pages        files of the pages, served from memory
cache_view   the live view of what a cache service holds
replay       shapes of the caller's last requests
"""
