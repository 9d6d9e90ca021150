"""The Messages API.

routes         requests
schema         request fields
reading        blocks that a text model reads
turns          messages to template turns
cache_control  prefixes to pin
usage          token counts
openapi        response models of the API description
"""
