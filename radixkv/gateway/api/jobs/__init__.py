"""Batches: thousands of requests submitted at once, run at lower priority than interactive ones, and fetched when done."""
