"""The Messages API.

routes         requests
schema         fields that are read
reading        blocks that a text model reads
turns          messages to template turns
cache_control  prefixes to pin
usage          token counts
openapi        answers as the API description has them
"""
