"""One HTTP request, whatever API it speaks: connections, bounds, callers, limits, the log.

listener         accepts connections, in turns between addresses
connections      bounds of heads, bodies and silence
middleware       what stands around every request
admission        what a request counts as, by its head alone
gate             which requests may enter, in turns between tenants
auth             the tenant of a key
csrf             requests that a browser sends for somebody else's page
request_context  tenant, cost and record of one request
json_body        bodies in JSON, within bounds
uploads          a file uploaded as a form
refusals         errors as responses of the API that was called
paths            other spellings of our paths
inner_calls      a request of a batch, put to the application
recording        the last requests of each tenant
metrics          Prometheus
"""
