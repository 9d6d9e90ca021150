"""The Responses API.

routes            requests
schema            request fields
plan              a parsed request
response_task     one running response
live_events       its events at other gateways
response_store    stored responses
items             items of the API
output            output items and events as they grow
tools             tools and calls
cut               a stored response up to a character
item_lists        storage of `/v1/conversations`
item_list_routes  its routes
openapi           response models of the API description
"""
