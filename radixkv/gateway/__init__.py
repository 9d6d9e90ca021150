"""HTTP in front of a worker: the OpenAI API that chat frontends and evaluation jobs speak already.

request -> middleware -> auth, limits -> chat | completions | responses -> backend -> worker
           (id, size,    (exchange)      (what the API says, as             (events on
           drain, log)                    GenerateParams and back)           the loop)
"""
