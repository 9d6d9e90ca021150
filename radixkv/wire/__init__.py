"""Values of the core as protobuf messages, both ways; no channel, no server.

codec    a table per class of values, compiled to functions
steps    ops and answers of a holder's stream
journal  changes to its pool that a holder follows
features names of what was added to the contract
reads    requests and answers of readers
values   block ids, shapes, retention
errors   errors and gRPC status codes
"""
