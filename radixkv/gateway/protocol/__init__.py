"""Field types and response formats that the HTTP APIs share.

api_model         the base of request bodies; unknown fields
fields            field types with their bounds
constraint        output constraint of a reply
errors            OpenAI errors
anthropic_errors  Anthropic errors
sse               server-sent events
follower          their followers
"""
