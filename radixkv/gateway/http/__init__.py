"""HTTP requests of every API: connections, bounds, authentication, limits, the log.

listener         accepts connections, in turns between addresses
connections      bounds of heads, bodies and silence
middleware       wraps every request: id, limits, log line
admission        the cost class of a request, by its head alone
shared_limits    limits of tenants over all gateways
gate             which requests may enter, round robin over tenants
auth             the tenant of a key
csrf             rejects cross-site requests of browsers
request_context  tenant, cost and record of one request
bodies           JSON and forms, within bounds
refusals         errors as responses of the API that was called
paths            aliases of served paths
inner_calls      calls the application for a request of a batch
recording        the last requests of each tenant
metrics          Prometheus
"""
