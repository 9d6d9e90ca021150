"""A turn of a chat, shared by all APIs.

turns            prompt, generation, reply
messages         messages to template turns
options          sampling parameters from request fields
models           the served model and its adapters
replies          branches as they grow
reply_task       running generations
logprobs         log probabilities in both shapes
tools            functions a model may call
call_parser      calls found in a streaming reply
response_format  `response_format`
json_schemas     JSON schemas for the grammar engine
constraints      choice, regex, grammar in each client's fields
thinking_wish    whether and how long the model thinks
client_noise     headers that clients put in front of a prompt
openapi          response models of the API description
"""
