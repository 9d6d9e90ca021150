"""The Generation contract: requests and events of a worker, the same in process and over gRPC.

request           prompts, parameters, the `Generator` protocol
params            sampling parameters
stream            events and the stream they are read from
stats             figures of a worker
cost              tokens counted for a tenant's limit
metrics           Prometheus: a worker
thinking          marks around a reply's thoughts
thought_splitter  a streaming reply split into thoughts and text
erasure           result of erasing a namespace's stored blocks
block_file        exported files on their way
verification      result of verifying a cached block
client            a worker in another process
wire              messages of the Generation service, both ways
"""
