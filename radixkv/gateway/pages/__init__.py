"""The pages and the data they show.

pages        files of the pages, served from memory
replay       shapes of the caller's last requests
replay       shapes of the caller's last requests
"""
