"""A turn of a chat, whatever the API.

turns            prompt, generation, reply
messages         messages to template turns
options          sampling parameters from request fields
models           the served model and its adapters
replies          branches as they grow
logprobs         log probabilities in both shapes
tools            functions a model may call
call_parser      calls found in a streaming reply
response_format  `response_format`
json_schemas     JSON schemas for the grammar engine
constraints      choice, regex, grammar in each client's words
thinking_wish    whether and how long a model thinks
client_noise     what clients put in front of a prompt
openapi          answers as the API description has them
"""
