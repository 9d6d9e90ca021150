"""The elements of a radix tree.

node       an edge with its blocks; the index of a node's children
retention  a node's priority, and until when
"""
