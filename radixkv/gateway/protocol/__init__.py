"""What the HTTP APIs share in reading fields and writing answers.

api_model         the base of request bodies; unknown fields
fields            field types with their bounds
constraint        what the text of a reply is held to
errors            OpenAI errors
anthropic_errors  Anthropic errors
sse               server-sent events
"""
