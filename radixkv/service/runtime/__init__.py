"""The service's process.

collector      Python's garbage collector in a server
lasting_calls  calls that were not answered at once
"""
