"""Engines and block managers to start from, each small and run by a test.

node_holder        a holder in JavaScript, from the protos alone
generation_server  an engine with the Generation calls, under the gateway's APIs and pages
block_manager      allocate, append, free and fork for an engine with block tables of its own
"""
