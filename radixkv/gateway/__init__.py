"""HTTP server in front of a worker: the OpenAI and Anthropic APIs that frontends and batch jobs already use.

request -> middleware -> auth, limits -> chat | completions | responses | messages -> backend -> worker
           (id, size,    (context)       (API fields to GenerateParams,                (events on
           drain, log)                   and back)                                     the loop)
"""
