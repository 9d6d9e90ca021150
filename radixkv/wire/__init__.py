"""Values of the core as protobuf messages, both ways; no channel, no server.

steps     ops and answers of a holder's stream
reads     requests and answers of readers
pool_ops  ops without a sequence; the journal
adoption  a holder's report to a restarted service
values    block ids, shapes, retention
errors    errors and gRPC status codes
"""
