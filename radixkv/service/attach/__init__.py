"""Holders of pools: `Workers.Attach`.

servicer  the gRPC streams
session   one stream from Hello to its end, as a state machine
"""
