"""The HTTP APIs, a folder each.

openai/         completions and chat completions
responses/      the Responses API and its conversations
anthropic/      the Messages API
conversations/  branching conversations kept by the gateway
jobs/           files and batches
engine_routes   tokens, version, model in other engines' words
forks           a reply from within a running or recent one
me              who calls, what it may ask, what it used
"""
