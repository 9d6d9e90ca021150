"""The HTTP APIs, a folder each.

openai/         completions and chat completions
responses/      the Responses API and its conversations
anthropic/      the Messages API
conversations/  branching conversations stored by the gateway
jobs/           files and batches
engine_routes   tokens, version, model in other engines' formats
forks           a reply that branches off a running or recent one
instructions    texts for the model that a tenant keeps under names
me              the caller, its limits, its usage
"""
