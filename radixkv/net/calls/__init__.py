"""Interceptors of every gRPC call.

auth             the guard: identifies the caller, checks rights, bounds the calls of each
callers          the caller of the call that is being served
cancelled_calls  tasks of calls cancelled before their request arrived
field_count      fields of a message, counted before it is parsed
malformed        rejects bytes that do not parse
health           gRPC's health service
reflecting       gRPC's reflection service
"""
