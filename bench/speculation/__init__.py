"""Decoding with drafts: `run` compares a worker with itself, `peers` with other systems; `loads` has the requests."""
