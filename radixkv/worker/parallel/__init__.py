"""Tensor parallelism: one worker whose model runs on several ranks, each with its share of the heads and of every matrix.

ranks       the other ranks' processes, seen from rank 0
rank        one of them
seat        the place of one rank, and the group that all form
runner      the model on one rank; and rank 0, which has the others do what it does
"""
