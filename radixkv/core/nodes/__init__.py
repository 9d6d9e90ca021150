"""The elements of a radix tree.

node      an edge with its blocks; the index of a node's children
sequence  one growing branch on a path of nodes
"""
