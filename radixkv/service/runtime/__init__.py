"""The service's process.

collector      Python's garbage collector in a server
lasting_calls  count of calls that are not answered at once
"""
