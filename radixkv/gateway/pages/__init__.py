"""The pages and what they read.

pages        files of the pages, served from memory
replay       shapes of the caller's last requests
cache_view/  the live tree
"""
