"""The Responses API.

routes            requests
schema            fields that are read
plan              what a request means
run               one running response
items             items of the API
output            output and events as they grow
tools             tools and calls
cut               a stored response up to a character
item_lists        `/v1/conversations` as stored
item_list_routes  its routes
openapi           answers as the API description has them
"""
