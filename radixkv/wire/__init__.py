"""Values of the core as protobuf messages, both ways; no channel, no server.

steps     ops and answers of a holder's stream
reads     what readers ask and see
pool_ops  ops without a sequence; the journal
adoption  what a holder tells a restarted service
values    block ids, shapes, retention
errors    errors and gRPC status codes
"""
