"""Bodies of requests, within bounds.

json_body  bodies in JSON
uploads    a file uploaded as a form
"""
