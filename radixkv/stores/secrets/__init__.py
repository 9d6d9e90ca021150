"""Keys of namespaces from one file that can forget, and names and sealed bytes of blocks under them.

keys        the key file: keys per namespace, and their erasure
cover       the seeds of all keys that are not erased
names       names of blocks
sealing     encryption of a block; its tag is the checksum
"""
