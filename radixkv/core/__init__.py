"""The prefix cache: radix trees over one block pool. No I/O, no threads, no tensors.

api         the contract: calls, answers, ops of a Step
errors      the exception tree
reports     counters, times, events, pins, usage, nodes, as answers report them
explanation the answer of `explain`
tokens      token ids as packed bytes
namespaces  namespaces derived of an owner's
validation  bounds of arguments

cache > inspect > sequences, events > tree > eviction > nodes: each folder imports only from those to its right.
"""
