"""The Generation contract: what a client asks of a worker and reads from it; in process and over gRPC alike.

request           prompts, parameters, the `Generator` protocol
params            sampling parameters
stream            events and the stream they are read from
stats             figures of a worker
cost              tokens counted for a tenant's limit
metrics           Prometheus: a worker
thinking          marks around a reply's thoughts
thought_splitter  a streaming reply split into thoughts and text
verification      the answer of verifying a cached block
client            a worker in another process
wire              messages of the Generation service, both ways
"""
