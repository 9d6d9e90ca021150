"""HTTP in front of a worker: the OpenAI and Anthropic APIs that frontends and jobs speak already.

request -> middleware -> auth, limits -> chat | completions | responses | messages -> backend -> worker
           (id, size,    (exchange)      (what the API says, as                        (events on
           drain, log)                    GenerateParams and back)                      the loop)
"""
